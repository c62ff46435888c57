/* Models on devices: their code and memory, and runs of their launches in order. The kinds of devices are in files of their own. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PLACE_INPUT, PLACE_OUTPUT, PLACE_SLOT, PLACE_CONSTANT, PLACE_NUMBER };

static const tilewright_driver_* const drivers[] = {&tilewright_opencl_, &tilewright_cuda_};

/* A constant on the device. Launches that take the same one share it. */
typedef struct constant {
  struct constant* next;
  int64_t offset, size;
  void* memory;
} constant;

struct tilewright_device_model_ {
  const struct tilewright_interface* interface;
  const tilewright_driver_* driver;
  pthread_mutex_t lock; /* kernels and memory serve one run at a time */
  void **codes, **kernels, **inputs, **outputs, **slots;
  void*** args; /* of each launch: its memory (a number has none), then the memory that an argument stands for, or NULL */
  constant* constants;
};

typedef tilewright_device_model_ device_model;

static int64_t bytes_of_value(const tilewright_value* value) {
  int64_t bytes = tilewright_dtype_size(value->dtype);
  for (int32_t axis = 0; axis < value->rank; ++axis) bytes *= value->shape[axis];
  return bytes;
}

static tilewright_status failed_on(const device_model* model, const char* what, tilewright_error* error) {
  return tilewright_fail_(error, TILEWRIGHT_UNSUPPORTED, "%s: the device (%s) failed to %s", model->interface->name,
                          model->driver->kind, what);
}

/* The memory that a place is in, without its offset; NULL for constants, which have memory of their own. */
static void* base_of(const device_model* model, const tilewright_place* place) {
  switch (place->kind) {
    case PLACE_INPUT: return model->inputs[place->index];
    case PLACE_OUTPUT: return model->outputs[place->index];
    case PLACE_SLOT: return model->slots[place->index];
    default: return NULL;
  }
}

/* Whether a place lies inside other memory: its argument is a view, or memory that stands for it where none can start there. */
static int is_inside(const tilewright_place* place) {
  return place->kind != PLACE_CONSTANT && place->kind != PLACE_NUMBER && place->offset;
}

static void* constant_of(device_model* model, const tilewright_place* place) {
  constant* found = model->constants;
  while (found != NULL && (found->offset != place->offset || found->size != place->size)) found = found->next;
  if (found != NULL) return found->memory;
  const char* data = (const char*)model->interface->device->constants() + place->offset;
  constant* added = malloc(sizeof *added);
  if (added == NULL) return NULL;
  *added = (constant){model->constants, place->offset, place->size, model->driver->allocate(place->size)};
  if (added->memory == NULL) {
    free(added);
    return NULL;
  }
  model->constants = added;
  return model->driver->write(added->memory, data, place->size) ? NULL : added->memory;
}

static void* argument(device_model* model, const tilewright_place* place, void** stands_for) {
  if (place->kind == PLACE_CONSTANT) return constant_of(model, place);
  void* base = base_of(model, place);
  if (!place->offset) return base;
  void* view = model->driver->view(base, place->offset, place->size);
  if (view != NULL) return view;
  *stands_for = base;
  return model->driver->allocate(place->size);
}

static void** row_of(size_t count) { return calloc(count + 1, sizeof(void*)); }

static int allocate_values(const device_model* model, const tilewright_value* values, int32_t count, void** memories) {
  for (int32_t i = 0; i < count; ++i)
    if ((memories[i] = model->driver->allocate(bytes_of_value(&values[i]))) == NULL) return -1;
  return 0;
}

static int load_codes(device_model* model) {
  const struct tilewright_device* device = model->interface->device;
  const char* code = (const char*)device->constants() + device->constant_bytes;
  for (int32_t i = 0; i < device->code_count; code += device->code_bytes[i], ++i)
    if (device->code_bytes[i] && (model->codes[i] = model->driver->load(code, device->code_bytes[i])) == NULL) return -1;
  for (int32_t i = 0; i < device->launch_count; ++i) {
    const tilewright_launch* launch = &device->launches[i];
    if ((model->kernels[i] = model->driver->kernel(model->codes[launch->code], launch)) == NULL) return -1;
  }
  return 0;
}

static int allocate_memory(device_model* model) {
  const struct tilewright_interface* interface = model->interface;
  const struct tilewright_device* device = interface->device;
  if (allocate_values(model, interface->inputs, interface->input_count, model->inputs) ||
      allocate_values(model, interface->outputs, interface->output_count, model->outputs))
    return -1;
  for (int32_t i = 0; i < device->slot_count; ++i)
    if ((model->slots[i] = model->driver->allocate(device->slots[i])) == NULL) return -1;
  for (int32_t i = 0; i < device->launch_count; ++i) {
    const tilewright_launch* launch = &device->launches[i];
    void** args = model->args[i] = row_of(2 * (size_t)launch->arg_count);
    for (int32_t k = 0; args != NULL && k < launch->arg_count; ++k) {
      if (launch->args[k].kind == PLACE_NUMBER) continue;
      args[k] = argument(model, &launch->args[k], &args[launch->arg_count + k]);
      if (args[k] == NULL) return -1;
    }
    if (args == NULL) return -1;
  }
  return 0;
}

tilewright_status tilewright_device_open_(const struct tilewright_interface* interface, device_model** opened,
                                          tilewright_error* error) {
  const struct tilewright_device* device = interface->device;
  const tilewright_driver_* driver = NULL;
  for (size_t i = 0; i < sizeof drivers / sizeof *drivers; ++i)
    if (!strcmp(drivers[i]->kind, device->kind)) driver = drivers[i];
  if (driver == NULL)
    return tilewright_fail_(error, TILEWRIGHT_UNSUPPORTED, "%s: this runtime does not know devices of the kind %s",
                            interface->name, device->kind);
  tilewright_status status = driver->start(error);
  if (status) return status;
  device_model* model = calloc(1, sizeof *model);
  if (model == NULL) return tilewright_fail_(error, TILEWRIGHT_OUT_OF_MEMORY, "no memory for another model");
  model->interface = interface;
  model->driver = driver;
  pthread_mutex_init(&model->lock, NULL);
  model->codes = row_of((size_t)device->code_count);
  model->kernels = row_of((size_t)device->launch_count);
  model->args = (void***)row_of((size_t)device->launch_count);
  model->inputs = row_of((size_t)interface->input_count);
  model->outputs = row_of((size_t)interface->output_count);
  model->slots = row_of((size_t)device->slot_count);
  if (!model->codes || !model->kernels || !model->args || !model->inputs || !model->outputs || !model->slots)
    status = tilewright_fail_(error, TILEWRIGHT_OUT_OF_MEMORY, "no memory for another model");
  else if (load_codes(model))
    status = failed_on(model, "take the kernels", error);
  else if (allocate_memory(model))
    status = tilewright_fail_(error, TILEWRIGHT_OUT_OF_MEMORY, "%s: the device has no memory left", interface->name);
  if (status) tilewright_device_close_(model);
  else *opened = model;
  return status;
}

/* Give memory that stands for a place what is there: only places that are read start inside other memory. */
static int refresh(const device_model* model, const tilewright_launch* launch, void** args) {
  for (int32_t i = 0; i < launch->arg_count; ++i) {
    void* base = args[launch->arg_count + i];
    if (base != NULL && model->driver->copy(base, launch->args[i].offset, args[i], launch->args[i].size)) return -1;
  }
  return 0;
}

static tilewright_status check_data(const device_model* model, tilewright_error* error) {
  const struct tilewright_device* device = model->interface->device;
  for (int32_t i = 0; i < device->check_count; ++i) {
    const tilewright_place* place = &device->checks[i].status;
    int64_t status[3];
    if (model->driver->read(base_of(model, place), place->offset, status, sizeof status))
      return failed_on(model, "give what it has checked", error);
    if (status[0] != -1)
      return tilewright_fail_(error, TILEWRIGHT_BAD_DATA, "%s: %s", model->interface->name, device->checks[i].message);
  }
  return TILEWRIGHT_OK;
}

static tilewright_status run_locked(device_model* model, const tilewright_tensor* inputs, const tilewright_tensor* outputs,
                                    tilewright_error* error) {
  const struct tilewright_interface* interface = model->interface;
  const struct tilewright_device* device = interface->device;
  for (int32_t i = 0; i < interface->input_count; ++i)
    if (inputs[i].data != NULL && model->driver->write(model->inputs[i], inputs[i].data, bytes_of_value(&interface->inputs[i])))
      return failed_on(model, "take the inputs", error);
  for (int32_t i = 0; i < device->launch_count; ++i)
    if (refresh(model, &device->launches[i], model->args[i]) ||
        model->driver->launch(model->kernels[i], &device->launches[i], model->args[i]))
      return failed_on(model, "start a kernel", error);
  tilewright_status status = check_data(model, error);
  for (int32_t i = 0; !status && i < interface->output_count; ++i)
    if (outputs[i].data != NULL &&
        model->driver->read(model->outputs[i], 0, outputs[i].data, bytes_of_value(&interface->outputs[i])))
      status = failed_on(model, "give the outputs", error);
  return status;
}

tilewright_status tilewright_device_run_(device_model* model, const tilewright_tensor* inputs, const tilewright_tensor* outputs,
                                         tilewright_error* error) {
  pthread_mutex_lock(&model->lock);
  tilewright_status status = run_locked(model, inputs, outputs, error);
  pthread_mutex_unlock(&model->lock);
  return status;
}

static void free_row(void** row, int32_t count, void (*free_one)(void*)) {
  for (int32_t i = 0; row != NULL && i < count; ++i)
    if (row[i] != NULL) free_one(row[i]);
  free(row);
}

void tilewright_device_close_(device_model* model) {
  const struct tilewright_interface* interface = model->interface;
  const struct tilewright_device* device = interface->device;
  for (int32_t i = 0; model->args != NULL && i < device->launch_count; ++i) {
    const tilewright_launch* launch = &device->launches[i];
    void** args = model->args[i];
    for (int32_t k = 0; args != NULL && k < launch->arg_count; ++k)
      if (args[k] != NULL && is_inside(&launch->args[k]))
        (args[launch->arg_count + k] != NULL ? model->driver->free_memory : model->driver->free_view)(args[k]);
    free(args);
  }
  free(model->args);
  for (constant *item = model->constants, *next; item != NULL; item = next) {
    next = item->next;
    model->driver->free_memory(item->memory);
    free(item);
  }
  free_row(model->inputs, interface->input_count, model->driver->free_memory);
  free_row(model->outputs, interface->output_count, model->driver->free_memory);
  free_row(model->slots, device->slot_count, model->driver->free_memory);
  free_row(model->kernels, device->launch_count, model->driver->free_kernel);
  free_row(model->codes, device->code_count, model->driver->free_code);
  pthread_mutex_destroy(&model->lock);
  free(model);
}
