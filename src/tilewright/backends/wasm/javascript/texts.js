/** Host functions on texts: tensors of strings. As in the module `tilewright.runtime.host.texts`, whose names they have. */

import { joined, listed, longs, refuse, taken, tensor, transposed, upTo } from "./arrays.js";
import { arrayOf, elementsOf, numbersOf, Texts, toHalf } from "./values.js";

const texts = (items, shape) => ({ dtype: "string", shape, data: Texts.from(items) });
const truths = (items, shape) => ({ dtype: "bool", shape, data: Uint8Array.from(items, Number) });

/** The elements of values under their common shape. */
function together(values) {
  const rank = Math.max(...values.map((value) => tensor(value).shape.length));
  const padded = values.map((value) => value.view([...new Array(rank - value.shape.length).fill(1), ...value.shape]));
  const shape = listed(rank, (axis) => {
    const sizes = padded.map((value) => value.shape[axis]).filter((size) => size !== 1);
    if (sizes.some((size) => size !== sizes[0])) refuse(`the shapes ${values.map((value) => `[${value.shape}]`).join(" and ")} do not fit each other`);
    return sizes[0] ?? 1;
  });
  const maps = (value) => shape.map((size, axis) => (value.shape[axis] === size ? upTo(size) : new Int32Array(size)));
  return { shape, lists: padded.map((value) => taken(value, maps(value)).data) };
}

function concat([left, right]) {
  const { shape, lists: [first, second] } = together([left, right]);
  return [texts(first.map((item, place) => item + second[place]), shape)];
}

function equal([left, right]) {
  const { shape, lists: [first, second] } = together([left, right]);
  return [truths(first.map((item, place) => item === second[place]), shape)];
}

function where(values) {
  const { shape, lists: [condition, left, right] } = together(values);
  return [texts(left.map((item, place) => (condition[place] ? item : right[place])), shape)];
}

/** The parts of a text between delimiters, or between white space; so many cuts at most, if that is not negative. */
function divided(text, delimiter, most) {
  const parts = [];
  let rest = delimiter ? text : text.trimStart();
  while (delimiter || rest !== "") {
    const found = most >= 0 && parts.length >= most ? -1 : delimiter ? rest.indexOf(delimiter) : rest.search(/\s/);
    if (found < 0) return [...parts, rest];
    parts.push(rest.slice(0, found));
    rest = delimiter ? rest.slice(found + delimiter.length) : rest.slice(found).trimStart();
  }
  return parts;
}

function split([data], { delimiter, maxsplit: most }) {
  const rows = Array.from(tensor(data).data, (item) => divided(item, delimiter, most));
  const width = rows.reduce((all, row) => Math.max(all, row.length), 0);
  const padded = rows.flatMap((row) => [...row, ...new Array(width - row.length).fill("")]);
  return [texts(padded, [...data.shape, width]), longs(rows.map(({ length }) => length), data.shape)];
}

/** Classes of characters that JavaScript has of ASCII alone; inside of brackets without brackets of their own. */
const CLASSES = { w: "\\p{L}\\p{N}_", d: "\\p{Nd}" };
const ANCHORS = { A: "^", Z: "$", z: "$" };

/** A regular expression of Python's as one of JavaScript's. */
function expressionOf(pattern) {
  let isInside = false;
  const flags = /^\(\?([ims]+)\)/.exec(pattern);
  const source = pattern.slice(flags?.[0].length ?? 0).replaceAll("(?P<", "(?<").replace(/\\.|[[\]]/gsu, (piece) => {
    if (piece === "[" || piece === "]") {
      isInside = piece === "[";
      return piece;
    }
    const letter = piece[1];
    if (letter in CLASSES) return isInside ? CLASSES[letter] : `[${CLASSES[letter]}]`;
    if (letter.toLowerCase() in CLASSES && !isInside) return `[^${CLASSES[letter.toLowerCase()]}]`;
    if (letter in ANCHORS && !isInside) return ANCHORS[letter];
    return /[\w^$\\.*+?()[\]{}|/-]/.test(letter) && (letter !== "-" || isInside) ? piece : letter;
  });
  try {
    return new RegExp(`^(?:${source})$`, `u${flags?.[1] ?? ""}`);
  } catch (error) {
    return refuse(`the regular expression '${pattern}' cannot be one of JavaScript: ${error.message}`);
  }
}

function fullMatch([data], { pattern }) {
  const expression = expressionOf(pattern);
  return [truths(Array.from(tensor(data).data, (item) => expression.test(item)), data.shape)];
}

const CHANGES = { LOWER: (text) => text.toLowerCase(), UPPER: (text) => text.toUpperCase(), NONE: (text) => text };
/** Letters of both cases alike; some have several letters as capitals. */
const folded = (text) => text.toUpperCase().toLowerCase();

function normalize([data], { case_change_action: action, is_case_sensitive: isExact, stopwords }) {
  const { shape } = tensor(data);
  if (!(shape.length === 1 || (shape.length === 2 && shape[0] === 1))) refuse(`texts to normalize come as [n] or [1, n], not [${shape}]`);
  const form = isExact ? (text) => text : folded;
  const stop = new Set(stopwords.map(form));
  const kept = Array.from(data.data).filter((item) => !stop.has(form(item))).map(CHANGES[action]);
  if (!kept.length) kept.push("");
  return [texts(kept, shape.length === 2 ? [1, kept.length] : [kept.length])];
}

/** Numbers that are equal have one key whatever their type; so has what is no number. */
const keyOf = (item) => (typeof item === "string" ? `"${item}` : `${item}`);

function lookup([data], { keys, values, default: other, dtype }) {
  const table = new Map(keys.map((key, place) => [keyOf(key), values[place]]));
  const found = Array.from(numbersOf(tensor(data)), (item) => (table.has(keyOf(item)) ? table.get(keyOf(item)) : other));
  return [dtype === "string" ? texts(found, data.shape) : { dtype, shape: data.shape, data: numbersAs(found, dtype) }];
}

const isLong = (dtype) => [BigInt64Array, BigUint64Array].includes(arrayOf(dtype));
const numbersAs = (numbers, dtype) => elementsOf(isLong(dtype) ? numbers.map(BigInt) : numbers, dtype);

/** The least digits that say a number of a type. */
function shortest(number, dtype) {
  if (dtype === "float64") return number;
  const isSame = dtype === "float16" ? (text) => toHalf(Number(text)) === toHalf(number) : (text) => Math.fround(Number(text)) === number;
  for (let digits = 1; digits < 17; digits += 1) {
    const text = number.toPrecision(digits);
    if (isSame(text)) return Number(text);
  }
  return number;
}

function written(number, dtype) {
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "INF" : "-INF";
  const value = shortest(number, dtype), size = Math.abs(number);
  if (size === 0) return Object.is(number, -0) ? "-0" : "0";
  if (size >= 1e-4 && size < 1e8) return `${value}`;
  const [digits, exponent] = value.toExponential().split("e");
  return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

function fromNumbers([data]) {
  const { dtype, shape } = tensor(data);
  const write = /float/.test(dtype) ? (number) => written(Number(number), dtype) : (number) => `${number}`;
  return [texts(Array.from(numbersOf(data), write), shape)];
}

const NUMBER = /^[+-]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(e[+-]?\d+)?$/i;
const WORDS = { inf: Infinity, infinity: Infinity, nan: NaN };

function numberIn(text, dtype) {
  const plain = text.trim(), word = plain.toLowerCase().replace(/^[+-]/, "");
  if (/float/.test(dtype)) {
    if (word in WORDS) return plain.startsWith("-") ? -WORDS[word] : WORDS[word];
    if (NUMBER.test(plain)) return Number(plain.replaceAll("_", ""));
  } else if (/^[+-]?\d[\d_]*$/.test(plain)) {
    const whole = BigInt(plain.replaceAll("_", "").replace(/^\+/, ""));
    if (dtype === "bool") return whole ? 1 : 0;
    return isLong(dtype) ? BigInt.asIntN(64, whole) : Number(BigInt.asIntN(32, whole));
  }
  return refuse(`a text is no number of type ${dtype}: '${text}'`);
}

function toNumbers([data], { dtype }) {
  const numbers = Array.from(tensor(data).data, (item) => numberIn(item, dtype));
  return [{ dtype, shape: data.shape, data: elementsOf(numbers, dtype) }];
}

function take([data, indices], { axis }) {
  const { shape } = tensor(data), along = axis < 0 ? axis + shape.length : axis;
  const places = Array.from(tensor(indices).data, (place) => (Number(place) < 0 ? Number(place) + shape[along] : Number(place)));
  if (places.some((place) => !(place >= 0 && place < shape[along]))) refuse(`the places [${places}] are not all in a dimension of ${shape[along]}`);
  const found = taken(data, shape.map((size, number) => (number === along ? places : upTo(size))));
  const sizes = [...shape.slice(0, along), ...indices.shape, ...shape.slice(along + 1)];
  return [texts(found.data, sizes)];
}

/** The functions, by the names that programs call them. */
export const textHosts = {
  "text.concat": concat,
  "text.equal": equal,
  "text.where": where,
  "text.split": split,
  "text.full_match": fullMatch,
  "text.normalize": normalize,
  "text.lookup": lookup,
  "text.from_numbers": fromNumbers,
  "text.to_numbers": toNumbers,
  "text.take": take,
  "text.transpose": ([data], { axes }) => [transposed(tensor(data), axes)],
  "text.concatenate": (values, { axis }) => [joined(values.map((value) => tensor(value)), axis, "texts")],
};
