/**
 * Times runtimes of JavaScript on one model, in a page or in Node: each loaded once, then all in turns.
 *
 *     job = { device, threads, rounds, seconds, model: { name, inputs: [{ name, dtype, array, shape }] }, places: { package, onnx, peers } }
 *
 * `device` is wasm or webgpu, for all of them; `places` are URLs of the model's package, of its ONNX file, and of the
 * folder of the peers' packages.
 */

/** The inputs of a run: the same numbers for every runtime. */
function makeInputs(infos) {
  let state = 1;
  const next = () => (state = (state * 16807) % 2147483647) / 2147483647;
  return Object.fromEntries(infos.map(({ name, array, shape }) => {
    const length = shape.reduce((all, size) => all * size, 1);
    const whole = array.startsWith("BigInt");
    const data = new globalThis[array](length);
    for (let n = 0; n < length; n += 1) data[n] = whole ? BigInt(Math.floor(next() * 2)) : next() * 2 - 1;
    return [name, { data, shape }];
  }));
}

async function tilewright(job, inputs) {
  const { load } = await import(`${job.places.package}index.js`);
  const model = await load(undefined, { threads: job.threads, device: job.device });
  return {
    run: async () => Object.values(await model.run(inputs)).map(({ data }) => data),
    about: model.device.name ?? `${model.level}, ${model.threads} thread${model.threads > 1 ? "s" : ""}`,
    close: () => model.close(),
  };
}

async function onnxruntime(job, inputs) {
  const ort = await import(job.places.onnxruntime);
  ort.env.wasm.numThreads = job.threads;
  if (job.places.wasm) ort.env.wasm.wasmPaths = job.places.wasm;
  const source = job.places.onnx.startsWith("file:") ? await read(job.places.onnx) : job.places.onnx;
  const session = await ort.InferenceSession.create(source, { executionProviders: [job.device], graphOptimizationLevel: "all" });
  const feeds = Object.fromEntries(job.model.inputs.map(({ name, dtype }) =>
    [name, new ort.Tensor(dtype, inputs[name].data, inputs[name].shape)]));
  return {
    run: async () => Object.values(await session.run(feeds)).map(({ data }) => data),
    about: `${ort.env.versions?.web ?? ""} ${job.device === "wasm" ? "wasm simd" : job.device}, ${job.threads} thread${job.threads > 1 ? "s" : ""}`,
    close: () => session.release(),
  };
}

async function tensorflow(job, inputs) {
  const { makeRunner } = await import("./tensorflow.mjs");
  return makeRunner(job, inputs);
}

async function read(url) {
  const { readFile } = await import("node:fs/promises");
  return readFile(new URL(url));
}

const RUNTIMES = { tilewright, onnxruntime, tensorflow };
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

export async function measure(job) {
  const inputs = makeInputs(job.model.inputs);
  const runners = {};
  const results = {};
  for (const name of job.runtimes) {
    const begin = performance.now();
    try {
      runners[name] = await RUNTIMES[name](job, inputs);
      const outputs = await runners[name].run();
      results[name] = { load_ms: performance.now() - begin, about: runners[name].about, outputs: outputs.map((data) => Array.from(data.slice(0, 4096), Number)), times: [] };
      await runners[name].run();
    } catch (error) {
      results[name] = { error: `${error.name ?? "error"}: ${error.message ?? error}` };
      delete runners[name];
    }
  }
  for (let round = 0; round < job.rounds; round += 1) {
    for (const [name, runner] of Object.entries(runners)) {
      const times = [];
      const end = performance.now() + job.seconds * 1000;
      do {
        const begin = performance.now();
        await runner.run();
        times.push(performance.now() - begin);
      } while (performance.now() < end); // A slow model runs once: on a software adapter a run takes seconds.
      results[name].times.push({ least: Math.min(...times), median: median(times) });
    }
  }
  for (const runner of Object.values(runners)) await runner.close();
  return results;
}
