/** Runs host functions on values: a list of calls as JSON on standard input, the names of all functions and the results on standard output. */
import { text } from "node:stream/consumers";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.argv[2]}/`);
const { hosts } = await import(new URL("hosts.js", folder));
const { Sequence, Tensor, Texts, TextTensor } = await import(new URL("values.js", folder));
const memory = { buffer: new ArrayBuffer(1 << 20) };
let last = 0;

function placed({ dtype, shape, data }) {
  if (dtype === "string") return new TextTensor(shape, data);
  const place = last;
  new Uint8Array(memory.buffer).set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), place);
  last += Math.ceil(data.byteLength / 64) * 64;
  return new Tensor(memory, undefined, place, dtype, shape);
}

function given(value) {
  if (value === null) return null;
  if (Array.isArray(value)) return new Sequence(value.map(given));
  if (value.texts) return new TextTensor(value.shape, Texts.from(value.texts));
  return placed({ ...value, data: Buffer.from(value.bytes, "base64") });
}

function shown(value) {
  if (value === null) return null;
  if (value instanceof Sequence) return value.items.map(shown);
  const { dtype, shape, data } = value;
  if (dtype === "string") return { dtype, shape, texts: Array.from(data) };
  return { dtype, shape, bytes: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64") };
}

function result({ name, values, attributes }) {
  last = 0;
  try {
    return hosts[name](values.map(given), attributes, placed).map(shown);
  } catch (error) {
    if (error.name !== "TilewrightError") throw error;
    return { error: error.message };
  }
}

const calls = JSON.parse(await text(process.stdin));
console.log(JSON.stringify([Object.keys(hosts), calls.map(result)]));
