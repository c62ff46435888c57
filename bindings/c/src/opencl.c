/* OpenCL devices, through the loader that is installed (libOpenCL.so.1): nothing of OpenCL is needed to compile this. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"
#include "portable.h"

#include <pthread.h>
#include <string.h>

#define CL_READ_WRITE 1
#define CL_REGION 0x1220
#define CL_TYPE_ALL 0xFFFFFFFFu
#define CL_TYPE_GPU 4
#define CL_ALIGNMENT 0x1019
#define CL_EXTENSIONS 0x1030
enum { MOST = 16 };

static struct {
  int32_t (*get_platforms)(uint32_t, void**, uint32_t*);
  int32_t (*get_devices)(void*, uint64_t, uint32_t, void**, uint32_t*);
  int32_t (*get_device_info)(void*, uint32_t, size_t, void*, size_t*);
  void* (*create_context)(const intptr_t*, uint32_t, void* const*, void*, void*, int32_t*);
  void* (*create_queue)(void*, void*, uint64_t, int32_t*);
  void* (*create_program)(void*, uint32_t, const char**, const size_t*, int32_t*);
  int32_t (*build_program)(void*, uint32_t, void* const*, const char*, void*, void*);
  void* (*create_kernel)(void*, const char*, int32_t*);
  int32_t (*set_arg)(void*, uint32_t, size_t, const void*);
  int32_t (*enqueue_kernel)(void*, void*, uint32_t, const size_t*, const size_t*, const size_t*, uint32_t, void*, void*);
  void* (*create_buffer)(void*, uint64_t, size_t, void*, int32_t*);
  void* (*create_sub_buffer)(void*, uint64_t, uint32_t, const void*, int32_t*);
  int32_t (*enqueue_write)(void*, void*, uint32_t, size_t, size_t, const void*, uint32_t, void*, void*);
  int32_t (*enqueue_read)(void*, void*, uint32_t, size_t, size_t, void*, uint32_t, void*, void*);
  int32_t (*enqueue_copy)(void*, void*, void*, size_t, size_t, size_t, uint32_t, void*, void*);
  int32_t (*release_memory)(void*);
  int32_t (*release_kernel)(void*);
  int32_t (*release_program)(void*);
} cl;

static const struct {
  const char* name;
  void* place;
} functions[] = {
    {"clGetPlatformIDs", &cl.get_platforms},       {"clGetDeviceIDs", &cl.get_devices},
    {"clGetDeviceInfo", &cl.get_device_info},      {"clCreateContext", &cl.create_context},
    {"clCreateCommandQueue", &cl.create_queue},    {"clCreateProgramWithSource", &cl.create_program},
    {"clBuildProgram", &cl.build_program},         {"clCreateKernel", &cl.create_kernel},
    {"clSetKernelArg", &cl.set_arg},               {"clEnqueueNDRangeKernel", &cl.enqueue_kernel},
    {"clCreateBuffer", &cl.create_buffer},         {"clCreateSubBuffer", &cl.create_sub_buffer},
    {"clEnqueueWriteBuffer", &cl.enqueue_write},   {"clEnqueueReadBuffer", &cl.enqueue_read},
    {"clEnqueueCopyBuffer", &cl.enqueue_copy},     {"clReleaseMemObject", &cl.release_memory},
    {"clReleaseKernel", &cl.release_kernel},       {"clReleaseProgram", &cl.release_program},
};

static void *device, *context, *queue;
static int64_t alignment;
static const char* options;
static const char* missing; /* why there is no device */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* GPUs first, over all platforms. */
static void* find_device(void) {
  void *platforms[MOST], *found = NULL;
  uint32_t count = 0;
  if (cl.get_platforms(MOST, platforms, &count)) return NULL;
  for (int gpus = 1; found == NULL && gpus >= 0; --gpus)
    for (uint32_t i = 0; found == NULL && i < count && i < MOST; ++i)
      if (cl.get_devices(platforms[i], gpus ? CL_TYPE_GPU : CL_TYPE_ALL, 1, &found, NULL)) found = NULL;
  return found;
}

static void start_once(void) {
  void* library = open_system_library(OPENCL_LIBRARY);
  missing = "no OpenCL is installed here (" OPENCL_LIBRARY ")";
  for (size_t i = 0; library != NULL && i < sizeof functions / sizeof *functions; ++i) {
    void* address = find_in_library(library, functions[i].name);
    if (address == NULL) return;
    memcpy(functions[i].place, &address, sizeof address);
  }
  if (library == NULL) return;
  missing = "there is no OpenCL device here";
  device = find_device();
  int32_t code = 0;
  if (device != NULL) context = cl.create_context(NULL, 1, &device, NULL, NULL, &code);
  if (context != NULL) queue = cl.create_queue(context, device, 0, &code);
  if (queue == NULL) return;
  uint32_t bits = 0;
  char extensions[8192] = "";
  cl.get_device_info(device, CL_ALIGNMENT, sizeof bits, &bits, NULL);
  cl.get_device_info(device, CL_EXTENSIONS, sizeof extensions - 1, extensions, NULL);
  alignment = bits >= 8 ? bits / 8 : 1;
  /* Functions of this extension are those of OpenCL C 3.0. */
  options = strstr(extensions, "cl_khr_integer_dot_product") ? "-cl-std=CL3.0" : "-cl-std=CL1.2";
  missing = NULL;
}

static tilewright_status opencl_start(tilewright_error* error) {
  pthread_once(&once, start_once);
  return missing == NULL ? TILEWRIGHT_OK : tilewright_fail_(error, TILEWRIGHT_UNSUPPORTED, "the model runs on a device (opencl): %s", missing);
}

static void* opencl_load(const char* code, int64_t size) {
  size_t length = (size_t)size;
  int32_t failed = 0;
  void* program = cl.create_program(context, 1, &code, &length, &failed);
  if (program != NULL && cl.build_program(program, 1, &device, options, NULL, NULL)) {
    cl.release_program(program);
    return NULL;
  }
  return program;
}

static void* opencl_kernel(void* program, const tilewright_launch* launch) {
  int32_t failed = 0;
  return program == NULL ? NULL : cl.create_kernel(program, launch->symbol, &failed);
}

static void* opencl_allocate(int64_t size) {
  int32_t failed = 0;
  return cl.create_buffer(context, CL_READ_WRITE, (size_t)(size > 0 ? size : 1), NULL, &failed);
}

static void* opencl_view(void* memory, int64_t offset, int64_t size) {
  if (offset % alignment || size <= 0) return NULL;
  size_t region[2] = {(size_t)offset, (size_t)size};
  int32_t failed = 0;
  return cl.create_sub_buffer(memory, CL_READ_WRITE, CL_REGION, region, &failed);
}

static int opencl_copy(void* from, int64_t offset, void* to, int64_t size) {
  return size && cl.enqueue_copy(queue, from, to, (size_t)offset, 0, (size_t)size, 0, NULL, NULL);
}

static int opencl_write(void* memory, const void* data, int64_t size) {
  return size && cl.enqueue_write(queue, memory, 1, 0, (size_t)size, data, 0, NULL, NULL);
}

static int opencl_read(void* memory, int64_t offset, void* data, int64_t size) {
  return size && cl.enqueue_read(queue, memory, 1, (size_t)offset, (size_t)size, data, 0, NULL, NULL);
}

static int opencl_launch(void* function, const tilewright_launch* launch, void* const* memories) {
  for (int32_t i = 0; i < launch->arg_count; ++i) {
    int is_number = memories[i] == NULL;
    const void* value = is_number ? (const void*)&launch->args[i].offset : &memories[i];
    if (cl.set_arg(function, (uint32_t)i, is_number ? sizeof(int64_t) : sizeof(void*), value)) return -1;
  }
  size_t global[3], local[3];
  for (int axis = 0; axis < 3; ++axis) {
    local[axis] = launch->block[axis];
    global[axis] = (size_t)launch->grid[axis] * launch->block[axis];
  }
  return cl.enqueue_kernel(queue, function, 3, NULL, global, local, 0, NULL, NULL);
}

static void opencl_free_memory(void* memory) { cl.release_memory(memory); }
static void opencl_free_kernel(void* kernel) { cl.release_kernel(kernel); }
static void opencl_free_code(void* program) { cl.release_program(program); }

const tilewright_driver_ tilewright_opencl_ = {
    .kind = "opencl",
    .start = opencl_start,
    .load = opencl_load,
    .kernel = opencl_kernel,
    .allocate = opencl_allocate,
    .view = opencl_view,
    .copy = opencl_copy,
    .write = opencl_write,
    .read = opencl_read,
    .launch = opencl_launch,
    .free_memory = opencl_free_memory,
    .free_view = opencl_free_memory,
    .free_kernel = opencl_free_kernel,
    .free_code = opencl_free_code,
};
