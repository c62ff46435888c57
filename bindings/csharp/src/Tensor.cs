// Arrays that go in and come out of models, without copies.
using System;
using System.Collections.Generic;
using System.Linq;

namespace Tilewright
{
    /// <summary>The data type of an array's elements. Floats of 16 bits and fewer are passed as their bits, booleans as bytes.</summary>
    public enum DType
    {
#pragma warning disable 1591 // the names say it
        Bool = 1, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
        Float16, BFloat16, Float32, Float64,
        Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Float8E8M0FNU, Float4E2M1FN,
        Int1, Int2, Int4, UInt1, UInt2, UInt4,
#pragma warning restore 1591
    }

    /// <summary>An array of .NET with a shape. Models read and write it in place.</summary>
    public sealed class Tensor
    {
        private static readonly Dictionary<Type, DType> Types = new Dictionary<Type, DType>
        {
            [typeof(sbyte)] = DType.Int8, [typeof(short)] = DType.Int16, [typeof(int)] = DType.Int32, [typeof(long)] = DType.Int64,
            [typeof(byte)] = DType.UInt8, [typeof(ushort)] = DType.UInt16, [typeof(uint)] = DType.UInt32, [typeof(ulong)] = DType.UInt64,
            [typeof(float)] = DType.Float32, [typeof(double)] = DType.Float64,
        };

        private readonly long[] shape;

        private Tensor(DType dtype, Array elements, long[] shape)
        {
            DType = dtype;
            Elements = elements;
            this.shape = (long[])shape.Clone();
        }

        /// <summary>The data type of the elements.</summary>
        public DType DType { get; }

        /// <summary>The sizes of all dimensions.</summary>
        public IReadOnlyList<long> Shape => shape;

        internal Array Elements { get; }

        internal long[] RawShape => shape;

        /// <summary>Elements of their own data type. Nothing is copied.</summary>
        public static Tensor Of<T>(T[] elements, params long[] shape) where T : struct
        {
            if (!Types.TryGetValue(typeof(T), out DType dtype))
            {
                throw new ArgumentException($"a tensor has numbers, not elements of {typeof(T).Name}");
            }
            return As(dtype, elements, shape);
        }

        /// <summary>Elements of a data type that .NET does not have, as their bits: float16 in an array of ushort.</summary>
        public static Tensor As<T>(DType dtype, T[] elements, params long[] shape) where T : struct
        {
            if (elements == null)
            {
                throw new ArgumentNullException(nameof(elements));
            }
            if (!Types.ContainsKey(typeof(T)))
            {
                throw new ArgumentException($"a tensor has numbers, not elements of {typeof(T).Name}");
            }
            return new Tensor(dtype, elements, shape);
        }

        /// <summary>The array itself. Booleans and small floats are arrays of bytes and of ushort.</summary>
        public T[] Data<T>() where T : struct
        {
            return Elements as T[] is T[] elements && Elements.GetType() == typeof(T[])
                ? elements
                : throw new ArgumentException($"the tensor is of {DType}, not of {typeof(T).Name}");
        }

        internal static Tensor Zeros(DType dtype, long[] shape)
        {
            long count = shape.Aggregate(1L, (product, size) => checked(product * size));
            return new Tensor(dtype, Array.CreateInstance(ElementType(dtype), count), shape);
        }

        internal long Bytes => Buffer.ByteLength(Elements);

        private static Type ElementType(DType dtype)
        {
            foreach (KeyValuePair<Type, DType> known in Types)
            {
                if (known.Value == dtype)
                {
                    return known.Key;
                }
            }
            switch (dtype)
            {
                case DType.Float16: case DType.BFloat16: return typeof(ushort);
                case DType.Int1: case DType.Int2: case DType.Int4: return typeof(sbyte);
                default: return typeof(byte);
            }
        }
    }
}
