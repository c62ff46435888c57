//! `tilewright.h` as it is.

use std::os::raw::{c_char, c_void};

pub const INPUT: i32 = 0;
pub const OUTPUT: i32 = 1;

#[repr(C)]
pub struct Error {
    pub status: i32,
    pub message: [c_char; 1020],
}

#[repr(C)]
pub struct Value {
    pub name: *const c_char,
    pub dtype: i32,
    pub rank: i32,
    pub shape: *const i64,
    pub symbolic: *const *const c_char,
}

#[repr(C)]
pub struct Tensor {
    pub data: *mut c_void,
    pub bytes: i64,
    pub shape: *const i64,
    pub rank: i32,
    pub dtype: i32,
}

extern "C" {
    pub fn tilewright_dtype_size(dtype: i32) -> i64;
    pub fn tilewright_open(path: *const c_char, model: *mut i64, error: *mut Error) -> i32;
    pub fn tilewright_open_bytes(bytes: *const c_void, size: i64, model: *mut i64, error: *mut Error) -> i32;
    pub fn tilewright_close(model: i64, error: *mut Error) -> i32;
    pub fn tilewright_describe(
        model: i64,
        name: *mut *const c_char,
        inputs: *mut i32,
        outputs: *mut i32,
        symbols: *mut i32,
        error: *mut Error,
    ) -> i32;
    pub fn tilewright_inspect(model: i64, role: i32, index: i32, value: *mut Value, error: *mut Error) -> i32;
    pub fn tilewright_metadata(model: i64, json: *mut *const c_char, error: *mut Error) -> i32;
    pub fn tilewright_set_num_threads(model: i64, threads: i64, error: *mut Error) -> i32;
    pub fn tilewright_output_shapes(
        model: i64,
        inputs: *const Tensor,
        input_count: i32,
        dimensions: *mut i64,
        capacity: i32,
        error: *mut Error,
    ) -> i32;
    pub fn tilewright_run(
        model: i64,
        inputs: *const Tensor,
        input_count: i32,
        outputs: *const Tensor,
        output_count: i32,
        error: *mut Error,
    ) -> i32;
}
