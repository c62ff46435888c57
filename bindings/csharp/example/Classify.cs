// An example: which digit is in a picture?
using System;
using System.IO;
using System.Linq;
using Tilewright;

/// <summary>Which digit is in a picture of 7 lines of 5 marks? Classify LIBRARY IMAGE</summary>
internal static class Classify
{
    private static void Main(string[] arguments)
    {
        string marks = string.Concat(File.ReadAllLines(arguments[1]));
        float[] image = marks.Select(mark => mark == '#' ? 1f : 0f).ToArray();
        using (var model = new Model(arguments[0]))
        {
            Tensor[] outputs = model.Run(Tensor.Of(image, 1, 7, 5));
            long digit = outputs[1].Data<long>()[0];
            FormattableString line = $"a {digit} ({100 * outputs[0].Data<float>()[digit]:0.0}%)";
            Console.WriteLine(FormattableString.Invariant(line));
        }
    }
}
