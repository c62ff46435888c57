package dev.tilewright;

/**
 * One extent of a stated shape.
 *
 * @param size the number, or -1 where a call decides it
 * @param symbol what a call decides, as text ("batch", "n + m"), or null
 */
public record Dimension(long size, String symbol) {
    /** Whether a call decides it. */
    public boolean isSymbolic() {
        return symbol != null;
    }

    @Override
    public String toString() {
        return isSymbolic() ? symbol : Long.toString(size);
    }
}
