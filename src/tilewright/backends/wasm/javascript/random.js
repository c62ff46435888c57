/**
 * Host functions that draw random numbers. With a seed every call draws the same numbers, those of numpy's `RandomState`
 * (the Mersenne twister MT19937); without one the engine draws.
 */

import { checkedShape, entries, refuse, tensor } from "./arrays.js";
import { numbersOf, product } from "./values.js";

const LENGTH = 624, MIDDLE = 397;

/** Draws numbers from 0 up to but without 1. */
function twister(seed) {
  const state = new Uint32Array(LENGTH);
  let last = Number(BigInt.asUintN(32, BigInt(Math.trunc(seed))));
  for (let place = 0; place < LENGTH; place += 1) {
    state[place] = last;
    last = (Math.imul(1812433253, last ^ (last >>> 30)) + place + 1) >>> 0;
  }
  let place = LENGTH;
  const refill = () => {
    for (let at = 0; at < LENGTH; at += 1) {
      const bits = (state[at] & 0x80000000) | (state[(at + 1) % LENGTH] & 0x7fffffff);
      state[at] = state[(at + MIDDLE) % LENGTH] ^ (bits >>> 1) ^ (bits & 1 ? 0x9908b0df : 0);
    }
    place = 0;
  };
  const word = () => {
    if (place === LENGTH) refill();
    let bits = state[place];
    place += 1;
    bits ^= bits >>> 11;
    bits ^= (bits << 7) & 0x9d2c5680;
    bits ^= (bits << 15) & 0xefc60000;
    return (bits ^ (bits >>> 18)) >>> 0;
  };
  return () => {
    const high = word() >>> 5, low = word() >>> 6;
    return (high * 67108864 + low) / 9007199254740992;
  };
}

const drawsOf = ({ seed }) => (seed === null ? Math.random : twister(seed));

/** Numbers of the standard normal distribution, by the polar method, which gives two at a time. */
function normals(draw) {
  let kept;
  return () => {
    if (kept !== undefined) {
      const value = kept;
      kept = undefined;
      return value;
    }
    for (;;) {
      const x = 2 * draw() - 1, y = 2 * draw() - 1, square = x * x + y * y;
      if (square >= 1 || square === 0) continue;
      const factor = Math.sqrt((-2 * Math.log(square)) / square);
      kept = factor * x;
      return factor * y;
    }
  };
}

function drawn(given, draw) {
  const shape = checkedShape(entries(given, "the shape"));
  return [{ dtype: "float32", shape, data: Float32Array.from({ length: product(shape) }, draw) }];
}

export function drawUniform([shape], attributes) {
  const { low, high } = attributes, draw = drawsOf(attributes);
  return drawn(shape, () => low + (high - low) * draw());
}

export function drawNormal([shape], attributes) {
  const { mean, scale } = attributes, draw = normals(drawsOf(attributes));
  return drawn(shape, () => mean + scale * draw());
}

/** For each row of logarithms of probabilities, numbers of classes drawn by them. */
export function drawCategories([logits, given], attributes) {
  const counts = checkedShape(entries(given, "the shape")), [rows, classes] = tensor(logits).shape;
  if (counts.length !== 1 || !logits.size) refuse(`classes are drawn so many a row, from rows of logits, not [${counts}] from [${logits.shape}]`);
  const numbers = numbersOf(logits), draw = drawsOf(attributes);
  const data = new BigInt64Array(product(checkedShape([rows, counts[0]])));
  for (let row = 0; row < rows; row += 1) {
    const values = Array.from(numbers.subarray(row * classes, (row + 1) * classes), Number);
    const most = values.reduce((a, b) => Math.max(a, b)), weights = values.map((value) => Math.exp(value - most));
    const total = weights.reduce((all, weight) => all + weight, 0);
    let sum = 0;
    const limits = weights.map((weight) => (sum += weight / total));
    for (let number = 0; number < counts[0]; number += 1) {
      const place = draw(), chosen = limits.findIndex((limit) => limit > place);
      // The last sum may be a little less than 1.
      data[row * counts[0] + number] = BigInt(chosen < 0 ? classes - 1 : chosen);
    }
  }
  return [{ dtype: "int64", shape: [rows, counts[0]], data }];
}
