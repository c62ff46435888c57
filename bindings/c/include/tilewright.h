/* The runtime for models that Tilewright has exported: open a library, look at its inputs and outputs, run it.

   Every binding (C++, Rust, Go, Java, JavaScript, C#) is a thin layer over this header.

   Errors.   A function that can fail returns a status, 0 for success, and writes a sentence to `error` (which may be
             NULL). The memory of the error is the caller's: nothing has to be freed.
   Memory.   Arrays belong to the caller and are read and written in place. Texts and shapes that are given out live as
             long as the process: libraries are never unloaded, their idle threads live in them.
   Threads.  Every function may be called from every thread at any time, also with the same model.
   Closing.  A model is a number, not a pointer. A closed or invented one is an error (TILEWRIGHT_CLOSED), never a
             crash; calls that run while it is closed end as if it were not. */

#ifndef TILEWRIGHT_H
#define TILEWRIGHT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TILEWRIGHT_API_VERSION 1

typedef int32_t tilewright_status;

enum {
  TILEWRIGHT_OK = 0,
  TILEWRIGHT_INVALID_ARGUMENT = 1, /* a null pointer, a number of arrays or an index that is wrong, overlapping memory */
  TILEWRIGHT_NOT_READABLE = 2,     /* the file is not there, or the system does not let us read it */
  TILEWRIGHT_BAD_LIBRARY = 3,      /* not a library, truncated, damaged, or not written by Tilewright */
  TILEWRIGHT_UNSUPPORTED = 4,      /* for another processor, too new, or not a model that C programs can run */
  TILEWRIGHT_BAD_SHAPE = 5,        /* an array does not fit the shape that the model states */
  TILEWRIGHT_BAD_TYPE = 6,         /* an array has another data type */
  TILEWRIGHT_OUT_OF_MEMORY = 7,
  TILEWRIGHT_BAD_DATA = 8,         /* the model met a value that it cannot use: an index out of range, a division by 0 */
  TILEWRIGHT_CLOSED = 9            /* the model has been closed, or there never was such a model */
};

typedef struct tilewright_error {
  tilewright_status status;
  char message[1020]; /* UTF-8, ends with a zero */
} tilewright_error;

typedef int32_t tilewright_dtype;

/* Elements of fewer than 8 bits take a byte each. 16-bit and smaller floats are passed as their bits. */
enum {
  TILEWRIGHT_BOOL = 1,
  TILEWRIGHT_INT8 = 2,
  TILEWRIGHT_INT16 = 3,
  TILEWRIGHT_INT32 = 4,
  TILEWRIGHT_INT64 = 5,
  TILEWRIGHT_UINT8 = 6,
  TILEWRIGHT_UINT16 = 7,
  TILEWRIGHT_UINT32 = 8,
  TILEWRIGHT_UINT64 = 9,
  TILEWRIGHT_FLOAT16 = 10,
  TILEWRIGHT_BFLOAT16 = 11,
  TILEWRIGHT_FLOAT32 = 12,
  TILEWRIGHT_FLOAT64 = 13,
  TILEWRIGHT_FLOAT8_E4M3FN = 14,
  TILEWRIGHT_FLOAT8_E4M3FNUZ = 15,
  TILEWRIGHT_FLOAT8_E5M2 = 16,
  TILEWRIGHT_FLOAT8_E5M2FNUZ = 17,
  TILEWRIGHT_FLOAT8_E8M0FNU = 18,
  TILEWRIGHT_FLOAT4_E2M1FN = 19,
  TILEWRIGHT_INT1 = 20,
  TILEWRIGHT_INT2 = 21,
  TILEWRIGHT_INT4 = 22,
  TILEWRIGHT_UINT1 = 23,
  TILEWRIGHT_UINT2 = 24,
  TILEWRIGHT_UINT4 = 25
};

const char* tilewright_dtype_name(tilewright_dtype dtype); /* "float32"; NULL for a number that is no data type */
int64_t tilewright_dtype_size(tilewright_dtype dtype);     /* bytes of an element; 0 for a number that is none */

/* An input or output, as the model states it. */
typedef struct tilewright_value {
  const char* name;
  tilewright_dtype dtype;
  int32_t rank;
  const int64_t* shape;        /* -1 for a dimension that a call decides */
  const char* const* symbolic; /* for such a dimension its text, "batch" or "2*n + 1", else NULL; NULL if rank is 0 */
} tilewright_value;

/* How a model of fixed sizes runs on a device: launches in order, with everything that they take. */
typedef struct tilewright_place {
  int32_t kind; /* 0 an input, 1 an output, 2 a slot of the workspace, 3 the constants, 4 a number */
  int32_t index;
  int64_t offset; /* bytes from the start; of a number its value, which kernels take as an int64_t */
  int64_t size;
} tilewright_place;

typedef struct tilewright_launch {
  const char* symbol;
  int32_t code; /* the piece of code that it is in */
  int32_t arg_count;
  uint32_t grid[3], block[3], cluster[3];
  int32_t dynamic_bytes; /* of shared memory that the launch asks for */
  const tilewright_place* args;
} tilewright_launch;

typedef struct tilewright_check {
  tilewright_place status; /* three int64_t, of which the first is -1 where nothing is wrong */
  const char* message;
} tilewright_check;

struct tilewright_device {
  const char* kind; /* "opencl" or "cuda" */
  const void* (*constants)(void); /* behind them lies the code, piece by piece */
  int64_t constant_bytes;
  int32_t code_count, slot_count, launch_count, check_count;
  const int64_t* code_bytes;
  const int64_t* slots; /* their sizes in bytes */
  const tilewright_launch* launches;
  const tilewright_check* checks;
};

/* What an exported library says of itself: the symbol <name>__interface. Fields are only ever appended, and `size` says which
   are there; any other change raises `version`. */
struct tilewright_interface {
  uint32_t version;
  uint32_t size; /* bytes of this structure */
  const char* name;
  const char* refusal;   /* why C programs cannot run this model, or NULL */
  const char* cpu_flags; /* words of /proc/cpuinfo without which the code must not run */
  const char* metadata;  /* JSON, see docs/abi.md */
  int32_t input_count;
  int32_t output_count;
  int32_t symbol_count;
  int32_t reserved;
  const tilewright_value* inputs;
  const tilewright_value* outputs;
  const char* const* symbols;
  int64_t workspace_bytes; /* -1: `shapes` says it */
  void (*run)(void); /* int32_t (void* const* inputs, void* const* outputs, void* workspace), and where there is `shapes`
                        const int64_t* symbols as well */
  int32_t (*shapes)(const int64_t* input_shapes, int64_t* symbols, int64_t* output_shapes, int64_t* workspace_bytes);
  const char* (*message)(int32_t code);
  void (*set_num_threads)(int64_t threads);
  const struct tilewright_device* device; /* NULL: the model runs on the processor, by `run` */
};

/* An array of the caller's: row-major, contiguous, aligned to its elements. */
typedef struct tilewright_tensor {
  void* data;
  int64_t bytes; /* of the memory at `data`, at least those of the shape */
  const int64_t* shape;
  int32_t rank;
  tilewright_dtype dtype;
} tilewright_tensor;

typedef int64_t tilewright_model; /* at least 1, below 2 to the power of 53 */

enum { TILEWRIGHT_INPUT = 0, TILEWRIGHT_OUTPUT = 1 };

int32_t tilewright_api_version(void);

/* Open a library. Its bytes are read now and checked (whole, undamaged, for this processor): what happens to the file later
   changes nothing. A library is native code: open those whose origin you trust. */
tilewright_status tilewright_open(const char* path, tilewright_model* model, tilewright_error* error);
tilewright_status tilewright_open_bytes(const void* bytes, int64_t size, tilewright_model* model, tilewright_error* error);

/* The model of a library that the program is linked with: tilewright_open_linked(&resnet18__interface, ...). */
tilewright_status tilewright_open_linked(const struct tilewright_interface* interface, tilewright_model* model,
                                         tilewright_error* error);

tilewright_status tilewright_close(tilewright_model model, tilewright_error* error);

/* The model's name, its numbers of inputs and outputs, and the names of its symbols. Each pointer may be NULL. */
tilewright_status tilewright_describe(tilewright_model model, const char** name, int32_t* inputs, int32_t* outputs,
                                      int32_t* symbols, tilewright_error* error);
/* Input or output number `index`. */
tilewright_status tilewright_inspect(tilewright_model model, int32_t role, int32_t index, tilewright_value* value,
                                     tilewright_error* error);
/* The library's own description, as JSON text. */
tilewright_status tilewright_metadata(tilewright_model model, const char** json, tilewright_error* error);

/* Threads that calls of this library use from now on; 0 is the default. */
tilewright_status tilewright_set_num_threads(tilewright_model model, int64_t threads, tilewright_error* error);

/* The shapes of the outputs for these inputs (whose `data` and `bytes` are not looked at): the dimensions of all outputs, one
   after the other, in `dimensions`, which has room for `capacity` numbers. */
tilewright_status tilewright_output_shapes(tilewright_model model, const tilewright_tensor* inputs, int32_t input_count,
                                           int64_t* dimensions, int32_t capacity, tilewright_error* error);

/* One inference. Outputs must have the shapes that tilewright_output_shapes gives and share no memory with anything else. */
tilewright_status tilewright_run(tilewright_model model, const tilewright_tensor* inputs, int32_t input_count,
                                 const tilewright_tensor* outputs, int32_t output_count, tilewright_error* error);

/* The same on a thread of its own. Arguments are checked before this returns; descriptions of arrays are copied, their memory
   must stay until the job has ended. `done` (or NULL) is called on that thread. Every job must be waited for, once:
   that gives the status of the run and frees the job. */
typedef struct tilewright_job tilewright_job;
typedef void (*tilewright_done)(void* context, tilewright_status status, const tilewright_error* error);

tilewright_status tilewright_start(tilewright_model model, const tilewright_tensor* inputs, int32_t input_count,
                                   const tilewright_tensor* outputs, int32_t output_count, tilewright_done done,
                                   void* context, tilewright_job** job, tilewright_error* error);
tilewright_status tilewright_wait(tilewright_job* job, tilewright_error* error);

#ifdef __cplusplus
}
#endif

#endif /* TILEWRIGHT_H */
