/**
 * Runs a model that Tilewright compiled to WebAssembly (and, in webgpu.js, to WebGPU), in browsers, workers and Node. No
 * dependencies.
 *
 *     const model = await loadModel(new URL("./mobilenet/", import.meta.url));
 *     const { logits } = await model.run({ input: pixels });
 *
 * `model.json` describes the model; its code is one of a few files, by what the engine can do; its weights are a file
 * of their own, read while it arrives. With several threads the memory is shared and every thread has an instance of
 * the same module with a stack of its own. Layout of the memory: what the linker placed, weights, control words, stacks,
 * and behind them what is allocated.
 */

import { TilewrightError } from "./errors.js";
import { readFile, streamOf, wrongLength } from "./files.js";
import { arrayOf, checkedInputs, product } from "./inputs.js";
import { mathematics } from "./mathematics.js";

export { TilewrightError };

const PAGE = 65536;
const ALIGNMENT = 64;
const STACK_BYTES = 1 << 18;

// Control words, as indices of 32-bit words: those that several threads write are on cache lines of their own.
const SIGNAL = 0, STATE = 16, NEXT = 32, FAILURE = 48, HEAP = 64;
const FUNCTION = 80, CLOSURE = 81, EXTENT = 82, CHUNK = 83, QUIT = 84;
const CONTROL_BYTES = 4 * 96;
/** A bit of the word STATE: helpers may enter the parallel region. Below it is the number of those inside. */
const OPEN = 1 << 16;
const INSIDE = OPEN - 1;
const CHUNKS_A_THREAD = 4;
const SPIN_TURNS = 4000;

const isNode = typeof process === "object" && Boolean(process.versions?.node);
/** The thread of a page: it must never wait, so models with threads of their own live in a worker. */
const isPageThread = typeof window === "object" && typeof document === "object";
const aligned = (bytes) => Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;

/**
 * Loads the model of a package.
 * @param base the folder of the package, as a URL
 * @param options threads, worker, level, device, onProgress: see tilewright.d.ts
 */
export async function loadModel(base, options = {}) {
  const folder = folderUrl(base);
  const { onProgress, ...plain } = options;
  checkOptions(plain);
  const description = await readDescription(folder);
  if (plain.worker) return RemoteModel.create(folder, description, { ...plain, worker: false }, onProgress);
  const { model, reason } = await openedOnGpu(folder, description, plain, onProgress);
  if (model) return model;
  const device = reason === undefined ? { kind: "wasm" } : { kind: "wasm", reason };
  const threads = await threadsOf(description, plain);
  if (!isPageThread || threads === 1) return LocalModel.create(folder, description, { ...plain, threads }, onProgress, device);
  if (plain.worker === false) throw new TilewrightError("several threads need worker: true: a page must not wait for them");
  return RemoteModel.create(folder, description, { ...plain, threads, worker: false, device: "wasm" }, onProgress, device);
}

/** The model on a GPU ({ model }), where it has kernels for one and none of the options wants WebAssembly; else { reason }. */
async function openedOnGpu(folder, description, { device, level }, onProgress) {
  if (!description.webgpu) {
    if (device === "webgpu") throw new TilewrightError("the package has no kernels for WebGPU: compile the model for the target webgpu");
    return {};
  }
  if (device === "wasm") return { reason: "the option 'device' asks for it" };
  if (level !== undefined && device === undefined) return { reason: "the option 'level' asks for it" };
  const found = await (await import("./webgpu.js")).openOnGpu(folder, description, device === "webgpu", onProgress);
  if (!found.model && device === "webgpu") throw new TilewrightError(`the model cannot run through WebGPU: ${found.reason}`);
  return found;
}

function folderUrl(base) {
  try {
    const text = String(base);
    const root = isNode ? `file://${process.cwd()}/` : globalThis.location?.href;
    return new URL(text.endsWith("/") ? text : `${text}/`, root);
  } catch (error) {
    throw new TilewrightError(`${base} is no URL of a model's folder`, { cause: error });
  }
}

function checkOptions(options) {
  for (const key of Object.keys(options)) {
    if (!["threads", "worker", "level", "device"].includes(key)) throw new TilewrightError(`there is no option '${key}'`);
  }
  const { threads, device } = options;
  if (![undefined, "webgpu", "wasm"].includes(device)) throw new TilewrightError(`device is '${device}': webgpu or wasm is expected`);
  if (threads !== undefined && !(Number.isInteger(threads) && threads >= 1 && threads <= 1024)) {
    throw new TilewrightError(`threads is ${threads}: a whole number from 1 on is expected`);
  }
}

/** Threads can share memory where the page is isolated from others (COOP and COEP headers); Node always can. */
function canShare() {
  return typeof SharedArrayBuffer === "function" && (isNode || globalThis.crossOriginIsolated === true);
}

async function threadsOf(description, options) {
  if (!canShare()) {
    if (options.threads > 1) {
      throw new TilewrightError("several threads need a page that is cross-origin isolated: serve it with the headers "
        + "Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp");
    }
    return 1;
  }
  return options.threads ?? description.threads ?? Math.min(await coresHere(), 8);
}

async function coresHere() {
  if (isNode) return (await import("node:os")).availableParallelism();
  return globalThis.navigator?.hardwareConcurrency ?? 1;
}

// Files

async function readDescription(folder) {
  const content = await readFile(new URL("model.json", folder));
  try {
    const description = JSON.parse(new TextDecoder().decode(content));
    if (description.format !== 1) throw new Error(`its format is ${description.format}, and 1 is known`);
    return description;
  } catch (error) {
    throw new TilewrightError(`${new URL("model.json", folder)} is no description of a model: ${error.message}`, { cause: error });
  }
}

/** Reads the weights into memory while they arrive. */
async function readWeights(url, memory, place, bytes, onProgress) {
  let loaded = 0;
  for await (const part of streamOf(url)) {
    if (loaded + part.byteLength > bytes) throw wrongLength(url, bytes, "more");
    new Uint8Array(memory.buffer).set(part, place + loaded);
    loaded += part.byteLength;
    onProgress?.({ loaded, total: bytes });
  }
  if (loaded !== bytes) throw wrongLength(url, bytes, loaded);
}

// The engine

/** Functions of nothing, with one instruction of each feature inside: what the engine accepts, it has. */
const PROBES = {
  plain: "0061736d01000000010401600000030201000a040102000b",
  simd: "0061736d010000000105016000017b030201000a0a0108004100fd0ffd620b",
  relaxed: "0061736d010000000105016000017b030201000a0f010d004100fd0f4100fd0ffd80020b",
};

function has(level) {
  return WebAssembly.validate(Uint8Array.from(PROBES[level].match(/../g), (pair) => parseInt(pair, 16)));
}

/** The levels of code that this engine runs, the best first. */
export function engineLevels() {
  return ["relaxed", "simd", "plain"].filter(has);
}

function codeOf(description, wanted) {
  const found = wanted === undefined
    ? description.code.find((code) => has(code.level))
    : description.code.find((code) => code.level === wanted);
  if (found === undefined) {
    const known = description.code.map((code) => code.level).join(", ");
    throw new TilewrightError(wanted === undefined
      ? `this engine runs none of the model's levels (${known})`
      : `the model has no code of the level '${wanted}': it has ${known}`);
  }
  return found;
}

async function compileCode(url, code, isShared) {
  const content = await readFile(url);
  if (content.byteLength !== code.bytes) throw wrongLength(url, code.bytes, content.byteLength);
  // The flags of the memory that the module imports: with a maximum, and shared or not.
  if (isShared) content[code.memory_flags] |= 2;
  try {
    return await WebAssembly.compile(content);
  } catch (error) {
    throw new TilewrightError(`${url} cannot be compiled: ${error.message}`, { cause: error });
  }
}

/** Memory with room for growth; where so much address space is not to be had, with less. */
function makeMemory(initial, isShared) {
  for (let maximum = 65536; ; maximum >>= 1) {
    try {
      return new WebAssembly.Memory({ initial, maximum: Math.max(maximum, initial), shared: isShared });
    } catch (error) {
      if (maximum <= initial) throw new TilewrightError(`there is no memory of ${initial * PAGE} bytes`, { cause: error });
    }
  }
}

/** An instance of the module in one thread, and what its code calls. */
class Instance {
  constructor(module, memory, control, stack) {
    this.memory = memory;
    this.control = control;
    this.free = new Map();
    this.sizes = new Map();
    const imports = {
      ...mathematics,
      memory,
      tw_parallel: (index, closure, extent) => this.parallel(index, closure, extent),
      tw_alloc: (bytes) => this.allocate(Number(bytes)),
      tw_free: (place) => this.release(place),
      tw_step: (number) => this.onStep?.(number),
    };
    this.exports = new WebAssembly.Instance(module, { env: imports }).exports;
    if (stack !== undefined) this.exports.__stack_pointer.value = stack;
  }

  get words() {
    return new Int32Array(this.memory.buffer, this.control, CONTROL_BYTES / 4);
  }

  /** A piece of memory, 64-byte aligned; 0 where there is none. Sizes are rounded so that pieces are used again. */
  allocate(bytes) {
    const size = roundedSize(bytes);
    const kept = this.free.get(size);
    if (kept?.length) return this.owned(kept.pop(), size);
    const place = Atomics.add(this.words, HEAP, size / ALIGNMENT) * ALIGNMENT;
    for (let missing = place + size - this.memory.buffer.byteLength; missing > 0;) {
      try {
        this.memory.grow(Math.ceil(missing / PAGE));
      } catch {
        // Later pieces may be smaller; what other threads took meanwhile stays where it is.
        Atomics.compareExchange(this.words, HEAP, (place + size) / ALIGNMENT, place / ALIGNMENT);
        return 0;
      }
      missing = place + size - this.memory.buffer.byteLength;
    }
    return this.owned(place, size);
  }

  owned(place, size) {
    this.sizes.set(place, size);
    return place;
  }

  release(place) {
    if (!place) return;
    const size = this.sizes.get(place);
    if (!this.free.has(size)) this.free.set(size, []);
    this.free.get(size).push(place);
  }

  /** A parallel loop, here in one thread. */
  parallel(index, closure, extent) {
    return extent > 0n ? this.exports.__indirect_function_table.get(index)(closure, 0n, extent) : 0;
  }

  /** Takes chunks of the open region until none is left, or one has failed. */
  claim() {
    const { words } = this;
    const body = this.exports.__indirect_function_table.get(words[FUNCTION]);
    const closure = words[CLOSURE], extent = words[EXTENT], chunk = words[CHUNK];
    while (Atomics.load(words, FAILURE) === 0) {
      const begin = Atomics.add(words, NEXT, 1) * chunk;
      if (begin >= extent) return;
      const code = body(closure, BigInt(begin), BigInt(Math.min(begin + chunk, extent)));
      if (code !== 0) Atomics.compareExchange(words, FAILURE, 0, code);
    }
  }
}

function roundedSize(bytes) {
  // Four sizes for each power of two.
  const step = Math.max(ALIGNMENT, 2 ** Math.floor(Math.log2(Math.max(bytes, 1))) / 4);
  return Math.ceil(Math.max(bytes, 1) / step) * step;
}

/** The instance of the thread that the model is called in, with helpers. */
class Leader extends Instance {
  constructor(module, memory, control, threads) {
    super(module, memory, control);
    this.module = module;
    this.threads = threads;
    this.helpers = [];
    this.isInside = false;
  }

  async startHelpers(firstStack) {
    const ready = [];
    for (let number = 1; number < this.threads; number += 1) {
      const helper = await startWorker();
      this.helpers.push(helper);
      const stack = firstStack + number * STACK_BYTES;
      ready.push(helper.ask({ role: "helper", module: this.module, memory: this.memory, control: this.control, stack }));
    }
    await Promise.all(ready);
  }

  parallel(index, closure, extent) {
    const count = Number(extent);
    if (this.threads === 1 || count <= 1 || count > 0x3fffffff || this.isInside) return super.parallel(index, closure, extent);
    const { words } = this;
    words[FUNCTION] = index;
    words[CLOSURE] = closure;
    words[EXTENT] = count;
    words[CHUNK] = Math.ceil(count / Math.min(count, this.threads * CHUNKS_A_THREAD));
    Atomics.store(words, NEXT, 0);
    Atomics.store(words, FAILURE, 0);
    Atomics.or(words, STATE, OPEN);
    Atomics.add(words, SIGNAL, 1);
    Atomics.notify(words, SIGNAL);
    this.isInside = true;
    try {
      this.claim();
    } finally {
      this.isInside = false;
      // Whoever has not come yet finds the region closed; only those inside are waited for.
      Atomics.and(words, STATE, ~OPEN);
      this.waitForHelpers(words);
    }
    return Atomics.load(words, FAILURE);
  }

  waitForHelpers(words) {
    for (let turn = 0; ; turn += 1) {
      const state = Atomics.load(words, STATE);
      if ((state & INSIDE) === 0) return;
      if (turn > SPIN_TURNS) Atomics.wait(words, STATE, state, 1);
    }
  }

  close() {
    const { words } = this;
    Atomics.store(words, QUIT, 1);
    Atomics.add(words, SIGNAL, 1);
    Atomics.notify(words, SIGNAL);
    for (const helper of this.helpers) helper.terminate();
    this.helpers = [];
  }
}

/** What a helper does until the model is closed: it waits for regions, and takes chunks of them. */
function help(instance) {
  const { words } = instance;
  let seen = 0;
  while (!Atomics.load(words, QUIT)) {
    let signal = Atomics.load(words, SIGNAL);
    for (let turn = 0; signal === seen && turn < SPIN_TURNS; turn += 1) signal = Atomics.load(words, SIGNAL);
    if (signal === seen) {
      Atomics.wait(words, SIGNAL, seen);
      continue;
    }
    seen = signal;
    if (Atomics.add(words, STATE, 1) & OPEN) instance.claim();
    if ((Atomics.sub(words, STATE, 1) & INSIDE) === 1) Atomics.notify(words, STATE);
  }
}

// Models

class LocalModel {
  static async create(folder, description, options, onProgress, device) {
    const isShared = options.threads > 1;
    const code = codeOf(description, options.level);
    const module = await compileCode(new URL(code.file, folder), code, isShared);
    const weights = aligned(code.memory_pages * PAGE);
    const control = weights + aligned(code.constant_bytes);
    const stacks = control + CONTROL_BYTES;
    const heap = aligned(stacks + options.threads * STACK_BYTES);
    const memory = makeMemory(Math.ceil(heap / PAGE), isShared);
    const leader = new Leader(module, memory, control, options.threads);
    leader.words[HEAP] = heap / ALIGNMENT;
    let machine;
    try {
      await readWeights(new URL(code.weights, folder), memory, weights, code.constant_bytes, onProgress);
      await leader.startHelpers(stacks);
      // Only programs need it.
      if (code.program) machine = new (await import("./machine.js")).Machine(description.name, code.program, leader, weights);
    } catch (error) {
      leader.close();
      throw error;
    }
    return new LocalModel(description, code, leader, weights, machine, device);
  }

  constructor(description, code, leader, weights, machine, device) {
    this.device = device;
    this.description = description;
    this.machine = machine;
    this.code = code;
    this.leader = leader;
    this.weights = weights;
    this.threads = leader.threads;
  }

  get level() { return this.code.level; }
  get name() { return this.description.name; }
  get inputs() { return this.description.inputs; }
  get outputs() { return this.description.outputs; }

  /** Runs the model: arrays by the names of its inputs in, tensors by the names of its outputs out. */
  async run(inputs) {
    return this.call(inputs, this.code.entry);
  }

  /** Runs the model some times; for each kernel the milliseconds of its quickest run. */
  async profile(inputs, repeat = 10) {
    const { leader, code } = this;
    if (leader === undefined) throw new TilewrightError(`the model '${this.name}' is closed`);
    if (this.machine) return this.profileProgram(inputs, repeat);
    const best = code.steps.map(() => Infinity);
    for (let turn = 0; turn < repeat; turn += 1) {
      const begins = [];
      leader.onStep = () => begins.push(performance.now());
      try {
        this.call(inputs, code.profiled_entry, false);
      } finally {
        leader.onStep = undefined;
      }
      begins.push(performance.now());
      best.forEach((time, step) => { best[step] = Math.min(time, begins[step + 1] - begins[step]); });
    }
    return code.steps.map((step, number) => ({ ...step, milliseconds: best[number] }));
  }

  /** Of a program, for each segment of native code and each host function all calls of a run together. */
  profileProgram(inputs, repeat) {
    const { steps } = this.code, best = steps.map(() => Infinity);
    for (let turn = 0; turn < repeat; turn += 1) {
      const times = steps.map(() => 0);
      this.machine.run(checkedInputs(this.description, inputs), (step, milliseconds) => { times[step] += milliseconds; });
      times.forEach((time, step) => { best[step] = Math.min(best[step], time); });
    }
    return steps.map((step, number) => ({ ...step, milliseconds: best[number] }));
  }

  close() {
    this.leader?.close();
    this.leader = undefined;
  }

  call(inputs, entry, useVariants = true) {
    const { leader, description } = this;
    if (leader === undefined) throw new TilewrightError(`the model '${this.name}' is closed`);
    const given = checkedInputs(this.description, inputs);
    if (this.machine) {
      const results = this.machine.run(given);
      return Object.fromEntries(description.outputs.map(({ name }, number) => [name, results[number]]));
    }
    const pieces = [];
    const take = (bytes) => {
      const place = leader.allocate(bytes);
      if (!place) throw new TilewrightError(`there is no memory for ${bytes} bytes`);
      pieces.push(place);
      return place;
    };
    try {
      const plan = description.symbols.length ? this.sized(given, take) : this.fixed(take);
      const inputPlaces = given.map(({ data }) => {
        const place = take(data.byteLength);
        bytesAt(leader.memory, place, data.byteLength).set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
        return place;
      });
      const outputPlaces = plan.shapes.map((shape, number) =>
        take(product(shape) * arrayOf(description.outputs[number]).BYTES_PER_ELEMENT));
      const variant = useVariants && this.code.variants.find((item) => item.fixed.every((size, k) => BigInt(size) === plan.symbols[k]));
      const pointers = [this.pointers(inputPlaces, take), this.pointers(outputPlaces, take), plan.workspace, this.weights];
      const code = this.enter(variant ? variant.entry : entry, variant ? pointers : [...pointers, ...plan.last]);
      if (code !== 0) throw new TilewrightError(description.messages[code] ?? `the model failed with the code ${code}`);
      return this.results(plan.shapes, outputPlaces);
    } finally {
      pieces.forEach((place) => leader.release(place));
    }
  }

  enter(entry, pointers) {
    try {
      return this.leader.exports[entry](...pointers);
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError)) throw error;
      throw new TilewrightError(`the model '${this.name}' failed: ${error.message}`, { cause: error });
    }
  }

  fixed(take) {
    const { description } = this;
    return { symbols: [], last: [], shapes: description.outputs.map((info) => info.shape), workspace: take(this.code.workspace_bytes) };
  }

  /** Sizes of the outputs and of the workspace for the sizes of the inputs. */
  sized(given, take) {
    const { description, leader } = this;
    const sizes = given.flatMap(({ shape }) => shape);
    const ranks = description.outputs.map((info) => info.shape.length);
    const count = ranks.reduce((all, rank) => all + rank, 0);
    const numbers = (place, length) => new BigInt64Array(leader.memory.buffer, place, length);
    const places = [sizes.length, description.symbols.length, count, 1].map((length) => take(8 * length));
    numbers(places[0], sizes.length).set(sizes.map(BigInt));
    const code = this.enter(this.code.shapes_entry, places);
    if (code !== 0) throw new TilewrightError(misfit(description, given, code));
    const found = Array.from(numbers(places[2], count), Number);
    const shapes = ranks.map((rank) => found.splice(0, rank));
    const symbols = Array.from(numbers(places[1], description.symbols.length));
    return { symbols, last: [places[1]], shapes, workspace: take(Number(numbers(places[3], 1)[0])) };
  }

  pointers(places, take) {
    const table = take(4 * places.length);
    new Uint32Array(this.leader.memory.buffer, table, places.length).set(places);
    return table;
  }

  results(shapes, places) {
    const { description, leader } = this;
    return Object.fromEntries(description.outputs.map((info, number) => {
      const shape = shapes[number];
      const data = new (arrayOf(info))(product(shape));
      new Uint8Array(data.buffer).set(bytesAt(leader.memory, places[number], data.byteLength));
      return [info.name, { dtype: info.dtype, shape, data }];
    }));
  }
}

const bytesAt = (memory, place, length) => new Uint8Array(memory.buffer, place, length);

/** What a code of the function that sizes a model means: 1 + k is dimension k of the inputs, below 0 is of results. */
function misfit(description, given, code) {
  if (code < 0) return `the sizes [${given.map(({ shape }) => `[${shape}]`)}] of the inputs do not fit each other`;
  let dimension = code - 1;
  for (const [number, info] of description.inputs.entries()) {
    if (dimension < info.shape.length) {
      return `dimension ${dimension} of the input '${info.name}' is ${given[number].shape[dimension]}, and ${info.shape[dimension]} is expected`;
    }
    dimension -= info.shape.length;
  }
  return `the sizes of the inputs do not fit (${code})`;
}

// Workers

/** A worker, of a page or of Node, that answers questions in order. Node does not end while it owes an answer. */
class AskedWorker {
  constructor(worker, listen) {
    this.worker = worker;
    this.waiting = new Map();
    this.last = 0;
    listen(worker, (answer) => this.answered(answer), (error) => this.failed(error));
  }

  ask(question, transfer = [], onProgress = undefined) {
    if (this.worker === undefined) return Promise.reject(new TilewrightError("the model is closed"));
    const id = (this.last += 1);
    return new Promise((resolve, reject) => {
      this.worker.postMessage({ ...question, id }, transfer);
      this.waiting.set(id, { resolve, reject, onProgress });
      this.worker.ref?.();
    });
  }

  answered({ id, progress, result, error }) {
    const waiting = this.waiting.get(id);
    if (progress !== undefined) {
      waiting?.onProgress?.(progress);
      return;
    }
    this.waiting.delete(id);
    if (this.waiting.size === 0) this.worker?.unref?.();
    if (error !== undefined) waiting?.reject(new TilewrightError(error));
    else waiting?.resolve(result);
  }

  failed(error) {
    for (const { reject } of this.waiting.values()) reject(new TilewrightError(`a worker failed: ${error?.message ?? error}`));
    this.waiting.clear();
  }

  terminate() {
    this.worker?.terminate();
    this.worker = undefined;
    this.failed("it was closed");
  }
}

async function startWorker() {
  const file = new URL("./worker.js", import.meta.url);
  if (isNode) {
    const { Worker: NodeWorker } = await import("node:worker_threads");
    const worker = new NodeWorker(file);
    worker.unref();
    return new AskedWorker(worker, (own, answered, failed) => own.on("message", answered).on("error", failed));
  }
  return new AskedWorker(new Worker(file, { type: "module" }), (own, answered, failed) => {
    own.onmessage = ({ data }) => answered(data);
    own.onerror = failed;
  });
}

/** A model in a worker: the same interface; its page never waits. */
class RemoteModel {
  static async create(folder, description, options, onProgress, known) {
    const worker = await startWorker();
    try {
      const { level, threads, device } = await worker.ask({ role: "model", folder: folder.href, options }, [], onProgress);
      return new RemoteModel(worker, description, level, threads, known ?? device);
    } catch (error) {
      worker.terminate();
      throw error;
    }
  }

  constructor(worker, description, level, threads, device) {
    Object.assign(this, { worker, description, level, threads, device });
  }

  get name() { return this.description.name; }
  get inputs() { return this.description.inputs; }
  get outputs() { return this.description.outputs; }

  async run(inputs) {
    return this.asked({ role: "run", inputs });
  }

  async profile(inputs, repeat = 10) {
    return this.asked({ role: "profile", inputs, repeat });
  }

  async asked(question) {
    if (this.worker === undefined) throw new TilewrightError(`the model '${this.name}' is closed`);
    try {
      return await this.worker.ask(question);
    } catch (error) {
      if (error instanceof TilewrightError) throw error;
      throw new TilewrightError(`the inputs cannot be sent to the worker: ${error.message}`, { cause: error });
    }
  }

  close() {
    this.worker?.terminate();
    this.worker = undefined;
  }
}

/** The memory of results, which need not be copied to be sent. */
function buffersOf(values) {
  return values.flatMap((value) => (Array.isArray(value) ? buffersOf(value) : ArrayBuffer.isView(value?.data) ? [value.data.buffer] : []));
}

/** What a worker does: it is the home of a model, or a helper of one. */
export async function serve() {
  const port = isNode ? (await import("node:worker_threads")).parentPort : globalThis;
  let model;
  const answer = async ({ role, id, ...question }) => {
    if (role === "helper") {
      const instance = new Instance(question.module, question.memory, question.control, question.stack + STACK_BYTES);
      port.postMessage({ id, result: true });
      help(instance);
      return;
    }
    if (role === "model") {
      model = await loadModel(question.folder, { ...question.options, onProgress: (progress) => port.postMessage({ id, progress }) });
      port.postMessage({ id, result: { level: model.level, threads: model.threads, device: model.device } });
      return;
    }
    const result = role === "run" ? await model.run(question.inputs) : await model.profile(question.inputs, question.repeat);
    port.postMessage({ id, result }, role === "run" ? [...new Set(buffersOf(Object.values(result)))] : []);
  };
  const heard = (question) => answer(question).catch((error) => port.postMessage({ id: question.id, error: error.message }));
  if (isNode) port.on("message", heard);
  else port.onmessage = ({ data }) => heard(data);
}
