/**
 * Runs packages of models for another process: a line of JSON in, a line of JSON out.
 *
 *     {"folder": "...", "options": {...}, "inputs": {"x": {"shape": [2], "bytes": "<base 64>"}}, "repeat": 1}
 *     {"outputs": [{"name", "dtype", "shape", "bytes"}], "milliseconds": [...], "level", "threads"}    or {"error": "..."}
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

function given(info, { shape, bytes }) {
  const content = Buffer.from(bytes, "base64");
  const buffer = content.buffer.slice(content.byteOffset, content.byteOffset + content.byteLength);
  return { shape, data: new globalThis[info.array](buffer) };
}

async function answer({ folder, options, inputs, repeat = 1 }) {
  const { model, loaded } = await modelOf(folder, options ?? {});
  const values = Object.fromEntries(model.inputs.filter(({ name }) => name in inputs).map((info) => [info.name, given(info, inputs[info.name])]));
  const milliseconds = [];
  let outputs;
  for (let turn = 0; turn < repeat; turn += 1) {
    const begin = performance.now();
    outputs = await model.run(values);
    milliseconds.push(performance.now() - begin);
  }
  const written = Object.entries(outputs).map(([name, { dtype, shape, data }]) =>
    ({ name, dtype, shape, bytes: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64") }));
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
