/* The bytes of a DLL (PE): whether it is one for this machine, where its parts end, and the names that it gives to others. */

#include "internal.h"

#include <string.h>

#if defined(__x86_64__)
#define HOST_MACHINE 0x8664
#define HOST_NAME "x86-64"
#elif defined(__aarch64__)
#define HOST_MACHINE 0xAA64
#define HOST_NAME "aarch64"
#else
#error "the runtime for C is for x86-64 and aarch64 on Windows"
#endif

static uint16_t two(const unsigned char* at) { return (uint16_t)(at[0] | at[1] << 8); }

static uint32_t four(const unsigned char* at) {
  uint32_t value;
  memcpy(&value, at, 4);
  return value;
}

enum { IS_DLL = 0x2000, PE_HEADER = 24, SECTION_BYTES = 40, LEAST_OPTIONAL = 120 };

/* Where the headers begin; 0 where there are none. */
static uint64_t headers_of(const image* image) {
  if (image->size < 64 || memcmp(image->bytes, "MZ", 2)) return 0;
  uint64_t at = four(image->bytes + 60);
  if (at < 4 || at + PE_HEADER + LEAST_OPTIONAL > image->size || memcmp(image->bytes + at, "PE\0\0", 4)) return 0;
  return at;
}

static tilewright_status check_identity(const image* image, const char* where, tilewright_error* error) {
  uint64_t at = headers_of(image);
  if (!at || two(image->bytes + at + PE_HEADER) != 0x20b)
    return bad(error, where, "not a shared library (it has no 64-bit PE header)");
  if (!(two(image->bytes + at + 22) & IS_DLL)) return bad(error, where, "a PE file, but not a DLL");
  if (two(image->bytes + at + 4) != HOST_MACHINE)
    return tilewright_fail_(error, TILEWRIGHT_UNSUPPORTED,
                            "%s: the library is for another machine (PE machine %#x), this one is %s", where,
                            (unsigned)two(image->bytes + at + 4), HOST_NAME);
  return TILEWRIGHT_OK;
}

static uint64_t sections_of(const image* image, int* count) {
  uint64_t at = headers_of(image);
  *count = two(image->bytes + at + 6);
  return at + PE_HEADER + two(image->bytes + at + 20);
}

/* Where the parts of the file end; all of them must lie inside it. */
static tilewright_status check_layout(const image* image, uint64_t* end, const char* where, tilewright_error* error) {
  int count;
  uint64_t at = sections_of(image, &count);
  *end = 64;
  int whole = inside(image->size, at, (uint64_t)count, SECTION_BYTES, end);
  for (int i = 0; whole && i < count; ++i) {
    const unsigned char* section = image->bytes + at + (uint64_t)i * SECTION_BYTES;
    whole = inside(image->size, four(section + 20), four(section + 16), 1, end);
  }
  return whole ? TILEWRIGHT_OK : bad(error, where, "the library is truncated");
}

/* The bytes that lie at an address of the loaded library, and how many there are; NULL where none do. */
static const unsigned char* at_address(const image* image, uint32_t address, uint64_t* room) {
  int count;
  uint64_t at = sections_of(image, &count);
  for (int i = 0; i < count; ++i) {
    const unsigned char* section = image->bytes + at + (uint64_t)i * SECTION_BYTES;
    uint32_t begin = four(section + 12), size = four(section + 16);
    if (address < begin || address - begin >= size) continue;
    *room = size - (address - begin);
    return image->bytes + four(section + 20) + (address - begin);
  }
  return NULL;
}

/* The first symbol that the library gives to others and that ends with `suffix`; NULL if there is none. `prefix` may say what
   stands before the suffix. */
static const char* find_symbol(const image* image, const char* prefix, const char* suffix, size_t* prefix_length) {
  enum { EXPORTS = 112, COUNT = 24, NAMES = 32, DIRECTORY = 40 };
  uint64_t room;
  const unsigned char* table = at_address(image, four(image->bytes + headers_of(image) + PE_HEADER + EXPORTS), &room);
  if (table == NULL || room < DIRECTORY) return NULL;
  uint64_t left;
  const unsigned char* names = at_address(image, four(table + NAMES), &left);
  uint32_t count = four(table + COUNT);
  for (uint32_t i = 0; names != NULL && i < count && ((uint64_t)i + 1) * 4 <= left; ++i) {
    const char* name = (const char*)at_address(image, four(names + (uint64_t)i * 4), &room);
    if (name == NULL) continue;
    size_t length = strnlen(name, (size_t)room), end = strlen(suffix);
    if (length == room || length <= end || memcmp(name + length - end, suffix, end)) continue;
    if (prefix != NULL && (length - end != *prefix_length || memcmp(name, prefix, *prefix_length))) continue;
    *prefix_length = length - end;
    return name;
  }
  return NULL;
}
