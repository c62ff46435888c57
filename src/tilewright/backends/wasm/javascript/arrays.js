/** What host functions share: reading values of the kind they expect, and moving elements. */

import { TilewrightError } from "./errors.js";
import { arrayOf, numbersOf, product, Sequence, Tensor } from "./values.js";

/** No memory of a model has room for more: a shape that is data may be anything. */
const MOST_ELEMENTS = 2 ** 30;

export function refuse(message) {
  throw new TilewrightError(message);
}

export function tensor(value, what = "an input") {
  if (!(value instanceof Tensor)) refuse(`${what} must be a tensor`);
  return value;
}

export function sequence(value) {
  if (!(value instanceof Sequence)) refuse("an input must be a sequence");
  return value;
}

export function scalar(value, what = "an input") {
  if (tensor(value, what).size !== 1) refuse(`${what} must be one number, it is a tensor of the shape [${value.shape}]`);
  return Number(numbersOf(value)[0]);
}

/** A list of whole numbers that is data. */
export function entries(value, what) {
  const { dtype, shape, data } = tensor(value, what);
  if (!/^u?int/.test(dtype) || shape.length > 1) refuse(`${what} must be a list of whole numbers, it is ${dtype}[${shape}]`);
  return Array.from(data, Number);
}

export function checkedShape(shape) {
  if (shape.some((size) => size < 0)) refuse(`[${shape}] is not a shape`);
  if (product(shape) > MOST_ELEMENTS) refuse(`there is no memory for a tensor of the shape [${shape}]`);
  return shape;
}

export function axesWithin(value, rank) {
  const numbers = Array.from(tensor(value, "the axes").data, Number);
  if (numbers.some((axis) => axis < -rank || axis >= rank)) refuse(`axes [${numbers}] are out of range for ${rank} dimensions`);
  const axes = numbers.map((axis) => (axis < 0 ? axis + rank : axis));
  if (new Set(axes).size !== axes.length) refuse(`axes [${numbers}] repeat`);
  return axes;
}

/** Axes that are an input, else those that are known. */
export const axesOf = (given, { axes }, rank) => (given.length ? axesWithin(given[0], rank) : axes);
/** The numbers below one. An array of numbers: where there is no memory for it, that is an error and not the end of the process. */
export const upTo = (count) => Int32Array.from({ length: count }, (_, number) => number);
export const listed = (count, make) => Array.from({ length: count }, (_, number) => make(number));
export const longs = (numbers, shape = [numbers.length]) => ({ dtype: "int64", shape, data: BigInt64Array.from(numbers, BigInt) });

export function stridesOf(shape) {
  const strides = new Array(shape.length);
  let stride = 1;
  for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

/** The elements at places along each axis, lists of numbers of steps of strides; a place of -1 has the element `fill`. */
export function gathered({ dtype, data }, strides, maps, fill = undefined) {
  const shape = maps.map(({ length }) => length);
  const result = new (arrayOf(dtype))(product(shape));
  const last = maps.length - 1;
  let place = 0;
  const walk = (axis, offset) => {
    const stride = strides[axis];
    for (const index of maps[axis]) {
      const inner = offset < 0 || index < 0 ? -1 : offset + index * stride;
      if (axis < last) walk(axis + 1, inner);
      else result[place++] = inner < 0 ? fill : data[inner];
    }
  };
  if (last < 0) result[0] = data[0];
  else if (result.length) walk(0, 0);
  return { dtype, shape, data: result };
}

export const taken = (value, maps, fill) => gathered(value, stridesOf(value.shape), maps, fill);

export function takenAlong(value, axis, places) {
  return taken(value, value.shape.map((size, number) => (number === axis ? places : upTo(size))));
}

export function transposed(value, order) {
  const strides = stridesOf(value.shape);
  return gathered(value, order.map((axis) => strides[axis]), order.map((axis) => upTo(value.shape[axis])));
}

/** Tensors one after the other along an axis. */
export function joined(parts, axis, what) {
  const [first] = parts, rank = first.shape.length, along = axis < 0 ? axis + rank : axis;
  const fits = ({ dtype, shape }) => dtype === first.dtype && shape.length === rank
    && shape.every((size, number) => number === along || size === first.shape[number]);
  if (!(along >= 0 && along < rank) || !parts.every(fits)) {
    refuse(`${what} cannot be joined along axis ${axis}: [${parts.slice(0, 4).map(({ shape }) => `[${shape}]`)}]`);
  }
  const shape = first.shape.with(along, parts.reduce((all, part) => all + part.shape[along], 0));
  const data = new (arrayOf(first.dtype))(product(shape));
  const outer = product(shape.slice(0, along));
  const pieces = parts.map((part) => ({ data: part.data, length: product(part.shape.slice(along)) }));
  let place = 0;
  for (let row = 0; row < outer; row += 1) {
    for (const piece of pieces) {
      data.set(piece.data.subarray(row * piece.length, (row + 1) * piece.length), place);
      place += piece.length;
    }
  }
  return { dtype: first.dtype, shape, data };
}

export function stacked(items, axis, what) {
  const along = axis < 0 ? axis + items[0].shape.length + 1 : axis;
  return joined(items.map((item) => item.view(item.shape.toSpliced(along, 0, 1))), along, what);
}

/** Parts of sizes along an axis. */
export function partsAlong(value, axis, sizes) {
  let start = 0;
  return sizes.map((size) => {
    const part = takenAlong(value, axis, upTo(size).map((place) => start + place));
    start += size;
    return part;
  });
}

/** Whether a number comes before (below 0) or after another; what is no number comes last. */
export function compare(a, b) {
  if (a < b) return -1;
  if (a > b) return 1;
  return Number(a !== a) - Number(b !== b);
}
