// Drives the core that Verilator made of the hardware: a DRAM of configurable latency, and a run to the program's end.
//
// The memory port carries one word in a cycle. A read that is accepted in a cycle takes the word at once, so that reads
// and writes take effect in the order of acceptance, and its data comes `latency` cycles later. The core has registers at
// its inputs: what is given in a cycle is there in the next.

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "Vcore.h"
#include "verilated.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif

namespace {

enum Status { kRunning, kDone, kIllegal, kOverflow, kDeadlock, kOutside };

// How long nothing may happen, beside the memory's latency, before the program counts as deadlocked.
constexpr uint64_t kPatience = 64;

struct Answer {
  bool valid = false;
  uint8_t data[BUS_BYTES];
};

// What a run reports, in this order.
struct Report {
  uint64_t cycles, address, words_read, words_written;
  uint64_t units[3][7];  // instructions; cycles busy, waiting for memory, for a token; wants previous, next; works
  uint64_t tokens[4];
};

struct Machine {
  VerilatedContext context;
  Vcore core{&context};
  std::vector<uint8_t> dram;
  std::vector<Answer> answers;
  uint64_t slot = 0, still = 0, outside = 0, words_read = 0, words_written = 0;
#if VM_TRACE
  std::unique_ptr<VerilatedVcdC> trace;
#endif

  void Tick() {
    core.clk = 1;
    core.eval();
    Dump();
    core.clk = 0;
    core.eval();
    Dump();
  }

  void Dump() {
#if VM_TRACE
    context.timeInc(1);
    if (trace) trace->dump(context.time());
#endif
  }

  // The port's request and answer of this cycle; whether the address exists.
  bool Serve() {
    const bool is_outside = core.request_valid && !Accept(answers[slot]);
    if (++slot == answers.size()) slot = 0;
    Answer& answer = answers[slot];
    core.response_valid = answer.valid;
    if (answer.valid) std::memcpy(&core.response_data, answer.data, BUS_BYTES);
    answer.valid = false;
    return !is_outside;
  }

  bool Accept(Answer& answer) {
    const uint64_t address = core.request_address;
    if (address >= dram.size() / BUS_BYTES) {
      outside = address;
      return false;
    }
    uint8_t* word = dram.data() + address * BUS_BYTES;
    if (core.request_write) {
      std::memcpy(word, &core.request_data, BUS_BYTES);
      ++words_written;
    } else {
      answer.valid = true;
      std::memcpy(answer.data, word, BUS_BYTES);
      words_read += !core.request_fetch;
    }
    return true;
  }
};

}  // namespace

extern "C" {

Machine* accel_open(uint64_t dram_bytes) {
  try {
    auto machine = std::make_unique<Machine>();
    machine->dram.resize(dram_bytes);
    return machine.release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void accel_close(Machine* machine) { delete machine; }

uint8_t* accel_dram(Machine* machine) { return machine->dram.data(); }

// Write signals to a VCD file from now on; whether this build can.
int accel_trace(Machine* machine, const char* path) {
#if VM_TRACE
  machine->context.traceEverOn(true);
  machine->trace = std::make_unique<VerilatedVcdC>();
  machine->core.trace(machine->trace.get(), 99);
  machine->trace->open(path);
  return machine->trace->isOpen();
#else
  (void)machine, (void)path;
  return 0;
#endif
}

// Reset all but the memories, and start a program.
void accel_start(Machine* machine, uint64_t address, uint64_t count, uint64_t latency) {
  Vcore& core = machine->core;
  machine->answers.assign(latency, Answer());
  machine->slot = machine->still = machine->words_read = machine->words_written = 0;
  core.start = 0, core.response_valid = 0;
  core.rst = 1;
  machine->Tick();
  core.rst = 0;
  core.start = 1, core.start_address = address, core.start_count = count;
  machine->Tick();
  core.start = 0;
  machine->Tick();
}

// Run some cycles, or to the end.
int accel_advance(Machine* machine, uint64_t cycles) {
  Vcore& core = machine->core;
  for (; cycles; --cycles) {
    if (core.illegal) return kIllegal;
    if (core.overflow) return kOverflow;
    if (core.done) return kDone;
    machine->still = core.progress ? 0 : machine->still + 1;
    if (machine->still > machine->answers.size() + kPatience) return kDeadlock;
    if (!machine->Serve()) return kOutside;
    machine->Tick();
  }
  return kRunning;
}

void accel_report(Machine* machine, Report* report) {
  const Vcore& core = machine->core;
  report->cycles = core.cycles;
  report->address = machine->outside;
  report->words_read = machine->words_read;
  report->words_written = machine->words_written;
#define UNIT(index, name)                  \
  do {                                     \
    uint64_t* unit = report->units[index]; \
    unit[0] = core.name##_instructions;    \
    unit[1] = core.name##_busy_cycles;     \
    unit[2] = core.name##_memory;          \
    unit[3] = core.name##_token;           \
    unit[4] = core.name##_wants_prev;      \
    unit[5] = core.name##_wants_next;      \
    unit[6] = core.name##_working;         \
  } while (0)
  UNIT(0, load);
  UNIT(1, compute);
  UNIT(2, store);
#undef UNIT
  report->tokens[0] = core.load_to_compute;
  report->tokens[1] = core.compute_to_load;
  report->tokens[2] = core.compute_to_store;
  report->tokens[3] = core.store_to_compute;
#if VM_TRACE
  if (machine->trace) machine->trace->flush();
#endif
}
}
