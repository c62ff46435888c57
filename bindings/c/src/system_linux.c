/* Libraries on Linux: a file of the process's own holds the bytes, which are checked as ELF and loaded from there. */

#include "internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
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

static unsigned long load_count;

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

/* Load the image, and find a symbol in it. Libraries stay loaded. */
static tilewright_status open_library(const image* image, const char* symbol, const struct tilewright_interface** interface,
                                      const char* where, tilewright_error* error) {
  char path[256];
  loader_path(image->descriptor, path, sizeof path);
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  *interface = handle == NULL ? NULL : dlsym(handle, symbol);
  if (*interface != NULL) return TILEWRIGHT_OK;
  const char* said = dlerror();
  return tilewright_fail_(error, TILEWRIGHT_BAD_LIBRARY, "%s: the system cannot load the library: %s", where,
                          said ? said : "unknown reason");
}

/* What an image that is loaded needs no more. */
static void settle_image(image* image) { close(image->descriptor); }
