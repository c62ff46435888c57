/* NVIDIA's GPUs, through the driver that is installed (libcuda.so.1): nothing of CUDA is needed to compile this. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"
#include "portable.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of cuda.h. */
#define CU_FUNC_MAX_DYNAMIC_SHARED 8
#define CU_FUNC_NON_PORTABLE_CLUSTER 14
#define CU_LAUNCH_CLUSTER_DIMENSION 4
#define PLAIN_SHARED (48 * 1024)
#define PORTABLE_CLUSTER 8

typedef struct {
  uint32_t id;
  uint32_t padding;
  union {
    uint32_t cluster[3];
    char room[64];
  } value;
} cuda_attribute;

typedef struct {
  uint32_t grid[3], block[3], shared_bytes;
  void* stream;
  cuda_attribute* attributes;
  uint32_t attribute_count;
} cuda_config;

static struct {
  int32_t (*init)(uint32_t);
  int32_t (*get_device)(int32_t*, int32_t);
  int32_t (*retain_context)(void**, int32_t);
  int32_t (*set_context)(void*);
  int32_t (*create_stream)(void**, uint32_t);
  int32_t (*synchronize)(void*);
  int32_t (*load_module)(void**, const void*);
  int32_t (*unload_module)(void*);
  int32_t (*get_function)(void**, void*, const char*);
  int32_t (*set_attribute)(void*, int32_t, int32_t);
  int32_t (*allocate)(uint64_t*, size_t);
  int32_t (*release)(uint64_t);
  int32_t (*to_device)(uint64_t, const void*, size_t, void*);
  int32_t (*to_host)(void*, uint64_t, size_t, void*);
  int32_t (*copy)(uint64_t, uint64_t, size_t, void*);
  int32_t (*launch)(const cuda_config*, void*, void**, void**);
} cuda;

static const struct {
  const char* name;
  void* place;
} cuda_functions[] = {
    {"cuInit", &cuda.init},
    {"cuDeviceGet", &cuda.get_device},
    {"cuDevicePrimaryCtxRetain", &cuda.retain_context},
    {"cuCtxSetCurrent", &cuda.set_context},
    {"cuStreamCreate", &cuda.create_stream},
    {"cuStreamSynchronize", &cuda.synchronize},
    {"cuModuleLoadData", &cuda.load_module},
    {"cuModuleUnload", &cuda.unload_module},
    {"cuModuleGetFunction", &cuda.get_function},
    {"cuFuncSetAttribute", &cuda.set_attribute},
    {"cuMemAlloc_v2", &cuda.allocate},
    {"cuMemFree_v2", &cuda.release},
    {"cuMemcpyHtoDAsync_v2", &cuda.to_device},
    {"cuMemcpyDtoHAsync_v2", &cuda.to_host},
    {"cuMemcpyDtoDAsync_v2", &cuda.copy},
    {"cuLaunchKernelEx", &cuda.launch},
};

static void *cuda_context, *cuda_stream;
static const char* cuda_missing; /* why there is no GPU */
static pthread_once_t cuda_once = PTHREAD_ONCE_INIT;

static void cuda_start_once(void) {
  void* library = open_system_library(CUDA_LIBRARY);
  cuda_missing = "no driver for NVIDIA's GPUs is installed here (libcuda.so.1, of CUDA 11.8 or later)";
  for (size_t i = 0; library != NULL && i < sizeof cuda_functions / sizeof *cuda_functions; ++i) {
    void* address = find_in_library(library, cuda_functions[i].name);
    if (address == NULL) return;
    memcpy(cuda_functions[i].place, &address, sizeof address);
  }
  if (library == NULL) return;
  cuda_missing = "there is no GPU of NVIDIA here";
  int32_t device = 0;
  if (cuda.init(0) || cuda.get_device(&device, 0) || cuda.retain_context(&cuda_context, device)) return;
  if (cuda.set_context(cuda_context) || cuda.create_stream(&cuda_stream, 1)) return;
  cuda_missing = NULL;
}

/* Contexts belong to threads: this one is to be the GPU's in the thread of the call. */
static int cuda_activate(void) { return cuda.set_context(cuda_context); }

static tilewright_status cuda_start(tilewright_error* error) {
  pthread_once(&cuda_once, cuda_start_once);
  if (cuda_missing == NULL) return TILEWRIGHT_OK;
  return tilewright_fail_(error, TILEWRIGHT_UNSUPPORTED, "the model runs on a device (cuda): %s", cuda_missing);
}

static void* cuda_load(const char* code, int64_t size) {
  /* An image of its own, aligned, and with a zero behind it. */
  char* image = cuda_activate() ? NULL : malloc((size_t)size + 1);
  if (image == NULL) return NULL;
  memcpy(image, code, (size_t)size);
  image[size] = 0;
  void* module = NULL;
  int32_t failed = cuda.load_module(&module, image);
  free(image);
  return failed ? NULL : module;
}

static void* cuda_kernel(void* module, const tilewright_launch* launch) {
  void* function = NULL;
  if (module == NULL || cuda_activate() || cuda.get_function(&function, module, launch->symbol)) return NULL;
  if (launch->dynamic_bytes > PLAIN_SHARED && cuda.set_attribute(function, CU_FUNC_MAX_DYNAMIC_SHARED, launch->dynamic_bytes))
    return NULL;
  const uint32_t* cluster = launch->cluster;
  if (cluster[0] * cluster[1] * cluster[2] > PORTABLE_CLUSTER && cuda.set_attribute(function, CU_FUNC_NON_PORTABLE_CLUSTER, 1))
    return NULL;
  return function;
}

static void* cuda_allocate(int64_t size) {
  uint64_t address = 0;
  if (cuda_activate() || cuda.allocate(&address, (size_t)(size > 0 ? size : 1))) return NULL;
  return (void*)(uintptr_t)address;
}

static void* cuda_view(void* memory, int64_t offset, int64_t size) {
  (void)size;
  return (char*)memory + offset;
}

static uint64_t cuda_address(const void* memory) { return (uint64_t)(uintptr_t)memory; }

static int cuda_copy(void* from, int64_t offset, void* to, int64_t size) {
  if (!size) return 0;
  return cuda_activate() || cuda.copy(cuda_address(to), cuda_address(from) + (uint64_t)offset, (size_t)size, cuda_stream);
}

static int cuda_write(void* memory, const void* data, int64_t size) {
  if (!size) return 0;
  return cuda_activate() || cuda.to_device(cuda_address(memory), data, (size_t)size, cuda_stream);
}

static int cuda_read(void* memory, int64_t offset, void* data, int64_t size) {
  if (cuda_activate()) return -1;
  if (size && cuda.to_host(data, cuda_address(memory) + (uint64_t)offset, (size_t)size, cuda_stream)) return -1;
  return cuda.synchronize(cuda_stream);
}

enum { MOST_ARGUMENTS = 1024 };

static int cuda_launch(void* function, const tilewright_launch* launch, void* const* memories) {
  if (launch->arg_count > MOST_ARGUMENTS || cuda_activate()) return -1;
  void* values[MOST_ARGUMENTS];
  for (int32_t i = 0; i < launch->arg_count; ++i)
    values[i] = memories[i] == NULL ? (void*)&launch->args[i].offset : (void*)&memories[i];
  cuda_attribute attribute = {.id = CU_LAUNCH_CLUSTER_DIMENSION};
  memcpy(attribute.value.cluster, launch->cluster, sizeof launch->cluster);
  cuda_config config = {.shared_bytes = (uint32_t)launch->dynamic_bytes, .stream = cuda_stream, .attributes = &attribute};
  memcpy(config.grid, launch->grid, sizeof launch->grid);
  memcpy(config.block, launch->block, sizeof launch->block);
  config.attribute_count = launch->cluster[0] * launch->cluster[1] * launch->cluster[2] > 1;
  return cuda.launch(&config, function, values, NULL);
}

static void cuda_free_memory(void* memory) {
  if (!cuda_activate()) cuda.release(cuda_address(memory));
}

static void cuda_free_view(void* view) { (void)view; } /* a place in other memory */

static void cuda_free_kernel(void* function) { (void)function; } /* goes with its module */

static void cuda_free_code(void* module) {
  if (!cuda_activate()) cuda.unload_module(module);
}

const tilewright_driver_ tilewright_cuda_ = {
    .kind = "cuda",
    .start = cuda_start,
    .load = cuda_load,
    .kernel = cuda_kernel,
    .allocate = cuda_allocate,
    .view = cuda_view,
    .copy = cuda_copy,
    .write = cuda_write,
    .read = cuda_read,
    .launch = cuda_launch,
    .free_memory = cuda_free_memory,
    .free_view = cuda_free_view,
    .free_kernel = cuda_free_kernel,
    .free_code = cuda_free_code,
};
