/** What users of a package in JavaScript can rely on: run by test_packages.py with the folders of two packages. */
import assert from "node:assert/strict";
import { cp, mkdtemp, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [image, text] = process.argv.slice(2);
const { load, TilewrightError } = await import(pathToFileURL(join(image, "index.js")));
const refused = (promise, pattern) => assert.rejects(promise, (error) => {
  assert.ok(error instanceof TilewrightError, `${error.name}: ${error.message}`);
  assert.match(error.message, pattern);
  return true;
});
const pixels = Float32Array.from({ length: 3 * 32 * 32 }, (_, n) => Math.sin(n));
const close = (a, b) => a.length === b.length && a.every((value, n) => Math.abs(value - b[n]) < 1e-4);

// All levels, threads and homes give the same.
const first = await load(undefined, { threads: 1 });
const expected = (await first.run({ input: pixels })).logits;
assert.deepEqual(expected.shape, [1, 10]);
assert.equal(expected.dtype, "float32");
assert.deepEqual(first.inputs.map(({ name }) => name), ["input"]);
for (const options of [{ level: "plain", threads: 1 }, { level: "simd", threads: 2 }, { threads: 3, worker: true }, { threads: 1, worker: true }]) {
  const model = await load(pathToFileURL(image), options);
  assert.equal(model.threads, options.threads);
  // Several calls at once run one after the other, each with its own inputs and results.
  const runs = await Promise.all(Array.from({ length: 6 }, (_, n) => model.run({ input: pixels.map((value) => value * n) })));
  assert.ok(close(runs[1].logits.data, expected.data), JSON.stringify(options));
  assert.ok(!close(runs[2].logits.data, expected.data));
  const times = await model.profile({ input: pixels }, 2);
  assert.ok(times.length >= 3 && times.every(({ kernel, nodes, milliseconds }) => kernel && nodes.length && milliseconds >= 0));
  model.close();
  await refused(model.run({ input: pixels }), /is closed/);
  model.close();
}

// Inputs are checked.
await refused(first.run({}), /'input' is missing/);
await refused(first.run(undefined), /'input' is missing/);
await refused(first.run({ input: [1, 2] }), /Float32Array is expected/);
await refused(first.run({ input: pixels.subarray(1) }), /3071 elements/);
await refused(first.run({ input: { data: pixels, shape: [3, 32, 32] } }), /\[1,3,32,32\] is expected/);
await refused(first.run({ input: pixels, other: pixels }), /no input 'other'/);
await refused(load(undefined, { thread: 2 }), /no option 'thread'/);
await refused(load(undefined, { threads: 0 }), /from 1 on/);
await refused(load(undefined, { level: "best" }), /no code of the level 'best'/);

// Sizes that calls decide.
const { load: loadText } = await import(pathToFileURL(join(text, "index.js")));
const words = await loadText(undefined, { threads: 2 });
const ids = (batch, length) => ({ data: BigInt64Array.from({ length: batch * length }, (_, n) => BigInt(n % 100)), shape: [batch, length] });
for (const [batch, length] of [[2, 7], [1, 1], [3, 50], [2, 7], [0, 4]]) {
  const { scores } = await words.run({ input_ids: ids(batch, length) });
  assert.deepEqual(scores.shape, [batch, length, 32]);
  for (let row = 0; row < batch * length; row += 1) {
    const sum = scores.data.subarray(32 * row, 32 * row + 32).reduce((all, value) => all + value, 0);
    assert.ok(Math.abs(sum - 1) < 1e-5);
  }
}
await refused(words.run({ input_ids: ids(2, 2).data }), /needs its shape/);
await refused(words.run({ input_ids: { ...ids(2, 2), shape: [4] } }), /is expected/);
await refused(words.run({ input_ids: { data: BigInt64Array.of(1n, 100n), shape: [1, 2] } }), /out of range/);
assert.deepEqual((await words.run({ input_ids: ids(1, 2) })).scores.shape, [1, 2, 32]);
words.close();

// Files that are missing, damaged or cut off.
const folder = await mkdtemp(join(tmpdir(), "tilewright-web-"));
try {
  const copy = join(folder, "copy");
  const damaged = async (file, change, pattern, options = { threads: 1 }) => {
    await rm(copy, { recursive: true, force: true });
    await cp(image, copy, { recursive: true });
    await change(join(copy, file));
    await refused(load(pathToFileURL(copy), options), pattern);
  };
  const content = await readFile(join(image, "model.json"), "utf8");
  await damaged("weights.bin", (file) => rm(file), /cannot read .*weights\.bin/);
  await damaged("weights.bin", (file) => truncate(file, 100), /weights\.bin is damaged/, { threads: 2 });
  await damaged("weights.bin", (file) => writeFile(file, Buffer.alloc(1 << 20)), /weights\.bin is damaged/, { threads: 2, worker: true });
  await damaged("model.simd.wasm", (file) => truncate(file, 100), /model\.simd\.wasm is damaged/, { threads: 1, level: "simd" });
  await damaged("model.plain.wasm", async (file) => writeFile(file, (await readFile(file)).fill(255, 200, 300)), /cannot be compiled/, { threads: 1, level: "plain" });
  await damaged("model.json", (file) => writeFile(file, content.slice(0, 200)), /no description of a model/);
  await damaged("model.json", (file) => writeFile(file, content.replace('"format":1', '"format":9')), /format is 9/);
  await refused(load(pathToFileURL(join(folder, "nothing"))), /cannot read/);
} finally {
  await rm(folder, { recursive: true, force: true });
}
first.close();
console.log("all is as it should be");
