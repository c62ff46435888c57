package dev.tilewright;

/** A value that the model cannot use: an index out of range, a division by zero. */
public final class DataException extends RuntimeException {
    private static final long serialVersionUID = 1;

    DataException(String message) {
        super(message);
    }
}
