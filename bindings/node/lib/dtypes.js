"use strict";

// Data types in the order of their numbers (from 1), and the typed arrays that hold their elements. Floats of 16 bits and fewer
// are passed as their bits.

const DTYPES = {
  bool: Uint8Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
  float16: Uint16Array,
  bfloat16: Uint16Array,
  float32: Float32Array,
  float64: Float64Array,
  float8_e4m3fn: Uint8Array,
  float8_e4m3fnuz: Uint8Array,
  float8_e5m2: Uint8Array,
  float8_e5m2fnuz: Uint8Array,
  float8_e8m0fnu: Uint8Array,
  float4_e2m1fn: Uint8Array,
  int1: Int8Array,
  int2: Int8Array,
  int4: Int8Array,
  uint1: Uint8Array,
  uint2: Uint8Array,
  uint4: Uint8Array,
};

const CODES = Object.fromEntries(Object.keys(DTYPES).map((name, index) => [name, index + 1]));

module.exports = { DTYPES, CODES };
