/* What all systems have in common of a library's bytes: where they lie, and the checksum behind them. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEAL_MAGIC "TWSEAL1\n"
#define SEAL_BYTES 12
#define SIGNATURE_MAGIC "TWSIGN1\n"
#define SIGNATURE_BYTES (8 + 64 + 64)

/* The bytes of a library in memory of our own. */
typedef struct image {
  int descriptor; /* of the file that holds them, where the system loads from one */
  const unsigned char* bytes;
  uint64_t size;
  uint32_t checksum;
} image;

tilewright_status tilewright_fail_(tilewright_error* error, tilewright_status status, const char* format, ...) {
  if (error != NULL) {
    va_list arguments;
    va_start(arguments, format);
    error->status = status;
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
  }
  return status;
}

static tilewright_status bad(tilewright_error* error, const char* where, const char* what) {
  return tilewright_fail_(error, TILEWRIGHT_BAD_LIBRARY, "%s: %s", where, what);
}

/* ---------------------------------------------------------------- the seal */

static uint32_t crc_tables[8][256];
static pthread_once_t crc_once = PTHREAD_ONCE_INIT;

static void make_crc_tables(void) {
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
    crc_tables[0][i] = value;
  }
  for (int t = 1; t < 8; ++t)
    for (int i = 0; i < 256; ++i) {
      uint32_t value = crc_tables[t - 1][i];
      crc_tables[t][i] = value >> 8 ^ crc_tables[0][value & 255];
    }
}

/* CRC-32, eight bytes at a time. */
static uint32_t crc32_of(const unsigned char* bytes, uint64_t size) {
  pthread_once(&crc_once, make_crc_tables);
  uint32_t crc = 0xFFFFFFFFu;
  for (; size >= 8; size -= 8, bytes += 8) {
    uint32_t low, high;
    memcpy(&low, bytes, 4);
    memcpy(&high, bytes + 4, 4);
    low ^= crc;
    crc = crc_tables[7][low & 255] ^ crc_tables[6][low >> 8 & 255] ^ crc_tables[5][low >> 16 & 255] ^
          crc_tables[4][low >> 24] ^ crc_tables[3][high & 255] ^ crc_tables[2][high >> 8 & 255] ^
          crc_tables[1][high >> 16 & 255] ^ crc_tables[0][high >> 24];
  }
  while (size--) crc = crc >> 8 ^ crc_tables[0][(crc ^ *bytes++) & 255];
  return ~crc;
}

/* Where the content ends and the seal begins; compares the checksum. */
static tilewright_status check_seal(image* image, uint64_t* content_end, const char* where, tilewright_error* error) {
  *content_end = image->size;
  if (image->size < SEAL_BYTES || memcmp(image->bytes + image->size - SEAL_BYTES, SEAL_MAGIC, 8)) {
    image->checksum = crc32_of(image->bytes, image->size);
    return TILEWRIGHT_OK;
  }
  uint64_t body = image->size - SEAL_BYTES;
  uint32_t stated;
  memcpy(&stated, image->bytes + body + 8, 4);
  image->checksum = crc32_of(image->bytes, body);
  if (stated != image->checksum) return bad(error, where, "the library is damaged: its content does not fit its checksum");
  *content_end = body;
  if (body >= SIGNATURE_BYTES && !memcmp(image->bytes + body - SIGNATURE_BYTES, SIGNATURE_MAGIC, 8))
    *content_end = body - SIGNATURE_BYTES;
  return TILEWRIGHT_OK;
}

/* Whether `count` entries of `entry` bytes at `offset` lie inside; moves `end` behind them. */
static int inside(uint64_t size, uint64_t offset, uint64_t count, uint64_t entry, uint64_t* end) {
  uint64_t bytes, last;
  if (__builtin_mul_overflow(count, entry, &bytes) || __builtin_add_overflow(offset, bytes, &last) || last > size) return 0;
  if (last > *end) *end = last;
  return 1;
}
