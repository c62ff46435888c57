// What CUDA kernels use, for a CPU: threads are fibers (fibers.c), so that barriers, shuffles and clusters are as on a GPU.
// Few headers, since every kernel compiles them again.
#pragma once
#include "fibers.h"
#define memcpy __builtin_memcpy
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __align__(bytes) alignas(bytes)
#define threadIdx (fiber->thread)
#define blockIdx (fiber->block)
#define __syncthreads() meet_block()
#define cluster_barrier() meet_cluster()

#define VECTORS(T, N)                                                                      \
  struct alignas(2 * sizeof(T)) N##2 { T x, y; };                                          \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) N##4 { T x, y, z, w; };          \
  static inline N##2 make_##N##2(T x, T y) { return {x, y}; }                              \
  static inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(float, float) VECTORS(double, double) VECTORS(signed char, char) VECTORS(unsigned char, uchar)
VECTORS(short, short) VECTORS(unsigned short, ushort) VECTORS(int, int) VECTORS(unsigned, uint)
VECTORS(long long, longlong) VECTORS(unsigned long long, ulonglong)

template <class To, class From> static inline To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}
#define __int_as_float(x) bits_of<float>((int)(x))
#define __uint_as_float(x) bits_of<float>((unsigned)(x))
#define __float_as_int(x) bits_of<int>((float)(x))
#define __float_as_uint(x) bits_of<unsigned>((float)(x))
#define __longlong_as_double(x) bits_of<double>((long long)(x))
#define __double_as_longlong(x) bits_of<long long>((double)(x))
#define __clz(x) ((x) ? __builtin_clz(x) : 32)
#define __popc(x) __builtin_popcount(x)
#define rsqrtf(x) (1.0f / __builtin_sqrtf(x))
#define sqrtf __builtin_sqrtf
#define expf __builtin_expf
#define logf __builtin_logf
#define tanhf __builtin_tanhf
#define erff __builtin_erff
#define powf __builtin_powf
#define fabsf __builtin_fabsf
#define floorf __builtin_floorf
#define fmaxf __builtin_fmaxf
#define fminf __builtin_fminf
#define fmaf __builtin_fmaf

#define tw_copy_async_4(to, from, bytes) copy_late(to, from, 4, bytes)
#define tw_copy_async_8(to, from, bytes) copy_late(to, from, 8, bytes)
#define tw_copy_async_16(to, from, bytes) copy_late(to, from, 16, bytes)
#define tw_async_commit() commit_copies()
#define tw_async_wait_0() wait_copies(0)
#define tw_async_wait_1() wait_copies(1)
#define tw_async_wait_2() wait_copies(2)
#define tw_async_wait_3() wait_copies(3)

template <class V, class T> static inline V load_of_block(const T* place, int block) {
  V value;
  memcpy(&value, memory_of_block(block) + ((const unsigned char*)place - own_memory()), sizeof value);
  return value;
}
#define tw_cluster_load_float(place, block) load_of_block<float>(place, block)
#define tw_cluster_load_float2(place, block) load_of_block<float2>(place, block)
#define tw_cluster_load_float4(place, block) load_of_block<float4>(place, block)

template <class T> static inline T __shfl_sync(unsigned, T value, int lane) {
  T result;
  memcpy(offered(fiber->number), &value, sizeof value);
  meet_warp();
  memcpy(&result, offered(fiber->number / 32 * 32 + (lane & 31)), sizeof result);
  meet_warp();
  return result;
}
