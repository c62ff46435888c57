// The part of the Objective-C runtime and of Metal that the runtime calls, without a GPU: objects count who holds
// them, selectors are their names, and a dispatch runs the only kernel there is: B[i] = A[i] * x + n.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uintptr_t word;
typedef struct Object {
  const char* kind;
  int holders;
  char* data;
  word size;
  struct Object* of;
} Object;

static int alive, fast_math = 1, fails, order;
static word version, last_grid[3], last_block[3];
static Object *pooled[256], *arguments[8];
static word offsets[8];
static char numbers[8][8];
static int pool_size;

static Object* make(const char* kind) {
  Object* made = calloc(1, sizeof(Object));
  made->kind = kind;
  made->holders = 1;
  ++alive;
  return made;
}
static Object* lent(const char* kind) { return pooled[pool_size++] = make(kind); }
static void drop(Object* item) {
  if (--item->holders > 0) return;
  --alive;
  free(item->data);
  free(item);
}
static Object* text(const char* words) {
  Object* made = lent("NSString");
  made->data = strdup(words);
  return made;
}
static void run(void) {
  float *a = (float*)(arguments[0]->data + offsets[0]), *b = (float*)(arguments[3]->data + offsets[3]), x;
  int n;
  memcpy(&n, numbers[1], 4);
  memcpy(&x, numbers[2], 4);
  for (int i = 0; i < 4; ++i) b[i] = a[i] * x + n;
}

void* objc_getClass(const char* name) {
  static Object classes[8];
  static int count;
  for (int i = 0; i < count; ++i)
    if (!strcmp(classes[i].kind, name)) return &classes[i];
  classes[count].kind = strdup(name);
  return &classes[count++];
}
const char* sel_registerName(const char* name) { return strdup(name); }
void* objc_autoreleasePoolPush(void) { return (void*)(word)(pool_size + 1); }
void objc_autoreleasePoolPop(void* pool) {
  while (pool_size > (int)(word)pool - 1) drop(pooled[--pool_size]);
}
void* MTLCreateSystemDefaultDevice(void) { return make("MTLDevice"); }

#define IS(name) (!strcmp(selector, name))

// Sizes by value lie on the stack of x86-64, behind the six words in registers.
word objc_msgSend(Object* self, const char* selector, word a, word b, word c, word d, word s0, word s1, word s2,
                  word s3, word s4, word s5) {
  if (IS("new")) return (word)make(self->kind);
  if (IS("retain")) return ++self->holders, (word)self;
  if (IS("release")) return drop(self), 0;
  if (IS("stringWithUTF8String:")) return (word)text((const char*)a);
  if (IS("UTF8String")) return (word)self->data;
  if (IS("localizedDescription")) return (word)text("it is broken");
  if (IS("name")) return (word)text("Fake M9");
  if (IS("maxThreadgroupMemoryLength")) return 32768;
  if (IS("maxBufferLength")) return 1u << 30;
  if (IS("setFastMathEnabled:")) return fast_math = (char)a, 0;
  if (IS("setLanguageVersion:")) return version = a, 0;
  if (IS("newCommandQueue")) return (word)make("MTLCommandQueue");
  if (IS("newBufferWithLength:options:")) {
    Object* made = make("MTLBuffer");
    made->data = calloc(1, made->size = a);
    return (word)made;
  }
  if (IS("contents")) return (word)self->data;
  if (IS("newLibraryWithSource:options:error:")) {
    if (!strstr(((Object*)a)->data, "metal_stdlib")) return *(word*)c = (word)lent("NSError"), 0;
    Object* made = make("MTLLibrary");
    made->data = strdup(((Object*)a)->data);
    return (word)made;
  }
  if (IS("newFunctionWithName:")) return strstr(self->data, ((Object*)a)->data) ? (word)make("MTLFunction") : 0;
  if (IS("newComputePipelineStateWithFunction:error:")) return (word)make("MTLComputePipelineState");
  if (IS("commandBuffer") || IS("computeCommandEncoder") || IS("blitCommandEncoder")) return (word)lent(selector);
  if (IS("setComputePipelineState:") || IS("commit") || IS("waitUntilCompleted")) return 0;
  if (IS("endEncoding")) return ++order;
  if (IS("status")) return fails ? 5 : 4;
  if (IS("error")) return (word)lent("NSError");
  if (IS("setBuffer:offset:atIndex:")) return arguments[c] = (Object*)a, offsets[c] = b, 0;
  if (IS("setBytes:length:atIndex:")) return memcpy(numbers[c], (void*)a, b), 0;
  if (IS("dispatchThreadgroups:threadsPerThreadgroup:")) {
    word grid[3] = {s0, s1, s2}, block[3] = {s3, s4, s5};
    memcpy(last_grid, grid, sizeof grid);
    memcpy(last_block, block, sizeof block);
    return run(), 0;
  }
  if (IS("copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"))
    return memmove(((Object*)c)->data + d, ((Object*)a)->data + b, s0), 0;
  fprintf(stderr, "unknown selector %s\n", selector);
  abort();
}

int fake_alive(void) { return alive; }
int fake_threads(void) { return last_grid[0] * last_block[0] * last_grid[1] * last_block[2]; }
int fake_fast_math(void) { return fast_math; }
int fake_version(void) { return version; }
void fake_fail(int whether) { fails = whether; }
