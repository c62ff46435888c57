"use strict";

// Models that Tilewright has exported.
//
//   const model = await load("digits.so");
//   const { probabilities } = await model.run({ image: { data: new Float32Array(35), shape: [1, 7, 5] } });

const { fileURLToPath } = require("node:url");
const { DTYPES, CODES } = require("./lib/dtypes.js");

/** What went wrong; `code` says the kind: ERR_TILEWRIGHT_SHAPE, ERR_TILEWRIGHT_CLOSED, ... */
class TilewrightError extends Error {
  constructor(message, code) {
    super(message);
    this.name = "TilewrightError";
    this.code = code;
  }
}

function wrapped(error) {
  const isOurs = typeof error.code === "string" && error.code.startsWith("ERR_TILEWRIGHT_");
  return isOurs ? new TilewrightError(error.message, error.code) : error;
}

function guarded(call) {
  try {
    return call();
  } catch (error) {
    throw wrapped(error);
  }
}

const wrong = (code, message) => new TilewrightError(message, `ERR_TILEWRIGHT_${code}`);

function valueOf([name, dtype, sizes, symbols]) {
  const shape = sizes.map((size, axis) => symbols[axis] ?? size);
  return Object.freeze({ name, dtype, shape: Object.freeze(shape) });
}

/** An input as an array with a shape; a typed array alone has the shape that the model states, if no call decides it. */
function tensorOf(value, given) {
  const { data, shape = value.shape } = ArrayBuffer.isView(given) ? { data: given } : (given ?? {});
  const expected = DTYPES[value.dtype];
  if (!(data instanceof expected)) {
    const kind = data?.constructor?.name ?? String(data);
    throw wrong("TYPE", `input '${value.name}' is of ${kind}, expected ${expected.name} (${value.dtype})`);
  }
  if (!Array.isArray(shape) || !shape.every(Number.isSafeInteger)) {
    throw wrong("SHAPE", `input '${value.name}' needs a shape of whole numbers, as [${value.shape}] has symbols`);
  }
  return { data, shape, dtype: value.dtype };
}

/** Arrays as the engine takes them. */
function described(tensors) {
  return [
    tensors.map((tensor) => tensor.data),
    Int32Array.from(tensors, (tensor) => CODES[tensor.dtype]),
    Int32Array.from(tensors, (tensor) => tensor.shape.length),
    BigInt64Array.from(tensors.flatMap((tensor) => tensor.shape.map(BigInt))),
  ];
}

const unclosed = new FinalizationRegistry(({ engine, number }) => engine.close(number));

/** An exported model. Made by `load`. */
class Model {
  #engine;
  #number;
  #name;
  #metadata;

  constructor(engine, number) {
    this.#engine = engine;
    this.#number = number;
    const [name, metadata, inputs, outputs] = engine.describe(number);
    this.#name = name;
    this.#metadata = metadata;
    /** What the model takes: name, dtype, and a shape of numbers and texts over symbols. */
    this.inputs = Object.freeze(inputs.map(valueOf));
    /** What the model gives. */
    this.outputs = Object.freeze(outputs.map(valueOf));
    unclosed.register(this, { engine, number }, this);
  }

  /** The library's name. */
  get name() {
    return this.#name;
  }

  /** The library's description of itself. */
  get metadata() {
    return JSON.parse(this.#metadata);
  }

  /** Threads that calls of this library use from now on; 0 is the default. */
  setNumThreads(threads) {
    guarded(() => this.#engine.setNumThreads(this.#number, threads));
  }

  #arrays(inputs) {
    const given = inputs ?? {};
    const unknown = Object.keys(given).find((name) => !this.inputs.some((value) => value.name === name));
    if (unknown !== undefined) throw wrong("ARGUMENT", `${this.name} has no input '${unknown}'`);
    const missing = this.inputs.find((value) => given[value.name] === undefined);
    if (missing !== undefined) throw wrong("ARGUMENT", `the input '${missing.name}' of ${this.name} is missing`);
    return described(this.inputs.map((value) => tensorOf(value, given[value.name])));
  }

  #planned(arrays) {
    const sizes = new BigInt64Array(this.outputs.reduce((total, value) => total + value.shape.length, 0));
    guarded(() => this.#engine.outputShapes(this.#number, ...arrays, sizes));
    let at = 0;
    return this.outputs.map((value) => Array.from(sizes.subarray(at, (at += value.shape.length)), Number));
  }

  #results(arrays) {
    return this.#planned(arrays).map((shape, index) => {
      const { dtype } = this.outputs[index];
      const data = new DTYPES[dtype](shape.reduce((count, size) => count * size, 1));
      return { data, shape, dtype };
    });
  }

  #named(values) {
    return Object.fromEntries(values.map((value, index) => [this.outputs[index].name, value]));
  }

  /** The shapes that the outputs will have for these inputs, by name. */
  outputShapes(inputs) {
    return this.#named(this.#planned(this.#arrays(inputs)));
  }

  /** One inference, on a thread of Node's pool. The inputs are copied: they may be changed at once. */
  async run(inputs) {
    const arrays = this.#arrays(inputs);
    const results = this.#results(arrays);
    try {
      await this.#engine.run(this.#number, ...arrays, ...described(results));
    } catch (error) {
      throw wrapped(error);
    }
    return this.#named(results);
  }

  /** One inference, while nothing else happens. Nothing is copied. */
  runSync(inputs) {
    const arrays = this.#arrays(inputs);
    const results = this.#results(arrays);
    guarded(() => this.#engine.runSync(this.#number, ...arrays, ...described(results)));
    return this.#named(results);
  }

  /** Close the model. Closing it again does nothing; runs that have started end. */
  close() {
    unclosed.unregister(this);
    this.#engine.close(this.#number);
  }

  [Symbol.dispose ?? Symbol.for("Symbol.dispose")]() {
    this.close();
  }
}

/** Open a library: its path, a file URL, or its bytes as a Uint8Array. A library is native code: open those whose origin you trust. */
async function load(library, { engine = require("./lib/native.js") } = {}) {
  return guarded(() => {
    if (library instanceof Uint8Array) return new Model(engine, engine.openBytes(library));
    return new Model(engine, engine.open(library instanceof URL ? fileURLToPath(library) : String(library)));
  });
}

module.exports = { load, Model, TilewrightError };
