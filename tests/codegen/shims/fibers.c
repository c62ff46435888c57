// Blocks, or clusters of blocks, run one after the other, and their threads in turn: in every second one the last comes
// first, so that whatever reads what no barrier has made sure of finds it missing. Shared memory starts as NaN.
// Asynchronous copies happen as late as they may, when they are waited for; until then their place holds NaN.
#include "fibers.h"
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { STACK = 64 << 10, MOST_COPIES = 512, SHARED = 233472, NAN_BYTE = 0xff };

struct Copy { void* to; const void* from; int size, bytes; };

struct Thread {
  struct Fiber is;
  jmp_buf at;
  ucontext_t start;
  char* stack;
  int block, begun, ended;
  struct Copy copies[MOST_COPIES];
  int made, committed[MOST_COPIES], groups;
};

struct Meeting { int arrived, size; unsigned turn; };

struct Fiber* fiber;
static struct Thread* threads;
static struct Meeting *blocks, *warps, cluster_of_blocks;
static unsigned char** memories;
static unsigned long long* offers;
static int threads_made, memories_made, backwards;
static jmp_buf scheduler;
static void (*run)(void**);
static void** given;

static struct Thread* self(void) { return (struct Thread*)fiber; }
unsigned char* memory_of_block(int block) { return memories[block]; }
unsigned char* own_memory(void) { return memories[self()->block]; }
void* offered(int number) { return offers + number; }

static void meet(struct Meeting* meeting) {
  unsigned turn = meeting->turn;
  if (++meeting->arrived == meeting->size) {
    meeting->arrived = 0;
    ++meeting->turn;
  }
  else while (meeting->turn == turn) if (!_setjmp(self()->at)) _longjmp(scheduler, 1);
}

static void leave(struct Meeting* meeting) {
  if (--meeting->size && meeting->arrived == meeting->size) {
    meeting->arrived = 0;
    ++meeting->turn;
  }
}

void meet_block(void) { meet(blocks + self()->block); }
void meet_cluster(void) { meet(&cluster_of_blocks); }
void meet_warp(void) { meet(warps + fiber->number / 32); }

void copy_late(void* to, const void* from, int size, int bytes) {
  struct Thread* thread = self();
  if (thread->made == MOST_COPIES) abort();
  memset(to, NAN_BYTE, size);
  thread->copies[thread->made++] = (struct Copy){to, from, size, bytes};
}

void commit_copies(void) {
  struct Thread* thread = self();
  if (thread->groups == MOST_COPIES) abort();
  thread->committed[thread->groups++] = thread->made;
}

void wait_copies(int groups) {
  struct Thread* thread = self();
  int done = thread->groups - groups, count = done > 0 ? thread->committed[done - 1] : 0;
  if (done <= 0) return;
  for (int n = 0; n < count; ++n) {
    struct Copy copy = thread->copies[n];
    memset(copy.to, 0, copy.size);
    memcpy(copy.to, copy.from, copy.bytes);
  }
  thread->made -= count;
  thread->groups = groups;
  memmove(thread->copies, thread->copies + count, thread->made * sizeof *thread->copies);
  for (int n = 0; n < groups; ++n) thread->committed[n] = thread->committed[n + done] - count;
}

static void enter(void) {
  run(given);
  leave(blocks + self()->block);
  leave(warps + fiber->number / 32);
  leave(&cluster_of_blocks);
  self()->ended = 1;
  _longjmp(scheduler, 1);
}

static void start(struct Thread* thread) {
  thread->begun = 1;
  getcontext(&thread->start);
  thread->start.uc_stack.ss_sp = thread->stack;
  thread->start.uc_stack.ss_size = STACK;
  makecontext(&thread->start, enter, 0);
  setcontext(&thread->start);
}

static void go_on(struct Thread* thread) {
  fiber = &thread->is;
  if (_setjmp(scheduler)) return;
  if (thread->begun) _longjmp(thread->at, 1); else start(thread);
}

static struct Place place(int number, const int* sizes) {
  return (struct Place){number % sizes[0], number / sizes[0] % sizes[1], number / sizes[0] / sizes[1]};
}

static unsigned turns(int all) {
  unsigned sum = cluster_of_blocks.turn;
  for (int n = 0; n < all; ++n) sum += threads[n].ended;
  for (int n = 0; n < (all + 31) / 32; ++n) sum += warps[n].turn;
  return sum;
}

// 0, or 1 where threads wait for others that never come.
static int run_cluster(struct Place first, const int* block, const int* cluster, int bytes) {
  int count = block[0] * block[1] * block[2], many = cluster[0] * cluster[1] * cluster[2], all = count * many;
  backwards = !backwards;
  memset(warps, 0, (all + 31) / 32 * sizeof *warps);
  cluster_of_blocks = (struct Meeting){0, all, 0};
  for (int n = 0; n < many; ++n) {
    blocks[n] = (struct Meeting){0, count, 0};
    memset(memories[n], NAN_BYTE, bytes);
  }
  for (int n = 0; n < all; ++n) {
    struct Thread* thread = threads + n;
    struct Place other = place(n / count, cluster);
    thread->is.thread = place(n % count, block);
    thread->is.block = (struct Place){first.x + other.x, first.y + other.y, first.z + other.z};
    thread->is.number = n;
    thread->block = n / count;
    thread->begun = thread->ended = thread->made = thread->groups = 0;
    ++warps[n / 32].size;
  }
  for (int left = all; left;) {
    unsigned before = turns(all);
    for (int n = 0; n < many; ++n) before += blocks[n].turn;
    left = 0;
    for (int n = 0; n < all; ++n) {
      struct Thread* thread = threads + (backwards ? all - 1 - n : n);
      if (!thread->ended) go_on(thread);
      left += !thread->ended;
    }
    unsigned after = turns(all);
    for (int n = 0; n < many; ++n) after += blocks[n].turn;
    if (left && before == after) return 1;
  }
  return 0;
}

int run_grid(void (*body)(void**), void** args, const int* grid, const int* block, const int* cluster, int bytes) {
  int count = block[0] * block[1] * block[2], many = cluster[0] * cluster[1] * cluster[2], all = count * many;
  int failed = bytes > SHARED;
  run = body;
  given = args;
  if (all > threads_made) {
    threads = realloc(threads, all * sizeof *threads);
    for (; threads_made < all; ++threads_made) threads[threads_made].stack = malloc(STACK);
  }
  blocks = realloc(blocks, many * sizeof *blocks);
  warps = realloc(warps, (all / 32 + 1) * sizeof *warps);
  offers = realloc(offers, (all + 32) * sizeof *offers);
  memories = realloc(memories, (many > memories_made ? many : memories_made) * sizeof *memories);
  for (; memories_made < many; ++memories_made) memories[memories_made] = aligned_alloc(1024, SHARED);
  for (int z = 0; z < grid[2]; z += cluster[2])
    for (int y = 0; y < grid[1]; y += cluster[1])
      for (int x = 0; x < grid[0]; x += cluster[0])
        failed = failed || run_cluster((struct Place){x, y, z}, block, cluster, bytes);
  return failed;
}
