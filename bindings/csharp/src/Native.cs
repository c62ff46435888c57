// The functions of the runtime for C, by P/Invoke, and its errors as exceptions.
using System;
using System.IO;
using System.Runtime.InteropServices;
using System.Text;

namespace Tilewright
{
    /// <summary>tilewright.h as it is: libtilewright.so must be where the system's loader finds it.</summary>
    internal static class Native
    {
        private const string Library = "tilewright";
        private const int ErrorBytes = 1024;

        [StructLayout(LayoutKind.Sequential)]
        internal struct RawTensor
        {
            internal IntPtr Data;
            internal long Bytes;
            internal IntPtr Shape;
            internal int Rank;
            internal int DType;
        }

        [StructLayout(LayoutKind.Sequential)]
        internal struct RawValue
        {
            internal IntPtr Name;
            internal int DType;
            internal int Rank;
            internal IntPtr Shape;
            internal IntPtr Symbolic;
        }

        [DllImport(Library)]
        internal static extern int tilewright_open(byte[] path, out long model, byte[] error);

        [DllImport(Library)]
        internal static extern int tilewright_open_bytes(byte[] bytes, long size, out long model, byte[] error);

        [DllImport(Library)]
        internal static extern int tilewright_close(long model, byte[] error);

        [DllImport(Library)]
        internal static extern int tilewright_describe(
            long model, out IntPtr name, out int inputs, out int outputs, out int symbols, byte[] error);

        [DllImport(Library)]
        internal static extern int tilewright_inspect(long model, int role, int index, out RawValue value, byte[] error);

        [DllImport(Library)]
        internal static extern int tilewright_metadata(long model, out IntPtr json, byte[] error);

        [DllImport(Library)]
        internal static extern int tilewright_set_num_threads(long model, long threads, byte[] error);

        [DllImport(Library)]
        internal static extern int tilewright_output_shapes(
            long model, RawTensor[] inputs, int inputCount, long[] dimensions, int capacity, byte[] error);

        [DllImport(Library)]
        internal static extern int tilewright_run(
            long model, RawTensor[] inputs, int inputCount, RawTensor[] outputs, int outputCount, byte[] error);

        /// <summary>A text of the runtime, which a zero ends; null where there is none.</summary>
        internal static string Text(IntPtr pointer)
        {
            if (pointer == IntPtr.Zero)
            {
                return null;
            }
            int length = 0;
            while (Marshal.ReadByte(pointer, length) != 0)
            {
                ++length;
            }
            var bytes = new byte[length];
            Marshal.Copy(pointer, bytes, 0, length);
            return Encoding.UTF8.GetString(bytes);
        }

        /// <summary>Call a function with the memory for its error, and throw what its status stands for.</summary>
        internal static void Check(Func<byte[], int> function)
        {
            var error = new byte[ErrorBytes];
            int status = function(error);
            if (status == 0)
            {
                return;
            }
            const int start = 4; // behind the status
            int end = Array.IndexOf(error, (byte)0, start);
            string message = Encoding.UTF8.GetString(error, start, (end < 0 ? ErrorBytes : end) - start);
            switch (status)
            {
                case 2: throw new IOException(message);
                case 3: throw new BadImageFormatException(message);
                case 4: throw new NotSupportedException(message);
                case 7: throw new OutOfMemoryException(message);
                case 8: throw new InvalidDataException(message);
                case 9: throw new ObjectDisposedException(nameof(Model), message);
                default: throw new ArgumentException(message);
            }
        }
    }
}
