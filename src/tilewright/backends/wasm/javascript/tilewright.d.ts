/** Arrays that hold elements. float16 and bfloat16 are given as their bits; elements of less than a byte take a byte. */
export type Elements =
  | Float32Array | Float64Array | Int8Array | Int16Array | Int32Array | BigInt64Array
  | Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

/** Texts of a tensor of strings. */
export type Texts = readonly string[];

export interface Tensor<A extends Elements | Texts = Elements | Texts> {
  /** The type of its elements, as the model has it. */
  readonly dtype: string;
  readonly shape: number[];
  readonly data: A;
}

/** An input: its elements, or its elements and its shape, which is needed where more than one dimension is open. */
export type Input<A extends Elements | Texts> = A | { data: A; shape: readonly number[] };

/** The type of a value that is no tensor, or of what is in one; a shape of null may be any. */
export type ValueType =
  | { readonly kind: "tensor"; readonly dtype: string; readonly array: string; readonly shape: readonly (number | string | unknown)[] | null }
  | { readonly kind: "sequence" | "optional"; readonly item: ValueType };

export interface TensorInfo {
  readonly name: string;
  readonly dtype: string;
  /** The kind of array that holds its elements. */
  readonly array: string;
  /** Sizes; a text names one that each call decides. */
  readonly shape: readonly (number | string)[];
  /** Of sequences and optional values, whose data type and shape say nothing. */
  readonly type?: ValueType;
}

export interface KernelTime {
  readonly kernel: string;
  /** The nodes of your model that it computes. */
  readonly nodes: readonly string[];
  readonly milliseconds: number;
}

export interface LoadOptions {
  /** Threads (default: those that the model was compiled for, else the cores, at most 8; 1 where memory cannot be shared). */
  threads?: number;
  /** Whether the model lives in a worker (default: in a page, if it has several threads). */
  worker?: boolean;
  /**
   * Where it runs (default: on a GPU through WebGPU, where the package has kernels for it, the GPU what they need, and
   * `level` is not given; not on software that plays a GPU, which "webgpu" takes too).
   */
  device?: "webgpu" | "wasm";
  /** What its code uses: "relaxed", "simd" or "plain" (default: the best that the engine has). */
  level?: "relaxed" | "simd" | "plain";
  /** Told of the weights as they arrive. */
  onProgress?: (progress: { loaded: number; total: number }) => void;
}

/** Where a model runs: on a GPU of some name, or by WebAssembly, for a reason where the package has kernels for GPUs. */
export type Device =
  | { readonly kind: "webgpu"; readonly name: string }
  | { readonly kind: "wasm"; readonly reason?: string };

/** A loaded model. Calls from one thread run one after the other; results are yours. */
export interface Model<I = Record<string, unknown>, O = Record<string, unknown>> {
  readonly name: string;
  readonly inputs: readonly TensorInfo[];
  readonly outputs: readonly TensorInfo[];
  readonly threads: number;
  /** What its code uses; "webgpu" for kernels of a GPU. */
  readonly level: string;
  readonly device: Device;
  run(inputs: I): Promise<O>;
  /** The milliseconds of each kernel in its quickest run; on a GPU, whose clock browsers round, the mean of the runs. */
  profile(inputs: I, repeat?: number): Promise<KernelTime[]>;
  /** Ends its threads. Later calls are errors. */
  close(): void;
}

/** Everything that goes wrong with a model, its files or its inputs. */
export class TilewrightError extends Error {}

/** The levels of code that this engine runs, the best first. */
export function engineLevels(): ("relaxed" | "simd" | "plain")[];

/** Load the model of a package, by the URL of its folder. */
export function loadModel(base: string | URL, options?: LoadOptions): Promise<Model>;
