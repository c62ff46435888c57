// Threads of a grid as fibers of one thread of this machine: each runs until it waits for others.
#pragma once
#ifdef __cplusplus
extern "C" {
#endif
enum { PAYLOAD = 56, OFFER = 64 };
struct Place { unsigned x, y, z; };
struct Fiber {
  struct Place thread, block;
  int number, rank;  // of the thread in its block, of the block in its cluster
};
extern struct Fiber* fiber;
void meet_block(void);
void meet_cluster(void);
void meet_warp(void);
void wait_for(const volatile int* word, int old);  // until it is another
void note_progress(void);  // of which there must be some while threads wait
unsigned char* memory_of_block(int rank);
void* offered(int lane);  // what a thread of the warp shows the others
// Work that runs as late as it may: when it is waited for. Two kinds, copies and products, each in groups.
void do_later(int kind, void (*work)(void*), const void* payload, int size);
void commit_later(int kind);
void wait_later(int kind, int groups);
int run_grid(void (*body)(void**), void** args, const int* grid, const int* block, const int* cluster, int bytes);
#ifdef __cplusplus
}
#endif
