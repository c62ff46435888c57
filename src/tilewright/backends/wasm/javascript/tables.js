/** Host functions that compute: boxes that overlap, mel bands, patches of images, weights of resampling, counts of n-grams. */

import { checkedShape, compare, entries, listed, longs, refuse, scalar, stridesOf, tensor, upTo } from "./arrays.js";
import { elementsOf, numbersOf, product } from "./values.js";

const { fround } = Math;
const LARGEST_AXIS = 1 << 22;
const LARGEST_MATRIX = 1 << 28;

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

export function nonMaxSuppression(values, { center_point_box: isCentered }) {
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

export function melWeights(values, { dtype }) {
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

export function columnsToImage([data, imageSize, blockSize], attributes) {
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

export function resizeWeights(values, attributes) {
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

// Counts of n-grams, here of numbers

export function countGrams([data], { pool, places, starts, longest, shortest, width, skips }) {
  const [count, length] = tensor(data).shape.length === 1 ? [1, data.size] : data.shape;
  const grams = new Map();
  let number = 0;
  starts.forEach((begin, at) => {
    const size = at + 1;
    for (let first = begin; first < (starts[size] ?? pool.length); first += size) {
      if (size >= shortest && size <= longest) grams.set(pool.slice(first, first + size).join("\0"), places[number]);
      number += 1;
    }
  });
  const elements = data.data, counts = new Float32Array(count * width);
  for (let row = 0; row < count; row += 1) {
    for (let size = shortest; size <= longest; size += 1) {
      for (let gap = 1; gap <= (size > 1 ? skips : 0) + 1; gap += 1) {
        for (let start = 0; start < length - (size - 1) * gap; start += 1) {
          const place = grams.get(listed(size, (item) => elements[row * length + start + item * gap]).join("\0"));
          if (place !== undefined) counts[row * width + place] += 1;
        }
      }
    }
  }
  return [{ dtype: "float32", shape: data.shape.length === 1 ? [width] : [count, width], data: counts }];
}
