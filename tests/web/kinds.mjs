/** Texts, sequences and optional values of a package in JavaScript: run by test_programs.py with its folder. */
import assert from "node:assert/strict";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const { load, TilewrightError } = await import(pathToFileURL(join(process.argv[2], "index.js")));
const refused = (promise, pattern) => assert.rejects(promise, (error) => {
  assert.ok(error instanceof TilewrightError, `${error.name}: ${error.message}`);
  assert.match(error.message, pattern);
  return true;
});
const x = Float32Array.of(5, 6);
const given = { text: ["a", "ß"], rows: [Float32Array.of(1, 2), { data: Float32Array.of(3, 4), shape: [2] }], x, maybe: null };

for (const worker of [false, true]) {
  const model = await load(undefined, { threads: 1, worker });
  const { joined, more, has, kept } = await model.run(given);
  assert.deepEqual(joined, { dtype: "string", shape: [2], data: ["a!", "ß!"] });
  assert.deepEqual(more.map(({ data }) => Array.from(data)), [[1, 2], [3, 4], [5, 6]]);
  assert.equal(has.data[0], 0);
  assert.equal(kept.length, 3);
  // What was given is not changed, and an empty sequence is one.
  const again = await model.run({ ...given, rows: [], maybe: x });
  assert.deepEqual([again.more.length, again.has.data[0]], [1, 1]);
  assert.equal(given.rows.length, 2);
  await refused(model.run({ ...given, text: ["a", 7] }), /'text' is no array of strings/);
  await refused(model.run({ ...given, text: x }), /Array is expected \(string\)/);
  await refused(model.run({ ...given, rows: x }), /'rows' is Float32Array, and an array of values is expected/);
  await refused(model.run({ ...given, rows: [x, Float32Array.of(1)] }), /item 1 of the input 'rows'/);
  await refused(model.run({ ...given, rows: [null] }), /item 0 of the input 'rows' is missing/);
  await refused(model.run({ ...given, maybe: Float32Array.of(1) }), /'maybe'/);
  model.close();
}
console.log("all is as it should be");
