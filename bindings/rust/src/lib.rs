//! Models that Tilewright has exported.
//!
//! ```no_run
//! use tilewright::{Model, View};
//!
//! let model = Model::open("digits.so")?;
//! let image = [0f32; 35];
//! let outputs = model.run(&[View::new(&image, &[1, 7, 5])])?;
//! let probabilities: &[f32] = outputs[0].data()?;
//! # Ok::<(), tilewright::Error>(())
//! ```
//!
//! Every method takes `&self` and may be called from every thread: a `Model` is `Send` and `Sync`. Inputs are borrowed and not copied.
//! What uses a model needs no `unsafe`.

#![warn(missing_docs)]

mod sys;
mod tensor;

use std::ffi::{CStr, CString};
use std::fmt;
use std::os::raw::c_char;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

pub use tensor::{DType, Element, Tensor, View};

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The number of arrays, or memory that is not there or not aligned.
    Argument,
    /// The file cannot be read.
    File,
    /// No library, truncated or damaged.
    Library,
    /// For another processor, or not a model that can be run from here.
    Unsupported,
    /// An array does not fit.
    Shape,
    /// An array of another data type.
    Type,
    /// No memory.
    Memory,
    /// A value that the model cannot use: an index out of range, a division by zero.
    Data,
    /// The model has been closed.
    Closed,
}

/// What went wrong, as a sentence.
#[derive(Clone, Debug)]
pub struct Error {
    kind: Kind,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: Kind, message: String) -> Error {
        Error { kind, message }
    }

    fn from_raw(status: i32, error: &sys::Error) -> Error {
        let kind = match status {
            2 => Kind::File,
            3 => Kind::Library,
            4 => Kind::Unsupported,
            5 => Kind::Shape,
            6 => Kind::Type,
            7 => Kind::Memory,
            8 => Kind::Data,
            9 => Kind::Closed,
            _ => Kind::Argument,
        };
        // The runtime ends its text with a zero.
        let message = unsafe { CStr::from_ptr(error.message.as_ptr()) };
        Error { kind, message: message.to_string_lossy().into_owned() }
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// A function of the runtime, and its error as ours.
fn call(function: impl FnOnce(*mut sys::Error) -> i32) -> Result<(), Error> {
    let mut error = sys::Error { status: 0, message: [0; 1020] };
    match function(&mut error) {
        0 => Ok(()),
        status => Err(Error::from_raw(status, &error)),
    }
}

fn text(pointer: *const c_char) -> String {
    // Texts of the runtime end with a zero and live as long as the process.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// One extent of a stated shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// A number.
    Fixed(i64),
    /// What a call decides, as text over symbols: `batch`, `n + m`.
    Symbolic(String),
}

/// An input or output, as the model states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The name that the user's model gives it.
    pub name: String,
    /// The data type of its elements.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<Dimension>,
}

#[derive(Debug)]
struct Handle(i64);

impl Drop for Handle {
    fn drop(&mut self) {
        // One that was closed before is an error that says just that.
        unsafe { sys::tilewright_close(self.0, std::ptr::null_mut()) };
    }
}

/// An exported model. Clones are the same model, which is closed with the last of them.
#[derive(Clone, Debug)]
pub struct Model {
    handle: Arc<Handle>,
}

impl Model {
    /// Open a library file. A library is native code: open those whose origin you trust.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
        let path = CString::new(path.as_ref().as_os_str().as_bytes())
            .map_err(|_| Error::new(Kind::File, "the path has a zero byte in it".to_string()))?;
        let mut model = 0;
        call(|error| unsafe { sys::tilewright_open(path.as_ptr(), &mut model, error) })?;
        Ok(Model { handle: Arc::new(Handle(model)) })
    }

    /// Open the bytes of a library.
    pub fn from_bytes(bytes: &[u8]) -> Result<Model, Error> {
        let mut model = 0;
        let size = bytes.len() as i64;
        call(|error| unsafe { sys::tilewright_open_bytes(bytes.as_ptr().cast(), size, &mut model, error) })?;
        Ok(Model { handle: Arc::new(Handle(model)) })
    }

    fn number(&self) -> i64 {
        self.handle.0
    }

    /// Close now, for all clones. Later calls are errors; calls that run now end as if nothing had happened.
    pub fn close(&self) {
        unsafe { sys::tilewright_close(self.number(), std::ptr::null_mut()) };
    }

    fn counts(&self) -> Result<(String, i32, i32), Error> {
        let (mut name, mut inputs, mut outputs, mut symbols) = (std::ptr::null(), 0, 0, 0);
        call(|error| unsafe {
            sys::tilewright_describe(self.number(), &mut name, &mut inputs, &mut outputs, &mut symbols, error)
        })?;
        Ok((text(name), inputs, outputs))
    }

    /// The library's name.
    pub fn name(&self) -> Result<String, Error> {
        Ok(self.counts()?.0)
    }

    /// What the model takes.
    pub fn inputs(&self) -> Result<Vec<Value>, Error> {
        (0..self.counts()?.1).map(|index| self.value(sys::INPUT, index)).collect()
    }

    /// What the model gives.
    pub fn outputs(&self) -> Result<Vec<Value>, Error> {
        (0..self.counts()?.2).map(|index| self.value(sys::OUTPUT, index)).collect()
    }

    fn value(&self, role: i32, index: i32) -> Result<Value, Error> {
        let mut raw: sys::Value = unsafe { std::mem::zeroed() };
        call(|error| unsafe { sys::tilewright_inspect(self.number(), role, index, &mut raw, error) })?;
        let dimension = |axis: usize| {
            // `shape` and `symbolic` have `rank` entries.
            let symbol = unsafe { *raw.symbolic.add(axis) };
            if symbol.is_null() { Dimension::Fixed(unsafe { *raw.shape.add(axis) }) } else { Dimension::Symbolic(text(symbol)) }
        };
        let name = text(raw.name);
        let dtype = DType::from_code(raw.dtype)
            .ok_or_else(|| Error::new(Kind::Unsupported, format!("'{name}' has a data type that is too new")))?;
        Ok(Value { name, dtype, shape: (0..raw.rank as usize).map(dimension).collect() })
    }

    /// The library's description of itself, as JSON.
    pub fn metadata(&self) -> Result<String, Error> {
        let mut json = std::ptr::null();
        call(|error| unsafe { sys::tilewright_metadata(self.number(), &mut json, error) })?;
        Ok(text(json))
    }

    /// Threads that calls of this library use from now on; 0 is the default.
    pub fn set_num_threads(&self, threads: usize) -> Result<(), Error> {
        call(|error| unsafe { sys::tilewright_set_num_threads(self.number(), threads as i64, error) })
    }

    /// The shapes that the outputs will have for these inputs.
    pub fn output_shapes(&self, inputs: &[View<'_>]) -> Result<Vec<Vec<i64>>, Error> {
        self.planned(inputs, &self.outputs()?)
    }

    fn planned(&self, inputs: &[View<'_>], outputs: &[Value]) -> Result<Vec<Vec<i64>>, Error> {
        let raw: Vec<sys::Tensor> = inputs.iter().map(View::raw).collect();
        let mut dims = vec![0; outputs.iter().map(|value| value.shape.len()).sum()];
        call(|error| unsafe {
            let (count, capacity) = (raw.len() as i32, dims.len() as i32);
            sys::tilewright_output_shapes(self.number(), raw.as_ptr(), count, dims.as_mut_ptr(), capacity, error)
        })?;
        let mut rest = dims.as_slice();
        let mut take = |count| {
            let (first, others) = rest.split_at(count);
            rest = others;
            first.to_vec()
        };
        Ok(outputs.iter().map(|value| take(value.shape.len())).collect())
    }

    /// One inference.
    pub fn run(&self, inputs: &[View<'_>]) -> Result<Vec<Tensor>, Error> {
        let stated = self.outputs()?;
        let shapes = self.planned(inputs, &stated)?;
        let mut results = stated
            .iter()
            .zip(&shapes)
            .map(|(value, shape)| Tensor::zeros(value.dtype, shape))
            .collect::<Result<Vec<Tensor>, Error>>()?;
        self.run_into(inputs, &mut results)?;
        Ok(results)
    }

    /// One inference into tensors that are there.
    pub fn run_into(&self, inputs: &[View<'_>], outputs: &mut [Tensor]) -> Result<(), Error> {
        let from: Vec<sys::Tensor> = inputs.iter().map(View::raw).collect();
        let to: Vec<sys::Tensor> = outputs.iter_mut().map(Tensor::raw_mut).collect();
        // Both borrow what they point to until the call is over, and the runtime checks sizes.
        call(|error| unsafe {
            sys::tilewright_run(self.number(), from.as_ptr(), from.len() as i32, to.as_ptr(), to.len() as i32, error)
        })
    }

    /// One inference on a thread of its own; `join` the job for its result. The model stays open until then.
    pub fn run_async(&self, inputs: Vec<Tensor>) -> Job {
        let model = self.clone();
        Job(std::thread::spawn(move || model.run(&inputs.iter().map(Tensor::view).collect::<Vec<_>>())))
    }
}

/// A run on a thread of its own.
#[derive(Debug)]
pub struct Job(JoinHandle<Result<Vec<Tensor>, Error>>);

impl Job {
    /// Wait for the result.
    pub fn join(self) -> Result<Vec<Tensor>, Error> {
        self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Whether `join` would not wait.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}
