/** Models that Tilewright has exported. */

export type DType =
  | "bool" | "int8" | "int16" | "int32" | "int64" | "uint8" | "uint16" | "uint32" | "uint64"
  | "float16" | "bfloat16" | "float32" | "float64"
  | "float8_e4m3fn" | "float8_e4m3fnuz" | "float8_e5m2" | "float8_e5m2fnuz" | "float8_e8m0fnu" | "float4_e2m1fn"
  | "int1" | "int2" | "int4" | "uint1" | "uint2" | "uint4";

/** Floats of 16 bits and fewer are their bits; int64 and uint64 are big integers. */
export type Elements =
  | Float32Array | Float64Array | Int8Array | Int16Array | Int32Array | BigInt64Array
  | Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

/** An input or output as the model states it: a dimension that a call decides is a text ("batch", "n + m"). */
export interface Value {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly (number | string)[];
}

export interface Input {
  data: Elements;
  shape?: readonly number[];
}

export interface Output<T extends Elements = Elements> {
  data: T;
  shape: number[];
  dtype: DType;
}

export type Inputs = Record<string, Input | Elements>;
export type Outputs = Record<string, Output>;

export type ErrorCode =
  | "ERR_TILEWRIGHT_ARGUMENT" | "ERR_TILEWRIGHT_FILE" | "ERR_TILEWRIGHT_LIBRARY" | "ERR_TILEWRIGHT_UNSUPPORTED"
  | "ERR_TILEWRIGHT_SHAPE" | "ERR_TILEWRIGHT_TYPE" | "ERR_TILEWRIGHT_MEMORY" | "ERR_TILEWRIGHT_DATA"
  | "ERR_TILEWRIGHT_CLOSED" | "ERR_TILEWRIGHT_UNKNOWN";

export class TilewrightError extends Error {
  readonly code: ErrorCode;
}

export class Model {
  private constructor();
  readonly name: string;
  readonly metadata: Record<string, unknown>;
  readonly inputs: readonly Value[];
  readonly outputs: readonly Value[];
  setNumThreads(threads: number): void;
  outputShapes(inputs: Inputs): Record<string, number[]>;
  run(inputs: Inputs): Promise<Outputs>;
  runSync(inputs: Inputs): Outputs;
  close(): void;
}

export function load(library: string | URL | Uint8Array): Promise<Model>;
