//! Arrays: views of memory that the caller has, and arrays that a run gives.

use crate::{sys, Error, Kind};
use std::os::raw::c_void;

/// The data type of an array's elements. Floats of 16 bits and fewer are passed as their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs, non_camel_case_types)]
pub enum DType {
    Bool = 1, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
    Float16, BFloat16, Float32, Float64,
    Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Float8E8M0FNU, Float4E2M1FN,
    Int1, Int2, Int4, UInt1, UInt2, UInt4,
}

const ALL: [DType; 25] = [
    DType::Bool, DType::Int8, DType::Int16, DType::Int32, DType::Int64,
    DType::UInt8, DType::UInt16, DType::UInt32, DType::UInt64,
    DType::Float16, DType::BFloat16, DType::Float32, DType::Float64,
    DType::Float8E4M3FN, DType::Float8E4M3FNUZ, DType::Float8E5M2, DType::Float8E5M2FNUZ, DType::Float8E8M0FNU,
    DType::Float4E2M1FN, DType::Int1, DType::Int2, DType::Int4, DType::UInt1, DType::UInt2, DType::UInt4,
];

impl DType {
    pub(crate) fn from_code(code: i32) -> Option<DType> {
        ALL.into_iter().find(|dtype| *dtype as i32 == code)
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        // A plain table lookup.
        unsafe { sys::tilewright_dtype_size(self as i32) as usize }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that arrays have elements of. Any bytes that a model writes are a value of it, so `bool` is not one: booleans
/// are `u8` of 0 and 1.
pub trait Element: Copy + Default + Send + Sync + sealed::Sealed + 'static {
    /// The data type that an array of these has unless it says another.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => {
        $(impl sealed::Sealed for $type {}
        impl Element for $type { const DTYPE: DType = DType::$dtype; })*
    };
}

elements!(i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64, u8 => UInt8, u16 => UInt16, u32 => UInt32, u64 => UInt64,
          f32 => Float32, f64 => Float64);

/// Memory of the caller, with a shape: an input. Nothing is copied.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    shape: &'a [i64],
    dtype: DType,
}

fn bytes_of<T: Element>(data: &[T]) -> &[u8] {
    // Elements are plain numbers without padding.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), std::mem::size_of_val(data)) }
}

impl<'a> View<'a> {
    /// Elements of the type's own data type.
    pub fn new<T: Element>(data: &'a [T], shape: &'a [i64]) -> Self {
        View { bytes: bytes_of(data), shape, dtype: T::DTYPE }
    }

    /// Elements of another data type, as their bits: `View::of(DType::Float16, &bits, &shape)` with `bits: &[u16]`.
    pub fn of<T: Element>(dtype: DType, data: &'a [T], shape: &'a [i64]) -> Self {
        View { bytes: bytes_of(data), shape, dtype }
    }

    pub(crate) fn raw(&self) -> sys::Tensor {
        sys::Tensor {
            // The runtime only reads inputs.
            data: self.bytes.as_ptr() as *mut c_void,
            bytes: self.bytes.len() as i64,
            shape: self.shape.as_ptr(),
            rank: self.shape.len() as i32,
            dtype: self.dtype as i32,
        }
    }
}

/// An array of its own: what a run gives, and an input of runs on other threads.
#[derive(Clone, Debug)]
pub struct Tensor {
    // Words of eight bytes: aligned to every element.
    memory: Vec<u64>,
    shape: Vec<i64>,
    dtype: DType,
}

impl Tensor {
    /// Zeros.
    pub fn zeros(dtype: DType, shape: &[i64]) -> Result<Tensor, Error> {
        let bytes = shape
            .iter()
            .try_fold(dtype.size() as i64, |bytes, size| if *size < 0 { None } else { bytes.checked_mul(*size) })
            .ok_or_else(|| Error::new(Kind::Shape, format!("an array cannot have the shape {shape:?}")))?;
        Ok(Tensor { memory: vec![0; (bytes as usize).div_ceil(8)], shape: shape.to_vec(), dtype })
    }

    /// A copy of elements.
    pub fn new<T: Element>(data: &[T], shape: &[i64]) -> Result<Tensor, Error> {
        let mut tensor = Tensor::zeros(T::DTYPE, shape)?;
        let elements = tensor.data_mut::<T>()?;
        if elements.len() != data.len() {
            let message = format!("{} elements do not fit the shape {shape:?}", data.len());
            return Err(Error::new(Kind::Shape, message));
        }
        elements.copy_from_slice(data);
        Ok(tensor)
    }

    /// The sizes of all dimensions.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// The data type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    fn count(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    fn check<T: Element>(&self) -> Result<(), Error> {
        let is_bits = !matches!(self.dtype, DType::Float32 | DType::Float64)
            && (self.dtype == DType::Bool || self.dtype as i32 >= DType::Float16 as i32)
            && std::mem::size_of::<T>() == self.dtype.size();
        if T::DTYPE == self.dtype || is_bits {
            return Ok(());
        }
        Err(Error::new(Kind::Type, format!("the tensor is of {:?}, not of {:?}", self.dtype, T::DTYPE)))
    }

    /// The elements; an error if they are of another type. Booleans and small floats are read as integers of their size.
    pub fn data<T: Element>(&self) -> Result<&[T], Error> {
        self.check::<T>()?;
        // The memory has at least so many bytes, is aligned to eight, and any bytes are a number.
        Ok(unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.count()) })
    }

    /// The elements, to be written.
    pub fn data_mut<T: Element>(&mut self) -> Result<&mut [T], Error> {
        self.check::<T>()?;
        let count = self.count();
        // As above.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), count) })
    }

    /// The tensor as an input.
    pub fn view(&self) -> View<'_> {
        let bytes = &bytes_of(&self.memory)[..self.count() * self.dtype.size()];
        View { bytes, shape: &self.shape, dtype: self.dtype }
    }

    pub(crate) fn raw_mut(&mut self) -> sys::Tensor {
        sys::Tensor {
            data: self.memory.as_mut_ptr().cast(),
            bytes: (self.count() * self.dtype.size()) as i64,
            shape: self.shape.as_ptr(),
            rank: self.shape.len() as i32,
            dtype: self.dtype as i32,
        }
    }
}
