/** What programs do in JavaScript beyond their results: run by test_programs.py with the folders of two packages. */
import assert from "node:assert/strict";
import { cp, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [loop, sizes, recursion] = process.argv.slice(2);
const { load, TilewrightError } = await import(pathToFileURL(join(loop, "index.js")));
const refused = (promise, pattern) => assert.rejects(promise, (error) => {
  assert.ok(error instanceof TilewrightError, `${error.name}: ${error.message}`);
  assert.match(error.message, pattern);
  return true;
});

// Memory of values that nothing reaches is used again: 4000 turns of 64 KiB each, in memory for a few hundred of them.
const turns = await load(pathToFileURL(loop), { threads: 1 });
const state = new Float32Array(16384).fill(1);
const { last } = await turns.run({ turns: BigInt64Array.of(4000n), state });
assert.deepEqual(last.shape, [16384]);
assert.equal(last.data[5], 4001);
const bytes = turns.leader.memory.buffer.byteLength;
assert.ok(bytes < 1 << 26, `${bytes} bytes`);
await turns.run({ turns: BigInt64Array.of(4000n), state });
assert.equal(turns.leader.memory.buffer.byteLength, bytes);
const rows = await turns.profile({ turns: BigInt64Array.of(3n), state }, 2);
assert.ok(rows.length >= 2 && rows.every(({ kernel, nodes, milliseconds }) => kernel && nodes.length && milliseconds >= 0), JSON.stringify(rows));
turns.close();
await refused(turns.run({ turns: BigInt64Array.of(1n), state }), /is closed/);
await refused(turns.profile({ turns: BigInt64Array.of(1n), state }), /is closed/);

// The same in a worker, and with threads.
for (const options of [{ threads: 1, worker: true }, { threads: 2 }]) {
  const model = await load(pathToFileURL(loop), options);
  assert.equal((await model.run({ turns: BigInt64Array.of(9n), state })).last.data[16383], 10);
  model.close();
}

// Sizes that are data: those that do not fit, or are too large for any memory, are errors that leave the model as it was.
const model = await load(pathToFileURL(sizes), { threads: 1 });
const x = Float32Array.from({ length: 6 }, (_, n) => n);
const run = (...shape) => model.run({ x: { data: x, shape: [2, 3] }, y: { data: x, shape: [2, 3] }, shape: BigInt64Array.from(shape, BigInt) });
assert.deepEqual((await run(2, 2, 3)).wide.shape, [2, 2, 3]);
await refused(run(2, 2, 4), /Expand.*cannot broadcast a tensor of the shape \[2,3\] to \[2,2,4\]/);
await refused(run(-1, 2, 3), /is not a shape/);
await refused(run(1000000000, 2, 3), /there is no memory/);
assert.equal(model.leader.allocate(2 ** 32 - 2 ** 20), 0);
assert.deepEqual(Array.from((await run(2, 1, 3)).wide.data), [0, 2, 4, 6, 8, 10, 0, 2, 4, 6, 8, 10]);
await refused(model.run({ x: { data: x, shape: [2, 3] }, y: { data: x, shape: [3, 2] }, shape: BigInt64Array.of(2n, 2n, 3n) }),
  /dimension 0 of the input 'y' is 3, and 2 is expected/);
await refused(model.run({ x: { data: x, shape: [6] }, y: { data: x, shape: [2, 3] }, shape: BigInt64Array.of(1n) }), /is expected/);
model.close();

// Recursion takes no stack of JavaScript, and ends where there is no end to it.
const deep = await load(pathToFileURL(recursion), { threads: 1 });
assert.equal(Object.values(await deep.run({ m: { data: BigInt64Array.of(20000n), shape: [] } }))[0].data[0], 20000n);
await refused(deep.run({ m: { data: BigInt64Array.of(1n << 40n), shape: [] } }), /calls deep in 'count'/);
assert.equal(Object.values(await deep.run({ m: { data: BigInt64Array.of(7n), shape: [] } }))[0].data[0], 7n);
deep.close();

// A program that is damaged.
const folder = await mkdtemp(join(tmpdir(), "tilewright-web-"));
try {
  const copy = join(folder, "copy");
  await cp(recursion, copy, { recursive: true });
  const description = JSON.parse(await readFile(join(copy, "model.json"), "utf8"));
  const { functions } = description.code[0].program;
  const damaged = async (change, pattern) => {
    const changed = structuredClone(description);
    change(changed.code[0].program);
    await writeFile(join(copy, "model.json"), JSON.stringify(changed));
    const other = await load(pathToFileURL(copy), { threads: 1 });
    await refused(other.run({ m: { data: BigInt64Array.of(3n), shape: [] } }), pattern);
    other.close();
  };
  const count = functions.findIndex(({ name }) => name === "count");
  await damaged((program) => { program.functions[count].code = []; }, /is damaged/);
  await damaged((program) => { program.functions[count].code[0] = [99]; }, /is damaged: instruction 0/);
  await damaged((program) => { program.functions[count].given += 1; }, /is damaged: .*'count' was called with 1 values/);
  await damaged((program) => { program.functions[count].code[0] = [3, 0, [], []]; }, /is damaged: instruction 0 \(host\)/);
} finally {
  await rm(folder, { recursive: true, force: true });
}
console.log("all is as it should be");
