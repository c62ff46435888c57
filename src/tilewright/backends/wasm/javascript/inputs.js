/** Inputs of a call, checked against what the model takes. */

import { TilewrightError } from "./errors.js";

const ARRAYS = {
  Array, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, BigInt64Array,
  Uint8Array, Uint16Array, Uint32Array, BigUint64Array,
};

export const arrayOf = (info) => ARRAYS[info.array];
export const product = (sizes) => sizes.reduce((all, size) => all * size, 1);

function checkedInput(info, inputs) {
  return checkedValue(info.type ?? info, inputs?.[info.name], `the input '${info.name}'`);
}

/** A value of a type: elements and shape of a tensor, a list of values, or null for an optional one that is empty. */
function checkedValue(info, value, where) {
  if (info.kind === "optional") return value === undefined || value === null ? null : checkedValue(info.item, value, where);
  if (value === undefined || value === null) throw new TilewrightError(`${where} is missing`);
  if (info.kind === "sequence") {
    if (!Array.isArray(value)) throw new TilewrightError(`${where} is ${value?.constructor?.name ?? typeof value}, and an array of values is expected`);
    return value.map((item, number) => checkedValue(info.item, item, `item ${number} of ${where}`));
  }
  return checkedTensor(info, value, where);
}

function checkedTensor(info, value, where) {
  const data = ArrayBuffer.isView(value) || Array.isArray(value) ? value : value.data;
  const Kind = arrayOf(info);
  if (!(data instanceof Kind)) {
    throw new TilewrightError(`${where} is ${data?.constructor?.name ?? typeof data}, and ${Kind.name} is expected (${info.dtype})`);
  }
  if (Kind === Array && !data.every((item) => typeof item === "string")) throw new TilewrightError(`${where} is no array of strings`);
  const shape = Array.from(value.shape ?? inferredShape(info, data.length, where), Number);
  // Of items of a sequence each may have a shape of its own.
  const isOpen = (axis) => info.shape === null || typeof info.shape[axis] !== "number";
  const fits = (info.shape === null || shape.length === info.shape.length) && shape.every((size, axis) =>
    Number.isInteger(size) && size >= 0 && (isOpen(axis) || info.shape[axis] === size));
  if (!fits) throw new TilewrightError(`${where} has the shape [${shape}], and [${info.shape}] is expected`);
  if (product(shape) !== data.length) throw new TilewrightError(`${where} has ${data.length} elements, and its shape [${shape}] needs ${product(shape)}`);
  return { data, shape };
}

/** The shape of plain data: that of the model, where at most one dimension of it is open. */
function inferredShape(info, length, where) {
  if (info.shape === null) return [length];
  const open = info.shape.filter((size) => typeof size !== "number");
  if (open.length > 1) throw new TilewrightError(`${where} needs its shape: { data, shape: [...] }, with values for [${info.shape}]`);
  const known = product(info.shape.filter((size) => typeof size === "number"));
  return info.shape.map((size) => (typeof size === "number" ? size : length / known));
}

/** The inputs of a call in the order of the model's: { data, shape } each. */
export function checkedInputs(description, inputs) {
  const given = description.inputs.map((info) => checkedInput(info, inputs));
  refuseOthers(description, inputs);
  return given;
}

function refuseOthers(description, inputs) {
  const names = description.inputs.map((info) => info.name);
  const other = Object.keys(inputs).find((name) => !names.includes(name));
  if (other !== undefined) throw new TilewrightError(`the model has no input '${other}': it has ${names.join(", ")}`);
}
