/* What Windows calls otherwise. */

#ifndef TILEWRIGHT_PORTABLE_H
#define TILEWRIGHT_PORTABLE_H

#include <stdlib.h>
#include <string.h>

#ifdef _WIN32

#include <malloc.h>
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#define OPENCL_LIBRARY "OpenCL.dll"
#define CUDA_LIBRARY "nvcuda.dll"

static inline void* open_system_library(const char* name) {
  return (void*)LoadLibraryExA(name, NULL, LOAD_LIBRARY_SEARCH_SYSTEM32);
}

static inline void* find_in_library(void* library, const char* name) {
  FARPROC found = GetProcAddress((HMODULE)library, name);
  void* address;
  memcpy(&address, &found, sizeof address);
  return address;
}

static inline void* allocate_aligned(size_t alignment, size_t size) { return _aligned_malloc(size, alignment); }
static inline void free_aligned(void* memory) { _aligned_free(memory); }

#else

#include <dlfcn.h>

#define OPENCL_LIBRARY "libOpenCL.so.1"
#define CUDA_LIBRARY "libcuda.so.1"

static inline void* open_system_library(const char* name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }
static inline void* find_in_library(void* library, const char* name) { return dlsym(library, name); }
static inline void* allocate_aligned(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }
static inline void free_aligned(void* memory) { free(memory); }

#endif

#endif
