// Models in C#: opening, calls at once and as tasks, closing.
using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace Tilewright
{
    /// <summary>One extent of a stated shape: a number, or (-1) what a call decides, with its text ("batch", "n + m").</summary>
    public struct Dimension
    {
        internal Dimension(long size, string symbol)
        {
            Size = size;
            Symbol = symbol;
        }

        /// <summary>The number, or -1.</summary>
        public long Size { get; }

        /// <summary>What a call decides, or null.</summary>
        public string Symbol { get; }

        /// <inheritdoc/>
        public override string ToString() => Symbol ?? Size.ToString();
    }

    /// <summary>An input or output, as the model states it.</summary>
    public sealed class Value
    {
        internal Value(string name, DType dtype, IReadOnlyList<Dimension> shape)
        {
            Name = name;
            DType = dtype;
            Shape = shape;
        }

        /// <summary>The name that the user's model gives it.</summary>
        public string Name { get; }

        /// <summary>The data type of its elements.</summary>
        public DType DType { get; }

        /// <summary>Its dimensions.</summary>
        public IReadOnlyList<Dimension> Shape { get; }

        /// <inheritdoc/>
        public override string ToString() => $"{Name}: {DType}[{string.Join(", ", Shape)}]";
    }

    /// <summary>
    /// A model that Tilewright has exported. Every member may be called from every thread at any time. After Dispose they throw
    /// ObjectDisposedException; calls that run while a model is disposed of end as if it were not.
    /// </summary>
    public sealed class Model : IDisposable
    {
        private const int Input = 0;
        private const int Output = 1;

        private readonly long number;

        /// <summary>Open a library file. A library is native code: open those whose origin you trust.</summary>
        public Model(string path)
        {
            if (path == null)
            {
                throw new ArgumentNullException(nameof(path));
            }
            byte[] text = Encoding.UTF8.GetBytes(path + "\0");
            long opened = 0;
            Native.Check(error => Native.tilewright_open(text, out opened, error));
            number = opened;
        }

        /// <summary>Open the bytes of a library.</summary>
        public Model(byte[] library)
        {
            if (library == null)
            {
                throw new ArgumentNullException(nameof(library));
            }
            // An empty array has no address.
            byte[] bytes = library.Length == 0 ? new byte[1] : library;
            long opened = 0;
            Native.Check(error => Native.tilewright_open_bytes(bytes, library.Length, out opened, error));
            number = opened;
        }

        /// <summary>One that nobody disposed of is closed when it is collected.</summary>
        ~Model()
        {
            Native.tilewright_close(number, null);
        }

        /// <summary>Close the model. Closing it again does nothing.</summary>
        public void Dispose()
        {
            Native.tilewright_close(number, null);
            GC.SuppressFinalize(this);
        }

        /// <summary>The library's name.</summary>
        public string Name
        {
            get
            {
                Counts(out string name);
                return name;
            }
        }

        /// <summary>What the model takes.</summary>
        public IReadOnlyList<Value> Inputs => Values(Input);

        /// <summary>What the model gives.</summary>
        public IReadOnlyList<Value> Outputs => Values(Output);

        /// <summary>The library's description of itself, as JSON.</summary>
        public string Metadata
        {
            get
            {
                IntPtr json = IntPtr.Zero;
                Call(error => Native.tilewright_metadata(number, out json, error));
                return Native.Text(json);
            }
        }

        /// <summary>Threads that calls of this library use from now on; 0 is the default.</summary>
        public void SetNumThreads(int threads)
        {
            Call(error => Native.tilewright_set_num_threads(number, threads, error));
        }

        /// <summary>The shapes that the outputs will have for these inputs.</summary>
        public long[][] OutputShapes(params Tensor[] inputs) => Planned(inputs, Outputs);

        /// <summary>One inference.</summary>
        public Tensor[] Run(params Tensor[] inputs)
        {
            IReadOnlyList<Value> stated = Outputs;
            long[][] shapes = Planned(inputs, stated);
            Tensor[] outputs = stated.Select((value, index) => Tensor.Zeros(value.DType, shapes[index])).ToArray();
            RunInto(inputs, outputs);
            return outputs;
        }

        /// <summary>One inference into tensors that are there. They must share no memory with anything else.</summary>
        public void RunInto(Tensor[] inputs, Tensor[] outputs)
        {
            using (var from = new Pinned(inputs))
            using (var to = new Pinned(outputs))
            {
                Call(error => Native.tilewright_run(
                    number, from.Tensors, inputs.Length, to.Tensors, outputs.Length, error));
            }
        }

        /// <summary>One inference on the thread pool. A run that has begun is not cancelled.</summary>
        public Task<Tensor[]> RunAsync(Tensor[] inputs, CancellationToken cancellation = default(CancellationToken))
        {
            return Task.Run(() => Run(inputs), cancellation);
        }

        /// <summary>One inference on the thread pool.</summary>
        public Task<Tensor[]> RunAsync(params Tensor[] inputs) => RunAsync(inputs, CancellationToken.None);

        /// <summary>The model is not collected, and thereby closed, while a call of it runs.</summary>
        private void Call(Func<byte[], int> function)
        {
            Native.Check(function);
            GC.KeepAlive(this);
        }

        private int[] Counts(out string name)
        {
            IntPtr text = IntPtr.Zero;
            int inputs = 0, outputs = 0;
            Call(error => Native.tilewright_describe(number, out text, out inputs, out outputs, out int symbols, error));
            name = Native.Text(text);
            return new[] { inputs, outputs };
        }

        private IReadOnlyList<Value> Values(int role)
        {
            int count = Counts(out string name)[role];
            return Enumerable.Range(0, count).Select(index => ValueAt(role, index)).ToArray();
        }

        private Value ValueAt(int role, int index)
        {
            var raw = new Native.RawValue();
            Call(error => Native.tilewright_inspect(number, role, index, out raw, error));
            var shape = new Dimension[raw.Rank];
            for (int axis = 0; axis < raw.Rank; ++axis)
            {
                IntPtr symbol = Marshal.ReadIntPtr(raw.Symbolic, axis * IntPtr.Size);
                shape[axis] = new Dimension(Marshal.ReadInt64(raw.Shape, axis * 8), Native.Text(symbol));
            }
            return new Value(Native.Text(raw.Name), (DType)raw.DType, shape);
        }

        private long[][] Planned(Tensor[] inputs, IReadOnlyList<Value> outputs)
        {
            int total = outputs.Sum(value => value.Shape.Count);
            var dimensions = new long[total];
            using (var from = new Pinned(inputs))
            {
                Call(error => Native.tilewright_output_shapes(
                    number, from.Tensors, inputs.Length, dimensions, total, error));
            }
            int at = 0;
            return outputs.Select(value =>
            {
                long[] shape = dimensions.Skip(at).Take(value.Shape.Count).ToArray();
                at += value.Shape.Count;
                return shape;
            }).ToArray();
        }

        /// <summary>Arrays that stay where they are while the runtime has their addresses.</summary>
        private sealed class Pinned : IDisposable
        {
            private readonly List<GCHandle> handles = new List<GCHandle>();

            internal Pinned(Tensor[] tensors)
            {
                if (tensors == null || tensors.Contains(null))
                {
                    throw new ArgumentNullException(nameof(tensors));
                }
                Tensors = new Native.RawTensor[tensors.Length];
                for (int index = 0; index < tensors.Length; ++index)
                {
                    Tensors[index] = new Native.RawTensor
                    {
                        Data = Pin(tensors[index].Elements),
                        Bytes = tensors[index].Bytes,
                        Shape = Pin(tensors[index].RawShape),
                        Rank = tensors[index].RawShape.Length,
                        DType = (int)tensors[index].DType,
                    };
                }
            }

            internal Native.RawTensor[] Tensors { get; }

            public void Dispose()
            {
                foreach (GCHandle handle in handles)
                {
                    handle.Free();
                }
            }

            private IntPtr Pin(Array array)
            {
                GCHandle handle = GCHandle.Alloc(array, GCHandleType.Pinned);
                handles.Add(handle);
                return handle.AddrOfPinnedObject();
            }
        }
    }
}
