// What CUDA kernels use, for a CPU: threads are fibers (fibers.c), so that barriers, shuffles and clusters are as on a GPU.
// Few headers, since every kernel compiles them again. Instructions in PTX are in ptx.h.
#pragma once
#include "fibers.h"
#define memcpy __builtin_memcpy
#define memset __builtin_memset
#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __align__(bytes) alignas(bytes)
#define threadIdx (fiber->thread)
#define blockIdx (fiber->block)
#define __syncthreads() meet_block()

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
#define __clzll(x) ((x) ? __builtin_clzll(x) : 64)
#define __popcll(x) __builtin_popcountll(x)

#define ONE(name) double name(double); float name##f(float);
#define TWO(name) double name(double, double); float name##f(float, float);
extern "C" {
ONE(sqrt) ONE(exp) ONE(exp2) ONE(expm1) ONE(log) ONE(log2) ONE(log10) ONE(log1p) ONE(sin) ONE(cos) ONE(tan) ONE(asin)
ONE(acos) ONE(atan) ONE(sinh) ONE(cosh) ONE(tanh) ONE(asinh) ONE(acosh) ONE(atanh) ONE(erf) ONE(fabs) ONE(floor)
ONE(ceil) ONE(trunc) ONE(rint) ONE(round) ONE(cbrt) TWO(pow) TWO(fmod) TWO(atan2) TWO(fmax) TWO(fmin) TWO(copysign)
float fmaf(float, float, float);
double fma(double, double, double);
}
#define rsqrtf(x) (1.0f / sqrtf(x))
#define rsqrt(x) (1.0 / sqrt(x))
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)

static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned order) {
  unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned result = 0;
  for (int n = 0; n < 4; ++n) result |= (unsigned)(both >> (order >> 4 * n & 7) * 8 & 0xff) << 8 * n;
  return result;
}

// Addresses of shared memory have 32 bits: the block in its cluster, and bytes.
static inline unsigned long long __cvta_generic_to_global(const void* place) { return (unsigned long long)place; }
static inline unsigned __cvta_generic_to_shared(const void* place) {
  return fiber->rank << 24 | (unsigned)((const unsigned char*)place - memory_of_block(fiber->rank));
}
static inline unsigned char* __cvta_shared_to_generic(unsigned address) {
  return memory_of_block(address >> 24) + (address & 0xffffff);
}

template <class T> static inline T lane_value(T value, int lane) {
  T result;
  memcpy(offered(fiber->number & 31), &value, sizeof value);
  meet_warp();
  memcpy(&result, offered(lane & 31), sizeof result);
  meet_warp();
  return result;
}
#define __shfl_sync(mask, value, lane) lane_value(value, lane)
#define __shfl_xor_sync(mask, value, distance) lane_value(value, (fiber->number & 31) ^ (distance))
#include "ptx.h"
