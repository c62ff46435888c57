/**
 * Runs programs: models with loops, branches on data, and sizes that a run decides.
 *
 * A program (backends/wasm/program.py writes it into model.json) has functions of registers, symbols (the sizes of an
 * activation) and code; native code is called a segment at a time. Calls are frames on a list: no recursion of JavaScript.
 * Memory of tensors comes from the allocator of the model. When much was taken, pieces that no register reaches are given back.
 */

import { TilewrightError } from "./errors.js";
import { evaluate } from "./extents.js";
import { hosts } from "./hosts.js";
import { arrayOf, Closure, DataValue, partsOf, product, Sequence, Tensor, Texts, TextTensor } from "./values.js";

/** Calls that may be under way at once: a program that recurses without end stops here. */
const DEEPEST = 200_000;
/** Bytes that are taken before pieces that nothing reaches are looked for, at least. */
const PATIENCE = 1 << 24;
/** Bytes of the smallest piece of memory. */
const SMALLEST = 64;
const MOST_PLANS = 256;
const MOST_BYTES = 2 ** 32;

const OPCODES = [
  "constant", "move", "segment", "host", "match", "view", "tuple", "data", "field", "closure",
  "jump", "branch", "tag", "call", "tail_call", "call_closure", "tail_closure", "return", "release", "fail",
];
const BIND = 1, EQUAL = 2;

/** The pieces of memory that the values of a run lie in. */
class Storage {
  constructor(leader) {
    this.leader = leader;
    this.blocks = new Set();
    this.taken = 0;
    this.patience = PATIENCE;
  }

  take(bytes) {
    const place = bytes < MOST_BYTES ? this.leader.allocate(bytes) : 0;
    if (!place) throw new TilewrightError(`there is no memory for ${bytes} bytes`);
    const block = { place, bytes };
    this.blocks.add(block);
    this.taken += bytes + SMALLEST;
    return block;
  }

  empty(dtype, shape) {
    const block = this.take(product(shape) * arrayOf(dtype).BYTES_PER_ELEMENT);
    return new Tensor(this.leader.memory, block, block.place, dtype, shape);
  }

  /** A value in the memory of the model: new tensors that host functions give are arrays of JavaScript. */
  placed(value) {
    if (value?.dtype === "string" && !(value instanceof Tensor)) return new TextTensor(value.shape, value.data);
    if (value instanceof Tensor || !ArrayBuffer.isView(value?.data)) return value;
    const tensor = this.empty(value.dtype, value.shape);
    tensor.data.set(value.data);
    return tensor;
  }

  /** Gives back what cannot be reached from values, once enough was taken that this is worth its time. */
  collect(roots) {
    const stack = [], seen = new Set(), used = new Set();
    for (const values of roots) for (const value of values) stack.push(value);
    while (stack.length) {
      const value = stack.pop();
      if (value instanceof Tensor) {
        if (value.block) used.add(value.block);
      } else if (value && !seen.has(value)) {
        seen.add(value);
        for (const part of partsOf(value)) stack.push(part);
      }
    }
    let live = 0;
    for (const block of this.blocks) {
      if (used.has(block)) live += block.bytes;
      else this.release(block);
    }
    this.taken = 0;
    this.patience = Math.max(PATIENCE, live);
  }

  release(block) {
    this.leader.release(block.place);
    this.blocks.delete(block);
  }

  close() {
    for (const block of this.blocks) this.leader.release(block.place);
    this.blocks.clear();
  }
}

/** The code of a segment: sizes of results and workspace for the values of its symbols, and its call. */
class Segment {
  constructor(info, leader, weights) {
    this.info = info;
    this.leader = leader;
    this.weights = weights;
    this.plans = new Map();
    this.ranks = info.outputs.map(({ shape }) => shape.length);
    // Tables that the code reads and writes: sizes of the results, symbols, the size of the workspace, places.
    const dims = this.ranks.reduce((all, rank) => all + rank, 0);
    const bytes = 8 * (dims + info.symbols.length + 1) + 4 * (info.inputs.length + info.outputs.length);
    this.dims = leader.allocate(bytes);
    if (!this.dims) throw new TilewrightError("there is no memory for the tables of the model");
    this.symbols = this.dims + 8 * dims;
    this.workspaceBytes = this.symbols + 8 * info.symbols.length;
    this.inputs = this.workspaceBytes + 8;
    this.outputs = this.inputs + 4 * info.inputs.length;
  }

  numbers(place, count) {
    return new BigInt64Array(this.leader.memory.buffer, place, count);
  }

  /** Sizes for values of the symbols. */
  plan(values) {
    const key = values.join();
    let plan = this.plans.get(key);
    if (plan === undefined) {
      plan = this.planned(values);
      if (this.plans.size >= MOST_PLANS) this.plans.clear();
      this.plans.set(key, plan);
    }
    return plan;
  }

  planned(values) {
    const { info } = this;
    const valueOf = (name) => (info.symbols.includes(name) ? values[info.symbols.indexOf(name)] : undefined);
    const inputs = info.inputs.map(({ shape }) => {
      const sizes = shape.map((extent) => evaluate(extent, valueOf));
      return sizes.includes(undefined) ? -1 : product(sizes);
    });
    if (!info.symbols.length) {
      return { inputs, shapes: info.outputs.map(({ shape }) => shape), workspaceBytes: info.workspace_bytes };
    }
    this.numbers(this.symbols, values.length).set(values.map(BigInt));
    const code = this.leader.exports[info.planner](this.symbols, this.dims, this.workspaceBytes);
    if (code !== 0) throw new TilewrightError(this.misfit(-1 - code, values));
    const dims = Array.from(this.numbers(this.dims, (this.symbols - this.dims) / 8), Number);
    // The code computes in 64 bits, and sizes that are no such numbers wrap around there.
    const slots = info.slots.map((size) => evaluate(size, valueOf));
    const total = slots.reduce((all, size) => all + size, 0);
    if (slots.some((size) => size < 0) || total > MOST_BYTES) {
      throw new TilewrightError(`there is no memory for the model's workspace of ${total} bytes for ${this.sizes(values)}`);
    }
    return {
      inputs,
      shapes: this.ranks.map((rank) => dims.splice(0, rank)),
      workspaceBytes: Number(this.numbers(this.workspaceBytes, 1)[0]),
    };
  }

  sizes(values) {
    return this.info.symbols.map((name, number) => `${name} = ${values[number]}`).join(", ");
  }

  misfit(dimension, values) {
    const { info } = this;
    for (const { name, shape } of info.outputs) {
      if (dimension < shape.length) return `axis ${dimension} of '${name}' would be negative for ${this.sizes(values)}`;
      dimension -= shape.length;
    }
    const [left, right] = info.requires[dimension];
    return `the model needs ${left} and ${right} to be equal, which they are not for ${this.sizes(values)}`;
  }

  /** Runs the code on values, with symbols, into new values. */
  run(values, symbols, storage, workspaceOf) {
    const { info, leader } = this;
    const plan = this.plan(symbols);
    values.forEach((value, number) => {
      const size = plan.inputs[number], { dtype } = info.inputs[number];
      // Native code reads so much memory, whatever is there.
      if (!(value instanceof Tensor) || (size !== value.size && size !== -1) || arrayOf(value.dtype) !== arrayOf(dtype)) {
        throw new TypeError(`${value?.dtype}[${value?.shape}] in the place of ${size} ${dtype}`);
      }
    });
    const workspace = workspaceOf(plan.workspaceBytes);
    const outputs = plan.shapes.map((shape, number) => storage.empty(info.outputs[number].dtype, shape));
    const places = (table, tensors) =>
      new Uint32Array(leader.memory.buffer, table, tensors.length).set(tensors.map(({ place }) => place));
    places(this.inputs, values);
    places(this.outputs, outputs);
    this.numbers(this.symbols, symbols.length).set(symbols.map(BigInt));
    const last = symbols.length ? [this.symbols] : [];
    const code = leader.exports[info.entry](this.inputs, this.outputs, workspace, this.weights, ...last);
    if (code !== 0) throw new TilewrightError(info.messages[code] ?? `the model failed with the code ${code}`);
    return outputs;
  }
}

/** An attribute of a host function: numbers that JSON has not are written as { float }. */
function revived(value) {
  if (Array.isArray(value)) return value.map(revived);
  if (value === null || typeof value !== "object") return value;
  if ("float" in value) return Number(value.float);
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, revived(item)]));
}

/** An input that was checked, as a value of the program. */
function held(value, type, storage) {
  if (type.kind === "sequence") return new Sequence(value.map((item) => held(item, type.item, storage)));
  if (type.kind === "optional") return value === null ? null : held(value, type.item, storage);
  const { data, shape } = value;
  return storage.placed({ dtype: type.dtype, shape, data: type.dtype === "string" ? Texts.from(data) : data });
}

/** A result, as the caller's own. */
function copied(value) {
  if (value === null) return null;
  if (value instanceof Sequence) return value.items.map(copied);
  const { dtype, shape, data } = value;
  return { dtype, shape, data: dtype === "string" ? Array.from(data) : data.slice() };
}

/** A loaded program. */
export class Machine {
  constructor(name, program, leader, weights) {
    this.name = name;
    this.program = program;
    this.leader = leader;
    this.segments = program.segments.map((info) => new Segment(info, leader, weights));
    this.lasting = new Storage(leader);
    this.constants = program.constants.map((info) => (info.texts ? new TextTensor(info.shape, Texts.from(info.texts)) : this.constant(info, weights)));
    this.attributes = program.hosts.map(({ attributes }) => revived(attributes));
  }

  constant({ offset, shape, dtype, bits }, weights) {
    const stored = new Tensor(this.leader.memory, undefined, weights + offset, dtype, shape);
    return bits < 8 ? this.unpacked(stored, bits) : stored;
  }

  /** Elements of less than a byte, which values of programs have one a byte; signed ones keep their sign. */
  unpacked({ place, dtype, shape, size }, bits) {
    const packed = new Uint8Array(this.leader.memory.buffer, place, Math.ceil((size * bits) / 8)).slice();
    const data = arrayOf(dtype).from({ length: size }, (_, number) => {
      const upper = (packed[(number * bits) >> 3] >> ((number * bits) & 7)) << (32 - bits);
      return dtype.startsWith("int") ? upper >> (32 - bits) : upper >>> (32 - bits);
    });
    return this.lasting.placed({ dtype, shape, data });
  }

  /** Runs the program on inputs ({ data, shape } in the order of the model's); gives the results, which are copies. */
  run(given, observe = undefined) {
    const run = new Run(this, observe);
    try {
      const inputs = given.map((value, number) => held(value, this.program.inputs[number], run.storage));
      this.admit(inputs);
      const results = run.loop(inputs);
      return (this.program.outputs === 1 ? [results] : results).map(copied);
    } catch (error) {
      throw this.misuse(run, error);
    } finally {
      run.close();
    }
  }

  /** Sizes of the inputs fit each other. */
  admit(inputs) {
    const symbols = new Map();
    const valueOf = (name) => symbols.get(name);
    for (const [number, { name, kind, shape }] of this.program.inputs.entries()) {
      if (kind === "tensor") shape.forEach((extent, axis) => {
        const size = inputs[number].shape[axis], expected = evaluate(extent, valueOf);
        if (expected === undefined && typeof extent === "string") symbols.set(extent, size);
        else if (expected !== undefined && expected !== size) {
          throw new TilewrightError(`dimension ${axis} of the input '${name}' is ${size}, and ${expected} is expected`);
        }
      });
    }
  }

  misuse(run, error) {
    if (error instanceof TilewrightError) return error;
    if (error instanceof WebAssembly.RuntimeError) {
      return new TilewrightError(`the model '${this.name}' failed: ${error.message}`, { cause: error });
    }
    // Arrays and lists that JavaScript cannot make.
    if (error instanceof RangeError) return new TilewrightError(`there is no memory for the values of '${this.name}': ${error.message}`, { cause: error });
    return new TilewrightError(`the program of '${this.name}' is damaged: ${run.where()} cannot take its operands: ${error.message}`, { cause: error });
  }
}

/** One run: the frames of calls under way, and the memory of its values. */
class Run {
  constructor(machine, observe) {
    this.machine = machine;
    this.program = machine.program;
    this.observe = observe;
    this.storage = new Storage(machine.leader);
    this.stack = [];
    this.frame = undefined;
    this.workspace = undefined;
  }

  close() {
    this.storage.close();
    if (this.workspace) this.machine.leader.release(this.workspace.place);
  }

  where() {
    const { frame } = this;
    if (frame === undefined) return "its start";
    const opcode = OPCODES[frame.instruction?.[0]] ?? "?";
    return `instruction ${frame.place - 1} (${opcode}) of '${frame.code.name}'`;
  }

  workspaceOf(bytes) {
    if (this.workspace === undefined || this.workspace.bytes < bytes) {
      if (this.workspace) this.machine.leader.release(this.workspace.place);
      this.workspace = undefined;
      const place = bytes < MOST_BYTES ? this.machine.leader.allocate(bytes) : 0;
      if (!place) throw new TilewrightError(`there is no memory for the model's workspace of ${bytes} bytes`);
      this.workspace = { place, bytes };
    }
    return this.workspace.place;
  }

  entered(number, values, sizes, result) {
    const code = this.program.functions[number];
    if (values.length !== code.given) throw new TypeError(`'${code.name}' was called with ${values.length} values`);
    const registers = values.concat(new Array(code.registers - values.length).fill(undefined));
    const symbols = sizes.concat(new Array(code.symbols - sizes.length).fill(0));
    return { code, place: 0, registers, symbols, result, instruction: undefined };
  }

  loop(inputs) {
    this.frame = this.entered(0, inputs, [], undefined);
    const { stack, storage } = this;
    for (;;) {
      const { frame } = this;
      // Between instructions only registers hold values.
      if (storage.taken > storage.patience) storage.collect([...stack.map(({ registers }) => registers), frame.registers]);
      const instruction = frame.code.code[frame.place];
      frame.place += 1;
      frame.instruction = instruction;
      const opcode = OPCODES[instruction[0]];
      if (opcode === "return") {
        const value = frame.registers[instruction[1]];
        if (!stack.length) return value;
        this.frame = stack.pop();
        this.frame.registers[frame.result] = value;
      } else {
        this[opcode](frame, instruction[1], instruction[2], instruction[3], instruction[4]);
      }
    }
  }

  constant({ registers }, result, number) {
    registers[result] = this.machine.constants[number];
  }

  move({ registers }, result, source) {
    registers[result] = registers[source];
  }

  segment({ registers, symbols }, number, sources, results, sizes) {
    const begin = this.observe ? performance.now() : 0;
    const values = sources.map((source) => registers[source]);
    const segment = this.machine.segments[number];
    const outputs = segment.run(values, sizes.map((size) => symbols[size]), this.storage, (bytes) => this.workspaceOf(bytes));
    this.observe?.(number, performance.now() - begin);
    results.forEach((result, place) => { registers[result] = outputs[place]; });
  }

  host({ registers }, number, sources, results) {
    const begin = this.observe ? performance.now() : 0;
    const { name, where } = this.program.hosts[number], attributes = this.machine.attributes[number];
    let values;
    try {
      values = hosts[name](sources.map((source) => registers[source]), attributes, (value) => this.storage.placed(value));
    } catch (error) {
      if (!(error instanceof TilewrightError) || !where) throw error;
      throw new TilewrightError(`${where}: ${error.message}`, { cause: error });
    }
    if (values.length !== results.length) throw new TypeError(`${name} gives ${values.length} results`);
    results.forEach((result, place) => { registers[result] = this.storage.placed(values[place]); });
    this.observe?.(this.program.segments.length + number, performance.now() - begin);
  }

  match({ registers, symbols }, source, dims, text) {
    const { shape } = registers[source], what = this.program.texts[text];
    if (shape.length !== dims.length) throw new TilewrightError(`${what} has ${shape.length} dimensions, ${dims.length} are expected`);
    dims.forEach(([kind, number], axis) => {
      if (kind === BIND) symbols[number] = shape[axis];
      if (kind !== EQUAL) return;
      const expected = this.extent(number, symbols);
      if (expected !== shape[axis]) {
        throw new TilewrightError(`${what} has the shape [${shape}]: axis ${axis} must be ${expected}, not ${shape[axis]}`);
      }
    });
  }

  extent(number, symbols) {
    return evaluate(this.program.extents[number], (name) => symbols[Number(name.slice(1))]);
  }

  view({ registers, symbols }, result, source, offset, shape) {
    const value = registers[source], first = this.extent(offset, symbols);
    const dims = shape.map((number) => this.extent(number, symbols));
    if (dims.some((size) => size < 0) || first < 0 || first + product(dims) > value.size) {
      throw new TilewrightError(`a value of the shape [${value.shape}] cannot be viewed as [${dims}] from element ${first}`);
    }
    registers[result] = value.view(dims, first);
  }

  tuple({ registers }, result, sources) {
    registers[result] = sources.map((source) => registers[source]);
  }

  data({ registers }, result, number, sources) {
    registers[result] = new DataValue(this.program.constructors[number], sources.map((source) => registers[source]));
  }

  field({ registers }, result, source, number) {
    const owner = registers[source];
    registers[result] = Array.isArray(owner) ? owner[number] : owner.fields[number];
  }

  closure({ registers, symbols }, result, number, captured, sizes) {
    registers[result] = new Closure(number, captured.map((source) => registers[source]), sizes.map((size) => symbols[size]));
  }

  jump(frame, target) {
    frame.place = target;
  }

  branch(frame, source, target) {
    const value = frame.registers[source];
    if (value.size !== 1) throw new TypeError(`a condition of the shape [${value.shape}]`);
    if (!value.data[0]) frame.place = target;
  }

  tag(frame, source, number, target) {
    if (frame.registers[source].constructorName !== this.program.constructors[number]) frame.place = target;
  }

  call({ registers }, result, number, sources) {
    this.enter(number, sources.map((source) => registers[source]), [], result);
  }

  tail_call({ registers, result }, number, sources) {
    this.frame = this.entered(number, sources.map((source) => registers[source]), [], result);
  }

  call_closure({ registers }, result, source, sources) {
    const { number, captured, symbols } = registers[source];
    this.enter(number, captured.concat(sources.map((place) => registers[place])), symbols, result);
  }

  tail_closure({ registers, result }, source, sources) {
    const { number, captured, symbols } = registers[source];
    this.frame = this.entered(number, captured.concat(sources.map((place) => registers[place])), symbols, result);
  }

  /** Calls a function that comes back to this one. */
  enter(number, values, sizes, result) {
    if (this.stack.length >= DEEPEST) {
      throw new TilewrightError(`the program is ${this.stack.length} calls deep in '${this.program.functions[number].name}'`);
    }
    this.stack.push(this.frame);
    this.frame = this.entered(number, values, sizes, result);
  }

  release({ registers }, sources) {
    for (const source of sources) registers[source] = undefined;
  }

  fail(frame, text) {
    throw new TilewrightError(this.program.texts[text]);
  }
}
