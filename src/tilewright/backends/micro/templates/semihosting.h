/* Calls of the emulator or debugger that a program runs under. */
#ifndef SEMIHOSTING_H
#define SEMIHOSTING_H
#include <stdint.h>

#if defined(__arm__)
static inline intptr_t semihosting(intptr_t operation, const void* argument) {
  register intptr_t r0 __asm__("r0") = operation;
  register const void* r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}
#else
static inline intptr_t semihosting(intptr_t operation, const void* argument) {
  register intptr_t a0 __asm__("a0") = operation;
  register const void* a1 __asm__("a1") = argument;
  __asm__ volatile(
      ".balign 16\n.option push\n.option norvc\nslli x0, x0, 0x1f\nebreak\nsrai x0, x0, 7\n.option pop"
      : "+r"(a0) : "r"(a1) : "memory");
  return a0;
}
#endif

static inline intptr_t length_of(const char* text) {
  intptr_t length = 0;
  while (text[length]) ++length;
  return length;
}

static inline void print(const char* text) { semihosting(0x04, text); }

static inline void print_number(uint32_t number) {
  char digits[11];
  char* place = digits + 10;
  *place = 0;
  do *--place = (char)('0' + number % 10); while (number /= 10);
  print(place);
}

static inline void leave(int code) {
  const intptr_t block[2] = {0x20026, code};
  semihosting(0x20, block);
  for (;;) {}
}

static inline void fail(const char* what, const char* name) {
  print(what);
  print(name);
  print("\n");
  leave(1);
}

static inline intptr_t open_file(const char* name, int mode) {
  const intptr_t block[3] = {(intptr_t)name, mode, length_of(name)};
  const intptr_t file = semihosting(0x01, block);
  if (file < 0) fail("cannot open ", name);
  return file;
}

/* Reading and writing answer with the bytes that were left over. */
static inline void transfer(intptr_t operation, intptr_t file, const char* name, const void* memory, intptr_t bytes) {
  const intptr_t block[3] = {file, (intptr_t)memory, bytes};
  if (semihosting(operation, block)) fail("wrong size: ", name);
  semihosting(0x02, &file);
}

static inline void read_file(const char* name, void* memory, intptr_t bytes) {
  transfer(0x06, open_file(name, 1), name, memory, bytes);
}

static inline void write_file(const char* name, const void* memory, intptr_t bytes) {
  transfer(0x05, open_file(name, 5), name, memory, bytes);
}
#endif
