package dev.tilewright;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Tests of the binding for Java: ModelTest FOLDER (what bindings/models.py wrote). Prints "ok NAME" for each. */
final class ModelTest {
    private static Path folder;
    private static final float[] TABLE = new float[20];
    private static final long[] IDS = {4, 0, 2};

    interface Test {
        void run() throws Exception;
    }

    private static void check(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    private static void expect(Class<? extends Throwable> kind, String text, Test test) throws Exception {
        try {
            test.run();
        } catch (Exception error) {
            check(kind.isInstance(error), "expected " + kind + ", got " + error);
            check(error.getMessage().contains(text), "expected '" + text + "' in: " + error.getMessage());
            return;
        }
        throw new AssertionError("no error that says '" + text + "'");
    }

    private static Model open(String name) throws IOException {
        return Model.open(folder.resolve(name + ".so"));
    }

    private static Tensor[] rowsInputs() {
        return new Tensor[] {Tensor.of(TABLE, 5, 4), Tensor.of(IDS, 3)};
    }

    private static void checkRows(Tensor rows) {
        float[] expected = new float[12];
        for (int place = 0; place < 12; place++) {
            expected[place] = TABLE[(int) IDS[place / 4] * 4 + place % 4];
        }
        check(Arrays.equals(rows.floats(), expected) && Arrays.equals(rows.shape(), new long[] {3, 4}), "rows");
    }

    static void load() throws Exception {
        try (Model model = open("digits"); Model same = Model.open(Files.readAllBytes(folder.resolve("digits.so")))) {
            check(model.name().equals("digits") && same.name().equals("digits"), model.name());
            Value image = new Value("image", DType.FLOAT32,
                    List.of(new Dimension(-1, "batch"), new Dimension(7, null), new Dimension(5, null)));
            check(model.inputs().equals(List.of(image)), model.inputs().toString());
            Value digit = new Value("digit", DType.INT64, List.of(new Dimension(-1, "batch")));
            check(model.outputs().get(1).equals(digit), model.outputs().toString());
            check(model.metadata().contains("\"library\":\"digits\""), "metadata");
            model.setNumThreads(1);
        }
    }

    static void run() throws Exception {
        try (Model model = open("rows")) {
            checkRows(model.run(rowsInputs()).get(0));
            ByteBuffer memory = ByteBuffer.allocateDirect(64).position(16);
            Tensor rows = Tensor.wrap(DType.FLOAT32, memory, 3, 4);
            model.runInto(rowsInputs(), new Tensor[] {rows});
            checkRows(rows);
        }
    }

    static void dynamicShapes() throws Exception {
        try (Model model = open("join")) {
            float[] right = {5, 6, 7, 8, 9, 10};
            Tensor[] inputs = {Tensor.of(new float[] {1, 2, 3, 4}, 2, 2), Tensor.of(new float[] {10, 100}, 2), Tensor.of(right, 3, 2)};
            check(Arrays.equals(model.outputShapes(inputs).get(0), new long[] {5, 2}), "shapes");
            float[] expected = {10, 20, 300, 400, 5, 6, 7, 8, 9, 10};
            check(Arrays.equals(model.run(inputs).get(0).floats(), expected), "joined");
            float[] none = {};
            Tensor[] fewer = {Tensor.of(none, 0, 2), Tensor.of(none, 0), Tensor.of(right, 3, 2)};
            check(Arrays.equals(model.run(fewer).get(0).floats(), right), "fewer");
        }
    }

    static void async() throws Exception {
        try (Model model = open("rows")) {
            List<CompletableFuture<List<Tensor>>> jobs = new ArrayList<>();
            for (int count = 0; count < 8; count++) {
                jobs.add(model.runAsync(rowsInputs()));
            }
            for (CompletableFuture<List<Tensor>> job : jobs) {
                checkRows(job.get().get(0));
            }
            CompletableFuture<List<Tensor>> failing = model.runAsync(Tensor.of(TABLE, 5, 4), Tensor.of(new long[] {0, 7, 1}, 3));
            expect(CompletionException.class, "lookup", failing::join);
        }
    }

    static void errorsArguments() throws Exception {
        Class<IllegalArgumentException> wrong = IllegalArgumentException.class;
        try (Model model = open("rows"); Model join = open("join")) {
            Tensor ids = Tensor.of(IDS, 3);
            expect(wrong, "is of float64, expected float32", () -> model.run(Tensor.of(new double[20], 5, 4), ids));
            expect(wrong, "axis 0 must be 5, not 4", () -> model.run(Tensor.of(TABLE, 4, 5), ids));
            expect(wrong, "3 dimensions", () -> model.run(Tensor.of(TABLE, 1, 5, 4), ids));
            expect(wrong, "76 bytes, its shape needs 80", () -> model.run(Tensor.of(new float[19], 5, 4), ids));
            expect(wrong, "2 inputs, 1 were given", () -> model.run(ids));
            expect(wrong, "2 inputs, 0 were given", () -> model.run());
            expect(DataException.class, "out of range", () -> model.run(Tensor.of(TABLE, 5, 4), Tensor.of(new long[] {0, 7, 1}, 3)));
            expect(wrong, "at least 0", () -> model.setNumThreads(-1));
            ByteBuffer shifted = ByteBuffer.allocateDirect(82).position(2);
            expect(wrong, "not aligned", () -> model.run(Tensor.wrap(DType.FLOAT32, shifted, 5, 4), ids));
            Tensor own = Tensor.of(TABLE, 5, 4);
            Tensor part = Tensor.wrap(DType.FLOAT32, own.buffer().position(8), 3, 4);
            expect(wrong, "shares memory", () -> model.runInto(new Tensor[] {own, ids}, new Tensor[] {part}));
            expect(wrong, "is of float32, not of int64", () -> model.run(rowsInputs()).get(0).longs());
            expect(wrong, "direct buffer", () -> Tensor.wrap(DType.FLOAT32, ByteBuffer.allocate(4), 1));
            expect(wrong, "cannot have the shape", () -> Tensor.zeros(DType.FLOAT32, -1));
            expect(NullPointerException.class, "", () -> model.run(null, ids));
            Tensor four = Tensor.of(new float[4], 2, 2);
            expect(wrong, "'scale' has the shape [4], expected [n]", () -> join.run(four, Tensor.of(new float[4], 4), four));
        }
    }

    static void errorsLibraries() throws Exception {
        expect(IOException.class, "No such file", () -> Model.open(Path.of("/nowhere/model.so")));
        expect(UnsupportedOperationException.class, "virtual machine", () -> open("loop"));
        expect(UnsupportedOperationException.class, "not a model", () -> open("functions"));
        expect(LibraryException.class, "not a shared library", () -> Model.open(new byte[0]));
        int count = 0;
        try (DirectoryStream<Path> damaged = Files.newDirectoryStream(folder.resolve("damaged"))) {
            for (Path path : damaged) {
                try {
                    Model.open(path).close();
                    throw new AssertionError(path + " was not refused");
                } catch (LibraryException | UnsupportedOperationException error) {
                    count++;
                }
            }
        }
        check(count > 20, "damaged libraries");
    }

    static void errorsClosed() throws Exception {
        Model model = open("rows");
        model.close();
        model.close();
        expect(IllegalStateException.class, "has been closed", () -> model.run(rowsInputs()));
        expect(IllegalStateException.class, "has been closed", model::inputs);
        expect(IllegalStateException.class, "has been closed", model::metadata);
    }

    static void errorsThreads() throws Exception {
        Model model = open("rows");
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<?>> hammers = new ArrayList<>();
        for (int count = 0; count < 4; count++) {
            hammers.add(pool.submit(() -> {
                while (true) {
                    checkRows(model.run(rowsInputs()).get(0));
                }
            }));
        }
        Thread.sleep(50);
        model.close();
        for (Future<?> hammer : hammers) {
            try {
                hammer.get();
            } catch (ExecutionException error) {
                check(error.getCause() instanceof IllegalStateException, error.toString());
            }
        }
        pool.shutdown();
    }

    static void gpuRefused() throws Exception {
        expect(UnsupportedOperationException.class, "device (opencl)", () -> open("device_open"));
    }

    /** The same answers on a device as on the processor. */
    static void gpu() throws Exception {
        float[] image = new float[35];
        for (int place = 0; place < image.length; place += 3) {
            image[place] = 1;
        }
        try (Model host = open("digits"); Model device = open("device")) {
            List<Tensor> here = host.run(Tensor.of(image, 1, 7, 5));
            List<Tensor> there = device.run(Tensor.of(image, 1, 7, 5));
            check(here.get(1).longs()[0] == there.get(1).longs()[0], "digit");
            for (int place = 0; place < 10; place++) {
                check(Math.abs(here.get(0).floats()[place] - there.get(0).floats()[place]) < 1e-5, "probabilities");
            }
        }
    }

    private static long resident() throws IOException {
        return Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[1]) * 4096;
    }

    static void leaks() throws Exception {
        Tensor rows = Tensor.zeros(DType.FLOAT32, 10000, 2);
        Tensor scale = Tensor.zeros(DType.FLOAT32, 10000);
        Tensor[] joined = {Tensor.zeros(DType.FLOAT32, 20000, 2)};
        long before = 0;
        for (int round = 0; round < 600; round++) {
            if (round == 100) {
                before = resident();
            }
            try (Model model = open("join")) {
                model.runInto(new Tensor[] {rows, scale, rows}, joined);
            }
        }
        // A leak of a workspace of 80 KB a round would be 40 MB.
        check(resident() < before + (24 << 20), before + " " + resident());
    }

    public static void main(String[] arguments) throws Exception {
        folder = Path.of(arguments[0]);
        for (int place = 0; place < TABLE.length; place++) {
            TABLE[place] = place + 0.5f;
        }
        Map<String, Test> tests = new LinkedHashMap<>();
        tests.put("load", ModelTest::load);
        tests.put("run", ModelTest::run);
        tests.put("dynamicShapes", ModelTest::dynamicShapes);
        tests.put("async", ModelTest::async);
        tests.put("errorsArguments", ModelTest::errorsArguments);
        tests.put("errorsLibraries", ModelTest::errorsLibraries);
        tests.put("errorsClosed", ModelTest::errorsClosed);
        tests.put("errorsThreads", ModelTest::errorsThreads);
        tests.put("gpuRefused", ModelTest::gpuRefused);
        tests.put("leaks", ModelTest::leaks);
        if (System.getenv("TILEWRIGHT_GPU") != null) {
            tests.put("gpu", ModelTest::gpu);
        }
        for (Map.Entry<String, Test> test : tests.entrySet()) {
            test.getValue().run();
            System.out.println("ok " + test.getKey());
        }
    }
}
