/* Models: numbers that stand for them, what they say of themselves, and calls whose every argument is checked first. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"
#include "portable.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ALIGNMENT 64
#define INTERFACE_VERSION 1
#define MOST_BYTES ((int64_t)1 << 46)
#define MOST_KEPT 16
/* A model's number: its place in the table in the low bits, how often that place was used before above them. */
#define PLACE_BITS 20

/* What one call needs beside the arrays: kept between calls, as allocating large memory anew costs page faults. */
typedef struct frame {
  struct frame* next;
  void* workspace;
  int64_t workspace_bytes;
  int64_t *input_dims, *symbols, *output_dims;
  void **inputs, **outputs;
} frame;

struct tilewright_entry_ {
  const struct tilewright_interface* interface;
  pthread_mutex_t lock;
  frame* free_frames;
  int frame_count;
  int64_t users; /* calls that run, and one more while the model is open; under `table_lock` */
  int32_t input_dim_count, output_dim_count;
  tilewright_device_model_* device; /* NULL: the model runs on the processor */
};

typedef tilewright_entry_ entry;
typedef int32_t (*static_run)(void* const* inputs, void* const* outputs, void* workspace);
typedef int32_t (*symbolic_run)(void* const* inputs, void* const* outputs, void* workspace, const int64_t* symbols);

static struct {
  entry* model;
  int64_t generation;
} * table;
static int32_t table_size;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct {
  const char* name;
  int64_t size;
} dtypes[] = {
    {NULL, 0},       {"bool", 1},           {"int8", 1},          {"int16", 2},           {"int32", 4},
    {"int64", 8},    {"uint8", 1},          {"uint16", 2},        {"uint32", 4},          {"uint64", 8},
    {"float16", 2},  {"bfloat16", 2},       {"float32", 4},       {"float64", 8},         {"float8_e4m3fn", 1},
    {"float8_e4m3fnuz", 1}, {"float8_e5m2", 1}, {"float8_e5m2fnuz", 1}, {"float8_e8m0fnu", 1}, {"float4_e2m1fn", 1},
    {"int1", 1},     {"int2", 1},           {"int4", 1},          {"uint1", 1},           {"uint2", 1},
    {"uint4", 1},
};

int32_t tilewright_api_version(void) { return TILEWRIGHT_API_VERSION; }

static int is_dtype(tilewright_dtype dtype) { return dtype > 0 && dtype < (int)(sizeof dtypes / sizeof *dtypes); }

const char* tilewright_dtype_name(tilewright_dtype dtype) { return is_dtype(dtype) ? dtypes[dtype].name : NULL; }

int64_t tilewright_dtype_size(tilewright_dtype dtype) { return is_dtype(dtype) ? dtypes[dtype].size : 0; }

/* ---------------------------------------------------------------- open and close */

static int32_t dims_of(const tilewright_value* values, int32_t count) {
  int32_t total = 0;
  for (int32_t i = 0; i < count; ++i) total += values[i].rank;
  return total;
}

/* Whether a text of words has this one. */
static int has_word(const char* text, const char* word, size_t length) {
  for (; *text; text += strspn(text, " \t\n:")) {
    size_t here = strcspn(text, " \t\n:");
    if (here == length && !memcmp(text, word, length)) return 1;
    text += here;
  }
  return 0;
}

#ifdef _WIN32
/* The first of the words `flags`, as Linux spells them, that the processor does not have; what the compiler cannot ask for
   counts as there, as it does where Linux says nothing. */
static int missing_flag(const char* flags, char* missing, size_t size) {
  const char* absent = "";
#if defined(__x86_64__)
  static char known[512];
  __builtin_cpu_init();
#define ASK(name) if (!__builtin_cpu_supports(#name)) strcat(known, " " #name)
  known[0] = 0;
  ASK(ssse3); ASK(sse4.1); ASK(sse4.2); ASK(popcnt); ASK(avx); ASK(avx2); ASK(fma); ASK(bmi); ASK(bmi2);
  ASK(avx512f); ASK(avx512bw); ASK(avx512cd); ASK(avx512dq); ASK(avx512vl); ASK(avx512vnni);
#undef ASK
  absent = known;
#endif
  static const char* const spelled[][2] = {{"sse4_1", "sse4.1"}, {"sse4_2", "sse4.2"}, {"bmi1", "bmi"}, {"avx512_vnni", "avx512vnni"}};
  for (size_t length; *flags; flags += length + (flags[length] == ' ')) {
    length = strcspn(flags, " ");
    const char* name = flags;
    size_t count = length;
    for (size_t i = 0; i < sizeof spelled / sizeof *spelled; ++i)
      if (strlen(spelled[i][0]) == length && !memcmp(spelled[i][0], flags, length)) count = strlen(name = spelled[i][1]);
    if (!has_word(absent + (*absent == ' '), name, count)) continue;
    snprintf(missing, size, "%.*s", (int)length, flags);
    return 1;
  }
  return 0;
}
#else
/* The first of the words `flags` that /proc/cpuinfo does not have; where it says nothing, nothing is missing. */
static int missing_flag(const char* flags, char* missing, size_t size) {
  FILE* file = *flags ? fopen("/proc/cpuinfo", "r") : NULL;
  if (file == NULL) return 0;
  char* line = NULL;
  const char* known = NULL;
  size_t room = 0;
  while (known == NULL && getline(&line, &room, file) > 0)
    if (!strncasecmp(line, "flags", 5) || !strncasecmp(line, "features", 8)) known = strchr(line, ':');
  fclose(file);
  size_t length = 0;
  for (; known != NULL && *flags; flags += length + (flags[length] == ' ')) {
    length = strcspn(flags, " ");
    if (!has_word(known, flags, length)) break;
  }
  int is_missing = known != NULL && *flags;
  if (is_missing) snprintf(missing, size, "%.*s", (int)length, flags);
  free(line);
  return is_missing;
}
#endif

static tilewright_status check_interface(const struct tilewright_interface* interface, tilewright_error* error) {
  if (interface->version != INTERFACE_VERSION || interface->size < sizeof *interface)
    return tilewright_fail_(error, TILEWRIGHT_UNSUPPORTED,
                            "the library describes itself in version %u, this runtime knows version %d",
                            (unsigned)interface->version, INTERFACE_VERSION);
  if (interface->refusal != NULL)
    return tilewright_fail_(error, TILEWRIGHT_UNSUPPORTED, "%s: %s", interface->name, interface->refusal);
  char missing[64];
  if (missing_flag(interface->cpu_flags, missing, sizeof missing))
    return tilewright_fail_(error, TILEWRIGHT_UNSUPPORTED, "%s: the library needs the processor feature %s, which this machine lacks",
                            interface->name, missing);
  return TILEWRIGHT_OK;
}

/* A number for a model; 0 when there is no memory, or are too many. Under `table_lock`. */
static tilewright_model number_of(entry* model) {
  int32_t place = 0;
  while (place < table_size && table[place].model != NULL) ++place;
  if (place == table_size) {
    int32_t size = table_size ? 2 * table_size : 16;
    if (size > 1 << PLACE_BITS) return 0;
    void* larger = realloc(table, (size_t)size * sizeof *table);
    if (larger == NULL) return 0;
    table = larger;
    memset(table + table_size, 0, (size_t)(size - table_size) * sizeof *table);
    table_size = size;
  }
  table[place].model = model;
  return ++table[place].generation << PLACE_BITS | place;
}

/* The place of an open model, or -1. Under `table_lock`. */
static int32_t place_of(tilewright_model model) {
  int32_t place = (int32_t)(model & ((1 << PLACE_BITS) - 1));
  if (model <= 0 || place >= table_size || table[place].model == NULL || table[place].generation != model >> PLACE_BITS)
    return -1;
  return place;
}

static tilewright_status closed(tilewright_error* error) {
  return tilewright_fail_(error, TILEWRIGHT_CLOSED, "the model has been closed");
}

static tilewright_status open_interface(const struct tilewright_interface* interface, tilewright_model* model,
                                        tilewright_error* error) {
  tilewright_status status = check_interface(interface, error);
  if (status) return status;
  entry* opened = calloc(1, sizeof *opened);
  if (opened != NULL) {
    opened->interface = interface;
    opened->users = 1;
    opened->input_dim_count = dims_of(interface->inputs, interface->input_count);
    opened->output_dim_count = dims_of(interface->outputs, interface->output_count);
    if (interface->device != NULL && (status = tilewright_device_open_(interface, &opened->device, error))) {
      free(opened);
      return status;
    }
    pthread_mutex_init(&opened->lock, NULL);
    pthread_mutex_lock(&table_lock);
    *model = number_of(opened);
    pthread_mutex_unlock(&table_lock);
    if (*model) return TILEWRIGHT_OK;
    tilewright_release_(opened);
  }
  return tilewright_fail_(error, TILEWRIGHT_OUT_OF_MEMORY, "no memory for another model");
}

tilewright_status tilewright_open(const char* path, tilewright_model* model, tilewright_error* error) {
  if (path == NULL || model == NULL)
    return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "the path or the place for the model is NULL");
  *model = 0;
  const struct tilewright_interface* interface;
  tilewright_status status = tilewright_load_(path, NULL, 0, &interface, error);
  return status ? status : open_interface(interface, model, error);
}

tilewright_status tilewright_open_bytes(const void* bytes, int64_t size, tilewright_model* model, tilewright_error* error) {
  if (bytes == NULL || size < 0 || model == NULL)
    return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "the bytes or the place for the model are NULL");
  *model = 0;
  const struct tilewright_interface* interface;
  tilewright_status status = tilewright_load_(NULL, bytes, size, &interface, error);
  return status ? status : open_interface(interface, model, error);
}

tilewright_status tilewright_open_linked(const struct tilewright_interface* interface, tilewright_model* model,
                                         tilewright_error* error) {
  if (interface == NULL || model == NULL)
    return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "the description or the place for the model is NULL");
  *model = 0;
  return open_interface(interface, model, error);
}

tilewright_status tilewright_hold_(tilewright_model model, entry** held, tilewright_error* error) {
  pthread_mutex_lock(&table_lock);
  int32_t place = place_of(model);
  *held = place < 0 ? NULL : table[place].model;
  if (*held != NULL) ++(*held)->users;
  pthread_mutex_unlock(&table_lock);
  return *held == NULL ? closed(error) : TILEWRIGHT_OK;
}

static void free_frame(frame* frame) {
  free_aligned(frame->workspace);
  free(frame);
}

void tilewright_release_(entry* held) {
  pthread_mutex_lock(&table_lock);
  int64_t users = --held->users;
  pthread_mutex_unlock(&table_lock);
  if (users) return;
  while (held->free_frames != NULL) {
    frame* next = held->free_frames->next;
    free_frame(held->free_frames);
    held->free_frames = next;
  }
  if (held->device != NULL) tilewright_device_close_(held->device);
  pthread_mutex_destroy(&held->lock);
  free(held);
}

tilewright_status tilewright_close(tilewright_model model, tilewright_error* error) {
  pthread_mutex_lock(&table_lock);
  int32_t place = place_of(model);
  entry* opened = place < 0 ? NULL : table[place].model;
  if (opened != NULL) table[place].model = NULL;
  pthread_mutex_unlock(&table_lock);
  if (opened == NULL) return closed(error);
  tilewright_release_(opened);
  return TILEWRIGHT_OK;
}

/* ---------------------------------------------------------------- inspection */

/* The description of an open model. It outlives the model, as libraries are never unloaded. */
static tilewright_status interface_of(tilewright_model model, const struct tilewright_interface** interface,
                                      tilewright_error* error) {
  pthread_mutex_lock(&table_lock);
  int32_t place = place_of(model);
  *interface = place < 0 ? NULL : table[place].model->interface;
  pthread_mutex_unlock(&table_lock);
  return *interface == NULL ? closed(error) : TILEWRIGHT_OK;
}

tilewright_status tilewright_describe(tilewright_model model, const char** name, int32_t* inputs, int32_t* outputs,
                                      int32_t* symbols, tilewright_error* error) {
  const struct tilewright_interface* interface;
  tilewright_status status = interface_of(model, &interface, error);
  if (status) return status;
  if (name != NULL) *name = interface->name;
  if (inputs != NULL) *inputs = interface->input_count;
  if (outputs != NULL) *outputs = interface->output_count;
  if (symbols != NULL) *symbols = interface->symbol_count;
  return TILEWRIGHT_OK;
}

tilewright_status tilewright_inspect(tilewright_model model, int32_t role, int32_t index, tilewright_value* value,
                                     tilewright_error* error) {
  const struct tilewright_interface* interface;
  tilewright_status status = interface_of(model, &interface, error);
  if (status) return status;
  if (value == NULL || (role != TILEWRIGHT_INPUT && role != TILEWRIGHT_OUTPUT))
    return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "there are inputs and outputs, and the value must not be NULL");
  int32_t count = role == TILEWRIGHT_INPUT ? interface->input_count : interface->output_count;
  if (index < 0 || index >= count)
    return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "%s has %d %s, there is no number %d", interface->name, count,
                            role == TILEWRIGHT_INPUT ? "inputs" : "outputs", index);
  *value = (role == TILEWRIGHT_INPUT ? interface->inputs : interface->outputs)[index];
  return TILEWRIGHT_OK;
}

tilewright_status tilewright_metadata(tilewright_model model, const char** json, tilewright_error* error) {
  const struct tilewright_interface* interface;
  tilewright_status status = interface_of(model, &interface, error);
  if (status) return status;
  if (json == NULL) return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "the place for the text is NULL");
  *json = interface->metadata;
  return TILEWRIGHT_OK;
}

tilewright_status tilewright_set_num_threads(tilewright_model model, int64_t threads, tilewright_error* error) {
  const struct tilewright_interface* interface;
  tilewright_status status = interface_of(model, &interface, error);
  if (status) return status;
  if (threads < 0)
    return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "the number of threads must be at least 0, not %lld",
                            (long long)threads);
  interface->set_num_threads(threads);
  return TILEWRIGHT_OK;
}

/* ---------------------------------------------------------------- checks of a call */

typedef struct {
  char text[160];
} shape_text;

/* [2, 3]; or as stated, [batch, 3]. A text that is too long ends early. */
static shape_text show(int32_t rank, const int64_t* shape, const char* const* symbolic) {
  shape_text shown;
  size_t at = (size_t)snprintf(shown.text, sizeof shown.text, "[");
  for (int32_t i = 0; i < rank && at + 32 < sizeof shown.text; ++i) {
    if (symbolic != NULL && symbolic[i] != NULL)
      at += (size_t)snprintf(shown.text + at, sizeof shown.text - at, "%s%.20s", i ? ", " : "", symbolic[i]);
    else
      at += (size_t)snprintf(shown.text + at, sizeof shown.text - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
  }
  snprintf(shown.text + at, sizeof shown.text - at, "]");
  return shown;
}

static tilewright_status misfit(tilewright_error* error, const char* role, const tilewright_value* value,
                                const tilewright_tensor* tensor, int32_t axis) {
  shape_text given = show(tensor->rank, tensor->shape, NULL), stated = show(value->rank, value->shape, value->symbolic);
  return tilewright_fail_(error, TILEWRIGHT_BAD_SHAPE, "%s '%s' has the shape %s, expected %s: axis %d does not fit", role,
                          value->name, given.text, stated.text, axis);
}

/* Bytes of a shape; -1 for a negative dimension or more than any memory has. */
static int64_t bytes_of(int32_t rank, const int64_t* shape, int64_t element) {
  int64_t bytes = element;
  int is_empty = 0;
  for (int32_t i = 0; i < rank; ++i) {
    if (shape[i] < 0) return -1;
    if (shape[i] == 0) is_empty = 1;
    /* Dimensions beside one of size 0 are bounded too: the model computes sizes from them. */
    else if (__builtin_mul_overflow(bytes, shape[i], &bytes) || bytes > MOST_BYTES) return -1;
  }
  return is_empty ? 0 : bytes;
}

/* What can be said of an array without the other ones. */
static tilewright_status check_tensor(const char* role, const tilewright_value* value, const tilewright_tensor* tensor,
                                      tilewright_error* error) {
  if (!is_dtype(tensor->dtype) || tensor->dtype != value->dtype)
    return tilewright_fail_(error, TILEWRIGHT_BAD_TYPE, "%s '%s' is of %s, expected %s", role, value->name,
                            is_dtype(tensor->dtype) ? dtypes[tensor->dtype].name : "an unknown type",
                            dtypes[value->dtype].name);
  if (tensor->rank < 0 || (tensor->rank > 0 && tensor->shape == NULL))
    return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "%s '%s' has no shape", role, value->name);
  shape_text given = show(tensor->rank, tensor->shape, NULL), stated = show(value->rank, value->shape, value->symbolic);
  if (tensor->rank != value->rank)
    return tilewright_fail_(error, TILEWRIGHT_BAD_SHAPE, "%s '%s' has the shape %s (%d dimensions), expected %s (%d dimensions)",
                            role, value->name, given.text, tensor->rank, stated.text, value->rank);
  for (int32_t axis = 0; axis < value->rank; ++axis)
    if (value->shape[axis] >= 0 && tensor->shape[axis] != value->shape[axis])
      return tilewright_fail_(error, TILEWRIGHT_BAD_SHAPE, "%s '%s' has the shape %s, expected %s: axis %d must be %lld, not %lld",
                              role, value->name, given.text, stated.text, axis, (long long)value->shape[axis],
                              (long long)tensor->shape[axis]);
  if (bytes_of(tensor->rank, tensor->shape, dtypes[value->dtype].size) < 0)
    return tilewright_fail_(error, TILEWRIGHT_BAD_SHAPE, "%s '%s' cannot have the shape %s", role, value->name, given.text);
  return TILEWRIGHT_OK;
}

static tilewright_status check_memory(const char* role, const tilewright_value* value, const tilewright_tensor* tensor,
                                      tilewright_error* error) {
  int64_t element = dtypes[value->dtype].size, bytes = bytes_of(tensor->rank, tensor->shape, element);
  if (bytes > 0 && tensor->data == NULL)
    return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "%s '%s' has no memory (data is NULL)", role, value->name);
  if (tensor->bytes < bytes)
    return tilewright_fail_(error, TILEWRIGHT_BAD_SHAPE, "%s '%s' has memory of %lld bytes, its shape needs %lld", role,
                            value->name, (long long)tensor->bytes, (long long)bytes);
  if ((uintptr_t)tensor->data % (uintptr_t)element)
    return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "%s '%s' is not aligned to its elements of %lld bytes", role,
                            value->name, (long long)element);
  return TILEWRIGHT_OK;
}

static int overlap(const tilewright_tensor* a, const tilewright_tensor* b) {
  int64_t size_a = bytes_of(a->rank, a->shape, dtypes[a->dtype].size), size_b = bytes_of(b->rank, b->shape, dtypes[b->dtype].size);
  uintptr_t at_a = (uintptr_t)a->data, at_b = (uintptr_t)b->data;
  return size_a && size_b && at_a < at_b + (uintptr_t)size_b && at_b < at_a + (uintptr_t)size_a;
}

static tilewright_status check_overlaps(const struct tilewright_interface* interface, const tilewright_tensor* inputs,
                                        const tilewright_tensor* outputs, tilewright_error* error) {
  for (int32_t i = 0; i < interface->output_count; ++i) {
    for (int32_t k = 0; k < interface->input_count; ++k)
      if (overlap(&outputs[i], &inputs[k]))
        return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "output '%s' shares memory with input '%s'",
                                interface->outputs[i].name, interface->inputs[k].name);
    for (int32_t k = 0; k < i; ++k)
      if (overlap(&outputs[i], &outputs[k]))
        return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "output '%s' shares memory with output '%s'",
                                interface->outputs[i].name, interface->outputs[k].name);
  }
  return TILEWRIGHT_OK;
}

static tilewright_status check_count(const char* role, const char* name, int32_t expected, const void* given, int32_t count,
                                     tilewright_error* error) {
  if (count != expected || (expected && given == NULL))
    return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "%s has %d %s, %d were given", name, expected, role,
                            given == NULL ? 0 : count);
  return TILEWRIGHT_OK;
}

/* ---------------------------------------------------------------- frames */

static frame* new_frame(const entry* model) {
  const struct tilewright_interface* interface = model->interface;
  size_t numbers = (size_t)(model->input_dim_count + interface->symbol_count + model->output_dim_count);
  size_t pointers = (size_t)(interface->input_count + interface->output_count);
  frame* made = calloc(1, sizeof *made + numbers * sizeof(int64_t) + pointers * sizeof(void*));
  if (made == NULL) return NULL;
  made->input_dims = (int64_t*)(made + 1);
  made->symbols = made->input_dims + model->input_dim_count;
  made->output_dims = made->symbols + interface->symbol_count;
  made->inputs = (void**)(made->output_dims + model->output_dim_count);
  made->outputs = made->inputs + interface->input_count;
  return made;
}

static frame* take_frame(entry* model) {
  pthread_mutex_lock(&model->lock);
  frame* taken = model->free_frames;
  if (taken != NULL) {
    model->free_frames = taken->next;
    --model->frame_count;
  }
  pthread_mutex_unlock(&model->lock);
  return taken != NULL ? taken : new_frame(model);
}

static void give_back(entry* model, frame* used) {
  pthread_mutex_lock(&model->lock);
  int is_kept = model->frame_count < MOST_KEPT;
  if (is_kept) {
    used->next = model->free_frames;
    model->free_frames = used;
    ++model->frame_count;
  }
  pthread_mutex_unlock(&model->lock);
  if (!is_kept) free_frame(used);
}

static int grow_workspace(frame* frame, int64_t bytes) {
  if (frame->workspace != NULL && frame->workspace_bytes >= bytes) return 0;
  free_aligned(frame->workspace);
  frame->workspace_bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (!frame->workspace_bytes) frame->workspace_bytes = ALIGNMENT;
  frame->workspace = allocate_aligned(ALIGNMENT, (size_t)frame->workspace_bytes);
  return frame->workspace == NULL;
}

/* ---------------------------------------------------------------- calls */

/* Explain a code of `shapes`: 1 + k for dimension k of the inputs, -1 - k for one of the outputs or a requirement. */
static tilewright_status explain(const struct tilewright_interface* interface, const tilewright_tensor* inputs, int32_t code,
                                 tilewright_error* error) {
  if (code == INT32_MIN) return tilewright_fail_(error, TILEWRIGHT_UNSUPPORTED, "%s: %s", interface->name, interface->message(4));
  int32_t place = code > 0 ? code - 1 : -(code + 1);
  const tilewright_value* values = code > 0 ? interface->inputs : interface->outputs;
  int32_t count = code > 0 ? interface->input_count : interface->output_count;
  for (int32_t i = 0; i < count; place -= values[i].rank, ++i) {
    if (place >= values[i].rank) continue;
    if (code > 0) return misfit(error, "input", &values[i], &inputs[i], place);
    return tilewright_fail_(error, TILEWRIGHT_BAD_SHAPE, "output '%s' would have a negative size along axis %d for these inputs",
                            values[i].name, place);
  }
  return tilewright_fail_(error, TILEWRIGHT_BAD_SHAPE, "the sizes of the inputs do not fit together inside the model");
}

/* Check the inputs, and find the shapes of the outputs and the size of the workspace. */
static tilewright_status plan(const entry* model, frame* frame, const tilewright_tensor* inputs, int32_t input_count,
                              int64_t* workspace_bytes, tilewright_error* error) {
  const struct tilewright_interface* interface = model->interface;
  tilewright_status status = check_count("inputs", interface->name, interface->input_count, inputs, input_count, error);
  int64_t* to = frame->input_dims;
  for (int32_t i = 0; !status && i < interface->input_count; ++i) {
    status = check_tensor("input", &interface->inputs[i], &inputs[i], error);
    for (int32_t axis = 0; !status && axis < inputs[i].rank; ++axis) *to++ = inputs[i].shape[axis];
  }
  if (status) return status;
  if (interface->shapes == NULL) {
    to = frame->output_dims;
    for (int32_t i = 0; i < interface->output_count; ++i)
      for (int32_t axis = 0; axis < interface->outputs[i].rank; ++axis) *to++ = interface->outputs[i].shape[axis];
    *workspace_bytes = interface->workspace_bytes;
    return TILEWRIGHT_OK;
  }
  int32_t code = interface->shapes(frame->input_dims, frame->symbols, frame->output_dims, workspace_bytes);
  if (code) return explain(interface, inputs, code, error);
  const int64_t* from = frame->output_dims;
  int too_large = *workspace_bytes < 0 || *workspace_bytes > MOST_BYTES;
  for (int32_t i = 0; i < interface->output_count; from += interface->outputs[i].rank, ++i)
    too_large |= bytes_of(interface->outputs[i].rank, from, tilewright_dtype_size(interface->outputs[i].dtype)) < 0;
  if (too_large)
    return tilewright_fail_(error, TILEWRIGHT_BAD_SHAPE, "for these inputs the model needs more memory than there can be");
  return TILEWRIGHT_OK;
}

static tilewright_status check_call(const entry* model, frame* frame, const tilewright_tensor* inputs, int32_t input_count,
                                    const tilewright_tensor* outputs, int32_t output_count, int64_t* workspace_bytes,
                                    tilewright_error* error) {
  const struct tilewright_interface* interface = model->interface;
  tilewright_status status = plan(model, frame, inputs, input_count, workspace_bytes, error);
  if (!status) status = check_count("outputs", interface->name, interface->output_count, outputs, output_count, error);
  for (int32_t i = 0; !status && i < interface->input_count; ++i)
    status = check_memory("input", &interface->inputs[i], &inputs[i], error);
  const int64_t* dims = frame->output_dims;
  for (int32_t i = 0; !status && i < interface->output_count; ++i) {
    tilewright_value value = interface->outputs[i];
    value.shape = dims;
    value.symbolic = NULL;
    status = check_tensor("output", &value, &outputs[i], error);
    if (!status) status = check_memory("output", &value, &outputs[i], error);
    dims += value.rank;
  }
  return status ? status : check_overlaps(interface, inputs, outputs, error);
}

static tilewright_status no_memory(const entry* model, tilewright_error* error) {
  return tilewright_fail_(error, TILEWRIGHT_OUT_OF_MEMORY, "no memory for a run of %s", model->interface->name);
}

static int32_t call_run(const struct tilewright_interface* interface, frame* frame) {
  if (interface->shapes != NULL)
    return ((symbolic_run)interface->run)(frame->inputs, frame->outputs, frame->workspace, frame->symbols);
  return ((static_run)interface->run)(frame->inputs, frame->outputs, frame->workspace);
}

static tilewright_status run_in(const entry* model, frame* frame, const tilewright_tensor* inputs,
                                const tilewright_tensor* outputs, int64_t workspace_bytes, tilewright_error* error) {
  const struct tilewright_interface* interface = model->interface;
  if (model->device != NULL) return tilewright_device_run_(model->device, inputs, outputs, error);
  if (grow_workspace(frame, workspace_bytes)) return no_memory(model, error);
  for (int32_t i = 0; i < interface->input_count; ++i) frame->inputs[i] = inputs[i].data;
  for (int32_t i = 0; i < interface->output_count; ++i) frame->outputs[i] = outputs[i].data;
  int32_t code = call_run(interface, frame);
  if (code == 0) return TILEWRIGHT_OK;
  if (code == 2) return no_memory(model, error);
  return tilewright_fail_(error, code == 3 || code == 4 ? TILEWRIGHT_UNSUPPORTED : TILEWRIGHT_BAD_DATA, "%s: %s", interface->name,
                          interface->message(code));
}

tilewright_status tilewright_run_held_(entry* model, const tilewright_tensor* inputs, int32_t input_count,
                                       const tilewright_tensor* outputs, int32_t output_count, tilewright_error* error) {
  frame* frame = take_frame(model);
  if (frame == NULL) return no_memory(model, error);
  int64_t bytes = 0;
  tilewright_status status = check_call(model, frame, inputs, input_count, outputs, output_count, &bytes, error);
  if (!status) status = run_in(model, frame, inputs, outputs, bytes, error);
  give_back(model, frame);
  return status;
}

tilewright_status tilewright_run(tilewright_model model, const tilewright_tensor* inputs, int32_t input_count,
                                 const tilewright_tensor* outputs, int32_t output_count, tilewright_error* error) {
  entry* held;
  tilewright_status status = tilewright_hold_(model, &held, error);
  if (status) return status;
  status = tilewright_run_held_(held, inputs, input_count, outputs, output_count, error);
  tilewright_release_(held);
  return status;
}

tilewright_status tilewright_check_(tilewright_model model, const tilewright_tensor* inputs, int32_t input_count,
                                    const tilewright_tensor* outputs, int32_t output_count, tilewright_error* error) {
  entry* held;
  tilewright_status status = tilewright_hold_(model, &held, error);
  if (status) return status;
  frame* frame = take_frame(held);
  int64_t bytes;
  status = frame == NULL ? no_memory(held, error)
                         : check_call(held, frame, inputs, input_count, outputs, output_count, &bytes, error);
  if (frame != NULL) give_back(held, frame);
  tilewright_release_(held);
  return status;
}

tilewright_status tilewright_output_shapes(tilewright_model model, const tilewright_tensor* inputs, int32_t input_count,
                                           int64_t* dimensions, int32_t capacity, tilewright_error* error) {
  entry* held;
  tilewright_status status = tilewright_hold_(model, &held, error);
  if (status) return status;
  frame* frame = take_frame(held);
  int64_t bytes;
  status = frame == NULL ? no_memory(held, error) : plan(held, frame, inputs, input_count, &bytes, error);
  if (!status && (capacity < held->output_dim_count || (capacity && dimensions == NULL)))
    status = tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "the outputs have %d dimensions, there is room for %d",
                              held->output_dim_count, capacity);
  if (!status && held->output_dim_count)
    memcpy(dimensions, frame->output_dims, (size_t)held->output_dim_count * sizeof *dimensions);
  if (frame != NULL) give_back(held, frame);
  tilewright_release_(held);
  return status;
}
