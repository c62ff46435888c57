/**
 * Host functions of programs: results that data sizes, shapes that are data, sequences. As in the package
 * `tilewright.runtime.host`, whose names they have: values and attributes in, the list of all results out.
 *
 * Inputs are never written to. A new tensor is { dtype, shape, data }, which the machine takes into memory; one inside a
 * sequence is taken there by the function itself (`placed`, the third argument).
 */

import {
  axesOf, axesWithin, checkedShape, compare, entries, joined, listed, longs, partsAlong, refuse, scalar, sequence,
  stacked, stridesOf, taken, takenAlong, tensor, transposed, upTo,
} from "./arrays.js";
import { drawKey } from "./random.js";
import { columnsToImage, countGrams, melWeights, nonMaxSuppression, resizeWeights } from "./tables.js";
import { textHosts } from "./texts.js";
import { arrayOf, elementsOf, numbersOf, product, Sequence } from "./values.js";

// Conditions

function require(values, { message }) {
  return scalar(values[0], "a condition") ? [values[0]] : refuse(message);
}

const rank = (values) => [longs([tensor(values[0]).shape.length], [])];
const fail = (values, { message }) => refuse(message);

// Axes that are data

function order(data, axes) {
  const chosen = axesWithin(axes, data.shape.length).sort((a, b) => a - b);
  return [...upTo(data.shape.length).filter((axis) => !chosen.includes(axis)), ...chosen];
}

const toEnd = ([data, axes]) => [transposed(tensor(data), order(data, axes))];

function fromEnd([data, axes]) {
  const moved = order(tensor(data), axes);
  return [transposed(data, listed(moved.length, (axis) => moved.indexOf(axis)))];
}

function insertAxes([data, axes]) {
  const all = tensor(data).shape.length + tensor(axes).size;
  const chosen = axesWithin(axes, all), rest = [...data.shape];
  return [data.view(listed(all, (axis) => (chosen.includes(axis) ? 1 : rest.shift())))];
}

function removeAxes([data, axes]) {
  const chosen = axesWithin(axes, tensor(data).shape.length);
  if (chosen.some((axis) => data.shape[axis] !== 1)) refuse(`dimensions [${chosen}] of [${data.shape}] are not all 1`);
  return [data.view(data.shape.filter((_, axis) => !chosen.includes(axis)))];
}

// Shapes that are data

function reshape([data, shape], { copy_zeros: copyZeros }) {
  let sizes = entries(shape, "the shape");
  if (copyZeros) {
    if (sizes.some((size, axis) => size === 0 && axis >= tensor(data).shape.length)) {
      refuse(`the shape [${sizes}] copies a dimension that [${data.shape}] does not have`);
    }
    sizes = sizes.map((size, axis) => (size === 0 ? data.shape[axis] : size));
  }
  const open = sizes.filter((size) => size === -1).length;
  const known = product(sizes.filter((size) => size !== -1));
  if (open === 1) {
    if (known <= 0 || data.size % known) refuse(`cannot reshape [${data.shape}] to [${sizes}]`);
    sizes[sizes.indexOf(-1)] = data.size / known;
  }
  if (product(checkedShape(sizes)) !== data.size) refuse(`cannot reshape [${data.shape}] to [${sizes}]`);
  return [data.view(sizes)];
}

function broadcast([data, given]) {
  const shape = checkedShape(entries(given, "the shape"));
  const length = Math.max(shape.length, tensor(data).shape.length);
  const padded = (sizes) => [...new Array(length - sizes.length).fill(1), ...sizes];
  const [from, to] = [padded(data.shape), padded(shape)];
  const maps = from.map((size, axis) => {
    if (size !== to[axis] && size !== 1 && to[axis] !== 1) refuse(`cannot broadcast a tensor of the shape [${data.shape}] to [${shape}]`);
    return size === 1 ? new Int32Array(to[axis]) : upTo(size);
  });
  return [taken(data.view(from), maps)];
}

/** The places that a slice has, with Python's meaning of bounds; downwards, one before the first means the first. */
function placesOf(first, last, step, size) {
  const [lower, upper] = step < 0 ? [-1, size - 1] : [0, size];
  const bound = (place) => (place < 0 ? Math.max(place + size, lower) : Math.min(place, upper));
  const stop = bound(last), places = [];
  const start = step < 0 ? Math.min(Math.max(bound(first), 0), size - 1) : bound(first);
  if (start < 0) return places;
  for (let place = start; step > 0 ? place < stop : place > stop; place += step) places.push(place);
  return places;
}

function slice(values, attributes) {
  const data = tensor(values[0]), axes = axesOf(values.slice(4), attributes, data.shape.length);
  const [begin, end, steps] = ["starts", "ends", "steps"].map((what, number) => entries(values[number + 1], what));
  if ([begin, end, steps].some(({ length }) => length !== axes.length) || steps.includes(0)) {
    refuse(`starts [${begin}], ends [${end}] and steps [${steps}] do not fit axes [${axes}]`);
  }
  const maps = data.shape.map((size) => upTo(size));
  axes.forEach((axis, number) => { maps[axis] = placesOf(begin[number], end[number], steps[number], data.shape[axis]); });
  return [taken(data, maps)];
}

function tile([data, given]) {
  const repeats = entries(given, "the repeats");
  if (repeats.length !== tensor(data).shape.length) refuse(`repeats [${repeats}] do not fit ${data.shape.length} dimensions`);
  const shape = checkedShape(data.shape.map((size, axis) => size * repeats[axis]));
  return [taken(data, shape.map((size, axis) => upTo(size).map((place) => place % data.shape[axis])))];
}

/** The place in data of so many elements that a place before, in or behind it reads. */
const PADDING = {
  constant: (place, size) => (place < 0 || place >= size ? -1 : place),
  edge: (place, size) => Math.min(Math.max(place, 0), size - 1),
  wrap: (place, size) => ((place % size) + size) % size,
  reflect: (place, size) => {
    if (size === 1) return 0;
    const period = 2 * (size - 1), inside = ((place % period) + period) % period;
    return inside < size ? inside : period - inside;
  },
};

function pad(values, attributes) {
  const data = tensor(values[0]), amounts = entries(values[1], "the amounts"), { mode } = attributes;
  const axes = axesOf(values.slice(3), attributes, data.shape.length);
  if (amounts.length !== 2 * axes.length) refuse(`amounts [${amounts}] do not fit axes [${axes}]`);
  const widths = data.shape.map(() => [0, 0]);
  axes.forEach((axis, number) => { widths[axis] = [amounts[number], amounts[number + axes.length]]; });
  checkedShape(data.shape.map((size, axis) => Math.max(0, size + widths[axis][0] + widths[axis][1])));
  const maps = data.shape.map((size, axis) => {
    const [low, high] = widths[axis], first = Math.max(0, -low), kept = size - Math.max(0, -high) - first;
    if ((kept < 0 && mode !== "constant") || size + low + high < 0) {
      refuse(`pads cut ${first} and ${Math.max(0, -high)} off dimension ${axis}, which is ${size}`);
    }
    // What is cut off beyond the data is cut off what is put there.
    if (kept < 0) return new Int32Array(size + low + high).fill(-1);
    if (kept === 0 && mode !== "constant" && (low > 0 || high > 0)) refuse(`dimension ${axis} is empty: nothing can be put beside it in the mode ${mode}`);
    return upTo(size + low + high).map((place) => {
      const inside = PADDING[mode](place - Math.max(0, low), kept);
      return inside < 0 ? -1 : inside + first;
    });
  });
  if (mode !== "constant") return [taken(data, maps)];
  if (tensor(values[2]).size !== 1) refuse(`the value of padding has the shape [${values[2].shape}]`);
  return [taken(data, maps, values[2].data[0])];
}

function range(values) {
  const [first, last, step] = values.map((value) => numbersOf(tensor(value))[0]);
  const { dtype } = values[0];
  if (!Number(step)) refuse("delta of a range is 0");
  const span = (Number(last) - Number(first)) / Number(step);
  if (!Number.isFinite(span)) refuse(`a range from ${first} to ${last} by ${step}`);
  const shape = checkedShape([Math.max(0, Math.ceil(span))]), all = { length: shape[0] };
  const numbers = typeof first === "bigint"
    ? BigInt64Array.from(all, (_, number) => first + BigInt(number) * step)
    : Float64Array.from(all, (_, number) => first + number * step);
  return [{ dtype, shape, data: elementsOf(numbers, dtype) }];
}

function split([data, given], { axis }) {
  const sizes = entries(given, "the sizes"), size = tensor(data).shape[axis];
  if (sizes.some((part) => part < 0) || sizes.reduce((all, part) => all + part, 0) !== size) {
    refuse(`parts of [${sizes}] do not make up a dimension of ${size}`);
  }
  return partsAlong(data, axis, sizes);
}

// Selections

function nonzero([data]) {
  const { shape } = tensor(data), numbers = numbersOf(data), strides = stridesOf(shape);
  let count = 0;
  for (const value of numbers) count += Number(Number(value) !== 0);
  const places = new BigInt64Array(shape.length * count);
  let column = 0;
  numbers.forEach((value, place) => {
    if (Number(value) === 0) return;
    shape.forEach((size, axis) => { places[axis * count + column] = BigInt(Math.floor(place / strides[axis]) % size); });
    column += 1;
  });
  return [{ dtype: "int64", shape: [shape.length, count], data: places }];
}

function compress([given, condition], { axis }) {
  const data = axis < 0 ? tensor(given).view([given.size]) : tensor(given), along = Math.max(axis, 0);
  if (tensor(condition).shape.length !== 1 || condition.size > data.shape[along]) {
    refuse(`a condition of the shape [${condition.shape}] does not fit a dimension of ${data.shape[along]}`);
  }
  const flags = condition.data;
  return [takenAlong(data, along, upTo(condition.size).filter((place) => flags[place]))];
}

function unique([given], { axis, sorted }) {
  const data = axis < 0 ? tensor(given).view([given.size]) : tensor(given), along = Math.max(axis, 0);
  const numbers = numbersOf(data), [outer, count] = [product(data.shape.slice(0, along)), data.shape[along]];
  const inner = product(data.shape.slice(along + 1)), width = outer * inner;
  const at = (row, column) => numbers[(Math.floor(column / inner) * count + row) * inner + (column % inner)];
  const compareRows = (a, b) => {
    for (let column = 0; column < width; column += 1) {
      const difference = compare(at(a, column), at(b, column));
      if (difference) return difference;
    }
    return 0;
  };
  // Rows with something that is no number are no two the same; single elements are.
  const same = (a, b) => compareRows(a, b) === 0 && (width === 1 || upTo(width).every((column) => at(a, column) === at(b, column)));
  let groups = [];
  for (const row of upTo(count).sort(compareRows)) {
    const group = groups.at(-1);
    if (group !== undefined && same(group[0], row)) group.push(row);
    else groups.push([row]);
  }
  if (!sorted) groups = groups.sort((a, b) => a[0] - b[0]);
  const first = groups.map((group) => group[0]), place = new Array(count);
  groups.forEach((group, number) => group.forEach((row) => { place[row] = number; }));
  return [takenAlong(data, along, first), longs(first), longs(place), longs(groups.map(({ length }) => length))];
}

function topk([data, given], { axis, largest }) {
  const count = Math.trunc(scalar(given, "k of TopK")), size = tensor(data).shape[axis];
  if (!(count >= 0 && count <= size)) refuse(`k of TopK is ${count}, the axis has ${size} elements`);
  const numbers = numbersOf(data), elements = data.data, inner = product(data.shape.slice(axis + 1));
  const shape = data.shape.with(axis, count), outer = product(data.shape.slice(0, axis));
  const values = new (arrayOf(data.dtype))(product(shape)), places = new BigInt64Array(product(shape));
  for (let row = 0; row < outer * inner; row += 1) {
    const before = Math.floor(row / inner), start = before * size * inner + (row % inner), to = before * count * inner + (row % inner);
    const at = (place) => numbers[start + place * inner];
    const sorted = upTo(size).sort(largest ? (a, b) => compare(at(b), at(a)) : (a, b) => compare(at(a), at(b)));
    for (let number = 0; number < count; number += 1) {
      values[to + number * inner] = elements[start + sorted[number] * inner];
      places[to + number * inner] = BigInt(sorted[number]);
    }
  }
  return [{ dtype: data.dtype, shape, data: values }, { dtype: "int64", shape, data: places }];
}

// Sequences and optionals

function placeIn(value, count, most) {
  const place = Math.trunc(scalar(value, "the position"));
  if (!(place >= -count && place <= most)) refuse(`the position ${place} is not in a sequence of ${count}`);
  return place < 0 ? place + count : place;
}

const makeSequence = (values) => [new Sequence([...values])];

function insertItem([given, item, position]) {
  const { length } = sequence(given);
  if (position === undefined || position === null) return [given.with(item)];
  return [new Sequence(given.items.toSpliced(placeIn(position, length, length), 0, item))];
}

function eraseItem([given, position]) {
  const { length } = sequence(given);
  if (!length) refuse("an item of an empty sequence cannot be erased");
  const place = position === undefined || position === null ? length - 1 : placeIn(position, length, length - 1);
  return [new Sequence(given.items.toSpliced(place, 1))];
}

const itemAt = ([given, position]) => [sequence(given).shared[placeIn(position, given.length, given.length - 1)]];
const lengthOf = ([given]) => [longs([sequence(given).length], [])];

function stack([given, itemShape], { axis, dtype }) {
  const items = sequence(given).items.map((item) => tensor(item, "an item"));
  if (items.length) return [stacked(items, axis, "the values that a loop collected")];
  const shape = checkedShape(entries(itemShape, "the shape of an item").toSpliced(axis, 0, 0));
  return [{ dtype, shape, data: new (arrayOf(dtype))(product(shape)) }];
}

function concatenate([given], { axis, new_axis: newAxis }) {
  const items = sequence(given).items.map((item) => tensor(item, "an item")), what = "the items of the sequence";
  if (!items.length) refuse("the items of an empty sequence cannot be joined");
  return [newAxis ? stacked(items, axis, what) : joined(items, axis, what)];
}

function splitIntoSequence([data, given], { axis, keepdims }, placed) {
  const extent = tensor(data).shape[axis], isOne = given === undefined || given === null;
  let sizes;
  if (isOne || !tensor(given).shape.length) {
    const step = isOne ? 1 : Number(given.data[0]);
    if (step < 1) refuse(`parts of ${step} elements`);
    sizes = listed(Math.ceil(extent / step), (number) => Math.min(step, extent - number * step));
  } else {
    sizes = Array.from(given.data, Number);
    if (sizes.some((size) => size < 0) || sizes.reduce((all, size) => all + size, 0) !== extent) {
      refuse(`parts of [${sizes}] do not fit a dimension of ${extent}`);
    }
  }
  const parts = partsAlong(data, axis, sizes).map(placed);
  return [new Sequence(isOne && !keepdims ? parts.map((part) => part.view(part.shape.toSpliced(axis, 1))) : parts)];
}

const makeOptional = (values) => [values.length ? values[0] : null];
const hasValue = (values) => [{ dtype: "bool", shape: [], data: Uint8Array.of(values.length && values[0] !== null ? 1 : 0) }];
const getValue = ([value]) => [value === null ? refuse("an optional value that is needed is empty") : value];

/** The functions, by the names that programs call them. */
export const hosts = {
  ...textHosts,
  "host.require": require,
  "host.rank": rank,
  "host.fail": fail,
  "axes.to_end": toEnd,
  "axes.from_end": fromEnd,
  "axes.insert": insertAxes,
  "axes.remove": removeAxes,
  "shape.match": ([value]) => [value],
  "shape.reshape": reshape,
  "shape.broadcast": broadcast,
  "shape.slice": slice,
  "shape.tile": tile,
  "shape.pad": pad,
  "shape.range": range,
  "shape.split": split,
  "host.nonzero": nonzero,
  "host.compress": compress,
  "host.unique": unique,
  "host.topk": topk,
  "host.non_max_suppression": nonMaxSuppression,
  "host.mel_weights": melWeights,
  "host.col2im": columnsToImage,
  "host.resize_weights": resizeWeights,
  "random.key": drawKey,
  "text.ngrams": countGrams,
  "sequence.make": makeSequence,
  "sequence.insert": insertItem,
  "sequence.erase": eraseItem,
  "sequence.at": itemAt,
  "sequence.length": lengthOf,
  "sequence.stack": stack,
  "sequence.concatenate": concatenate,
  "sequence.split": splitIntoSequence,
  "optional.make": makeOptional,
  "optional.has": hasValue,
  "optional.get": getValue,
};
