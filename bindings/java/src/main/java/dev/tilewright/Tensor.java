package dev.tilewright;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/** An array outside of Java's heap, with a shape: models read and write it in place. */
public final class Tensor {
    final ByteBuffer memory;
    final long[] shape;
    private final DType dtype;

    private Tensor(DType dtype, ByteBuffer memory, long[] shape) {
        this.dtype = dtype;
        this.memory = memory;
        this.shape = shape;
    }

    /** Memory of the caller, which must be a direct buffer of this machine's byte order; from its position to its limit. */
    public static Tensor wrap(DType dtype, ByteBuffer memory, long... shape) {
        if (!memory.isDirect()) {
            throw new IllegalArgumentException("a tensor needs a direct buffer (ByteBuffer.allocateDirect)");
        }
        return new Tensor(dtype, memory.slice().order(ByteOrder.nativeOrder()), shape.clone());
    }

    /** Zeros. */
    public static Tensor zeros(DType dtype, long... shape) {
        long bytes = dtype.size();
        for (long size : shape) {
            if (size < 0) {
                throw new IllegalArgumentException("an array cannot have the shape " + Arrays.toString(shape));
            }
            bytes = Math.multiplyExact(bytes, size);
        }
        return wrap(dtype, ByteBuffer.allocateDirect(Math.toIntExact(bytes)), shape);
    }

    /** A copy of elements. */
    public static Tensor of(float[] elements, long... shape) {
        Tensor tensor = zeros(DType.FLOAT32, elements.length);
        tensor.memory.asFloatBuffer().put(elements);
        return new Tensor(DType.FLOAT32, tensor.memory, shape.clone());
    }

    /** A copy of elements. */
    public static Tensor of(double[] elements, long... shape) {
        Tensor tensor = zeros(DType.FLOAT64, elements.length);
        tensor.memory.asDoubleBuffer().put(elements);
        return new Tensor(DType.FLOAT64, tensor.memory, shape.clone());
    }

    /** A copy of elements. */
    public static Tensor of(int[] elements, long... shape) {
        Tensor tensor = zeros(DType.INT32, elements.length);
        tensor.memory.asIntBuffer().put(elements);
        return new Tensor(DType.INT32, tensor.memory, shape.clone());
    }

    /** A copy of elements. */
    public static Tensor of(long[] elements, long... shape) {
        Tensor tensor = zeros(DType.INT64, elements.length);
        tensor.memory.asLongBuffer().put(elements);
        return new Tensor(DType.INT64, tensor.memory, shape.clone());
    }

    /** The data type of the elements. */
    public DType dtype() {
        return dtype;
    }

    /** The sizes of all dimensions. */
    public long[] shape() {
        return shape.clone();
    }

    /** The memory itself, for every data type. */
    public ByteBuffer buffer() {
        return memory.duplicate().order(ByteOrder.nativeOrder());
    }

    private ByteBuffer typed(DType expected) {
        if (dtype != expected) {
            throw new IllegalArgumentException("the tensor is of " + dtype + ", not of " + expected);
        }
        return buffer();
    }

    /** A copy of the elements of a float32 tensor. */
    public float[] floats() {
        float[] elements = new float[typed(DType.FLOAT32).remaining() / 4];
        buffer().asFloatBuffer().get(elements);
        return elements;
    }

    /** A copy of the elements of a float64 tensor. */
    public double[] doubles() {
        double[] elements = new double[typed(DType.FLOAT64).remaining() / 8];
        buffer().asDoubleBuffer().get(elements);
        return elements;
    }

    /** A copy of the elements of an int32 tensor. */
    public int[] ints() {
        int[] elements = new int[typed(DType.INT32).remaining() / 4];
        buffer().asIntBuffer().get(elements);
        return elements;
    }

    /** A copy of the elements of an int64 tensor. */
    public long[] longs() {
        long[] elements = new long[typed(DType.INT64).remaining() / 8];
        buffer().asLongBuffer().get(elements);
        return elements;
    }
}
