import dev.tilewright.Model;
import dev.tilewright.Tensor;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** Which digit is in a picture of 7 lines of 5 marks? Classify LIBRARY IMAGE */
public final class Classify {
    public static void main(String[] arguments) throws IOException {
        String marks = Files.readString(Path.of(arguments[1])).replaceAll("\\s", "");
        float[] image = new float[marks.length()];
        for (int place = 0; place < image.length; place++) {
            image[place] = marks.charAt(place) == '#' ? 1 : 0;
        }
        try (Model model = Model.open(Path.of(arguments[0]))) {
            List<Tensor> outputs = model.run(Tensor.of(image, 1, 7, 5));
            int digit = (int) outputs.get(1).longs()[0];
            System.out.printf("a %d (%.1f%%)%n", digit, 100 * outputs.get(0).floats()[digit]);
        }
    }
}
