/**
 * Values of programs: tensors in the memory of the model, texts, tuples (arrays), sequences, optionals (null when empty),
 * algebraic data and closures; and elements as numbers.
 */

import { TilewrightError } from "./errors.js";

/** Texts in a row, which are put together and taken apart as arrays of numbers are. */
export class Texts extends Array {
  set(items, place = 0) {
    items.forEach((item, number) => { this[place + number] = item; });
  }

  subarray(first, last) {
    return this.slice(first, last);
  }
}

const ARRAYS = {
  string: Texts, bool: Uint8Array, int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
  float16: Uint16Array, bfloat16: Uint16Array, float32: Float32Array, float64: Float64Array,
};

/** The array that holds elements of a type; those of 8 bits and fewer take a byte each. */
export function arrayOf(dtype) {
  return ARRAYS[dtype] ?? (dtype.startsWith("int") ? Int8Array : Uint8Array);
}

export const product = (sizes) => sizes.reduce((all, size) => all * size, 1);

/** A tensor. `block` is the piece of memory that it lies in; constants lie in none. */
export class Tensor {
  constructor(memory, block, place, dtype, shape) {
    this.memory = memory;
    this.block = block;
    this.place = place;
    this.dtype = dtype;
    this.shape = shape;
    this.size = product(shape);
  }

  /** Its elements: an array over the memory, which is of use until memory is taken again. */
  get data() {
    return new (arrayOf(this.dtype))(this.memory.buffer, this.place, this.size);
  }

  /** Some of its elements under another shape. */
  view(shape, first = 0) {
    const bytes = arrayOf(this.dtype).BYTES_PER_ELEMENT;
    return new Tensor(this.memory, this.block, this.place + first * bytes, this.dtype, shape);
  }
}

/** A tensor of texts, which lies in no memory of the model. */
export class TextTensor extends Tensor {
  constructor(shape, items) {
    super(undefined, undefined, 0, "string", shape);
    this.items = items;
  }

  get data() {
    return this.items;
  }

  view(shape, first = 0) {
    return new TextTensor(shape, this.items.slice(first, first + product(shape)));
  }
}

/**
 * A sequence: the first `length` of some items. One that is longer by an item shares them, so that a loop which
 * collects values copies none of those before.
 */
export class Sequence {
  constructor(items = [], length = items.length) {
    this.shared = items;
    this.length = length;
  }

  get items() {
    return this.shared.length === this.length ? this.shared : this.shared.slice(0, this.length);
  }

  with(item) {
    const items = this.shared.length === this.length ? this.shared : this.items;
    items.push(item);
    return new Sequence(items);
  }
}

/** A value of an algebraic data type. */
export class DataValue {
  constructor(constructorName, fields) {
    this.constructorName = constructorName;
    this.fields = fields;
  }
}

/** A function with the values and sizes that it captured. */
export class Closure {
  constructor(number, captured, symbols) {
    this.number = number;
    this.captured = captured;
    this.symbols = symbols;
  }
}

/** The values that a value is made of. */
export function partsOf(value) {
  if (Array.isArray(value)) return value;
  if (value instanceof Sequence) return value.items;
  if (value instanceof DataValue) return value.fields;
  return value instanceof Closure ? value.captured : [];
}

const bits = new DataView(new ArrayBuffer(8));

function halfToNumber(half) {
  const sign = half & 0x8000 ? -1 : 1, exponent = (half >> 10) & 31, fraction = half & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
}

function bfloatToNumber(half) {
  bits.setUint32(0, half << 16);
  return bits.getFloat32(0);
}

/** A whole number near `value`, the even one of two that are equally near. */
function roundedToEven(value) {
  const floor = Math.floor(value), rest = value - floor;
  return rest > 0.5 || (rest === 0.5 && floor % 2) ? floor + 1 : floor;
}

/** The bits of the half-precision number that is nearest. */
export function toHalf(value) {
  if (Number.isNaN(value)) return 0x7e00;
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0, size = Math.abs(value);
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | roundedToEven(size * 2 ** 24);
  const exponent = Math.floor(Math.log2(size));
  // A fraction that is rounded up to 1024 carries into the exponent, as it should.
  return sign | (((exponent + 15) << 10) + roundedToEven((size / 2 ** exponent - 1) * 1024));
}

function numberToBfloat(value) {
  bits.setFloat32(0, value);
  if (Number.isNaN(value)) return 0x7fc0;
  const whole = bits.getUint32(0);
  return (whole + 0x7fff + ((whole >>> 16) & 1)) >>> 16;
}

/** The elements of a tensor as numbers that are in order (64-bit integers as BigInt). */
export function numbersOf({ dtype, data }) {
  if (dtype === "float16") return Float64Array.from(data, halfToNumber);
  return dtype === "bfloat16" ? Float32Array.from(data, bfloatToNumber) : data;
}

/** Numbers as elements of a type. */
export function elementsOf(numbers, dtype) {
  if (dtype === "float16") return Uint16Array.from(numbers, toHalf);
  if (dtype === "bfloat16") return Uint16Array.from(numbers, numberToBfloat);
  if (!(dtype in ARRAYS)) throw new TilewrightError(`no numbers of the type ${dtype} are computed outside of compiled code`);
  return ARRAYS[dtype].from(numbers);
}
