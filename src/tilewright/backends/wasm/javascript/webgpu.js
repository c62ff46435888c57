/**
 * Runs a model on a GPU through WebGPU: the plan of model.json (backends/wasm/gpu_plan.py writes it).
 *
 * Pipelines are made once, in parallel; buffers and bind groups once for the sizes of a call. A run writes the inputs,
 * sends one command buffer with all kernels and the copies of results and statuses to one buffer, and reads that.
 */

import { TilewrightError } from "./errors.js";
import { evaluate } from "./extents.js";
import { readFile, streamOf, wrongLength } from "./files.js";
import { arrayOf, checkedInputs, product } from "./inputs.js";

/** Blocks along one axis of a launch that every device takes: kernels number blocks as backends/webgpu/kernels.py says. */
const MOST_BLOCKS = 65535;
/** Sets of sizes whose buffers are kept. */
const MOST_PREPARED = 4;
/** Bytes of what a check of data leaves; the first of its numbers is -1 where nothing is wrong. */
const STATUS_BYTES = 24;
const FINE = -1n;
const MOST_QUERIES = 4096;
// Numbers of the standard: Node has them under no global name.
const MAP_READ = 1, COPY_SRC = 4, COPY_DST = 8, UNIFORM = 64, STORAGE = 128, QUERY_RESOLVE = 512;

/** Bytes in whole words, as copies take them; the largest element of a kernel has two. */
const words = (bytes) => Math.max(8, Math.ceil(bytes / 4) * 4);

/** Why a model is not run through WebGPU here. */
class Unavailable extends Error {}

/**
 * The model on a GPU, or the reason why it is not there: { model } or { reason }. A processor that plays a GPU is taken
 * only where it is asked for (`isWanted`): it is slower than WebAssembly.
 */
export async function openOnGpu(folder, description, isWanted, onProgress) {
  const plan = description.webgpu;
  try {
    if (plan.refused) throw new Unavailable(plan.refused);
    const { adapter, device } = await openDevice(plan, isWanted);
    try {
      return { model: await GpuModel.create(folder, description, adapter, device, onProgress) };
    } catch (error) {
      device.destroy();
      throw error;
    }
  } catch (error) {
    if (!(error instanceof Unavailable)) throw error;
    return { reason: error.message };
  }
}

async function openDevice(plan, isWanted) {
  const gpu = globalThis.navigator?.gpu;
  if (!gpu) throw new Unavailable("there is no WebGPU here (navigator.gpu)");
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new Unavailable("there is no GPU that WebGPU can use here");
  if (isSoftware(adapter) && !isWanted) {
    throw new Unavailable("WebGPU is played by software here, which is slower; the option device: 'webgpu' takes it");
  }
  const missing = plan.language_features.find((feature) => !gpu.wgslLanguageFeatures?.has(feature));
  if (missing !== undefined) throw new Unavailable(`this implementation of WebGPU has no ${missing}`);
  if (countsSteps(adapter) && !plan.counts_steps) {
    throw new Unavailable("Mesa's software driver ends long loops of kernels; code for it is of the target 'webgpu -mattr=+few-steps'");
  }
  for (const [limit, needed] of Object.entries(plan.limits)) {
    if (!(adapter.limits[limit] >= needed)) {
      throw new Unavailable(`the GPU's ${limit} is ${adapter.limits[limit]}, and the model needs ${needed}`);
    }
  }
  const largest = Object.fromEntries(["maxBufferSize", "maxStorageBufferBindingSize"].map((limit) => [limit, adapter.limits[limit]]));
  const requiredFeatures = ["timestamp-query"].filter((feature) => adapter.features.has(feature));
  try {
    return { adapter, device: await adapter.requestDevice({ requiredFeatures, requiredLimits: { ...plan.limits, ...largest } }) };
  } catch (error) {
    throw new Unavailable(`the GPU gives no device: ${error.message}`, { cause: error });
  }
}

/** Whether a driver ends the loops of a thread after some steps without a word: runtime/device/software.py. */
function countsSteps({ info }) {
  return /llvmpipe|lavapipe/i.test(nameOf(info)) || (info?.vendor === "mesa" && !info.architecture);
}

function isSoftware(adapter) {
  const { info } = adapter;
  return Boolean(info?.isFallbackAdapter ?? adapter.isFallbackAdapter) || info?.architecture === "swiftshader" || countsSteps(adapter);
}

function nameOf(info) {
  return [info?.vendor, info?.architecture, info?.device, info?.description].filter(Boolean).join(" ");
}

/** Pipelines of all launches by the symbols of these, compiled at the same time. */
async function compilePipelines(device, plan, url) {
  const content = await readFile(url);
  if (content.byteLength !== plan.bytes) throw wrongLength(url, plan.bytes, content.byteLength);
  const pipelines = plan.kernels.flatMap(({ code: [begin, end], launches }) => {
    const module = device.createShaderModule({ code: new TextDecoder().decode(content.subarray(begin, end)) });
    return launches.map(async ({ symbol }) => {
      const made = await device.createComputePipelineAsync({ label: symbol, layout: "auto", compute: { module, entryPoint: symbol } });
      return [symbol, made];
    });
  });
  try {
    return new Map(await Promise.all(pipelines));
  } catch (error) {
    throw new Unavailable(`the GPU's compiler refused a kernel: ${error.message}`, { cause: error });
  }
}

/** The buffers of all constants. */
async function uploadConstants(device, plan, url, onProgress) {
  const content = new Uint8Array(plan.constant_bytes);
  let loaded = 0;
  for await (const part of streamOf(url)) {
    if (loaded + part.byteLength > content.byteLength) throw wrongLength(url, content.byteLength, "more");
    content.set(part, loaded);
    loaded += part.byteLength;
    onProgress?.({ loaded, total: content.byteLength });
  }
  if (loaded !== content.byteLength) throw wrongLength(url, content.byteLength, loaded);
  return plan.constants.map(([offset, bytes]) => {
    const buffer = makeBuffer(device, bytes);
    write(device, buffer, content.subarray(offset, offset + bytes));
    return buffer;
  });
}

function makeBuffer(device, bytes, usage = STORAGE | COPY_SRC | COPY_DST) {
  const largest = Math.min(device.limits.maxBufferSize, device.limits.maxStorageBufferBindingSize);
  if (!(bytes >= 0 && bytes <= largest)) {
    throw new Unavailable(`the model needs ${bytes} bytes of memory in one piece, and the GPU gives ${largest} at most`);
  }
  return device.createBuffer({ size: words(bytes), usage });
}

/** Writes bytes to a buffer, in whole words. */
function write(device, buffer, data) {
  if (data.byteLength === 0) return;
  if (data.byteLength % 4 === 0) {
    device.queue.writeBuffer(buffer, 0, data.buffer, data.byteOffset, data.byteLength);
    return;
  }
  const whole = new Uint8Array(words(data.byteLength));
  whole.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  device.queue.writeBuffer(buffer, 0, whole);
}

/** What the device says of commands, as an exception. */
async function guarded(device, work) {
  device.pushErrorScope("out-of-memory");
  device.pushErrorScope("validation");
  let result, thrown;
  try {
    result = await work();
  } catch (error) {
    thrown = error;
  }
  const [invalid, full] = [await device.popErrorScope(), await device.popErrorScope()];
  if (thrown) throw thrown;
  if (full) throw new Unavailable(`the GPU has no memory for the model: ${full.message}`);
  if (invalid) throw new Unavailable(`the GPU refused commands: ${invalid.message}`);
  return result;
}

/** The buffers, bind groups and commands of a part of the plan (the model, or a variant) for values of its symbols. */
class Prepared {
  constructor(gpu, part, values) {
    this.gpu = gpu;
    this.part = part;
    this.made = [];
    this.isTried = false;
    const named = new Map(part.symbols.map((name, number) => [name, values[number]]));
    this.number = (extent) => evaluate(extent, (name) => named.get(name));
    this.values = [...values, ...part.sizes.map(this.number)];
    this.uniforms = new Map();
    this.shapes = part.outputs.map((shape) => shape.map(this.number));
    this.check(named);
    const elements = gpu.description.outputs.map((info) => arrayOf(info).BYTES_PER_ELEMENT);
    this.memory = {
      input: part.inputs.map((shape, number) =>
        this.buffer(product(shape.map(this.number)) * arrayOf(gpu.description.inputs[number]).BYTES_PER_ELEMENT)),
      output: this.shapes.map((shape, number) => this.buffer(product(shape) * elements[number])),
      workspace: part.slots.map((size) => this.buffer(this.number(size))),
      constant: gpu.constants,
    };
    this.steps = part.steps.map((step) => this.step(step));
    this.results = this.readings(elements);
    this.reading = this.own(gpu.device.createBuffer({ size: words(this.results.bytes), usage: MAP_READ | COPY_DST }));
  }

  own(buffer) {
    this.made.push(buffer);
    return buffer;
  }

  buffer(bytes, usage = undefined) {
    return this.own(makeBuffer(this.gpu.device, bytes, usage));
  }

  check(named) {
    const sizes = [...named].map(([name, value]) => `${name} = ${value}`).join(", ");
    for (const [left, right] of this.part.requires) {
      if (this.number(left) !== this.number(right)) throw new TilewrightError(`the sizes of the inputs do not fit each other (${sizes})`);
    }
    const wrong = this.shapes.findIndex((shape) => shape.some((size) => size < 0));
    if (wrong >= 0) throw new TilewrightError(`the output '${this.gpu.description.outputs[wrong].name}' would have the shape [${this.shapes[wrong]}] for ${sizes}`);
  }

  /** The commands of a step: launches, and copies before them of memory that no launch can start in. */
  step({ kernel: number, args }) {
    const kernel = this.gpu.plan.kernels[number];
    const symbols = args.filter(([kind]) => kind === "symbol").map(([, index]) => this.values[index]);
    const valueOf = (name) => symbols[kernel.symbols.indexOf(name)];
    const last = Math.max(-1, ...kernel.written);
    const given = [];
    let count = 0;
    for (const [kind, index, offset] of args) {
      if (kind === "symbol") given.push({ scalar: this.values[index] });
      else if (kind === "scalar") given.push({ scalar: index });
      else {
        const size = evaluate(kernel.sizes[count], valueOf);
        given.push({ buffer: this.memory[kind][index], offset, size, isWritten: kernel.written.includes(count) || count > last });
        count += 1;
      }
    }
    for (const size of kernel.workspaces) given.push({ buffer: this.buffer(evaluate(size, valueOf)), offset: 0, isWritten: true });
    const commands = [];
    for (const launch of kernel.launches) {
      const blocks = product(launch.grid.map((extent) => Math.max(0, evaluate(extent, valueOf))));
      if (blocks === 0) continue;
      const places = launch.args.map((place) => given[place]).concat(launch.values.map((scalar) => ({ scalar })));
      const pipeline = this.gpu.pipelines.get(launch.symbol);
      const group = this.group(pipeline, places, commands);
      commands.push({ pipeline, group, x: Math.min(blocks, MOST_BLOCKS), y: Math.ceil(blocks / MOST_BLOCKS) });
    }
    return commands;
  }

  /** Buffers are bound in the order of the arguments, and after them one with all numbers. */
  group(pipeline, places, commands) {
    const buffers = places.filter(({ buffer }) => buffer);
    const resources = buffers.map((place) => this.resource(place, buffers, commands));
    const scalars = places.filter(({ scalar }) => scalar !== undefined).map(({ scalar }) => scalar);
    if (scalars.length) resources.push({ buffer: this.uniform(scalars) });
    const entries = resources.map((resource, binding) => ({ binding, resource }));
    return this.gpu.device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
  }

  resource(place, buffers, commands) {
    const { buffer, offset, size } = place;
    if (!offset) return { buffer };
    const isAlone = buffers.every((other) => other === place || other.buffer !== buffer || !(other.isWritten || place.isWritten));
    if (isAlone && offset % this.gpu.device.limits.minStorageBufferOffsetAlignment === 0) return { buffer, offset };
    // Memory that starts inside other memory is only read.
    if (place.isWritten || offset % 4) throw new Unavailable("a value of the model lies where WebGPU cannot reach it");
    const copy = this.buffer(size);
    commands.push({ copy: [buffer, offset, copy, 0, Math.ceil(size / 4) * 4] });
    return { buffer: copy };
  }

  /** A buffer of 64-bit numbers, two in each vector. */
  uniform(scalars) {
    const key = scalars.join();
    if (!this.uniforms.has(key)) {
      const data = new BigInt64Array(scalars.length + (scalars.length % 2));
      data.set(scalars.map(BigInt));
      const buffer = this.buffer(data.byteLength, UNIFORM | COPY_DST);
      write(this.gpu.device, buffer, data);
      this.uniforms.set(key, buffer);
    }
    return this.uniforms.get(key);
  }

  /** Where results and statuses lie in the buffer that is read. */
  readings(elements) {
    let bytes = 0;
    const place = (buffer, offset, size) => {
      const found = { buffer, offset, size, place: bytes };
      bytes += words(size);
      return found;
    };
    const outputs = this.shapes.map((shape, number) => place(this.memory.output[number], 0, product(shape) * elements[number]));
    const statuses = this.part.checks.map(({ step, code }) => {
      // The second buffer of a step that checks: what it found.
      const [kind, index, offset] = this.part.steps[step].args[1];
      return { ...place(this.memory[kind][index], offset, STATUS_BYTES), code };
    });
    return { outputs, statuses, bytes };
  }

  fill(given) {
    given.forEach(({ data }, number) => write(this.gpu.device, this.memory.input[number], data));
  }

  /** Puts the commands of steps into an encoder; `passOf` begins a pass, of which there is one for each step if asked. */
  encode(encoder, passOf = undefined) {
    let pass;
    const end = () => {
      pass?.end();
      pass = undefined;
    };
    this.steps.forEach((commands, number) => {
      for (const command of commands) {
        if (command.copy) {
          end();
          encoder.copyBufferToBuffer(...command.copy);
          continue;
        }
        pass ??= passOf ? passOf(number) : encoder.beginComputePass();
        pass.setPipeline(command.pipeline);
        pass.setBindGroup(0, command.group);
        pass.dispatchWorkgroups(command.x, command.y);
      }
      if (passOf) end();
    });
    end();
  }

  async run(given) {
    const { device } = this.gpu;
    const send = () => {
      this.fill(given);
      const encoder = device.createCommandEncoder();
      this.encode(encoder);
      for (const { buffer, offset, place, size } of [...this.results.outputs, ...this.results.statuses]) {
        if (size) encoder.copyBufferToBuffer(buffer, offset, this.reading, place, Math.ceil(size / 4) * 4);
      }
      device.queue.submit([encoder.finish()]);
    };
    if (this.isTried) send();
    else await guarded(device, send);
    this.isTried = true;
    await this.reading.mapAsync(MAP_READ);
    try {
      return this.read(this.reading.getMappedRange());
    } finally {
      this.reading.unmap();
    }
  }

  read(content) {
    const { description } = this.gpu;
    for (const { place, code } of this.results.statuses) {
      // Statuses lie at whole words, which need not be those of 64 bits.
      const [found] = new BigInt64Array(content.slice(place, place + 8));
      if (found !== FINE) throw new TilewrightError(description.messages[code]);
    }
    return Object.fromEntries(description.outputs.map((info, number) => {
      const { place, size } = this.results.outputs[number];
      return [info.name, { dtype: info.dtype, shape: this.shapes[number], data: new (arrayOf(info))(content.slice(place, place + size)) }];
    }));
  }

  /** Milliseconds of each step. */
  async times(given) {
    const { device } = this.gpu;
    this.fill(given);
    if (device.features.has("timestamp-query") && 2 * this.steps.length <= MOST_QUERIES) return this.clocked();
    await device.queue.onSubmittedWorkDone();
    const times = [];
    for (const commands of this.steps) {
      const begin = performance.now();
      const encoder = device.createCommandEncoder();
      Prepared.prototype.encode.call({ steps: [commands] }, encoder);
      device.queue.submit([encoder.finish()]);
      await device.queue.onSubmittedWorkDone();
      times.push(performance.now() - begin);
    }
    return times;
  }

  /** The same by the clock of the GPU. */
  async clocked() {
    const { device } = this.gpu;
    const count = 2 * this.steps.length;
    const querySet = device.createQuerySet({ type: "timestamp", count });
    const resolved = device.createBuffer({ size: 8 * count, usage: QUERY_RESOLVE | COPY_SRC });
    const reading = device.createBuffer({ size: 8 * count, usage: MAP_READ | COPY_DST });
    try {
      const encoder = device.createCommandEncoder();
      const seen = new Set();
      this.encode(encoder, (step) => {
        // A step with copies between its launches has several passes: the last of them ends it.
        const timestampWrites = { querySet, endOfPassWriteIndex: 2 * step + 1 };
        if (!seen.has(step)) timestampWrites.beginningOfPassWriteIndex = 2 * step;
        seen.add(step);
        return encoder.beginComputePass({ timestampWrites });
      });
      encoder.resolveQuerySet(querySet, 0, count, resolved, 0);
      encoder.copyBufferToBuffer(resolved, 0, reading, 0, 8 * count);
      device.queue.submit([encoder.finish()]);
      await reading.mapAsync(MAP_READ);
      const stamps = new BigInt64Array(reading.getMappedRange());
      return this.steps.map((_, step) => (seen.has(step) ? Math.max(0, Number(stamps[2 * step + 1] - stamps[2 * step]) / 1e6) : 0));
    } finally {
      [querySet, resolved, reading].forEach((item) => item.destroy());
    }
  }

  destroy() {
    this.made.forEach((buffer) => buffer.destroy());
  }
}

/** A model on a GPU: the same interface as that of WebAssembly. */
class GpuModel {
  static async create(folder, description, adapter, device, onProgress) {
    const plan = description.webgpu;
    const [pipelines, constants] = await Promise.all([
      compilePipelines(device, plan, new URL(plan.file, folder)),
      guarded(device, () => uploadConstants(device, plan, new URL(plan.weights, folder), onProgress)),
    ]);
    const model = new GpuModel(description, adapter, device, pipelines, constants);
    // A model of known sizes is prepared now, so that what the GPU has no room for is known now.
    if (!description.symbols.length) await model.prepared(plan.parts[0], []);
    return model;
  }

  constructor(description, adapter, device, pipelines, constants) {
    this.description = description;
    this.plan = description.webgpu;
    this.gpu = device;
    this.pipelines = pipelines;
    this.constants = constants;
    this.kept = new Map();
    this.last = Promise.resolve();
    this.threads = 1;
    this.level = "webgpu";
    this.device = { kind: "webgpu", name: nameOf(adapter.info) };
    device.lost.then(({ message }) => { this.lost = message || "no reason is given"; });
  }

  get name() { return this.description.name; }
  get inputs() { return this.description.inputs; }
  get outputs() { return this.description.outputs; }

  async run(inputs) {
    return this.inTurn(inputs, (prepared, given) => prepared.run(given));
  }

  /** For each kernel the mean of its times: browsers round the clock of GPUs. */
  async profile(inputs, repeat = 10) {
    return this.inTurn(inputs, async (prepared, given) => {
      await prepared.run(given);
      const { steps } = prepared.part;
      const sums = steps.map(() => 0);
      for (let turn = 0; turn < repeat; turn += 1) {
        (await prepared.times(given)).forEach((time, step) => { sums[step] += time; });
      }
      return steps.map(({ kernel, nodes }, step) => ({ kernel: this.plan.kernels[kernel].symbol, nodes, milliseconds: sums[step] / repeat }));
    });
  }

  /** Does something with checked inputs when all calls before are done. */
  inTurn(inputs, work) {
    const turn = this.last.then(async () => {
      if (this.isClosed) throw new TilewrightError(`the model '${this.name}' is closed`);
      if (this.lost !== undefined) throw this.loss();
      const given = checkedInputs(this.description, inputs);
      try {
        return await work(await this.preparedFor(given), given);
      } catch (error) {
        throw await this.failure(error);
      }
    });
    this.last = turn.catch(() => {});
    return turn;
  }

  loss() {
    return new TilewrightError(`the GPU is lost: ${this.lost}; load the model '${this.name}' again`);
  }

  async failure(error) {
    if (error instanceof TilewrightError) return error;
    // The loss of a device is told a moment after what fails because of it.
    await new Promise((resolve) => { setTimeout(resolve, 10); });
    if (this.isClosed) return new TilewrightError(`the model '${this.name}' is closed`);
    if (this.lost !== undefined) return this.loss();
    return new TilewrightError(error instanceof Unavailable ? error.message : `the GPU failed: ${error.message}`, { cause: error });
  }

  async preparedFor(given) {
    const { parts } = this.plan;
    const values = this.symbols(given);
    const variant = parts.find(({ fixed }) => fixed.length && fixed.every((size, number) => size === values[number]));
    return variant ? this.prepared(variant, []) : this.prepared(parts[0], values);
  }

  /** The values of the symbols for the sizes of the inputs. */
  symbols(given) {
    const [{ symbols, inputs }] = this.plan.parts;
    const named = new Map();
    inputs.forEach((shape, number) => shape.forEach((extent, axis) => {
      const size = given[number].shape[axis], expected = evaluate(extent, (name) => named.get(name));
      if (expected === undefined && typeof extent === "string") named.set(extent, size);
      else if (expected !== undefined && expected !== size) {
        throw new TilewrightError(`dimension ${axis} of the input '${this.inputs[number].name}' is ${size}, and ${expected} is expected`);
      }
    }));
    return symbols.map((name) => named.get(name));
  }

  async prepared(part, values) {
    const key = JSON.stringify([this.plan.parts.indexOf(part), values]);
    let found = this.kept.get(key);
    this.kept.delete(key);
    if (found === undefined) {
      if (this.kept.size >= MOST_PREPARED) {
        const [[oldest, item]] = this.kept;
        item.destroy();
        this.kept.delete(oldest);
      }
      found = await guarded(this.gpu, () => new Prepared(this.shared(), part, values));
    }
    this.kept.set(key, found);
    return found;
  }

  shared() {
    return { device: this.gpu, plan: this.plan, description: this.description, pipelines: this.pipelines, constants: this.constants };
  }

  close() {
    this.isClosed = true;
    this.gpu.destroy();
  }
}
