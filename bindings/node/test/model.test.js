"use strict";

// Tests of the binding for Node, on what bindings/models.py wrote to the folder TILEWRIGHT_MODELS.

const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const test = require("node:test");
const { pathToFileURL } = require("node:url");
const { Worker } = require("node:worker_threads");
const { load, TilewrightError } = require("..");

const folder = process.env.TILEWRIGHT_MODELS;
const open = (name) => load(path.join(folder, `${name}.so`));
const table = () => Float32Array.from({ length: 20 }, (_, index) => index + 0.5);
const IDS = BigInt64Array.from([4n, 0n, 2n]);
const rowsInputs = () => ({ table: table(), ids: IDS });
const EXPECTED = Float32Array.from(IDS, Number).reduce((rows, id) => [...rows, ...table().subarray(4 * id, 4 * id + 4)], []);

function checkRows({ rows }) {
  assert.deepEqual([...rows.data], EXPECTED);
  assert.deepEqual(rows.shape, [3, 4]);
}

const says = (kind, text) => (error) => {
  assert.ok(error instanceof TilewrightError, String(error));
  assert.equal(error.code, `ERR_TILEWRIGHT_${kind}`, error.message);
  assert.ok(error.message.includes(text), error.message);
  return true;
};

test("load", async () => {
  const model = await open("digits");
  assert.equal(model.name, "digits");
  assert.deepEqual(model.inputs, [{ name: "image", dtype: "float32", shape: ["batch", 7, 5] }]);
  assert.deepEqual(model.outputs[1], { name: "digit", dtype: "int64", shape: ["batch"] });
  assert.equal(model.metadata.library, "digits");
  model.setNumThreads(1);
  const bytes = fs.readFileSync(path.join(folder, "digits.so"));
  assert.equal((await load(bytes)).name, "digits");
  assert.equal((await load(pathToFileURL(path.join(folder, "digits.so")))).name, "digits");
  model.close();
});

test("run", async () => {
  const model = await open("rows");
  checkRows(model.runSync(rowsInputs()));
  checkRows(await model.run({ table: { data: table(), shape: [5, 4] }, ids: { data: IDS, shape: [3] } }));
  model.close();
});

test("dynamic shapes", async () => {
  const model = await open("join");
  const right = { data: Float32Array.of(5, 6, 7, 8, 9, 10), shape: [3, 2] };
  const left = { data: Float32Array.of(1, 2, 3, 4), shape: [2, 2] };
  const inputs = { left, scale: { data: Float32Array.of(10, 100), shape: [2] }, right };
  assert.deepEqual(model.outputShapes(inputs), { joined: [5, 2] });
  assert.deepEqual([...(await model.run(inputs)).joined.data], [10, 20, 300, 400, 5, 6, 7, 8, 9, 10]);
  const none = new Float32Array(0);
  const fewer = { left: { data: none, shape: [0, 2] }, scale: { data: none, shape: [0] }, right };
  assert.deepEqual(model.runSync(fewer).joined.data, right.data);
  model.close();
});

test("async", async () => {
  const model = await open("rows");
  const jobs = Array.from({ length: 8 }, () => {
    const inputs = rowsInputs();
    const job = model.run(inputs);
    inputs.table.fill(-1); // the run has a copy
    structuredClone(inputs.table, { transfer: [inputs.table.buffer] });
    return job;
  });
  (await Promise.all(jobs)).forEach(checkRows);
  const wrong = { table: table(), ids: BigInt64Array.from([0n, 7n, 1n]) };
  await assert.rejects(model.run(wrong), says("DATA", "lookup"));
  model.close();
});

test("errors: arguments", async () => {
  const model = await open("rows");
  const run = (inputs) => () => model.runSync({ ...rowsInputs(), ...inputs });
  assert.throws(run({ table: new Float64Array(20) }), says("TYPE", "is of Float64Array, expected Float32Array (float32)"));
  assert.throws(run({ table: [1, 2] }), says("TYPE", "expected Float32Array"));
  assert.throws(run({ table: null }), says("TYPE", "expected Float32Array"));
  assert.throws(run({ table: { data: table(), shape: [4, 5] } }), says("SHAPE", "axis 0 must be 5, not 4"));
  assert.throws(run({ table: { data: table(), shape: [1, 5, 4] } }), says("SHAPE", "3 dimensions"));
  assert.throws(run({ table: { data: table(), shape: [5, 1.5] } }), says("SHAPE", "whole numbers"));
  assert.throws(run({ table: new Float32Array(19) }), says("SHAPE", "76 bytes, its shape needs 80"));
  assert.throws(run({ ids: undefined }), says("ARGUMENT", "'ids' of rows is missing"));
  assert.throws(run({ other: table() }), says("ARGUMENT", "no input 'other'"));
  assert.throws(() => model.runSync(), says("ARGUMENT", "'table' of rows is missing"));
  assert.throws(run({ ids: BigInt64Array.from([0n, 7n, 1n]) }), says("DATA", "out of range"));
  assert.throws(() => model.setNumThreads(-1), says("ARGUMENT", "at least 0"));
  assert.throws(() => model.setNumThreads("two"), says("ARGUMENT", "is a number"));
  const detached = table();
  structuredClone(detached, { transfer: [detached.buffer] });
  assert.throws(run({ table: detached }), TilewrightError);
  const join = await open("join");
  const four = (shape) => ({ data: new Float32Array(4), shape });
  const inputs = { left: four([2, 2]), scale: four([4]), right: four([2, 2]) };
  await assert.rejects(join.run(inputs), says("SHAPE", "'scale' has the shape [4], expected [n]"));
  await assert.rejects(join.run({ ...inputs, scale: new Float32Array(4) }), says("SHAPE", "needs a shape"));
  // The addon itself takes nothing that it does not know.
  const engine = require("../lib/native.js");
  for (const name of Object.keys(engine)) {
    if (name !== "close") assert.throws(() => engine[name]("nonsense", 1, null), name);
    if (name !== "close") assert.throws(() => engine[name](), name);
  }
});

test("errors: libraries", async () => {
  await assert.rejects(load("/nowhere/model.so"), says("FILE", "No such file"));
  await assert.rejects(open("loop"), says("UNSUPPORTED", "virtual machine"));
  await assert.rejects(open("functions"), says("UNSUPPORTED", "not a model"));
  await assert.rejects(load(new Uint8Array(0)), says("LIBRARY", "not a shared library"));
  const damaged = fs.readdirSync(path.join(folder, "damaged"));
  assert.ok(damaged.length > 20);
  for (const name of damaged) {
    const refused = (error) => /ERR_TILEWRIGHT_(LIBRARY|UNSUPPORTED)/.test(error.code);
    await assert.rejects(load(path.join(folder, "damaged", name)), refused, name);
  }
});

test("errors: closed", async () => {
  const model = await open("rows");
  model.close();
  model.close();
  assert.throws(() => model.runSync(rowsInputs()), says("CLOSED", "has been closed"));
  await assert.rejects(model.run(rowsInputs()), says("CLOSED", "has been closed"));
  assert.throws(() => model.setNumThreads(1), says("CLOSED", "has been closed"));
});

test("errors: threads", async () => {
  const model = await open("rows");
  const jobs = Array.from({ length: 40 }, () => model.run(rowsInputs()));
  model.close();
  // Each has run, or has been told: nothing else.
  for (const job of await Promise.allSettled(jobs)) {
    if (job.status === "fulfilled") checkRows(job.value);
    else says("CLOSED", "has been closed")(job.reason);
  }
  const program = `
    const { load } = require(${JSON.stringify(path.join(__dirname, ".."))});
    const { workerData, parentPort } = require("node:worker_threads");
    load(workerData).then(async (model) => {
      for (let turn = 0; turn < 50; ++turn) await model.run({ table: new Float32Array(20), ids: new BigInt64Array(3) });
      parentPort.postMessage("done");
    });`;
  const library = path.join(folder, "rows.so");
  const workers = [0, 1].map(() => new Worker(program, { eval: true, workerData: library }));
  const finished = workers.map((worker) => new Promise((resolve, reject) => {
    worker.on("message", resolve);
    worker.on("error", reject);
  }));
  assert.deepEqual(await Promise.all(finished), ["done", "done"]);
});

test("gpu refused", async () => {
  await assert.rejects(open("device_open"), says("UNSUPPORTED", "device (opencl)"));
});

if (process.env.TILEWRIGHT_GPU) {
  test("gpu", async () => {
    const image = { data: Float32Array.from({ length: 35 }, (_, index) => Number(index % 3 === 0)), shape: [1, 7, 5] };
    const [here, there] = await Promise.all(["digits", "device"].map(async (name) => (await open(name)).run({ image })));
    assert.deepEqual(here.digit, there.digit);
    here.probabilities.data.forEach((value, place) => {
      assert.ok(Math.abs(value - there.probabilities.data[place]) < 1e-5);
    });
  });
}

test("leaks", async () => {
  const rows = { data: new Float32Array(20000), shape: [10000, 2] };
  const inputs = { left: rows, scale: { data: new Float32Array(10000), shape: [10000] }, right: rows };
  let before = 0;
  for (let round = 0; round < 300; ++round) {
    if (round === 100) {
      global.gc();
      before = process.memoryUsage().rss;
    }
    const model = await open("join");
    await model.run(inputs);
    model.close();
    if (round % 20 === 0) global.gc();
  }
  global.gc();
  // A leak of the outputs alone would be 32 MB, of the copies as much.
  assert.ok(process.memoryUsage().rss < before + (24 << 20), `${before} ${process.memoryUsage().rss}`);
});
