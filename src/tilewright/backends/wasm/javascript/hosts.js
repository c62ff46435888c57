/**
 * Host functions of programs: results that data sizes, shapes that are data, sequences. As in the package
 * `tilewright.runtime.host`, whose names they have: values and attributes in, the list of all results out.
 *
 * Inputs are never written to. A new tensor is { dtype, shape, data }, which the machine takes into memory; one inside a
 * sequence is taken there by the function itself (`placed`, the third argument).
 */

import { TilewrightError } from "./errors.js";
import { arrayOf, elementsOf, numbersOf, product, Sequence, Tensor } from "./values.js";

/** No memory of a model has room for more: a shape that is data may be anything. */
const MOST_ELEMENTS = 2 ** 30;
const { fround } = Math;
const LARGEST_AXIS = 1 << 22;
const LARGEST_MATRIX = 1 << 28;

function refuse(message) {
  throw new TilewrightError(message);
}

function tensor(value, what = "an input") {
  if (!(value instanceof Tensor)) refuse(`${what} must be a tensor`);
  return value;
}

function sequence(value) {
  if (!(value instanceof Sequence)) refuse("an input must be a sequence");
  return value;
}

function scalar(value, what = "an input") {
  if (tensor(value, what).size !== 1) refuse(`${what} must be one number, it is a tensor of the shape [${value.shape}]`);
  return Number(numbersOf(value)[0]);
}

/** A list of whole numbers that is data. */
function entries(value, what) {
  const { dtype, shape, data } = tensor(value, what);
  if (!/^u?int/.test(dtype) || shape.length > 1) refuse(`${what} must be a list of whole numbers, it is ${dtype}[${shape}]`);
  return Array.from(data, Number);
}

function checkedShape(shape) {
  if (shape.some((size) => size < 0)) refuse(`[${shape}] is not a shape`);
  if (product(shape) > MOST_ELEMENTS) refuse(`there is no memory for a tensor of the shape [${shape}]`);
  return shape;
}

function axesWithin(value, rank) {
  const numbers = Array.from(tensor(value, "the axes").data, Number);
  if (numbers.some((axis) => axis < -rank || axis >= rank)) refuse(`axes [${numbers}] are out of range for ${rank} dimensions`);
  const axes = numbers.map((axis) => (axis < 0 ? axis + rank : axis));
  if (new Set(axes).size !== axes.length) refuse(`axes [${numbers}] repeat`);
  return axes;
}

/** Axes that are an input, else those that are known. */
const axesOf = (given, { axes }, rank) => (given.length ? axesWithin(given[0], rank) : axes);
/** The numbers below one. An array of numbers: where there is no memory for it, that is an error and not the end of the process. */
const upTo = (count) => Int32Array.from({ length: count }, (_, number) => number);
const listed = (count, make) => Array.from({ length: count }, (_, number) => make(number));
const longs = (numbers, shape = [numbers.length]) => ({ dtype: "int64", shape, data: BigInt64Array.from(numbers, BigInt) });

function stridesOf(shape) {
  const strides = new Array(shape.length);
  let stride = 1;
  for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

/** The elements at places along each axis, lists of numbers of steps of strides; a place of -1 has the element `fill`. */
function gathered({ dtype, data }, strides, maps, fill = undefined) {
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

const taken = (value, maps, fill) => gathered(value, stridesOf(value.shape), maps, fill);

function takenAlong(value, axis, places) {
  return taken(value, value.shape.map((size, number) => (number === axis ? places : upTo(size))));
}

function transposed(value, order) {
  const strides = stridesOf(value.shape);
  return gathered(value, order.map((axis) => strides[axis]), order.map((axis) => upTo(value.shape[axis])));
}

/** Tensors one after the other along an axis. */
function joined(parts, axis, what) {
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

function stacked(items, axis, what) {
  const along = axis < 0 ? axis + items[0].shape.length + 1 : axis;
  return joined(items.map((item) => item.view(item.shape.toSpliced(along, 0, 1))), along, what);
}

/** Parts of sizes along an axis. */
function partsAlong(value, axis, sizes) {
  let start = 0;
  return sizes.map((size) => {
    const part = takenAlong(value, axis, upTo(size).map((place) => start + place));
    start += size;
    return part;
  });
}

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
  const { shape } = tensor(data), numbers = numbersOf(data), places = [];
  numbers.forEach((value, place) => { if (Number(value) !== 0) places.push(place); });
  const strides = stridesOf(shape);
  const rows = shape.flatMap((size, axis) => places.map((place) => Math.floor(place / strides[axis]) % size));
  return [longs(rows, [shape.length, places.length])];
}

function compress([given, condition], { axis }) {
  const data = axis < 0 ? tensor(given).view([given.size]) : tensor(given), along = Math.max(axis, 0);
  if (tensor(condition).shape.length !== 1 || condition.size > data.shape[along]) {
    refuse(`a condition of the shape [${condition.shape}] does not fit a dimension of ${data.shape[along]}`);
  }
  const flags = condition.data;
  return [takenAlong(data, along, upTo(condition.size).filter((place) => flags[place]))];
}

/** Whether a number comes before (below 0) or after another; what is no number comes last. */
function compare(a, b) {
  if (a < b) return -1;
  if (a > b) return 1;
  return Number(a !== a) - Number(b !== b);
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

// Boxes, in single precision

/** The corners (low x, low y, high x, high y) of box number `box`. */
function cornersOf(numbers, box, isCentered) {
  const [a, b, c, d] = numbers.subarray(4 * box, 4 * box + 4);
  if (isCentered) return [a - c / 2, b - d / 2, a + c / 2, b + d / 2].map(fround);
  return [Math.min(b, d), Math.min(a, c), Math.max(b, d), Math.max(a, c)];
}

/** Whether two boxes share more than a part of what they cover together. */
function covers(first, second, overlap) {
  const span = (axis) => Math.max(fround(Math.min(first[axis + 2], second[axis + 2]) - Math.max(first[axis], second[axis])), 0);
  const area = (box) => fround(fround(box[2] - box[0]) * fround(box[3] - box[1]));
  const common = fround(span(0) * span(1)), union = fround(fround(area(first) + area(second)) - common);
  return common > 0 && union > 0 && fround(common / union) > overlap;
}

function nonMaxSuppression(values, { center_point_box: isCentered }) {
  const boxes = tensor(values[0], "the boxes"), scores = tensor(values[1], "the scores");
  const [images, classes, count] = scores.shape;
  if (boxes.shape.length !== 3 || boxes.shape[2] !== 4 || scores.shape.length !== 3 || boxes.shape[0] !== images || boxes.shape[1] !== count) {
    refuse(`boxes of the shape [${boxes.shape}] and scores of the shape [${scores.shape}] do not fit`);
  }
  const [most = 0, overlap = 0, least = undefined] = [2, 3, 4].map((at) => (values[at] ? scalar(values[at]) : undefined));
  const numbers = numbersOf(scores), sides = numbersOf(boxes), rows = [];
  const corners = listed(images * count, (box) => cornersOf(sides, box, isCentered));
  for (let group = 0; group < images * classes; group += 1) {
    const image = Math.floor(group / classes), score = (box) => numbers[group * count + box], kept = [];
    // What is no number comes last.
    const order = upTo(count).filter((box) => least === undefined || score(box) > least).sort((a, b) => compare(-score(a), -score(b)));
    for (const box of order) {
      if (kept.length >= most) break;
      const own = corners[image * count + box];
      if (!kept.some((other) => covers(corners[image * count + other], own, fround(overlap)))) kept.push(box);
    }
    for (const box of kept) rows.push(image, group % classes, box);
  }
  return [longs(rows, [rows.length / 3, 3])];
}

// Mel bands

/** A quotient rounded down, exact where that of the rounded numbers is not. */
function floorDivided(a, b) {
  const rest = a % b, quotient = (a - rest) / b - (rest && (rest < 0) !== (b < 0) ? 1 : 0);
  const floor = Math.floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

function melWeights(values, { dtype }) {
  const [bands, length, rate] = values.slice(0, 3).map((value) => Math.trunc(scalar(value)));
  if (bands < 1 || length < 1 || rate < 1) refuse(`${bands} mel bands of a transform of ${length} at a rate of ${rate}`);
  const [bottom, top] = values.slice(3, 5).map((value) => 2595 * Math.log10(1 + scalar(value) / 700));
  const edges = listed(bands + 2, (band) => {
    const mel = bottom + band * ((top - bottom) / (bands + 2));
    return floorDivided((length + 1) * 700 * (10 ** (mel / 2595) - 1), rate);
  });
  const shape = [Math.floor(length / 2) + 1, bands];
  const weights = Float64Array.from({ length: product(checkedShape(shape)) }, (_, place) => {
    const frequency = Math.floor(place / bands), [left, centre, right] = edges.slice(place % bands, (place % bands) + 3);
    if (frequency >= centre && frequency < right) return (right - frequency) / (right - centre);
    if (frequency < left || frequency > centre) return 0;
    return left === centre ? Number(frequency === centre) : (frequency - left) / (centre - left);
  });
  return [{ dtype, shape, data: elementsOf(weights, dtype) }];
}

// Patches of images

function columnsToImage([data, imageSize, blockSize], attributes) {
  const image = checkedShape(entries(imageSize, "the shape")), block = checkedShape(entries(blockSize, "the shape")), rank = image.length;
  const orAll = (given, number, count) => (given.length ? given : new Array(count).fill(number));
  const strides = orAll(attributes.strides, 1, rank), dilations = orAll(attributes.dilations, 1, rank), pads = orAll(attributes.pads, 0, 2 * rank);
  const lengths = [block.length, strides.length, dilations.length, pads.length / 2];
  if (lengths.some((length) => length !== rank) || tensor(data).shape.length !== 3 || block.includes(0)) {
    refuse(`an image [${image}] of blocks [${block}] does not fit columns of the shape [${data.shape}]`);
  }
  const counts = image.map((size, axis) =>
    Math.floor((size + pads[axis] + pads[axis + rank] - (block[axis] - 1) * dilations[axis] - 1) / strides[axis]) + 1);
  const [batch, rows, columns] = data.shape, taps = product(block);
  if (rows % taps || counts.some((count) => count < 1) || !rank || columns !== product(counts)) {
    refuse(`columns of the shape [${data.shape}] do not fit [${counts}] blocks of [${block}]`);
  }
  const channels = rows / taps, pixels = product(image), imageStrides = stridesOf(image);
  const total = new Array(batch * channels * pixels).fill(data.dtype.endsWith("int64") ? 0n : 0);
  const numbers = numbersOf(data), [tapStrides, countStrides] = [stridesOf(block), stridesOf(counts)];
  for (let tap = 0; tap < taps; tap += 1) {
    for (let column = 0; column < columns; column += 1) {
      const place = image.map((_, axis) => (Math.floor(tap / tapStrides[axis]) % block[axis]) * dilations[axis]
        + (Math.floor(column / countStrides[axis]) % counts[axis]) * strides[axis] - pads[axis]);
      if (place.some((at, axis) => at < 0 || at >= image[axis])) continue;
      const to = place.reduce((all, at, axis) => all + at * imageStrides[axis], 0);
      for (let plane = 0; plane < batch * channels; plane += 1) total[plane * pixels + to] += numbers[(plane * taps + tap) * columns + column];
    }
  }
  return [{ dtype: data.dtype, shape: [batch, channels, ...image], data: elementsOf(total, data.dtype) }];
}

// Resampling: coordinates are computed in single precision, as elsewhere; halves round by it.

const COORDINATES = {
  asymmetric: (x, { scale }) => fround(x / scale),
  half_pixel: (x, { scale }) => fround(fround((x + 0.5) / scale) - 0.5),
  pytorch_half_pixel: (x, rule) => (rule.size > 1 ? COORDINATES.half_pixel(x, rule) : rule.dim === 0 ? -0.5 : 0),
  align_corners: (x, { dim, size, ratio }) => (size > 1 ? fround(fround(x * (dim - 1)) / fround(dim * ratio - 1)) : 0),
  tf_half_pixel_for_nn: (x, { scale }) => fround((x + 0.5) / scale),
  half_pixel_symmetric: (x, { scale, dim, size, ratio }) =>
    fround(fround(fround((dim / 2) * (1 - size / (dim * ratio))) + fround((x + 0.5) / scale)) - 0.5),
  tf_crop_and_resize: (x, { dim, size, start, end }) => (size > 1
    ? fround(fround(start * (dim - 1)) + fround(fround(fround(x * fround(end - start)) * (dim - 1)) / (size - 1)))
    : 0.5 * (start + end) * (dim - 1)),
};

const NEAREST = {
  round_prefer_floor: (x) => Math.ceil(x - 0.5),
  round_prefer_ceil: (x) => Math.floor(x + 0.5),
  floor: Math.floor,
  simple: Math.floor,
  ceil: Math.ceil,
};

function weightOf({ mode, cubic: a }, distance) {
  const x = Math.abs(distance);
  if (mode === "linear") return Math.max(0, 1 - x);
  if (x <= 1) return (a + 2) * x ** 3 - (a + 3) * x ** 2 + 1;
  return x < 2 ? a * x ** 3 - 5 * a * x ** 2 + 8 * a * x - 4 * a : 0;
}

/** Places that an element reads, and their weights. */
function tapsOf(rule, x) {
  const { dim, mode, ratio, antialias, exclude_outside: excludeOutside } = rule;
  const inside = (place) => Math.min(Math.max(place, 0), dim - 1);
  if (mode === "nearest") return [[inside(NEAREST[rule.nearest](x)), 1]];
  const stretch = antialias ? Math.min(ratio, 1) : 1, reach = Math.ceil((mode === "linear" ? 1 : 2) / stretch);
  if (2 * reach > 4096) refuse(`Resize with antialias by a scale of ${ratio}`);
  const first = Math.floor(x) - (reach - 1);
  let taps = listed(2 * reach, (number) => [first + number, weightOf(rule, (first + number - x) * stretch)]);
  if (excludeOutside) taps = taps.map(([place, weight]) => [place, place < 0 || place >= dim ? 0 : weight]);
  const sum = excludeOutside || antialias ? taps.reduce((all, [, weight]) => all + weight, 0) : 1;
  return taps.map(([place, weight]) => [inside(place), weight / sum]);
}

function resizeWeights(values, attributes) {
  const [dim, size, ratio, start, end] = values.map((value) => scalar(value));
  if (!(size >= 0 && size <= LARGEST_AXIS) || (dim === 0 && size) || !(ratio > 0) || dim * size > LARGEST_MATRIX) {
    refuse(`cannot resize a dimension of ${dim} to ${size} by a scale of ${ratio}`);
  }
  const rule = { ...attributes, dim, size, ratio, scale: fround(ratio), start, end };
  const matrix = new Float32Array(size * dim), beyond = new Uint8Array(size);
  for (let row = 0; row < size; row += 1) {
    const x = COORDINATES[rule.transformation](row, rule);
    beyond[row] = Number(x < 0 || x > dim - 1);
    for (const [place, weight] of tapsOf(rule, x)) matrix[row * dim + place] += weight;
  }
  return [{ dtype: "float32", shape: [size, dim], data: matrix }, { dtype: "bool", shape: [size], data: beyond }];
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
