package dev.tilewright;

/** The data type of an array's elements. Floats of 16 bits and fewer are passed as their bits, booleans as bytes of 0 and 1. */
public enum DType {
    BOOL(1), INT8(1), INT16(2), INT32(4), INT64(8), UINT8(1), UINT16(2), UINT32(4), UINT64(8),
    FLOAT16(2), BFLOAT16(2), FLOAT32(4), FLOAT64(8),
    FLOAT8_E4M3FN(1), FLOAT8_E4M3FNUZ(1), FLOAT8_E5M2(1), FLOAT8_E5M2FNUZ(1), FLOAT8_E8M0FNU(1), FLOAT4_E2M1FN(1),
    INT1(1), INT2(1), INT4(1), UINT1(1), UINT2(1), UINT4(1);

    private final int size;

    DType(int size) {
        this.size = size;
    }

    /** How many bytes an element takes. */
    public int size() {
        return size;
    }

    int code() {
        return ordinal() + 1;
    }

    static DType of(int code) {
        if (code < 1 || code > values().length) {
            throw new UnsupportedOperationException("the library has a data type that is too new");
        }
        return values()[code - 1];
    }

    @Override
    public String toString() {
        return name().toLowerCase(java.util.Locale.ROOT);
    }
}
