// Threads of a block as threads of this machine. Blocks run one after the other.
// Few headers, since every test compiles them again.
#pragma once
#include <pthread.h>

struct Place { unsigned x, y, z; };
static thread_local Place block_place, thread_place;
static pthread_barrier_t meeting;

static void meet() { pthread_barrier_wait(&meeting); }

template <class Call> struct Thread {
  pthread_t id;
  Place block, place;
  Call* call;
  static void* run(void* self) {
    Thread& thread = *(Thread*)self;
    block_place = thread.block;
    thread_place = thread.place;
    (*thread.call)(thread.block, thread.place);
    return nullptr;
  }
};

template <class Call> void run_grid(const int* grid, const int* block, bool meets, Call call) {
  static Thread<Call> threads[1024];
  unsigned count = block[0] * block[1] * block[2], blocks = grid[0] * grid[1] * grid[2];
  for (unsigned b = 0; b < blocks; ++b) {
    if (meets) pthread_barrier_init(&meeting, nullptr, count);
    for (unsigned t = 0; t < count; ++t) {
      Thread<Call>& thread = threads[t];
      thread.block = {b % grid[0], b / grid[0] % grid[1], b / grid[0] / grid[1]};
      thread.place = {t % block[0], t / block[0] % block[1], t / block[0] / block[1]};
      thread.call = &call;
      if (meets) pthread_create(&thread.id, nullptr, Thread<Call>::run, &thread); else Thread<Call>::run(&thread);
    }
    for (unsigned t = 0; meets && t < count; ++t) pthread_join(threads[t].id, nullptr);
    if (meets) pthread_barrier_destroy(&meeting);
  }
}
