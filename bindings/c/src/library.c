/* Loading an exported library: its bytes are copied, checked and only then shown to the system's loader.

   The loader maps files. One that is truncated, or is truncated later, ends the process with a signal when a page that is not
   there is touched. So the bytes go into memory that nobody else can change, the places of all parts of the ELF file and the
   checksum behind it (docs/abi.md) are compared, and the loader gets that memory. Equal bytes are loaded once. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#define HOST_MACHINE EM_X86_64
#define HOST_NAME "x86-64"
#elif defined(__aarch64__)
#define HOST_MACHINE EM_AARCH64
#define HOST_NAME "aarch64"
#elif defined(__riscv)
#define HOST_MACHINE EM_RISCV
#define HOST_NAME "riscv64"
#elif defined(__arm__)
#define HOST_MACHINE EM_ARM
#define HOST_NAME "32-bit Arm"
#else
#error "the runtime for C is for x86-64, aarch64, riscv64 and 32-bit Arm"
#endif

/* The class of ELF files of this machine. */
#if UINTPTR_MAX > 0xFFFFFFFFu
#define HOST_IDENTITY "\x7f" "ELF\x02\x01"
#define HOST_BITS "64"
#else
#define HOST_IDENTITY "\x7f" "ELF\x01\x01"
#define HOST_BITS "32"
#endif

#define SEAL_MAGIC "TWSEAL1\n"
#define SEAL_BYTES 12
#define SIGNATURE_MAGIC "TWSIGN1\n"
#define SIGNATURE_BYTES (8 + 64 + 64)
#define TABLE_SUFFIX "__tilewright"
#define INTERFACE_SUFFIX "__interface"

/* The bytes of a library in memory of our own. */
typedef struct {
  int descriptor;
  const unsigned char* bytes;
  uint64_t size;
  uint32_t checksum;
} image;

typedef struct loaded {
  struct loaded* next;
  image bytes;
  const struct tilewright_interface* interface;
} loaded;

static loaded* all_loaded;
static unsigned long load_count;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

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

/* ---------------------------------------------------------------- bytes */

/* A file without a name. Some systems forbid anonymous ones: a file that is unlinked at once serves as well. */
static int open_anonymous(void) {
  int descriptor = memfd_create("tilewright", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor >= 0) return descriptor;
  const char* folder = getenv("TMPDIR");
  char path[4096];
  snprintf(path, sizeof path, "%s/tilewright-XXXXXX", folder != NULL && *folder ? folder : "/tmp");
  descriptor = mkostemp(path, O_CLOEXEC);
  if (descriptor >= 0) unlink(path);
  return descriptor;
}

static int write_all(int descriptor, const void* bytes, size_t size) {
  const char* from = bytes;
  while (size) {
    ssize_t written = write(descriptor, from, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return -1;
    from += written;
    size -= (size_t)written;
  }
  return 0;
}

static int copy_file(int from, int to) {
  enum { CHUNK = 1 << 18 };
  char* buffer = malloc(CHUNK);
  if (buffer == NULL) return -1;
  ssize_t count;
  while ((count = read(from, buffer, CHUNK)) != 0) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 || write_all(to, buffer, (size_t)count)) break;
  }
  int problem = errno;
  free(buffer);
  errno = problem;
  return count ? -1 : 0;
}

static tilewright_status read_image(const char* path, const void* bytes, int64_t size, image* image,
                                    tilewright_error* error) {
  int source = -1, failed = 0;
  if (path != NULL) {
    struct stat kind;
    source = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (source < 0 || fstat(source, &kind))
      return tilewright_fail_(error, TILEWRIGHT_NOT_READABLE, "cannot read the library %s: %s", path, strerror(errno));
    if (!S_ISREG(kind.st_mode)) {
      close(source);
      return tilewright_fail_(error, TILEWRIGHT_NOT_READABLE, "cannot read the library %s: it is not a file", path);
    }
  }
  image->descriptor = open_anonymous();
  if (image->descriptor >= 0)
    failed = path != NULL ? copy_file(source, image->descriptor) : write_all(image->descriptor, bytes, (size_t)size);
  int problem = errno;
  if (source >= 0) close(source);
  struct stat status;
  if (image->descriptor < 0 || failed || fstat(image->descriptor, &status)) {
    if (image->descriptor >= 0) close(image->descriptor);
    return tilewright_fail_(error, TILEWRIGHT_NOT_READABLE, "cannot read the library %s: %s", path ? path : "from memory",
                            strerror(problem));
  }
  /* An unlinked file cannot be frozen; nobody else can open it either. */
  (void)fcntl(image->descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  image->size = (uint64_t)status.st_size;
  image->bytes = NULL;
  if (image->size) {
    void* mapped = mmap(NULL, image->size, PROT_READ, MAP_SHARED, image->descriptor, 0);
    if (mapped == MAP_FAILED) {
      close(image->descriptor);
      return tilewright_fail_(error, TILEWRIGHT_OUT_OF_MEMORY, "no memory for the library: %s", strerror(errno));
    }
    image->bytes = mapped;
  }
  return TILEWRIGHT_OK;
}

static void drop_image(image* image) {
  if (image->bytes != NULL) munmap((void*)image->bytes, image->size);
  close(image->descriptor);
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

/* ---------------------------------------------------------------- ELF */

static tilewright_status check_identity(const image* image, const char* where, tilewright_error* error) {
  ElfW(Ehdr) header;
  if (image->size < sizeof header || memcmp(image->bytes, HOST_IDENTITY, 6))
    return bad(error, where, "not a shared library (it has no " HOST_BITS "-bit ELF header)");
  memcpy(&header, image->bytes, sizeof header);
  if (header.e_type != ET_DYN) return bad(error, where, "an ELF file, but not a shared library");
  if (header.e_machine != HOST_MACHINE)
    return tilewright_fail_(error, TILEWRIGHT_UNSUPPORTED,
                            "%s: the library is for another machine (ELF machine %d), this one is %s", where,
                            (int)header.e_machine, HOST_NAME);
  return TILEWRIGHT_OK;
}

/* Whether `count` entries of `entry` bytes at `offset` lie inside; moves `end` behind them. */
static int inside(uint64_t size, uint64_t offset, uint64_t count, uint64_t entry, uint64_t* end) {
  uint64_t bytes, last;
  if (__builtin_mul_overflow(count, entry, &bytes) || __builtin_add_overflow(offset, bytes, &last) || last > size) return 0;
  if (last > *end) *end = last;
  return 1;
}

/* Where the parts of the file end; all of them must lie inside it. */
static tilewright_status check_layout(const image* image, uint64_t* end, const char* where, tilewright_error* error) {
  ElfW(Ehdr) header;
  memcpy(&header, image->bytes, sizeof header);
  *end = sizeof header;
  if ((header.e_phnum && header.e_phentsize != sizeof(ElfW(Phdr))) ||
      (header.e_shnum && header.e_shentsize != sizeof(ElfW(Shdr))))
    return bad(error, where, "the library is damaged: its header makes no sense");
  int whole = inside(image->size, header.e_phoff, header.e_phnum, sizeof(ElfW(Phdr)), end) &&
              inside(image->size, header.e_shoff, header.e_shnum, sizeof(ElfW(Shdr)), end);
  for (int i = 0; whole && i < header.e_phnum; ++i) {
    ElfW(Phdr) segment;
    memcpy(&segment, image->bytes + header.e_phoff + (uint64_t)i * sizeof segment, sizeof segment);
    whole = inside(image->size, segment.p_offset, segment.p_filesz, 1, end);
  }
  for (int i = 0; whole && i < header.e_shnum; ++i) {
    ElfW(Shdr) section;
    memcpy(&section, image->bytes + header.e_shoff + (uint64_t)i * sizeof section, sizeof section);
    if (section.sh_type != SHT_NOBITS) whole = inside(image->size, section.sh_offset, section.sh_size, 1, end);
  }
  return whole ? TILEWRIGHT_OK : bad(error, where, "the library is truncated");
}

/* The first symbol that the library gives to others and that ends with `suffix`, as a part of the image; NULL if there is none.
   `prefix` may say what stands before the suffix. */
static const char* find_symbol(const image* image, const char* prefix, const char* suffix, size_t* prefix_length) {
  ElfW(Ehdr) header;
  memcpy(&header, image->bytes, sizeof header);
  for (int i = 0; i < header.e_shnum; ++i) {
    ElfW(Shdr) section, strings;
    memcpy(&section, image->bytes + header.e_shoff + (uint64_t)i * sizeof section, sizeof section);
    if (section.sh_type != SHT_DYNSYM || section.sh_link >= header.e_shnum) continue;
    memcpy(&strings, image->bytes + header.e_shoff + (uint64_t)section.sh_link * sizeof strings, sizeof strings);
    if (strings.sh_type == SHT_NOBITS) continue;
    for (uint64_t at = 0; at + sizeof(ElfW(Sym)) <= section.sh_size; at += sizeof(ElfW(Sym))) {
      ElfW(Sym) symbol;
      memcpy(&symbol, image->bytes + section.sh_offset + at, sizeof symbol);
      if (!symbol.st_name || !symbol.st_shndx || symbol.st_name >= strings.sh_size) continue;
      const char* name = (const char*)image->bytes + strings.sh_offset + symbol.st_name;
      size_t length = strnlen(name, strings.sh_size - symbol.st_name), end = strlen(suffix);
      if (length <= end || memcmp(name + length - end, suffix, end)) continue;
      if (prefix != NULL && (length - end != *prefix_length || memcmp(name, prefix, *prefix_length))) continue;
      *prefix_length = length - end;
      return name;
    }
  }
  return NULL;
}

/* The name of the symbol that describes the model. What has none is refused before it is loaded: libraries stay loaded. */
static tilewright_status find_description(const image* image, char* symbol, size_t size, const char* where,
                                          tilewright_error* error) {
  size_t length;
  const char* name = find_symbol(image, NULL, TABLE_SUFFIX, &length);
  if (name == NULL) return bad(error, where, "the library was not exported by Tilewright");
  if (find_symbol(image, name, INTERFACE_SUFFIX, &length) != NULL) {
    if (snprintf(symbol, size, "%.*s" INTERFACE_SUFFIX, (int)length, name) < (int)size) return TILEWRIGHT_OK;
    return bad(error, where, "the library is damaged: its name is too long");
  }
  if (find_symbol(image, name, "_constants", &length) != NULL)
    return tilewright_fail_(error, TILEWRIGHT_UNSUPPORTED,
                            "%s: the library has no description for other languages: export it with a newer Tilewright", where);
  return tilewright_fail_(error, TILEWRIGHT_UNSUPPORTED, "%s: the library holds functions, not a model", where);
}

/* ---------------------------------------------------------------- loading */

/* A number as "/" and "/.", which lead nowhere else. */
static size_t spell(uint64_t number, char* path, size_t at, size_t size) {
  for (; number && at + 3 < size; number >>= 1)
    at += (size_t)snprintf(path + at, size - at, number & 1 ? "/." : "/");
  return at;
}

/* The loader compares names as texts, so each load in the process has a text of its own: that of a counter, and of the
   counter's address, as there may be other copies of this runtime, and Tilewright's own in Python. */
static void loader_path(int descriptor, char* path, size_t size) {
  size_t at = (size_t)snprintf(path, size, "/proc/self/fd");
  at = spell(++load_count, path, at, size);
  at = spell((uint64_t)(uintptr_t)&load_count, path, at + (size_t)snprintf(path + at, size - at, "/../fd"), size);
  snprintf(path + at, size - at, "/%d", descriptor);
}

/* Under the lock: the library of these bytes, loaded now unless it has been before. Takes over the image if it is new. */
static tilewright_status load_once(image* image, int* is_new, const struct tilewright_interface** interface,
                                   const char* where, tilewright_error* error) {
  for (loaded* known = all_loaded; known != NULL; known = known->next) {
    if (known->bytes.size == image->size && known->bytes.checksum == image->checksum &&
        !memcmp(known->bytes.bytes, image->bytes, image->size)) {
      *interface = known->interface;
      return TILEWRIGHT_OK;
    }
  }
  char path[256], symbol[1024];
  tilewright_status status = find_description(image, symbol, sizeof symbol, where, error);
  loaded* entry = status ? NULL : malloc(sizeof *entry);
  if (status) return status;
  if (entry == NULL) return tilewright_fail_(error, TILEWRIGHT_OUT_OF_MEMORY, "no memory to load %s", where);
  loader_path(image->descriptor, path, sizeof path);
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  *interface = handle == NULL ? NULL : dlsym(handle, symbol);
  if (*interface == NULL) {
    const char* said = dlerror();
    free(entry);
    return tilewright_fail_(error, TILEWRIGHT_BAD_LIBRARY, "%s: the system cannot load the library: %s", where,
                            said ? said : "unknown reason");
  }
  *entry = (loaded){all_loaded, *image, *interface};
  all_loaded = entry;
  *is_new = 1;
  return TILEWRIGHT_OK;
}

tilewright_status tilewright_load_(const char* path, const void* bytes, int64_t size,
                                   const struct tilewright_interface** interface, tilewright_error* error) {
  const char* where = path ? path : "the bytes given";
  image image;
  tilewright_status status = read_image(path, bytes, size, &image, error);
  if (status) return status;
  uint64_t content_end, layout_end;
  status = check_identity(&image, where, error);
  if (!status) status = check_seal(&image, &content_end, where, error);
  if (!status) status = check_layout(&image, &layout_end, where, error);
  if (!status && (content_end < layout_end || (content_end > layout_end && content_end == image.size)))
    status = bad(error, where, "the seal of the library is damaged: what stands behind its content is none");
  int is_new = 0;
  if (!status) {
    pthread_mutex_lock(&loading);
    status = load_once(&image, &is_new, interface, where, error);
    pthread_mutex_unlock(&loading);
  }
  if (is_new)
    close(image.descriptor);
  else
    drop_image(&image);
  return status;
}
