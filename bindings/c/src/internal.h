/* What the parts of the runtime share. */

#ifndef TILEWRIGHT_INTERNAL_H
#define TILEWRIGHT_INTERNAL_H

#include "../include/tilewright.h"

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

#endif
