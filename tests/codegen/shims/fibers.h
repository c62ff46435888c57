// Threads of a grid as fibers of one thread of this machine: each runs until it waits for others.
#pragma once
#ifdef __cplusplus
extern "C" {
#endif
struct Place { unsigned x, y, z; };
struct Fiber { struct Place thread, block; int number; };
extern struct Fiber* fiber;
void meet_block(void);
void meet_cluster(void);
void meet_warp(void);
unsigned char* own_memory(void);
unsigned char* memory_of_block(int block);
void* offered(int number);
void copy_late(void* to, const void* from, int size, int bytes);
void commit_copies(void);
void wait_copies(int groups);
int run_grid(void (*body)(void**), void** args, const int* grid, const int* block, const int* cluster, int bytes);
#ifdef __cplusplus
}
#endif
