/* The runtime that serves a board over a serial line: memory to write and read, functions to call.
   Frames are END | number, kind, payload, CRC-32 | END, with END and ESC escaped inside. A damaged frame is dropped: whoever
   sent it sends it again. A number that was answered is answered with the same words, and nothing is done twice. */
#include <stdint.h>
#include <string.h>
#include "uart.h"

enum { END = 0xc0, ESC = 0xdb, END_ESCAPED = 0xdc, ESC_ESCAPED = 0xdd, MOST_BYTES = 1024, HEAD = 2, CHECKSUM = 4 };

void start_clock(void);
uint32_t clock_ticks(void);
uint32_t clock_between(uint32_t begin, uint32_t end);
#if defined(__arm__)
extern uint32_t clock_has_cycles;
#else
enum { clock_has_cycles = 0 };
#endif

_Alignas(16) static uint8_t memory[${room}];
static uint8_t request[HEAD + 4 + MOST_BYTES + CHECKSUM], answer[HEAD + MOST_BYTES];

static uint32_t checksum(const uint8_t* data, uint32_t count) {
  uint32_t sum = ~0u;
  while (count--) {
    sum ^= *data++;
    for (int bit = 0; bit < 8; ++bit) sum = sum & 1 ? sum >> 1 ^ 0xedb88320u : sum >> 1;
  }
  return ~sum;
}

static uint32_t word(const uint8_t* from) {
  uint32_t value;
  memcpy(&value, from, 4);
  return value;
}

/* Waits for a whole frame; gives its length without the checksum. */
static uint32_t receive(void) {
  uint32_t count = 0;
  int is_escaped = 0, is_lost = 0;
  for (;;) {
    int byte = uart_get();
    if (byte == END) {
      if (!is_lost && !is_escaped && count >= HEAD + CHECKSUM &&
          checksum(request, count - CHECKSUM) == word(request + count - CHECKSUM))
        return count - CHECKSUM;
      count = 0;
      is_escaped = is_lost = 0;
      continue;
    }
    if (byte == ESC && !is_escaped) {
      is_escaped = 1;
      continue;
    }
    if (is_escaped) {
      is_lost |= byte != END_ESCAPED && byte != ESC_ESCAPED;
      byte = byte == END_ESCAPED ? END : ESC;
      is_escaped = 0;
    }
    if (count < sizeof request) request[count++] = (uint8_t)byte;
    else is_lost = 1;
  }
}

static void put(uint8_t byte) {
  if (byte == END || byte == ESC) {
    uart_put(ESC);
    byte = byte == END ? END_ESCAPED : ESC_ESCAPED;
  }
  uart_put(byte);
}

static void send(uint32_t count) {
  uint32_t sum = checksum(answer, count);
  uart_put(END);
  for (uint32_t n = 0; n < count; ++n) put(answer[n]);
  for (int n = 0; n < CHECKSUM; ++n, sum >>= 8) put((uint8_t)sum);
  uart_put(END);
}

static uint32_t refuse(uint8_t reason) {
  answer[1] = 'E';
  answer[2] = reason;
  return HEAD + 1;
}

static int is_ours(uint32_t address, uint32_t count) {
  const uint32_t begin = (uint32_t)(uintptr_t)memory;
  return address >= begin && count <= sizeof memory && address - begin <= sizeof memory - count;
}

static uint32_t greet(void) {
  const uint32_t begin = (uint32_t)(uintptr_t)memory, room = sizeof memory;
  const uint16_t bytes = MOST_BYTES, arguments = ${most_arguments};
  start_clock();
  const uint32_t cycles = clock_has_cycles;
  memcpy(answer + 2, "TWB1", 4);
  memcpy(answer + 6, &begin, 4);
  memcpy(answer + 10, &room, 4);
  memcpy(answer + 14, &bytes, 2);
  memcpy(answer + 16, &arguments, 2);
  memcpy(answer + 18, &cycles, 4);
  return 22;
}

static uint32_t call(const uint8_t* payload, uint32_t count) {
  static void* arguments[${most_arguments}];
  const uint32_t given = (count - 4) / 4;
  if (count < 4 || count % 4 || given > ${most_arguments}) return refuse(3);
  if (!is_ours(word(payload) & ~1u, 2)) return refuse(2);
  for (uint32_t n = 0; n < given; ++n) arguments[n] = (void*)(uintptr_t)word(payload + 4 + 4 * n);
  int32_t (*const function)(void* const*) = (int32_t (*)(void* const*))(uintptr_t)word(payload);
#if defined(__arm__)
  __asm__ volatile("dsb\nisb" ::: "memory");
#else
  __asm__ volatile("fence" ::: "memory");
#endif
  start_clock();
  const uint32_t begin = clock_ticks();
  const int32_t status = function(arguments);
  const uint32_t taken = clock_between(begin, clock_ticks());
  memcpy(answer + 2, &status, 4);
  memcpy(answer + 6, &taken, 4);
  return 10;
}

static uint32_t serve(uint32_t length) {
  const uint8_t* payload = request + HEAD;
  const uint32_t count = length - HEAD;
  answer[0] = request[0];
  answer[1] = (uint8_t)(request[1] | 0x20); /* in small letters */
  switch (request[1]) {
    case 'H': return greet();
    case 'C': return call(payload, count);
    case 'W':
      if (count < 4) return refuse(3);
      if (!is_ours(word(payload), count - 4)) return refuse(2);
      memcpy((void*)(uintptr_t)word(payload), payload + 4, count - 4);
      return HEAD;
    case 'R': {
      if (count != 6) return refuse(3);
      const uint32_t size = (uint32_t)payload[4] | (uint32_t)payload[5] << 8;
      if (size > MOST_BYTES) return refuse(3);
      if (!is_ours(word(payload), size)) return refuse(2);
      memcpy(answer + HEAD, (const void*)(uintptr_t)word(payload), size);
      return HEAD + size;
    }
    default: return refuse(1);
  }
}

int main(void) {
  uint32_t answered = 0;
  uart_start();
  for (;;) {
    const uint32_t length = receive();
    /* A greeting begins a session: its number may be one of the session before. */
    if (!answered || request[1] == 'H' || request[0] != answer[0]) answered = serve(length);
    send(answered);
  }
}
