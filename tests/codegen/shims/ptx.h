// Instructions of PTX as functions of their operands. Copies and products of warp groups happen when they are waited for.
#pragma once
enum { COPIES, PRODUCTS };
enum Kind { f16, bf16, tf32, s8, u8, e4m3, e5m2 };

// Halves by their bits: not every processor and compiler has the type.
static inline unsigned short half_bits(double x) {
  unsigned short sign = bits_of<unsigned long long>(x) >> 63 << 15;
  double size = fabs(x);
  if (x != x) return 0x7fff;
  if (size >= 65520.0) return sign | 0x7c00;
  int exponent = size >= 0x1p-14 ? (int)(bits_of<unsigned long long>(size) >> 52) - 1023 : -14;
  // Ten digits behind the first, rounded to nearest, ties to even. A carry goes on to the exponent.
  unsigned digits = (unsigned)rint(size * bits_of<double>((unsigned long long)(1033 - exponent) << 52));
  return sign | (unsigned short)((exponent + 14) * 1024 + digits);
}
static inline float half_value(unsigned short bits) {
  int exponent = bits >> 10 & 31, digits = bits & 1023;
  if (exponent == 31) return __uint_as_float((unsigned)(bits & 0x8000) << 16 | 0x7f800000 | (unsigned)digits << 13);
  float size = exponent ? (1024 + digits) * __uint_as_float((unsigned)(exponent + 102) << 23) : digits * 0x1p-24f;
  return bits & 0x8000 ? -size : size;
}
static inline unsigned short brain_bits(float x) {
  unsigned b = __float_as_uint(x);
  return x != x ? 0x7fff : (unsigned short)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
static inline float brain_value(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }
static inline unsigned tf32_bits(float x) { return (__float_as_uint(x) + 0x1000) & 0xffffe000; }
static inline unsigned pair_of(unsigned short low, unsigned short high) { return (unsigned)high << 16 | low; }
static inline float max_nan(float a, float b) { return a != a || b != b ? __uint_as_float(0x7fffffff) : fmaxf(a, b); }
static inline float min_nan(float a, float b) { return a != a || b != b ? __uint_as_float(0x7fffffff) : fminf(a, b); }
static inline unsigned pair_sum(unsigned a, unsigned b, float sign) {
  return pair_of(half_bits(half_value(a) + sign * half_value(b)), half_bits(half_value(a >> 16) + sign * half_value(b >> 16)));
}
static inline unsigned pair_fma(unsigned a, unsigned b, unsigned c) {
  // A product of halves is exact in float32, and a sum of two in float64.
  double low = (double)half_value(a) * half_value(b) + half_value(c);
  double high = (double)half_value(a >> 16) * half_value(b >> 16) + half_value(c >> 16);
  return pair_of(half_bits(low), half_bits(high));
}
static inline int dot4(int a, int b, int c) {
  for (int n = 0; n < 4; ++n) c += (signed char)(a >> 8 * n) * (signed char)(b >> 8 * n);
  return c;
}

static inline int size_of(Kind kind) { return kind == tf32 ? 4 : kind <= bf16 ? 2 : 1; }
static inline float value_of(Kind kind, const unsigned char* place) {
  unsigned word = 0;
  memcpy(&word, place, size_of(kind));
  switch (kind) {
    case f16: return half_value(word);
    case bf16: return brain_value(word);
    case tf32: return __uint_as_float(word & 0xffffe000);
    case s8: return (signed char)word;
    case u8: return word;
    case e5m2: return half_value(word << 8);
    case e4m3: {
      float size = word & 0x78 ? __uint_as_float(((word & 0x7f) << 20) + (120 << 23)) : (word & 7) * 0x1p-9f;
      return (word & 0x7f) == 0x7f ? __uint_as_float(0x7fffffff) : word & 0x80 ? -size : size;
    }
  }
}

// The nearest code of a byte; of two, the even one. What is beyond the greatest becomes that.
static inline unsigned byte_code(Kind kind, float x) {
  unsigned char best = 0, greatest = kind == e4m3 ? 0x7e : 0x7b;
  if (x != x) return 0x7f;
  for (unsigned char code = 0; code <= greatest; ++code) {
    float error = fabsf(fabsf(x) - value_of(kind, &code)), least = fabsf(fabsf(x) - value_of(kind, &best));
    if (error < least || (error == least && code % 2 == 0)) best = code;
  }
  return best | (__float_as_uint(x) >> 24 & 0x80);
}
static inline unsigned short byte_codes(Kind kind, float low, float high) {
  return (unsigned short)(byte_code(kind, high) << 8 | byte_code(kind, low));
}
static inline unsigned halves_of_codes(Kind kind, unsigned short codes) {
  unsigned char low = codes & 0xff, high = codes >> 8;
  return pair_of(half_bits(value_of(kind, &low)), half_bits(value_of(kind, &high)));
}

struct CopyLater { void* to; const void* from; int size, bytes; };
static void copy_now(void* payload) {
  CopyLater* copy = (CopyLater*)payload;
  memset(copy->to, 0, copy->size);
  memcpy(copy->to, copy->from, copy->bytes);
}
static inline void copy_later(unsigned to, const void* from, int size, int bytes) {
  CopyLater copy = {__cvta_shared_to_generic(to), from, size, bytes};
  // Whoever reads it before the wait finds NaN.
  memset(copy.to, 0xff, size);
  do_later(COPIES, copy_now, &copy, sizeof copy);
}

template <class T> static inline void load_shared(unsigned address, T* first, int count) {
  memcpy(first, __cvta_shared_to_generic(address), count * sizeof(T));
}

// Barriers in shared memory: how many must arrive, how many have not, what bulk copies have yet to bring (in sixteens of
// bytes), and the phase.
struct Barrier { unsigned count : 10, pending : 10, bytes : 12; int phase; };
static inline Barrier* barrier_at(unsigned start, int number) { return (Barrier*)__cvta_shared_to_generic(start + 8 * number); }
static inline void start_barrier(unsigned start, int number, int count) {
  *barrier_at(start, number) = {(unsigned)count, (unsigned)count, 0, 0};
}
static inline void complete(Barrier* barrier) {
  if (barrier->pending || barrier->bytes) return;
  barrier->pending = barrier->count;
  ++barrier->phase;
  note_progress();
}
static inline void arrive(unsigned start, int number) {
  Barrier* barrier = barrier_at(start, number);
  --barrier->pending;
  complete(barrier);
}
static inline void expect_bytes(unsigned start, int number, int bytes) {
  barrier_at(start, number)->bytes += bytes / 16;
  arrive(start, number);
}
static inline void copy_bulk(unsigned to, const void* from, int bytes, unsigned start, int number) {
  Barrier* barrier = barrier_at(start, number);
  memcpy(__cvta_shared_to_generic(to), from, bytes);
  barrier->bytes -= bytes / 16;
  complete(barrier);
}
static inline void arrive_with_copies(unsigned start, int number) {
  commit_later(COPIES);
  wait_later(COPIES, 0);
  arrive(start, number);
}
static inline void wait_barrier(unsigned start, int number, int parity) {
  Barrier* barrier = barrier_at(start, number);
  if ((barrier->phase & 1) == parity) wait_for(&barrier->phase, barrier->phase);
}

static inline void load_matrices(unsigned address, unsigned* result, bool across) {
  int lane = fiber->number & 31;
  memcpy(offered(lane), &address, sizeof address);
  meet_warp();
  for (int matrix = 0; matrix < 4; ++matrix) {
    unsigned short halves[2];
    for (int n = 0; n < 2; ++n) {
      int row = across ? lane % 4 * 2 + n : lane / 4, column = across ? lane / 4 : lane % 4 * 2 + n;
      unsigned start;
      memcpy(&start, offered(matrix * 8 + row), sizeof start);
      memcpy(halves + n, __cvta_shared_to_generic(start) + 2 * column, 2);
    }
    result[matrix] = pair_of(halves[0], halves[1]);
  }
  meet_warp();
}

// A thread's sums of a product of sixteen rows and eight columns, whose operands lie in the registers of the warp.
template <Kind A, Kind B, class Sum>
static inline void multiply(Sum* sums, bool adds, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  int lane = fiber->number & 31, part = 4 / size_of(A);
  unsigned own[6] = {a0, a1, a2, a3, b0, b1};
  memcpy(offered(lane), own, sizeof own);
  meet_warp();
  for (int n = 0; n < 4; ++n) {
    int row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
    Sum sum = adds ? sums[n] : 0;
    for (int k = 0; k < 8 * part; ++k) {
      int other = k % (4 * part) / part, late = k / (4 * part), byte = k % part * size_of(A);
      const unsigned char* a = (unsigned char*)offered(row % 8 * 4 + other) + 4 * (row / 8 + 2 * late) + byte;
      const unsigned char* b = (unsigned char*)offered(column * 4 + other) + 4 * (4 + late) + byte;
      sum += (Sum)(value_of(A, a) * value_of(B, b));
    }
    sums[n] = sum;
  }
  meet_warp();
}

// Operands of a warp group in shared memory: rows of 128 bytes, swizzled, eight of them a kilobyte; or pieces of eight rows
// of 16 bytes, as they are.
static inline const unsigned char* element(unsigned long long tile, int row, int step, int size, bool across) {
  unsigned start = (unsigned)(tile & 0x3fff) << 4, panels = (unsigned)(tile >> 16 & 0x3fff) << 4;
  unsigned eights = (unsigned)(tile >> 32 & 0x3fff) << 4;
  if (!(tile >> 62)) {
    int byte = step * size;
    return memory_of_block(fiber->rank) + start + row / 8 * eights + row % 8 * 16 + byte / 16 * panels + byte % 16;
  }
  int line = across ? step : row, along = across ? row % 64 : step;
  unsigned place = start + (across ? row / 64 * panels : 0) + line / 8 * eights + line % 8 * 128 + along * size;
  return memory_of_block(fiber->rank) + (place ^ (place >> 7 & 7) << 4);
}

template <class Sum> struct GroupProduct {
  Sum* sums;
  unsigned long long a, b;
  short columns, across_a, across_b, adds;
  unsigned rows[4];
};

// Sums of a thread: two rows of its warp's sixteen, pairs of columns.
template <Kind A, Kind B, class Sum, bool held> static void multiply_group(void* payload) {
  GroupProduct<Sum>* of = (GroupProduct<Sum>*)payload;
  int lane = fiber->number & 31, size = size_of(A), steps = 32 / size;
  float a[2][32];
  if (held) {
    memcpy(offered(lane), of->rows, sizeof of->rows);
    meet_warp();
  }
  for (int half = 0; half < 2; ++half)
    for (int k = 0; k < steps; ++k) {
      int row = fiber->number / 32 % 4 * 16 + lane / 4 + half * 8, part = 4 / size;
      int other = k % (4 * part) / part, late = k / (4 * part);
      a[half][k] = value_of(A, held ? (unsigned char*)offered(lane / 4 * 4 + other) + 4 * (half + 2 * late) + k % part * size
                                    : element(of->a, row, k, size, of->across_a));
    }
  if (held) meet_warp();
  for (int eight = 0; eight < of->columns / 8; ++eight)
    for (int n = 0; n < 2; ++n) {
      int column = eight * 8 + lane % 4 * 2 + n;
      Sum low = of->adds ? of->sums[eight * 4 + n] : 0, high = of->adds ? of->sums[eight * 4 + 2 + n] : 0;
      for (int k = 0; k < steps; ++k) {
        float b = value_of(B, element(of->b, column, k, size_of(B), of->across_b));
        low += (Sum)(a[0][k] * b);
        high += (Sum)(a[1][k] * b);
      }
      of->sums[eight * 4 + n] = low;
      of->sums[eight * 4 + 2 + n] = high;
    }
}
// The threads of a warp wait together: what one of them does then, it does for all.
static inline void wait_for_products(int groups) {
  wait_later(PRODUCTS, groups);
  meet_warp();
}
template <Kind A, Kind B, class Sum>
static inline void multiply_later(Sum* sums, int columns, unsigned long long a, unsigned long long b, int across_a, int across_b) {
  GroupProduct<Sum> product = {sums, a, b, (short)columns, (short)across_a, (short)across_b, 1};
  static_assert(sizeof product <= PAYLOAD);
  do_later(PRODUCTS, multiply_group<A, B, Sum, false>, &product, sizeof product);
}
template <Kind A, Kind B>
static inline void multiply_held(float* sums, int columns, unsigned r0, unsigned r1, unsigned r2, unsigned r3, unsigned long long b, int across_b, bool adds) {
  GroupProduct<float> product = {sums, 0, b, (short)columns, 0, (short)across_b, adds, {r0, r1, r2, r3}};
  static_assert(sizeof product <= PAYLOAD);
  do_later(PRODUCTS, multiply_group<A, B, float, true>, &product, sizeof product);
}
