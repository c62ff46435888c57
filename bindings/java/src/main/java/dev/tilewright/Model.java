package dev.tilewright;

import java.io.IOException;
import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.ForkJoinPool;
import java.util.stream.Stream;

/**
 * A model that Tilewright has exported.
 *
 * <pre>{@code
 * try (Model model = Model.open(Path.of("digits.so"))) {
 *     List<Tensor> outputs = model.run(Tensor.of(image, 1, 7, 5));
 *     float[] probabilities = outputs.get(0).floats();
 * }
 * }</pre>
 *
 * Every method may be called from every thread at any time. After {@link #close} they throw IllegalStateException; calls that
 * run while a model is closed end as if it were not.
 */
public final class Model implements AutoCloseable {
    private static final Cleaner CLEANER = Cleaner.create();
    private static final int INPUT = 0;
    private static final int OUTPUT = 1;

    private final long number;

    private Model(long number) {
        this.number = number;
        CLEANER.register(this, () -> Native.close(number, new byte[0]));
    }

    /** Open a library file. A library is native code: open those whose origin you trust. */
    public static Model open(Path path) throws IOException {
        byte[] text = (path + "\0").getBytes(StandardCharsets.UTF_8);
        long[] model = new long[1];
        Native.checkOpening(error -> Native.open(text, model, error));
        return new Model(model[0]);
    }

    /** Open the bytes of a library. */
    public static Model open(byte[] library) throws IOException {
        long[] model = new long[1];
        Native.checkOpening(error -> Native.openBytes(library, model, error));
        return new Model(model[0]);
    }

    /** Close the model. Closing it again does nothing. */
    @Override
    public void close() {
        Native.close(number, new byte[0]);
    }

    /** The model is not collected, and thereby closed, while a call of it runs. */
    private void call(Native.Call call) {
        try {
            Native.check(call);
        } finally {
            Reference.reachabilityFence(this);
        }
    }

    private int count(int role, byte[][] name) {
        int[] counts = new int[2];
        call(error -> Native.describe(number, name, counts, error));
        return counts[role];
    }

    /** The library's name. */
    public String name() {
        byte[][] name = new byte[1][];
        count(INPUT, name);
        return Native.text(name[0]);
    }

    /** What the model takes. */
    public List<Value> inputs() {
        return values(INPUT);
    }

    /** What the model gives. */
    public List<Value> outputs() {
        return values(OUTPUT);
    }

    private List<Value> values(int role) {
        int count = count(role, new byte[1][]);
        List<Value> values = new ArrayList<>(count);
        for (int index = 0; index < count; index++) {
            values.add(value(role, index));
        }
        return Collections.unmodifiableList(values);
    }

    private Value value(int role, int index) {
        int[] numbers = new int[2];
        long[][] shape = new long[1][];
        byte[][][] texts = new byte[1][][];
        call(error -> Native.inspect(number, role, index, numbers, shape, texts, error));
        List<Dimension> dimensions = new ArrayList<>();
        for (int axis = 0; axis < numbers[1]; axis++) {
            dimensions.add(new Dimension(shape[0][axis], Native.text(texts[0][axis + 1])));
        }
        return new Value(Native.text(texts[0][0]), DType.of(numbers[0]), Collections.unmodifiableList(dimensions));
    }

    /** The library's description of itself, as JSON. */
    public String metadata() {
        byte[][] json = new byte[1][];
        call(error -> Native.metadata(number, json, error));
        return Native.text(json[0]);
    }

    /** Threads that calls of this library use from now on; 0 is the default. */
    public void setNumThreads(int threads) {
        call(error -> Native.setNumThreads(number, threads, error));
    }

    /** The shapes that the outputs will have for these inputs. */
    public List<long[]> outputShapes(Tensor... inputs) {
        return planned(inputs, outputs());
    }

    private List<long[]> planned(Tensor[] inputs, List<Value> outputs) {
        long[] dimensions = new long[outputs.stream().mapToInt(value -> value.shape().size()).sum()];
        call(error -> Native.outputShapes(number, shapes(inputs), dtypes(inputs), dimensions, error));
        List<long[]> shapes = new ArrayList<>();
        int at = 0;
        for (Value output : outputs) {
            shapes.add(Arrays.copyOfRange(dimensions, at, at + output.shape().size()));
            at += output.shape().size();
        }
        return shapes;
    }

    /** One inference. */
    public List<Tensor> run(Tensor... inputs) {
        List<Value> stated = outputs();
        List<long[]> shapes = planned(inputs, stated);
        Tensor[] outputs = new Tensor[stated.size()];
        for (int index = 0; index < outputs.length; index++) {
            outputs[index] = Tensor.zeros(stated.get(index).dtype(), shapes.get(index));
        }
        runInto(inputs, outputs);
        return List.of(outputs);
    }

    /** One inference into tensors that are there. They must share no memory with anything else. */
    public void runInto(Tensor[] inputs, Tensor[] outputs) {
        Tensor[] all = Stream.concat(Stream.of(inputs), Stream.of(outputs)).toArray(Tensor[]::new);
        ByteBuffer[] buffers = Stream.of(all).map(tensor -> tensor.memory).toArray(ByteBuffer[]::new);
        call(error -> Native.run(number, buffers, shapes(all), dtypes(all), inputs.length, error));
    }

    /** One inference on the common pool. */
    public CompletableFuture<List<Tensor>> runAsync(Tensor... inputs) {
        return runAsync(ForkJoinPool.commonPool(), inputs);
    }

    /** One inference where the executor says. */
    public CompletableFuture<List<Tensor>> runAsync(Executor executor, Tensor... inputs) {
        return CompletableFuture.supplyAsync(() -> run(inputs), executor);
    }

    private static long[][] shapes(Tensor[] tensors) {
        return Stream.of(tensors).map(tensor -> tensor.shape).toArray(long[][]::new);
    }

    private static int[] dtypes(Tensor[] tensors) {
        return Stream.of(tensors).mapToInt(tensor -> tensor.dtype().code()).toArray();
    }
}
