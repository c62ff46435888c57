// Blocks, or clusters of blocks, run one after the other, and their threads in turn: in every second one the last comes
// first, so that whatever reads what no barrier has made sure of finds it missing. Shared memory starts as NaN.
#include "fibers.h"
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { STACK = 128 << 10, MOST_WORK = 192, SHARED = 233472, NAN_BYTE = 0xff, WARP = 32 };

struct Work { void (*run)(void*); _Alignas(8) char payload[PAYLOAD]; };

struct Queue {
  struct Work works[MOST_WORK];
  int made, committed[MOST_WORK], groups;
};

struct Thread {
  struct Fiber is;
  jmp_buf at;
  ucontext_t start;
  char* stack;
  int begun, ended, warp;
  struct Queue later[2];
};

struct Meeting { int arrived, size; unsigned turn; };

struct Fiber* fiber;
static struct Thread** threads;
static struct Meeting *blocks, *warps, cluster_of_blocks;
static unsigned char** memories;
static char* offers;
static int threads_made, memories_made, backwards, warps_of_block;
static unsigned progress;
static jmp_buf scheduler;
static void (*run)(void**);
static void** given;

static struct Thread* self(void) { return (struct Thread*)fiber; }
unsigned char* memory_of_block(int rank) { return memories[rank]; }
void* offered(int lane) { return offers + (self()->warp * WARP + lane) * OFFER; }

static void give_way(void) {
  if (!_setjmp(self()->at)) _longjmp(scheduler, 1);
}

void note_progress(void) { ++progress; }

void wait_for(const volatile int* word, int old) {
  while (*word == old) give_way();
  note_progress();
}

static void complete(struct Meeting* meeting) {
  meeting->arrived = 0;
  ++meeting->turn;
  ++progress;
}

static void meet(struct Meeting* meeting) {
  unsigned turn = meeting->turn;
  if (++meeting->arrived == meeting->size) complete(meeting);
  else while (meeting->turn == turn) give_way();
}

static void leave(struct Meeting* meeting) {
  if (--meeting->size && meeting->arrived == meeting->size) complete(meeting);
}

void meet_block(void) { meet(blocks + fiber->rank); }
void meet_cluster(void) { meet(&cluster_of_blocks); }
void meet_warp(void) { meet(warps + self()->warp); }

void do_later(int kind, void (*work)(void*), const void* payload, int size) {
  struct Queue* queue = self()->later + kind;
  if (queue->made == MOST_WORK || size > PAYLOAD) abort();
  queue->works[queue->made].run = work;
  memcpy(queue->works[queue->made++].payload, payload, size);
}

void commit_later(int kind) {
  struct Queue* queue = self()->later + kind;
  if (queue->groups == MOST_WORK) abort();
  queue->committed[queue->groups++] = queue->made;
}

void wait_later(int kind, int groups) {
  struct Queue* queue = self()->later + kind;
  int done = queue->groups - groups;
  if (done <= 0) return;
  int count = queue->committed[done - 1];
  for (int n = 0; n < count; ++n) queue->works[n].run(queue->works[n].payload);
  queue->made -= count;
  queue->groups = groups;
  memmove(queue->works, queue->works + count, queue->made * sizeof *queue->works);
  for (int n = 0; n < groups; ++n) queue->committed[n] = queue->committed[n + done] - count;
}

static void enter(void) {
  run(given);
  leave(blocks + fiber->rank);
  leave(warps + self()->warp);
  leave(&cluster_of_blocks);
  self()->ended = 1;
  ++progress;
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

// 0, or 1 where threads wait for others that never come.
static int run_cluster(struct Place first, const int* block, const int* cluster, int bytes) {
  int count = block[0] * block[1] * block[2], many = cluster[0] * cluster[1] * cluster[2], all = count * many;
  backwards = !backwards;
  memset(warps, 0, many * warps_of_block * sizeof *warps);
  cluster_of_blocks = (struct Meeting){0, all, 0};
  for (int n = 0; n < many; ++n) {
    blocks[n] = (struct Meeting){0, count, 0};
    memset(memories[n], NAN_BYTE, bytes);
  }
  for (int n = 0; n < all; ++n) {
    struct Thread* thread = threads[n];
    struct Place other = place(n / count, cluster);
    thread->is.thread = place(n % count, block);
    thread->is.block = (struct Place){first.x + other.x, first.y + other.y, first.z + other.z};
    thread->is.number = n % count;
    thread->is.rank = n / count;
    thread->warp = n / count * warps_of_block + n % count / WARP;
    thread->begun = thread->ended = 0;
    for (int kind = 0; kind < 2; ++kind) thread->later[kind].made = thread->later[kind].groups = 0;
    ++warps[thread->warp].size;
  }
  for (int left = all; left;) {
    unsigned before = progress;
    left = 0;
    for (int n = 0; n < all; ++n) {
      struct Thread* thread = threads[backwards ? all - 1 - n : n];
      if (!thread->ended) go_on(thread);
      left += !thread->ended;
    }
    if (left && before == progress) return 1;
  }
  return 0;
}

int run_grid(void (*body)(void**), void** args, const int* grid, const int* block, const int* cluster, int bytes) {
  int count = block[0] * block[1] * block[2], many = cluster[0] * cluster[1] * cluster[2], all = count * many;
  int failed = bytes > SHARED;
  run = body;
  given = args;
  warps_of_block = (count + WARP - 1) / WARP;
  if (all > threads_made) threads = realloc(threads, all * sizeof *threads);
  for (; threads_made < all; ++threads_made) {
    threads[threads_made] = malloc(sizeof **threads);
    threads[threads_made]->stack = malloc(STACK);
  }
  blocks = realloc(blocks, many * sizeof *blocks);
  warps = realloc(warps, many * warps_of_block * sizeof *warps);
  offers = realloc(offers, many * warps_of_block * WARP * OFFER);
  if (many > memories_made) memories = realloc(memories, many * sizeof *memories);
  for (; memories_made < many; ++memories_made) memories[memories_made] = aligned_alloc(1024, SHARED);
  for (int z = 0; z < grid[2]; z += cluster[2])
    for (int y = 0; y < grid[1]; y += cluster[1])
      for (int x = 0; x < grid[0]; x += cluster[0])
        failed = failed || run_cluster((struct Place){x, y, z}, block, cluster, bytes);
  return failed;
}
