package dev.tilewright;

import java.util.List;

/**
 * An input or output, as the model states it.
 *
 * @param name the name that the user's model gives it
 * @param dtype the data type of its elements
 * @param shape its dimensions
 */
public record Value(String name, DType dtype, List<Dimension> shape) {}
