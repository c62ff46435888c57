package dev.tilewright;

import java.io.IOException;

/** A file that is no library, or one that is truncated or damaged. */
public final class LibraryException extends IOException {
    private static final long serialVersionUID = 1;

    LibraryException(String message) {
        super(message);
    }
}
