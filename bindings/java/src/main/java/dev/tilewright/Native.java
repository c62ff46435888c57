package dev.tilewright;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;

/** The runtime for C. A method returns a status and writes the sentence of an error, as UTF-8 up to a zero, to its last argument. */
final class Native {
    private static final int ERROR_BYTES = 1020;

    static {
        load();
    }

    private Native() {}

    /** From where -Dtilewright.library says, else from the archive, else from java.library.path. */
    private static void load() {
        String path = System.getProperty("tilewright.library");
        if (path != null) {
            System.load(path);
            return;
        }
        String resource = "/native/" + System.getProperty("os.arch") + "/libtilewright_jni.so";
        try (InputStream stream = Native.class.getResourceAsStream(resource)) {
            if (stream == null) {
                System.loadLibrary("tilewright_jni");
                return;
            }
            Path file = Files.createTempFile("tilewright", ".so");
            try {
                Files.copy(stream, file, StandardCopyOption.REPLACE_EXISTING);
                System.load(file.toString());
            } finally {
                Files.delete(file);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static native int open(byte[] path, long[] model, byte[] error);

    static native int openBytes(byte[] library, long[] model, byte[] error);

    static native int close(long model, byte[] error);

    /** The counts of inputs and outputs. */
    static native int describe(long model, byte[][] name, int[] counts, byte[] error);

    /** Data type and rank in `numbers`, the shape in `shape[0]`, the name and the texts of dimensions in `texts[0]`. */
    static native int inspect(long model, int role, int index, int[] numbers, long[][] shape, byte[][][] texts, byte[] error);

    static native int metadata(long model, byte[][] json, byte[] error);

    static native int setNumThreads(long model, long threads, byte[] error);

    static native int outputShapes(long model, long[][] shapes, int[] dtypes, long[] dimensions, byte[] error);

    static native int run(long model, ByteBuffer[] buffers, long[][] shapes, int[] dtypes, int inputs, byte[] error);

    /** A call of one of the methods above, given the array for its error. */
    interface Call {
        int status(byte[] error);
    }

    /** Raise what a status stands for. */
    static void check(Call call) {
        try {
            checkOpening(call);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** The same, for calls that read files. */
    static void checkOpening(Call call) throws IOException {
        byte[] error = new byte[ERROR_BYTES];
        int status = call.status(error);
        if (status == 0) {
            return;
        }
        int length = 0;
        while (length < error.length && error[length] != 0) {
            length++;
        }
        String message = new String(error, 0, length, StandardCharsets.UTF_8);
        switch (status) {
            case 2 -> throw new IOException(message);
            case 3 -> throw new LibraryException(message);
            case 4 -> throw new UnsupportedOperationException(message);
            case 7 -> throw new OutOfMemoryError(message);
            case 8 -> throw new DataException(message);
            case 9 -> throw new IllegalStateException(message);
            default -> throw new IllegalArgumentException(message);
        }
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }
}
