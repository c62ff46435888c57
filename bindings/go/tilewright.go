// Package tilewright runs models that Tilewright has exported.
//
//	model, err := tilewright.Open("digits.so")
//	defer model.Close()
//	outputs, err := model.Run(ctx, tilewright.New(image, 1, 7, 5))
//	probabilities, err := tilewright.Data[float32](outputs[0])
//
// Every method may be called from every goroutine at any time, also while another closes the model: what runs then ends well,
// what comes later is an error (ErrClosed).
package tilewright

/*
#cgo CFLAGS: -std=c11 -O2 -I${SRCDIR}/../c/include
#cgo LDFLAGS: -ldl -lpthread
#include <stdlib.h>
#include "tilewright.h"

// Arrays are described with addresses as numbers: cgo forbids memory that holds Go pointers, and this has none.
typedef struct {
  uintptr_t data, shape;
  int64_t bytes;
  int32_t rank, dtype;
} described;

static tilewright_tensor* tensors_of(const described* from, int32_t count) {
  tilewright_tensor* to = malloc((size_t)(count ? count : 1) * sizeof *to);
  for (int32_t i = 0; to != NULL && i < count; ++i)
    to[i] = (tilewright_tensor){(void*)from[i].data, from[i].bytes, (const int64_t*)from[i].shape, from[i].rank, from[i].dtype};
  return to;
}

static tilewright_status run(tilewright_model model, const described* inputs, int32_t input_count, const described* outputs,
                             int32_t output_count, tilewright_error* error) {
  tilewright_tensor *from = tensors_of(inputs, input_count), *to = tensors_of(outputs, output_count);
  tilewright_status status = TILEWRIGHT_OUT_OF_MEMORY;
  if (from != NULL && to != NULL) status = tilewright_run(model, from, input_count, to, output_count, error);
  free(from);
  free(to);
  return status;
}

static tilewright_status output_shapes(tilewright_model model, const described* inputs, int32_t count, int64_t* dimensions,
                                       int32_t capacity, tilewright_error* error) {
  tilewright_tensor* from = tensors_of(inputs, count);
  tilewright_status status = TILEWRIGHT_OUT_OF_MEMORY;
  if (from != NULL) status = tilewright_output_shapes(model, from, count, dimensions, capacity, error);
  free(from);
  return status;
}
*/
import "C"

import (
	"context"
	"runtime"
	"unsafe"
)

// A Model is an exported model. Close it, or let the garbage collector do so.
type Model struct{ number C.tilewright_model }

func failed(status C.tilewright_status, err *C.tilewright_error) error {
	if status == C.TILEWRIGHT_OK {
		return nil
	}
	return &Error{Kind(status), C.GoString(&err.message[0])}
}

func opened(number C.tilewright_model) *Model {
	model := &Model{number}
	runtime.SetFinalizer(model, func(model *Model) { C.tilewright_close(model.number, nil) })
	return model
}

// Open opens a library file. A library is native code: open those whose origin you trust.
func Open(path string) (*Model, error) {
	var err C.tilewright_error
	var number C.tilewright_model
	text := C.CString(path)
	defer C.free(unsafe.Pointer(text))
	if status := C.tilewright_open(text, &number, &err); status != C.TILEWRIGHT_OK {
		return nil, failed(status, &err)
	}
	return opened(number), nil
}

// OpenBytes opens the bytes of a library, for example of an embedded file.
func OpenBytes(library []byte) (*Model, error) {
	var err C.tilewright_error
	var number C.tilewright_model
	bytes := library
	if len(bytes) == 0 {
		bytes = []byte{0} // an empty slice has no address
	}
	status := C.tilewright_open_bytes(unsafe.Pointer(&bytes[0]), C.int64_t(len(library)), &number, &err)
	if status != C.TILEWRIGHT_OK {
		return nil, failed(status, &err)
	}
	return opened(number), nil
}

// Close closes the model. Closing it again is an error of the kind ErrClosed.
func (model *Model) Close() error {
	var err C.tilewright_error
	status := C.tilewright_close(model.number, &err)
	runtime.KeepAlive(model)
	return failed(status, &err)
}

// Size is how many bytes an element takes.
func (dtype DType) Size() int { return int(C.tilewright_dtype_size(C.tilewright_dtype(dtype))) }

func (dtype DType) String() string {
	if name := C.tilewright_dtype_name(C.tilewright_dtype(dtype)); name != nil {
		return C.GoString(name)
	}
	return "unknown"
}

// A Dimension of a stated shape is a number, or (-1) what a call decides, with its text: "batch", "n + m".
type Dimension struct {
	Size   int64
	Symbol string
}

// A Value is an input or output as the model states it.
type Value struct {
	Name  string
	DType DType
	Shape []Dimension
}

func (model *Model) describe() (name string, inputs, outputs int, err error) {
	var raw C.tilewright_error
	var text *C.char
	var from, to C.int32_t
	status := C.tilewright_describe(model.number, &text, &from, &to, nil, &raw)
	runtime.KeepAlive(model)
	if err = failed(status, &raw); err == nil {
		name = C.GoString(text)
	}
	return name, int(from), int(to), err
}

// Name is the library's name.
func (model *Model) Name() (string, error) {
	name, _, _, err := model.describe()
	return name, err
}

// Inputs says what the model takes.
func (model *Model) Inputs() ([]Value, error) {
	_, count, _, err := model.describe()
	if err != nil {
		return nil, err
	}
	return model.values(C.TILEWRIGHT_INPUT, count)
}

// Outputs says what the model gives.
func (model *Model) Outputs() ([]Value, error) {
	_, _, count, err := model.describe()
	if err != nil {
		return nil, err
	}
	return model.values(C.TILEWRIGHT_OUTPUT, count)
}

func (model *Model) values(role C.int32_t, count int) ([]Value, error) {
	values := make([]Value, count)
	for index := range values {
		var err C.tilewright_error
		var raw C.tilewright_value
		status := C.tilewright_inspect(model.number, role, C.int32_t(index), &raw, &err)
		runtime.KeepAlive(model)
		if status != C.TILEWRIGHT_OK {
			return nil, failed(status, &err)
		}
		value := Value{Name: C.GoString(raw.name), DType: DType(raw.dtype), Shape: make([]Dimension, raw.rank)}
		if raw.rank > 0 {
			sizes, symbols := unsafe.Slice(raw.shape, raw.rank), unsafe.Slice(raw.symbolic, raw.rank)
			for axis := range value.Shape {
				value.Shape[axis].Size = int64(sizes[axis])
				if symbols[axis] != nil {
					value.Shape[axis].Symbol = C.GoString(symbols[axis])
				}
			}
		}
		values[index] = value
	}
	return values, nil
}

// Metadata is the library's description of itself, as JSON.
func (model *Model) Metadata() (string, error) {
	var err C.tilewright_error
	var text *C.char
	status := C.tilewright_metadata(model.number, &text, &err)
	runtime.KeepAlive(model)
	if status != C.TILEWRIGHT_OK {
		return "", failed(status, &err)
	}
	return C.GoString(text), nil
}

// SetNumThreads says how many threads calls of this library use from now on; 0 is the default.
func (model *Model) SetNumThreads(threads int) error {
	var err C.tilewright_error
	status := C.tilewright_set_num_threads(model.number, C.int64_t(threads), &err)
	runtime.KeepAlive(model)
	return failed(status, &err)
}

func describedOf(tensors []Tensor) []C.described {
	described := make([]C.described, len(tensors)+1) // never without an address
	for index, tensor := range tensors {
		described[index] = C.described{
			data:  C.uintptr_t(uintptr(tensor.data)),
			shape: C.uintptr_t(uintptr(pointerTo(tensor.Shape))),
			bytes: C.int64_t(tensor.bytes),
			rank:  C.int32_t(len(tensor.Shape)),
			dtype: C.int32_t(tensor.dtype),
		}
	}
	return described
}

// OutputShapes says which shapes the outputs will have for these inputs.
func (model *Model) OutputShapes(inputs ...Tensor) ([][]int64, error) {
	outputs, err := model.Outputs()
	if err != nil {
		return nil, err
	}
	return model.planned(inputs, outputs)
}

func (model *Model) planned(inputs []Tensor, outputs []Value) ([][]int64, error) {
	total := 0
	for _, value := range outputs {
		total += len(value.Shape)
	}
	sizes := make([]int64, total+1)
	var raw C.tilewright_error
	from := describedOf(inputs)
	status := C.output_shapes(model.number, &from[0], C.int32_t(len(inputs)), (*C.int64_t)(&sizes[0]), C.int32_t(total), &raw)
	runtime.KeepAlive(inputs)
	runtime.KeepAlive(model)
	if status != C.TILEWRIGHT_OK {
		return nil, failed(status, &raw)
	}
	shapes := make([][]int64, len(outputs))
	for index, value := range outputs {
		shapes[index], sizes = sizes[:len(value.Shape):len(value.Shape)], sizes[len(value.Shape):]
	}
	return shapes, nil
}

// RunInto runs into tensors that are there. They must share no memory with anything else.
func (model *Model) RunInto(inputs, outputs []Tensor) error {
	var raw C.tilewright_error
	from, to := describedOf(inputs), describedOf(outputs)
	status := C.run(model.number, &from[0], C.int32_t(len(inputs)), &to[0], C.int32_t(len(outputs)), &raw)
	runtime.KeepAlive(inputs)
	runtime.KeepAlive(outputs)
	runtime.KeepAlive(model)
	return failed(status, &raw)
}

func (model *Model) run(inputs []Tensor) ([]Tensor, error) {
	values, err := model.Outputs()
	if err != nil {
		return nil, err
	}
	shapes, err := model.planned(inputs, values)
	if err != nil {
		return nil, err
	}
	outputs := make([]Tensor, len(values))
	for index, value := range values {
		outputs[index] = zeros(value.DType, shapes[index])
	}
	return outputs, model.RunInto(inputs, outputs)
}

// A Result is what a run that was started gives.
type Result struct {
	Outputs []Tensor
	Err     error
}

// Start runs in a goroutine of its own, and sends the result. The inputs must not be changed before.
func (model *Model) Start(inputs ...Tensor) <-chan Result {
	done := make(chan Result, 1)
	go func() {
		outputs, err := model.run(inputs)
		if err != nil {
			outputs = nil
		}
		done <- Result{outputs, err}
	}()
	return done
}

// Run is one inference. When the context ends first, its error is given at once; kernels that run cannot be stopped, so the
// inputs must not be changed until the run behind it has ended too (which Start tells).
func (model *Model) Run(ctx context.Context, inputs ...Tensor) ([]Tensor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if ctx.Done() == nil {
		outputs, err := model.run(inputs)
		if err != nil {
			return nil, err
		}
		return outputs, nil
	}
	select {
	case result := <-model.Start(inputs...):
		return result.Outputs, result.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
