package tilewright

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// The folder that bindings/models.py wrote.
var folder = os.Getenv("TILEWRIGHT_MODELS")

var background = context.Background()

func open(t *testing.T, name string) *Model {
	t.Helper()
	model, err := Open(filepath.Join(folder, name+".so"))
	if err != nil {
		t.Fatal(err)
	}
	return model
}

func table() []float32 {
	values := make([]float32, 20)
	for i := range values {
		values[i] = float32(i) + 0.5
	}
	return values
}

var ids = []int64{4, 0, 2}

func rowsInputs() []Tensor { return []Tensor{New(table(), 5, 4), New(ids, 3)} }

func checkRows(t *testing.T, outputs []Tensor) {
	t.Helper()
	var expected []float32
	for _, id := range ids {
		expected = append(expected, table()[4*id:4*id+4]...)
	}
	rows, err := Data[float32](outputs[0])
	if err != nil || !reflect.DeepEqual(rows, expected) || !reflect.DeepEqual(outputs[0].Shape, []int64{3, 4}) {
		t.Errorf("rows %v %v %v", rows, outputs[0].Shape, err)
	}
}

func expect(t *testing.T, err error, kind Kind, text string) {
	t.Helper()
	if !errors.Is(err, kind) || !strings.Contains(err.Error(), text) {
		t.Errorf("expected %v that says %q, got %v", kind, text, err)
	}
}

func TestLoad(t *testing.T) {
	model := open(t, "digits")
	defer model.Close()
	if name, err := model.Name(); name != "digits" || err != nil {
		t.Error(name, err)
	}
	inputs, err := model.Inputs()
	expected := []Value{{"image", Float32, []Dimension{{-1, "batch"}, {7, ""}, {5, ""}}}}
	if err != nil || !reflect.DeepEqual(inputs, expected) {
		t.Error(inputs, err)
	}
	outputs, err := model.Outputs()
	if err != nil || len(outputs) != 2 || outputs[1].Name != "digit" || outputs[1].DType.String() != "int64" {
		t.Error(outputs, err)
	}
	if text, err := model.Metadata(); err != nil || !strings.Contains(text, `"library":"digits"`) {
		t.Error(text, err)
	}
	if err := model.SetNumThreads(1); err != nil {
		t.Error(err)
	}
	library, err := os.ReadFile(filepath.Join(folder, "digits.so"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBytes(library); err != nil {
		t.Error(err)
	}
}

func TestRun(t *testing.T) {
	model := open(t, "rows")
	defer model.Close()
	outputs, err := model.Run(background, rowsInputs()...)
	if err != nil {
		t.Fatal(err)
	}
	checkRows(t, outputs)
	rows := make([]float32, 12)
	if err := model.RunInto(rowsInputs(), []Tensor{New(rows, 3, 4)}); err != nil || rows[0] != 16.5 {
		t.Error(rows, err)
	}
}

func TestDynamicShapes(t *testing.T) {
	model := open(t, "join")
	defer model.Close()
	right := []float32{5, 6, 7, 8, 9, 10}
	inputs := []Tensor{New([]float32{1, 2, 3, 4}, 2, 2), New([]float32{10, 100}, 2), New(right, 3, 2)}
	shapes, err := model.OutputShapes(inputs...)
	if err != nil || !reflect.DeepEqual(shapes, [][]int64{{5, 2}}) {
		t.Error(shapes, err)
	}
	for _, each := range []struct {
		inputs   []Tensor
		expected []float32
	}{
		{inputs, []float32{10, 20, 300, 400, 5, 6, 7, 8, 9, 10}},
		{[]Tensor{New([]float32{}, 0, 2), New([]float32{}, 0), New(right, 3, 2)}, right},
	} {
		outputs, err := model.Run(background, each.inputs...)
		if err != nil {
			t.Fatal(err)
		}
		if joined, _ := Data[float32](outputs[0]); !reflect.DeepEqual(joined, each.expected) {
			t.Error(joined)
		}
	}
}

func TestAsync(t *testing.T) {
	model := open(t, "rows")
	var results []<-chan Result
	for i := 0; i < 8; i++ {
		results = append(results, model.Start(rowsInputs()...))
	}
	failing := model.Start(New(table(), 5, 4), New([]int64{0, 7, 1}, 3))
	for _, result := range results {
		done := <-result
		if done.Err != nil {
			t.Fatal(done.Err)
		}
		checkRows(t, done.Outputs)
	}
	expect(t, (<-failing).Err, ErrData, "lookup")
	ctx, cancel := context.WithTimeout(background, time.Minute)
	outputs, err := model.Run(ctx, rowsInputs()...)
	if err != nil {
		t.Fatal(err)
	}
	checkRows(t, outputs)
	cancel()
	if _, err := model.Run(ctx, rowsInputs()...); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	model.Close()
}

func TestErrorsArguments(t *testing.T) {
	model := open(t, "rows")
	defer model.Close()
	run := func(inputs ...Tensor) error {
		_, err := model.Run(background, inputs...)
		return err
	}
	expect(t, run(New(make([]float64, 20), 5, 4), New(ids, 3)), ErrType, "is of float64, expected float32")
	expect(t, run(New(table(), 4, 5), New(ids, 3)), ErrShape, "axis 0 must be 5, not 4")
	expect(t, run(New(table(), 1, 5, 4), New(ids, 3)), ErrShape, "3 dimensions")
	expect(t, run(New(table()[1:], 5, 4), New(ids, 3)), ErrShape, "76 bytes, its shape needs 80")
	expect(t, run(New([]float32{}, 5, 4), New(ids, 3)), ErrArgument, "has no memory")
	expect(t, run(New(table(), 5, 4)), ErrArgument, "2 inputs, 1 were given")
	expect(t, run(), ErrArgument, "2 inputs, 0 were given")
	expect(t, run(New(table(), 5, 4), New([]int64{0, 7, 1}, 3)), ErrData, "out of range")
	expect(t, run(Tensor{}, New(ids, 3)), ErrType, "unknown type")
	expect(t, model.SetNumThreads(-1), ErrArgument, "at least 0")
	own := table()
	expect(t, model.RunInto([]Tensor{New(own, 5, 4), New(ids, 3)}, []Tensor{New(own[2:14], 3, 4)}), ErrArgument, "shares memory")
	outputs, err := model.Run(background, rowsInputs()...)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Data[int64](outputs[0])
	expect(t, err, ErrType, "is of float32, not of int64")
	join := open(t, "join")
	defer join.Close()
	_, err = join.Run(background, New(table()[:4], 2, 2), New(table()[:4], 4), New(table()[:4], 2, 2))
	expect(t, err, ErrShape, "'scale' has the shape [4], expected [n]")
}

func TestErrorsLibraries(t *testing.T) {
	for name, text := range map[string]string{"loop": "virtual machine", "functions": "not a model"} {
		_, err := Open(filepath.Join(folder, name+".so"))
		expect(t, err, ErrUnsupported, text)
	}
	_, err := Open("/nowhere/model.so")
	expect(t, err, ErrFile, "No such file")
	_, err = OpenBytes(nil)
	expect(t, err, ErrLibrary, "not a shared library")
	damaged, err := filepath.Glob(filepath.Join(folder, "damaged", "*.so"))
	if err != nil || len(damaged) < 20 {
		t.Fatal(damaged, err)
	}
	for _, path := range damaged {
		if _, err := Open(path); !errors.Is(err, ErrLibrary) && !errors.Is(err, ErrUnsupported) {
			t.Error(path, err)
		}
	}
}

func TestErrorsClosed(t *testing.T) {
	model := open(t, "rows")
	if err := model.Close(); err != nil {
		t.Error(err)
	}
	expect(t, model.Close(), ErrClosed, "has been closed")
	_, err := model.Run(background, rowsInputs()...)
	expect(t, err, ErrClosed, "has been closed")
	_, err = model.Inputs()
	expect(t, err, ErrClosed, "has been closed")
	_, err = (&Model{}).Name()
	expect(t, err, ErrClosed, "has been closed")
}

func TestErrorsThreads(t *testing.T) {
	model := open(t, "rows")
	var group sync.WaitGroup
	for i := 0; i < 4; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for {
				outputs, err := model.Run(background, rowsInputs()...)
				if err != nil {
					expect(t, err, ErrClosed, "has been closed")
					return
				}
				checkRows(t, outputs)
			}
		}()
	}
	time.Sleep(20 * time.Millisecond)
	model.Close()
	group.Wait()
}

func TestGpuRefused(t *testing.T) {
	_, err := Open(filepath.Join(folder, "device_open.so"))
	expect(t, err, ErrUnsupported, "device (opencl)")
}

// The same answers on a device as on the processor.
func TestGpu(t *testing.T) {
	if os.Getenv("TILEWRIGHT_GPU") == "" {
		t.Skip("needs a device: TILEWRIGHT_GPU")
	}
	image := make([]float32, 35)
	for i := 0; i < 35; i += 3 {
		image[i] = 1
	}
	run := func(name string) ([]float32, int64) {
		model := open(t, name)
		defer model.Close()
		outputs, err := model.Run(background, New(image, 1, 7, 5))
		if err != nil {
			t.Fatal(err)
		}
		probabilities, _ := Data[float32](outputs[0])
		digits, _ := Data[int64](outputs[1])
		return probabilities, digits[0]
	}
	here, digitHere := run("digits")
	there, digitThere := run("device")
	for i := range here {
		if d := here[i] - there[i]; digitHere != digitThere || d > 1e-5 || d < -1e-5 {
			t.Error(here, there)
		}
	}
}

func resident(t *testing.T) int {
	var size, pages int
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

func TestLeaks(t *testing.T) {
	round := func() {
		model := open(t, "join")
		rows, scale := make([]float32, 20000), make([]float32, 10000)
		if _, err := model.Run(background, New(rows, 10000, 2), New(scale, 10000), New(rows, 10000, 2)); err != nil {
			t.Fatal(err)
		}
		// Some are closed by the garbage collector.
	}
	var before int
	for i := 0; i < 120; i++ {
		if i == 20 {
			before = resident(t)
		}
		round()
		runtime.GC()
	}
	// A leak of the outputs alone would be 16 MB.
	if after := resident(t); after > before+(12<<20) {
		t.Error(before, after)
	}
}
