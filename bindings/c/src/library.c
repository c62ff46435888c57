/* Loading an exported library: its bytes are copied, checked and only then shown to the system's loader.

   The loader maps files. One that is truncated, or is truncated later, ends the process with a signal when a page that is not
   there is touched. So the bytes go into memory that nobody else can change, the places of all parts of the file and the
   checksum behind it (docs/abi.md) are compared, and the loader gets that memory. Equal bytes are loaded once. */

#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_SUFFIX "__tilewright"
#define INTERFACE_SUFFIX "__interface"

typedef struct loaded {
  struct loaded* next;
  image bytes;
  const struct tilewright_interface* interface;
} loaded;

static loaded* all_loaded;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

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
  char symbol[1024];
  tilewright_status status = find_description(image, symbol, sizeof symbol, where, error);
  loaded* entry = status ? NULL : malloc(sizeof *entry);
  if (status) return status;
  if (entry == NULL) return tilewright_fail_(error, TILEWRIGHT_OUT_OF_MEMORY, "no memory to load %s", where);
  status = open_library(image, symbol, interface, where, error);
  if (status) {
    free(entry);
    return status;
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
    settle_image(&image);
  else
    drop_image(&image);
  return status;
}
