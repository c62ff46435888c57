/* What the parts of the runtime share. */

#ifndef TILEWRIGHT_INTERNAL_H
#define TILEWRIGHT_INTERNAL_H

#include "../include/tilewright.h"

#pragma GCC visibility push(hidden)

/* Fill in an error, if the caller wants one; gives back `status`. */
__attribute__((format(printf, 3, 4))) tilewright_status tilewright_fail_(tilewright_error* error, tilewright_status status,
                                                                         const char* format, ...);

/* Load the bytes of a file (or `bytes`, if `path` is NULL) and find the description of the model in them. */
tilewright_status tilewright_load_(const char* path, const void* bytes, int64_t size,
                                   const struct tilewright_interface** interface, tilewright_error* error);

/* Check everything about a call but do not make it. */
tilewright_status tilewright_check_(tilewright_model model, const tilewright_tensor* inputs, int32_t input_count,
                                    const tilewright_tensor* outputs, int32_t output_count, tilewright_error* error);

/* Hold a model open for a job that will run later, and let go of it. */
typedef struct tilewright_entry_ tilewright_entry_;
tilewright_status tilewright_hold_(tilewright_model model, tilewright_entry_** entry, tilewright_error* error);
void tilewright_release_(tilewright_entry_* entry);
tilewright_status tilewright_run_held_(tilewright_entry_* entry, const tilewright_tensor* inputs, int32_t input_count,
                                       const tilewright_tensor* outputs, int32_t output_count, tilewright_error* error);

/* A model on a device: made when it is opened, one run at a time. */
typedef struct tilewright_device_model_ tilewright_device_model_;
tilewright_status tilewright_device_open_(const struct tilewright_interface* interface, tilewright_device_model_** model,
                                          tilewright_error* error);
tilewright_status tilewright_device_run_(tilewright_device_model_* model, const tilewright_tensor* inputs,
                                         const tilewright_tensor* outputs, tilewright_error* error);
void tilewright_device_close_(tilewright_device_model_* model);

/* What a kind of device can do. Memory, code and kernels are pointers of its own; functions that give one give NULL, and the
   others something other than 0, where they fail. */
typedef struct {
  const char* kind;
  tilewright_status (*start)(tilewright_error* error); /* find a device, once in a process */
  void* (*load)(const char* code, int64_t size);
  void* (*kernel)(void* code, const tilewright_launch* launch);
  void* (*allocate)(int64_t size);
  void* (*view)(void* memory, int64_t offset, int64_t size); /* NULL also where memory cannot start there */
  int (*copy)(void* from, int64_t offset, void* to, int64_t size);
  int (*write)(void* memory, const void* data, int64_t size);
  int (*read)(void* memory, int64_t offset, void* data, int64_t size); /* when all before it is done */
  int (*launch)(void* kernel, const tilewright_launch* launch, void* const* memories);
  void (*free_memory)(void* memory);
  void (*free_view)(void* view);
  void (*free_kernel)(void* kernel);
  void (*free_code)(void* code);
} tilewright_driver_;

extern const tilewright_driver_ tilewright_opencl_, tilewright_cuda_;

#pragma GCC visibility pop

#endif
