/* The runtime for C as a module for Node, through Node-API.

   Arrays come as a list of typed arrays with their description beside it: data types, ranks, and all dimensions one after the
   other. An error is thrown, or rejects, with the status as its code ("ERR_TILEWRIGHT_SHAPE"). */

#include <node_api.h>
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

static const char* const codes[] = {"OK",     "ARGUMENT", "FILE", "LIBRARY", "UNSUPPORTED",
                                    "SHAPE",  "TYPE",     "MEMORY", "DATA",  "CLOSED"};

static napi_value text_of(napi_env env, const char* text) {
  napi_value value = NULL;
  if (text == NULL)
    napi_get_null(env, &value);
  else
    napi_create_string_utf8(env, text, NAPI_AUTO_LENGTH, &value);
  return value;
}

static napi_value number_of(napi_env env, int64_t number) {
  napi_value value = NULL;
  napi_create_int64(env, number, &value);
  return value;
}

static napi_value error_of(napi_env env, tilewright_status status, const tilewright_error* error) {
  char code[40] = "ERR_TILEWRIGHT_";
  strcat(code, status > 0 && status < (int)(sizeof codes / sizeof *codes) ? codes[status] : "UNKNOWN");
  napi_value made = NULL;
  napi_create_error(env, text_of(env, code), text_of(env, error->message), &made);
  return made;
}

static napi_value thrown(napi_env env, tilewright_status status, const tilewright_error* error) {
  napi_throw(env, error_of(env, status, error));
  return NULL;
}

/* The arguments of a call; those that are missing are undefined. */
static void arguments_of(napi_env env, napi_callback_info info, napi_value* arguments, size_t count) {
  napi_get_cb_info(env, info, &count, arguments, NULL, NULL);
}

static tilewright_model model_of(napi_env env, napi_value value) {
  int64_t number = 0;
  return napi_get_value_int64(env, value, &number) == napi_ok ? number : 0;
}

static napi_value open_path(napi_env env, napi_callback_info info) {
  napi_value path;
  arguments_of(env, info, &path, 1);
  tilewright_error error = {TILEWRIGHT_INVALID_ARGUMENT, "the path of a library is a text"};
  size_t length = 0;
  if (napi_get_value_string_utf8(env, path, NULL, 0, &length) != napi_ok) return thrown(env, error.status, &error);
  char* text = malloc(length + 1);
  tilewright_model model = 0;
  tilewright_status status = TILEWRIGHT_OUT_OF_MEMORY;
  if (text != NULL && napi_get_value_string_utf8(env, path, text, length + 1, &length) == napi_ok)
    status = tilewright_open(text, &model, &error);
  free(text);
  return status ? thrown(env, status, &error) : number_of(env, model);
}

static napi_value open_bytes(napi_env env, napi_callback_info info) {
  napi_value library;
  arguments_of(env, info, &library, 1);
  tilewright_error error = {TILEWRIGHT_INVALID_ARGUMENT, "the bytes of a library are a Uint8Array"};
  napi_typedarray_type type;
  size_t length;
  void* data;
  tilewright_model model = 0;
  if (napi_get_typedarray_info(env, library, &type, &length, &data, NULL, NULL) != napi_ok || type != napi_uint8_array)
    return thrown(env, error.status, &error);
  tilewright_status status = tilewright_open_bytes(data ? data : "", (int64_t)length, &model, &error);
  return status ? thrown(env, status, &error) : number_of(env, model);
}

static napi_value close_model(napi_env env, napi_callback_info info) {
  napi_value model;
  arguments_of(env, info, &model, 1);
  tilewright_close(model_of(env, model), NULL); /* again does nothing */
  return NULL;
}

static napi_value set_num_threads(napi_env env, napi_callback_info info) {
  napi_value arguments[2];
  arguments_of(env, info, arguments, 2);
  tilewright_error error = {TILEWRIGHT_INVALID_ARGUMENT, "the number of threads is a number"};
  int64_t threads;
  if (napi_get_value_int64(env, arguments[1], &threads) != napi_ok) return thrown(env, error.status, &error);
  tilewright_status status = tilewright_set_num_threads(model_of(env, arguments[0]), threads, &error);
  return status ? thrown(env, status, &error) : NULL;
}

/* [name, data type, sizes (-1 for what a call decides), their texts] */
static napi_value value_of(napi_env env, const tilewright_value* value) {
  napi_value parts[4], all;
  parts[0] = text_of(env, value->name);
  parts[1] = text_of(env, tilewright_dtype_name(value->dtype));
  napi_create_array(env, &parts[2]);
  napi_create_array(env, &parts[3]);
  for (int32_t axis = 0; axis < value->rank; ++axis) {
    napi_set_element(env, parts[2], (uint32_t)axis, number_of(env, value->shape[axis]));
    napi_set_element(env, parts[3], (uint32_t)axis, text_of(env, value->symbolic[axis]));
  }
  napi_create_array(env, &all);
  for (uint32_t i = 0; i < 4; ++i) napi_set_element(env, all, i, parts[i]);
  return all;
}

/* [name, metadata, inputs, outputs] */
static napi_value describe(napi_env env, napi_callback_info info) {
  napi_value number, all;
  arguments_of(env, info, &number, 1);
  tilewright_model model = model_of(env, number);
  tilewright_error error;
  const char *name, *json;
  int32_t counts[2];
  tilewright_status status = tilewright_describe(model, &name, &counts[0], &counts[1], NULL, &error);
  if (!status) status = tilewright_metadata(model, &json, &error);
  if (status) return thrown(env, status, &error);
  napi_create_array(env, &all);
  napi_set_element(env, all, 0, text_of(env, name));
  napi_set_element(env, all, 1, text_of(env, json));
  for (int32_t role = 0; role < 2; ++role) {
    napi_value values;
    napi_create_array(env, &values);
    for (int32_t i = 0; i < counts[role]; ++i) {
      tilewright_value value;
      status = tilewright_inspect(model, role, i, &value, &error);
      if (status) return thrown(env, status, &error);
      napi_set_element(env, values, (uint32_t)i, value_of(env, &value));
    }
    napi_set_element(env, all, (uint32_t)role + 2, values);
  }
  return all;
}

/* ---------------------------------------------------------------- arrays */

typedef struct {
  tilewright_tensor* tensors; /* with their shapes behind them */
  uint32_t count;
} arrays;

static void* data_of(napi_env env, napi_value value, napi_typedarray_type expected, size_t* length) {
  napi_typedarray_type type;
  void* data = NULL;
  if (napi_get_typedarray_info(env, value, &type, length, &data, NULL, NULL) != napi_ok || type != expected) *length = 0;
  return data;
}

static int64_t element_size(napi_typedarray_type type) {
  switch (type) {
    case napi_int16_array: case napi_uint16_array: return 2;
    case napi_int32_array: case napi_uint32_array: case napi_float32_array: return 4;
    case napi_float64_array: case napi_bigint64_array: case napi_biguint64_array: return 8;
    default: return 1;
  }
}

/* Descriptions from a list of typed arrays (or null where only shapes count), an Int32Array of data types, one of ranks, and a
   BigInt64Array of all dimensions. Anything else gives no descriptions. */
static arrays arrays_of(napi_env env, const napi_value* from) {
  arrays made = {NULL, 0};
  size_t dtype_count, rank_count, dim_count, used = 0;
  uint32_t count = 0;
  const int32_t* dtypes = data_of(env, from[1], napi_int32_array, &dtype_count);
  const int32_t* ranks = data_of(env, from[2], napi_int32_array, &rank_count);
  const int64_t* dims = data_of(env, from[3], napi_bigint64_array, &dim_count);
  if (napi_get_array_length(env, from[0], &count) != napi_ok || dtype_count != count || rank_count != count) return made;
  for (uint32_t i = 0; i < count; ++i) {
    if (ranks[i] < 0) return made;
    used += (size_t)ranks[i];
  }
  if (used != dim_count) return made;
  made.tensors = calloc(1, count * sizeof *made.tensors + dim_count * sizeof *dims + 1);
  if (made.tensors == NULL) return made;
  int64_t* shapes = (int64_t*)(made.tensors + count);
  if (dim_count) memcpy(shapes, dims, dim_count * sizeof *dims);
  for (uint32_t i = 0; i < count; ++i) {
    napi_value element;
    napi_typedarray_type type;
    size_t length = 0;
    void* data = NULL;
    napi_get_element(env, from[0], i, &element);
    if (napi_get_typedarray_info(env, element, &type, &length, &data, NULL, NULL) != napi_ok) length = 0, type = napi_int8_array;
    made.tensors[i] = (tilewright_tensor){data, (int64_t)length * element_size(type), shapes, ranks[i], dtypes[i]};
    shapes += ranks[i];
  }
  made.count = count;
  return made;
}

static napi_value no_arrays(napi_env env) {
  tilewright_error error = {TILEWRIGHT_INVALID_ARGUMENT, "the arrays are not described as they should be"};
  return thrown(env, error.status, &error);
}

/* outputShapes(model, arrays, dtypes, ranks, dims, room: BigInt64Array) */
static napi_value output_shapes(napi_env env, napi_callback_info info) {
  napi_value arguments[6];
  arguments_of(env, info, arguments, 6);
  arrays inputs = arrays_of(env, arguments + 1);
  if (inputs.tensors == NULL) return no_arrays(env);
  size_t capacity;
  int64_t* room = data_of(env, arguments[5], napi_bigint64_array, &capacity);
  tilewright_error error;
  tilewright_status status = tilewright_output_shapes(model_of(env, arguments[0]), inputs.tensors, (int32_t)inputs.count, room,
                                                      (int32_t)capacity, &error);
  free(inputs.tensors);
  return status ? thrown(env, status, &error) : NULL;
}

/* runSync(model, inputs..., outputs...) with four arguments for each. */
static napi_value run_sync(napi_env env, napi_callback_info info) {
  napi_value arguments[9];
  arguments_of(env, info, arguments, 9);
  arrays inputs = arrays_of(env, arguments + 1), outputs = arrays_of(env, arguments + 5);
  tilewright_error error = {TILEWRIGHT_INVALID_ARGUMENT, "the arrays are not described as they should be"};
  tilewright_status status = TILEWRIGHT_INVALID_ARGUMENT;
  if (inputs.tensors != NULL && outputs.tensors != NULL)
    status = tilewright_run(model_of(env, arguments[0]), inputs.tensors, (int32_t)inputs.count, outputs.tensors,
                            (int32_t)outputs.count, &error);
  free(inputs.tensors);
  free(outputs.tensors);
  return status ? thrown(env, status, &error) : NULL;
}

/* ---------------------------------------------------------------- asynchronous */

typedef struct {
  tilewright_model model;
  arrays inputs, outputs;
  void** copies; /* of the inputs: a script may change, transfer or detach its arrays at any time */
  tilewright_status status;
  tilewright_error error;
  napi_async_work work;
  napi_deferred deferred;
  napi_ref kept; /* the outputs, which no script has seen yet */
} job;

static void free_job(job* job) {
  for (uint32_t i = 0; job->copies != NULL && i < job->inputs.count; ++i) free(job->copies[i]);
  free(job->copies);
  free(job->inputs.tensors);
  free(job->outputs.tensors);
  free(job);
}

static void execute(napi_env env, void* given) {
  (void)env;
  job* job = given;
  job->status = tilewright_run(job->model, job->inputs.tensors, (int32_t)job->inputs.count, job->outputs.tensors,
                               (int32_t)job->outputs.count, &job->error);
}

static void complete(napi_env env, napi_status state, void* given) {
  (void)state;
  job* job = given;
  napi_value result;
  if (job->status) {
    napi_reject_deferred(env, job->deferred, error_of(env, job->status, &job->error));
  } else {
    napi_get_undefined(env, &result);
    napi_resolve_deferred(env, job->deferred, result);
  }
  napi_delete_reference(env, job->kept);
  napi_delete_async_work(env, job->work);
  free_job(job);
}

static int copy_inputs(job* job) {
  job->copies = calloc(job->inputs.count + 1, sizeof *job->copies);
  for (uint32_t i = 0; job->copies != NULL && i < job->inputs.count; ++i) {
    tilewright_tensor* tensor = &job->inputs.tensors[i];
    if (tensor->data == NULL) continue;
    job->copies[i] = malloc((size_t)tensor->bytes + 1);
    if (job->copies[i] == NULL) return -1;
    memcpy(job->copies[i], tensor->data, (size_t)tensor->bytes);
    tensor->data = job->copies[i];
  }
  return job->copies == NULL;
}

static napi_value run_async(napi_env env, napi_callback_info info) {
  napi_value arguments[9], promise, name = text_of(env, "tilewright");
  arguments_of(env, info, arguments, 9);
  job* started = calloc(1, sizeof *started);
  if (started == NULL) return no_arrays(env);
  *started = (job){.model = model_of(env, arguments[0]), .inputs = arrays_of(env, arguments + 1), .outputs = arrays_of(env, arguments + 5)};
  if (started->inputs.tensors == NULL || started->outputs.tensors == NULL || copy_inputs(started)) {
    free_job(started);
    return no_arrays(env);
  }
  napi_create_reference(env, arguments[5], 1, &started->kept);
  napi_create_promise(env, &started->deferred, &promise);
  napi_create_async_work(env, NULL, name, execute, complete, started, &started->work);
  napi_queue_async_work(env, started->work);
  return promise;
}

NAPI_MODULE_INIT() {
  const struct {
    const char* name;
    napi_callback function;
  } functions[] = {{"open", open_path},       {"openBytes", open_bytes},          {"close", close_model},
                   {"describe", describe},    {"outputShapes", output_shapes},    {"setNumThreads", set_num_threads},
                   {"runSync", run_sync},     {"run", run_async}};
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
    napi_value function;
    napi_create_function(env, functions[i].name, NAPI_AUTO_LENGTH, functions[i].function, NULL, &function);
    napi_set_named_property(env, exports, functions[i].name, function);
  }
  return exports;
}
