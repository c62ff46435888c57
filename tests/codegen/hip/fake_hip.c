// A HIP runtime without a GPU: memory is the host's, a launch calls the function that a "module" names.
#include <stdlib.h>
#include <string.h>

static int last_grid[3], last_block[3], last_shared, allocated;

int hipGetDeviceCount(int* count) { *count = 1; return 0; }
int hipSetDevice(int ordinal) { return ordinal; }
int hipGetDevicePropertiesR0600(char* properties, int ordinal) {
  (void)ordinal;
  strcpy(properties, "Fake Instinct");
  strcpy(properties + 1160, "gfx942:sramecc+:xnack-");
  return 0;
}
const char* hipGetErrorString(int status) { return status == 2 ? "out of memory" : "unknown"; }
int hipMalloc(void** pointer, size_t size) {
  if (size > (1u << 30)) return 2;
  ++allocated;
  *pointer = malloc(size);
  return 0;
}
int hipFree(void* pointer) { --allocated; free(pointer); return 0; }
int hipMemcpy(void* target, const void* source, size_t size, int direction) {
  (void)direction;
  memcpy(target, source, size);
  return 0;
}
int hipDeviceSynchronize(void) { return 0; }
int hipModuleLoadData(void** module, const void* code) { *module = (void*)code; return memcmp(code, "\177ELF", 4); }
int hipModuleGetFunction(void** function, void* module, const char* name) {
  (void)module;
  *function = strstr(name, "kernel") ? strdup(name) : NULL;
  return *function == NULL;
}
// The only kernel it knows: B[i] = A[i] * x + n.
int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** args, void** extra) {
  (void)function; (void)stream; (void)extra;
  int grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  memcpy(last_grid, grid, sizeof grid);
  memcpy(last_block, block, sizeof block);
  last_shared = shared;
  float *a = *(float**)args[0], *b = *(float**)args[3], x = *(float*)args[2];
  int n = *(int*)args[1];
  for (int i = 0; i < 4; ++i) b[i] = a[i] * x + n;
  return 0;
}
int fake_allocated(void) { return allocated; }
int fake_threads(void) { return last_grid[0] * last_block[0] + last_shared; }
