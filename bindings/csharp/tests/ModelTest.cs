// Tests of the binding for C#.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;
using Tilewright;

/// <summary>Tests of the binding for C#: ModelTest FOLDER (what bindings/models.py wrote). Prints "ok NAME" for each.</summary>
internal static class ModelTest
{
    private static string folder;
    private static readonly float[] Table = Enumerable.Range(0, 20).Select(place => place + 0.5f).ToArray();
    private static readonly long[] Ids = { 4, 0, 2 };

    private static void Check(bool condition, string what)
    {
        if (!condition)
        {
            throw new Exception("not so: " + what);
        }
    }

    private static void Expect<T>(string text, Action action) where T : Exception
    {
        try
        {
            action();
        }
        catch (T error)
        {
            Check(error.Message.Contains(text), $"'{text}' in: {error.Message}");
            return;
        }
        throw new Exception($"no error that says '{text}'");
    }

    private static Model Open(string name) => new Model(Path.Combine(folder, name + ".so"));

    private static Tensor[] RowsInputs() => new[] { Tensor.Of(Table, 5, 4), Tensor.Of(Ids, 3) };

    private static void CheckRows(Tensor rows)
    {
        IEnumerable<float> expected = Ids.SelectMany(id => Table.Skip(4 * (int)id).Take(4));
        Check(rows.Data<float>().SequenceEqual(expected) && rows.Shape.SequenceEqual(new long[] { 3, 4 }), "rows");
    }

    private static void Load()
    {
        using (Model model = Open("digits"))
        using (var same = new Model(File.ReadAllBytes(Path.Combine(folder, "digits.so"))))
        {
            Check(model.Name == "digits" && same.Name == "digits", model.Name);
            Check(model.Inputs.Single().ToString() == "image: Float32[batch, 7, 5]", model.Inputs.Single().ToString());
            Dimension batch = model.Inputs[0].Shape[0];
            Check(batch.Size == -1 && batch.Symbol == "batch" && model.Inputs[0].Shape[1].Symbol == null, "batch");
            Check(model.Outputs[1].ToString() == "digit: Int64[batch]", model.Outputs[1].ToString());
            Check(model.Metadata.Contains("\"library\":\"digits\""), "metadata");
            model.SetNumThreads(1);
        }
    }

    private static void Run()
    {
        using (Model model = Open("rows"))
        {
            CheckRows(model.Run(RowsInputs())[0]);
            var rows = new float[12];
            model.RunInto(RowsInputs(), new[] { Tensor.Of(rows, 3, 4) });
            Check(rows[0] == 16.5f, "in place");
        }
    }

    private static void DynamicShapes()
    {
        using (Model model = Open("join"))
        {
            float[] right = { 5, 6, 7, 8, 9, 10 };
            Tensor[] inputs = { Tensor.Of(new float[] { 1, 2, 3, 4 }, 2, 2), Tensor.Of(new float[] { 10, 100 }, 2), Tensor.Of(right, 3, 2) };
            Check(model.OutputShapes(inputs).Single().SequenceEqual(new long[] { 5, 2 }), "shapes");
            Check(model.Run(inputs)[0].Data<float>().SequenceEqual(new float[] { 10, 20, 300, 400, 5, 6, 7, 8, 9, 10 }), "joined");
            var none = new float[0];
            Check(model.Run(Tensor.Of(none, 0, 2), Tensor.Of(none, 0), Tensor.Of(right, 3, 2))[0].Data<float>().SequenceEqual(right), "fewer");
        }
    }

    private static void Async()
    {
        using (Model model = Open("rows"))
        {
            Task<Tensor[]>[] jobs = Enumerable.Range(0, 8).Select(_ => model.RunAsync(RowsInputs())).ToArray();
            foreach (Task<Tensor[]> job in jobs)
            {
                CheckRows(job.Result[0]);
            }
            Func<Task> failing = async () => await model.RunAsync(Tensor.Of(Table, 5, 4), Tensor.Of(new long[] { 0, 7, 1 }, 3));
            Expect<InvalidDataException>("lookup", () => failing().GetAwaiter().GetResult());
            var cancelled = new CancellationToken(true);
            Expect<TaskCanceledException>("", () => model.RunAsync(RowsInputs(), cancelled).GetAwaiter().GetResult());
        }
    }

    private static void ErrorsArguments()
    {
        using (Model model = Open("rows"))
        using (Model join = Open("join"))
        {
            Tensor ids = Tensor.Of(Ids, 3);
            Expect<ArgumentException>("is of float64, expected float32", () => model.Run(Tensor.Of(new double[20], 5, 4), ids));
            Expect<ArgumentException>("axis 0 must be 5, not 4", () => model.Run(Tensor.Of(Table, 4, 5), ids));
            Expect<ArgumentException>("3 dimensions", () => model.Run(Tensor.Of(Table, 1, 5, 4), ids));
            Expect<ArgumentException>("76 bytes, its shape needs 80", () => model.Run(Tensor.Of(new float[19], 5, 4), ids));
            Expect<ArgumentException>("2 inputs, 1 were given", () => model.Run(ids));
            Expect<ArgumentException>("2 inputs, 0 were given", () => model.Run());
            Expect<ArgumentNullException>("", () => model.Run(null, ids));
            Expect<InvalidDataException>("out of range", () => model.Run(Tensor.Of(Table, 5, 4), Tensor.Of(new long[] { 0, 7, 1 }, 3)));
            Expect<ArgumentException>("at least 0", () => model.SetNumThreads(-1));
            Expect<ArgumentException>("is of Float32, not of Int64", () => model.Run(RowsInputs())[0].Data<long>());
            Expect<ArgumentException>("not elements of Boolean", () => Tensor.Of(new bool[1], 1));
            var own = new float[20];
            Tensor[] inputs = { Tensor.Of(own, 5, 4), ids };
            Expect<ArgumentException>("shares memory", () => model.RunInto(inputs, new[] { Tensor.Of(own, 3, 4) }));
            var four = new float[4];
            Expect<ArgumentException>("'scale' has the shape [4], expected [n]",
                () => join.Run(Tensor.Of(four, 2, 2), Tensor.Of(four, 4), Tensor.Of(four, 2, 2)));
        }
    }

    private static void ErrorsLibraries()
    {
        Expect<IOException>("No such file", () => new Model("/nowhere/model.so"));
        Expect<NotSupportedException>("virtual machine", () => Open("loop"));
        Expect<NotSupportedException>("not a model", () => Open("functions"));
        Expect<BadImageFormatException>("not a shared library", () => new Model(new byte[0]));
        Expect<ArgumentNullException>("", () => new Model((string)null));
        string[] damaged = Directory.GetFiles(Path.Combine(folder, "damaged"));
        Check(damaged.Length > 20, "damaged libraries");
        foreach (string path in damaged)
        {
            try
            {
                new Model(path).Dispose();
            }
            catch (Exception error) when (error is BadImageFormatException || error is NotSupportedException)
            {
                continue;
            }
            throw new Exception(path + " was not refused");
        }
    }

    private static void ErrorsClosed()
    {
        Model model = Open("rows");
        model.Dispose();
        model.Dispose();
        Expect<ObjectDisposedException>("has been closed", () => model.Run(RowsInputs()));
        Expect<ObjectDisposedException>("has been closed", () => Check(model.Inputs.Count == 0, "inputs"));
        Expect<ObjectDisposedException>("has been closed", () => model.SetNumThreads(1));
    }

    private static void ErrorsThreads()
    {
        Model model = Open("rows");
        int closed = 0, failures = 0;
        Thread[] threads = Enumerable.Range(0, 4).Select(_ => new Thread(() =>
        {
            try
            {
                while (true)
                {
                    CheckRows(model.Run(RowsInputs())[0]);
                }
            }
            catch (ObjectDisposedException)
            {
                Interlocked.Increment(ref closed);
            }
            catch (Exception)
            {
                Interlocked.Increment(ref failures);
            }
        })).ToArray();
        foreach (Thread thread in threads)
        {
            thread.Start();
        }
        Thread.Sleep(50);
        model.Dispose();
        foreach (Thread thread in threads)
        {
            thread.Join();
        }
        Check(closed == 4 && failures == 0, $"{closed} {failures}");
    }

    private static void GpuRefused() => Expect<NotSupportedException>("device (opencl)", () => Open("device_open"));

    /// <summary>The same answers on a device as on the processor.</summary>
    private static void Gpu()
    {
        Tensor image = Tensor.Of(Enumerable.Range(0, 35).Select(place => place % 3 == 0 ? 1f : 0f).ToArray(), 1, 7, 5);
        using (Model host = Open("digits"))
        using (Model device = Open("device"))
        {
            Tensor[] here = host.Run(image), there = device.Run(image);
            Check(here[1].Data<long>()[0] == there[1].Data<long>()[0], "digit");
            IEnumerable<float> differences = here[0].Data<float>().Zip(there[0].Data<float>(), (a, b) => Math.Abs(a - b));
            Check(differences.Max() < 1e-5, "probabilities");
        }
    }

    private static long Resident() => long.Parse(File.ReadAllText("/proc/self/statm").Split(' ')[1]) * 4096;

    private static void Leaks()
    {
        Tensor rows = Tensor.Of(new float[20000], 10000, 2), scale = Tensor.Of(new float[10000], 10000);
        Tensor[] joined = { Tensor.Of(new float[40000], 20000, 2) };
        long before = 0;
        for (int round = 0; round < 600; ++round)
        {
            if (round == 100)
            {
                GC.Collect();
                before = Resident();
            }
            using (Model model = Open("join"))
            {
                model.RunInto(new[] { rows, scale, rows }, joined);
            }
        }
        GC.Collect();
        // A leak of a workspace of 80 KB a round would be 40 MB.
        Check(Resident() < before + (24 << 20), $"{before} {Resident()}");
    }

    private static int Main(string[] arguments)
    {
        folder = arguments[0];
        Action[] tests = { Load, Run, DynamicShapes, Async, ErrorsArguments, ErrorsLibraries, ErrorsClosed, ErrorsThreads, GpuRefused, Leaks };
        bool hasDevice = Environment.GetEnvironmentVariable("TILEWRIGHT_GPU") != null;
        foreach (Action test in hasDevice ? tests.Append(Gpu) : tests)
        {
            test();
            Console.WriteLine("ok " + test.Method.Name);
        }
        return 0;
    }
}
