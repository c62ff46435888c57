package tilewright

import (
	"fmt"
	"unsafe"
)

// A DType is the data type of an array's elements. Floats of 16 bits and fewer are passed as their bits.
type DType int32

// The data types.
const (
	Bool DType = iota + 1
	Int8
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Float16
	BFloat16
	Float32
	Float64
	Float8E4M3FN
	Float8E4M3FNUZ
	Float8E5M2
	Float8E5M2FNUZ
	Float8E8M0FNU
	Float4E2M1FN
	Int1
	Int2
	Int4
	Uint1
	Uint2
	Uint4
)

// An Element is a Go type that arrays have elements of. Booleans are uint8 of 0 and 1.
type Element interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64
}

func dtypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case uint8:
		return Uint8
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	case float32:
		return Float32
	default:
		return Float64
	}
}

// A Tensor is a slice with a shape. It shares the slice's memory: nothing is copied.
type Tensor struct {
	Shape []int64
	dtype DType
	data  unsafe.Pointer
	bytes int
}

// Make a value live on the heap, whose places do not change: the runtime for C sees addresses only.
var escaped struct {
	never bool
	value unsafe.Pointer
}

func pointerTo[T Element](data []T) unsafe.Pointer {
	if len(data) == 0 {
		return nil
	}
	pointer := unsafe.Pointer(&data[0])
	if escaped.never {
		escaped.value = pointer
	}
	return pointer
}

// New gives a slice a shape. The elements have the data type of their Go type.
func New[T Element](data []T, shape ...int64) Tensor { return As(dtypeOf[T](), data, shape...) }

// As gives a slice of bits a data type that Go does not have: As(Float16, bits, 2, 3) with bits of []uint16.
func As[T Element](dtype DType, data []T, shape ...int64) Tensor {
	var zero T
	return Tensor{shape, dtype, pointerTo(data), len(data) * int(unsafe.Sizeof(zero))}
}

// DType is the data type of the elements.
func (tensor Tensor) DType() DType { return tensor.dtype }

// Data gives the elements of a tensor as a slice of its memory, or an error if they are of another type. Booleans and small
// floats are read as integers of their size.
func Data[T Element](tensor Tensor) ([]T, error) {
	var zero T
	size := int(unsafe.Sizeof(zero))
	isBits := (tensor.dtype == Bool || tensor.dtype >= Float16) && tensor.dtype != Float32 && tensor.dtype != Float64 &&
		size == tensor.dtype.Size()
	if dtypeOf[T]() != tensor.dtype && !isBits {
		return nil, &Error{ErrType, fmt.Sprintf("the tensor is of %v, not of %v", tensor.dtype, dtypeOf[T]())}
	}
	return unsafe.Slice((*T)(tensor.data), tensor.bytes/size), nil
}

// zeros is a new tensor. Its memory is of 8-byte words: aligned to every element.
func zeros(dtype DType, shape []int64) Tensor {
	count := int64(1)
	for _, size := range shape {
		count *= size
	}
	bytes := int(count) * dtype.Size()
	words := make([]uint64, (bytes+7)/8)
	return Tensor{shape, dtype, pointerTo(words), bytes}
}
