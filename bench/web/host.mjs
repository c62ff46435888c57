/**
 * Runs packages of models for another process: a line of JSON in, a line of JSON out.
 *
 *     {"folder": "...", "options": {...}, "inputs": {"x": {"shape": [2], "bytes": "<base 64>"}}, "repeat": 1}
 *     {"outputs": [{"name", "value": {"dtype", "shape", "bytes"}}], "milliseconds": [...], "level", "threads"}    or {"error": "..."}
 *
 * A package is loaded once and kept while its folder and options stay the same.
 */
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

let kept = {};

async function modelOf(folder, options) {
  const key = JSON.stringify([folder, options]);
  if (kept.key !== key) {
    kept.model?.close();
    kept = {};
    const begin = performance.now();
    const { load } = await import(pathToFileURL(`${folder}/index.js`));
    kept = { key, model: await load(undefined, options), loaded: performance.now() - begin };
  }
  return kept;
}

function given(info, value) {
  if (value === null) return null;
  if (info.kind === "optional") return given(info.item, value);
  if (Array.isArray(value)) return value.map((item) => given(info.item, item));
  const { shape, bytes, texts } = value;
  if (texts) return { shape, data: texts };
  const content = Buffer.from(bytes, "base64");
  const buffer = content.buffer.slice(content.byteOffset, content.byteOffset + content.byteLength);
  return { shape, data: new globalThis[info.array](buffer) };
}

/** A result as it is written: texts as they are, numbers as their bytes. */
function shown(value) {
  if (value === null) return null;
  if (Array.isArray(value)) return value.map(shown);
  const { dtype, shape, data } = value;
  if (dtype === "string") return { dtype, shape, texts: data };
  return { dtype, shape, bytes: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64") };
}

async function answer({ folder, options, inputs, repeat = 1 }) {
  const { model, loaded } = await modelOf(folder, options ?? {});
  const values = Object.fromEntries(model.inputs.filter(({ name }) => name in inputs).map((info) => [info.name, given(info.type ?? info, inputs[info.name])]));
  const milliseconds = [];
  let outputs;
  for (let turn = 0; turn < repeat; turn += 1) {
    const begin = performance.now();
    outputs = await model.run(values);
    milliseconds.push(performance.now() - begin);
  }
  const written = Object.entries(outputs).map(([name, value]) => ({ name, value: shown(value) }));
  return { outputs: written, milliseconds, loaded, level: model.level, threads: model.threads };
}

for await (const line of createInterface({ input: process.stdin })) {
  let found;
  try {
    found = await answer(JSON.parse(line));
  } catch (error) {
    found = { error: error.message, kind: error.name };
  }
  process.stdout.write(`${JSON.stringify(found)}\n`);
}
