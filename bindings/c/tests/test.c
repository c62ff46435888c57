/* Tests of the runtime for C: test FOLDER (what bindings/models.py wrote). Prints "ok <what>" for each. */

#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "join.h"
#include "tilewright.h"

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition, error.message); \
      exit(1); \
    } \
  } while (0)

size_t __sanitizer_get_current_allocated_bytes(void); /* of the address sanitizer */

/* The thread sanitizer counts memory of its own. */
#ifdef __SANITIZE_THREAD__
#define IS_FOR_THREADS 1
#else
#define IS_FOR_THREADS 0
#endif

static const char* folder;
static tilewright_error error;

static const char* library(const char* name) {
  static char path[4096];
  snprintf(path, sizeof path, "%s/%s.so", folder, name);
  return path;
}

static tilewright_model open_model(const char* name) {
  tilewright_model model = 0;
  CHECK(tilewright_open(library(name), &model, &error) == TILEWRIGHT_OK && model > 0);
  return model;
}

static int says(const char* text) { return strstr(error.message, text) != NULL; }

#define TENSOR(data, dtype, ...) \
  {(void*)(data), (int64_t)sizeof(data), (const int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / 8, dtype}

/* ---------------------------------------------------------------- rows: float32[5, 4], int64[3] -> float32[3, 4] */

static float table[20];
static const int64_t ids[3] = {4, 0, 2};

static tilewright_status run_rows(tilewright_model model, const int64_t* numbers, float* rows, tilewright_error* said) {
  const tilewright_tensor inputs[] = {{table, sizeof table, (const int64_t[]){5, 4}, 2, TILEWRIGHT_FLOAT32},
                                      {(void*)numbers, 24, (const int64_t[]){3}, 1, TILEWRIGHT_INT64}};
  const tilewright_tensor outputs[] = {{rows, 48, (const int64_t[]){3, 4}, 2, TILEWRIGHT_FLOAT32}};
  return tilewright_run(model, inputs, 2, outputs, 1, said);
}

static int are_rows(const float* rows) {
  for (int i = 0; i < 12; ++i)
    if (rows[i] != table[ids[i / 4] * 4 + i % 4]) return 0;
  return 1;
}

static void test_load(void) {
  tilewright_model model = open_model("digits");
  const char *name, *json;
  int32_t inputs, outputs, symbols;
  CHECK(!tilewright_describe(model, &name, &inputs, &outputs, &symbols, &error));
  CHECK(!strcmp(name, "digits") && inputs == 1 && outputs == 2 && symbols == 1);
  tilewright_value value;
  CHECK(!tilewright_inspect(model, TILEWRIGHT_INPUT, 0, &value, &error));
  CHECK(!strcmp(value.name, "image") && value.dtype == TILEWRIGHT_FLOAT32 && value.rank == 3);
  CHECK(value.shape[0] == -1 && value.shape[1] == 7 && value.shape[2] == 5);
  CHECK(!strcmp(value.symbolic[0], "batch") && value.symbolic[1] == NULL);
  CHECK(!tilewright_inspect(model, TILEWRIGHT_OUTPUT, 1, &value, &error));
  CHECK(!strcmp(value.name, "digit") && value.dtype == TILEWRIGHT_INT64 && value.rank == 1);
  CHECK(!strcmp(tilewright_dtype_name(value.dtype), "int64") && tilewright_dtype_size(value.dtype) == 8);
  CHECK(tilewright_dtype_name(0) == NULL && tilewright_dtype_name(99) == NULL && tilewright_dtype_size(-1) == 0);
  CHECK(!tilewright_metadata(model, &json, &error) && strstr(json, "\"library\":\"digits\""));
  CHECK(tilewright_inspect(model, TILEWRIGHT_OUTPUT, 2, &value, &error) == TILEWRIGHT_INVALID_ARGUMENT && says("2 outputs"));
  CHECK(tilewright_inspect(model, 7, 0, &value, &error) == TILEWRIGHT_INVALID_ARGUMENT);
  CHECK(!tilewright_set_num_threads(model, 1, &error));
  CHECK(tilewright_set_num_threads(model, -1, &error) == TILEWRIGHT_INVALID_ARGUMENT);
  CHECK(!tilewright_close(model, &error));
  CHECK(tilewright_api_version() == TILEWRIGHT_API_VERSION);
}

static void test_run(void) {
  tilewright_model model = open_model("rows");
  float rows[12] = {0};
  CHECK(!run_rows(model, ids, rows, &error) && are_rows(rows));
  CHECK(!tilewright_close(model, &error));
}

/* From memory, and from a library that the program is linked with. */
static void test_other_sources(void) {
  FILE* file = fopen(library("rows"), "rb");
  static char bytes[1 << 20];
  int64_t size = (int64_t)fread(bytes, 1, sizeof bytes, file);
  fclose(file);
  tilewright_model model;
  float rows[12] = {0};
  CHECK(!tilewright_open_bytes(bytes, size, &model, &error) && !run_rows(model, ids, rows, &error) && are_rows(rows));
  CHECK(!tilewright_close(model, &error));
  CHECK(tilewright_open_bytes(bytes, size - 1, &model, &error) == TILEWRIGHT_BAD_LIBRARY && model == 0);
  CHECK(tilewright_open_bytes(bytes, 0, &model, &error) == TILEWRIGHT_BAD_LIBRARY);
  CHECK(!tilewright_open_linked(&join__interface, &model, &error) && !tilewright_close(model, &error));
}

static void test_dynamic(void) {
  tilewright_model model = open_model("join");
  const float left[] = {1, 2, 3, 4}, scale[] = {10, 100}, right[] = {5, 6, 7, 8, 9, 10};
  const tilewright_tensor inputs[] = {TENSOR(left, TILEWRIGHT_FLOAT32, 2, 2), TENSOR(scale, TILEWRIGHT_FLOAT32, 2),
                                      TENSOR(right, TILEWRIGHT_FLOAT32, 3, 2)};
  int64_t dims[2];
  CHECK(!tilewright_output_shapes(model, inputs, 3, dims, 2, &error) && dims[0] == 5 && dims[1] == 2);
  CHECK(tilewright_output_shapes(model, inputs, 3, dims, 1, &error) == TILEWRIGHT_INVALID_ARGUMENT);
  float joined[10];
  const float expected[] = {10, 20, 300, 400, 5, 6, 7, 8, 9, 10};
  const tilewright_tensor output[] = {TENSOR(joined, TILEWRIGHT_FLOAT32, 5, 2)};
  CHECK(!tilewright_run(model, inputs, 3, output, 1, &error) && !memcmp(joined, expected, sizeof joined));
  /* No rows at all on the left: other sizes in the next call. */
  const tilewright_tensor fewer[] = {{NULL, 0, (const int64_t[]){0, 2}, 2, TILEWRIGHT_FLOAT32},
                                     {NULL, 0, (const int64_t[]){0}, 1, TILEWRIGHT_FLOAT32},
                                     TENSOR(right, TILEWRIGHT_FLOAT32, 3, 2)};
  const tilewright_tensor smaller[] = {{joined, 24, (const int64_t[]){3, 2}, 2, TILEWRIGHT_FLOAT32}};
  CHECK(!tilewright_run(model, fewer, 3, smaller, 1, &error) && !memcmp(joined, right, sizeof right));
  CHECK(!tilewright_close(model, &error));
}

/* ---------------------------------------------------------------- asynchronous */

static void count_done(void* context, tilewright_status status, const tilewright_error* said) {
  (void)said;
  if (status == TILEWRIGHT_OK) __atomic_add_fetch((int*)context, 1, __ATOMIC_SEQ_CST);
}

static void test_async(void) {
  enum { JOBS = 8 };
  tilewright_model model = open_model("rows");
  float rows[JOBS][12];
  int done = 0;
  tilewright_job* jobs[JOBS];
  for (int i = 0; i < JOBS; ++i) {
    /* The descriptions are gone when the job runs. */
    const tilewright_tensor inputs[] = {TENSOR(table, TILEWRIGHT_FLOAT32, 5, 4), TENSOR(ids, TILEWRIGHT_INT64, 3)};
    const tilewright_tensor outputs[] = {{rows[i], 48, (const int64_t[]){3, 4}, 2, TILEWRIGHT_FLOAT32}};
    CHECK(!tilewright_start(model, inputs, 2, outputs, 1, count_done, &done, &jobs[i], &error));
  }
  CHECK(!tilewright_close(model, &error)); /* jobs that have started end */
  for (int i = 0; i < JOBS; ++i) CHECK(!tilewright_wait(jobs[i], &error) && are_rows(rows[i]));
  CHECK(done == JOBS);
  /* An error of the run comes from wait, one of the arguments from start. */
  model = open_model("rows");
  const int64_t wrong[] = {0, 7, 1};
  const tilewright_tensor inputs[] = {TENSOR(table, TILEWRIGHT_FLOAT32, 5, 4), TENSOR(wrong, TILEWRIGHT_INT64, 3)};
  const tilewright_tensor outputs[] = {TENSOR(rows[0], TILEWRIGHT_FLOAT32, 3, 4)};
  tilewright_job* job;
  CHECK(!tilewright_start(model, inputs, 2, outputs, 1, NULL, NULL, &job, &error));
  CHECK(tilewright_wait(job, &error) == TILEWRIGHT_BAD_DATA && says("lookup"));
  CHECK(tilewright_start(model, inputs, 1, outputs, 1, NULL, NULL, &job, &error) == TILEWRIGHT_INVALID_ARGUMENT && job == NULL);
  CHECK(tilewright_wait(NULL, &error) == TILEWRIGHT_INVALID_ARGUMENT);
  CHECK(!tilewright_close(model, &error));
}

/* ---------------------------------------------------------------- errors */

static void test_wrong_arguments(void) {
  tilewright_model model = open_model("rows");
  float rows[13];
  const tilewright_tensor good[] = {TENSOR(table, TILEWRIGHT_FLOAT32, 5, 4), TENSOR(ids, TILEWRIGHT_INT64, 3)};
  const tilewright_tensor output = {rows, 48, (const int64_t[]){3, 4}, 2, TILEWRIGHT_FLOAT32};
#define RUN(input, out) tilewright_run(model, (const tilewright_tensor[]){input, good[1]}, 2, (const tilewright_tensor[]){out}, 1, &error)
  tilewright_tensor bad = good[0];
  bad.dtype = TILEWRIGHT_FLOAT64;
  CHECK(RUN(bad, output) == TILEWRIGHT_BAD_TYPE && says("'table' is of float64, expected float32"));
  bad.dtype = 77;
  CHECK(RUN(bad, output) == TILEWRIGHT_BAD_TYPE);
  bad = good[0], bad.shape = (const int64_t[]){4, 4};
  CHECK(RUN(bad, output) == TILEWRIGHT_BAD_SHAPE && says("has the shape [4, 4], expected [5, 4]: axis 0 must be 5, not 4"));
  bad = good[0], bad.rank = 1;
  CHECK(RUN(bad, output) == TILEWRIGHT_BAD_SHAPE && says("(1 dimensions)"));
  bad = good[0], bad.rank = -1;
  CHECK(RUN(bad, output) == TILEWRIGHT_INVALID_ARGUMENT);
  bad = good[0], bad.shape = NULL;
  CHECK(RUN(bad, output) == TILEWRIGHT_INVALID_ARGUMENT);
  bad = good[0], bad.bytes = 79;
  CHECK(RUN(bad, output) == TILEWRIGHT_BAD_SHAPE && says("79 bytes, its shape needs 80"));
  bad = good[0], bad.data = NULL;
  CHECK(RUN(bad, output) == TILEWRIGHT_INVALID_ARGUMENT && says("has no memory"));
  bad = output, bad.data = (char*)rows + 2;
  CHECK(RUN(good[0], bad) == TILEWRIGHT_INVALID_ARGUMENT && says("not aligned"));
  bad = output, bad.data = table + 4;
  CHECK(RUN(good[0], bad) == TILEWRIGHT_INVALID_ARGUMENT && says("shares memory with input 'table'"));
  bad = output, bad.shape = (const int64_t[]){2, 4};
  CHECK(RUN(good[0], bad) == TILEWRIGHT_BAD_SHAPE && says("output 'rows'"));
  CHECK(tilewright_run(model, good, 1, &output, 1, &error) == TILEWRIGHT_INVALID_ARGUMENT && says("2 inputs, 1 were given"));
  CHECK(tilewright_run(model, NULL, 2, &output, 1, &error) == TILEWRIGHT_INVALID_ARGUMENT);
  CHECK(tilewright_run(model, good, 2, NULL, 1, NULL) == TILEWRIGHT_INVALID_ARGUMENT);
  const int64_t wrong[] = {0, 7, 1};
  CHECK(run_rows(model, wrong, rows, &error) == TILEWRIGHT_BAD_DATA && says("lookup") && says("out of range"));
  CHECK(!run_rows(model, ids, rows, &error) && are_rows(rows));
  CHECK(!tilewright_close(model, &error));
}

static void test_wrong_symbols(void) {
  tilewright_model model = open_model("join");
  const float left[] = {1, 2, 3, 4};
  int64_t dims[2];
  tilewright_tensor inputs[] = {TENSOR(left, TILEWRIGHT_FLOAT32, 2, 2), TENSOR(left, TILEWRIGHT_FLOAT32, 4),
                                TENSOR(left, TILEWRIGHT_FLOAT32, 2, 2)};
  CHECK(tilewright_output_shapes(model, inputs, 3, dims, 2, &error) == TILEWRIGHT_BAD_SHAPE);
  CHECK(says("input 'scale' has the shape [4], expected [n]: axis 0 does not fit"));
  inputs[2].shape = (const int64_t[]){-3, 2};
  CHECK(tilewright_output_shapes(model, inputs, 3, dims, 2, &error) == TILEWRIGHT_BAD_SHAPE);
  inputs[2].shape = (const int64_t[]){INT64_MAX / 2, 2};
  CHECK(tilewright_output_shapes(model, inputs, 3, dims, 2, &error) == TILEWRIGHT_BAD_SHAPE && says("cannot have the shape"));
  CHECK(!tilewright_close(model, &error));
}

static void test_bad_libraries(void) {
  tilewright_model model = 5;
  CHECK(tilewright_open("/nowhere/model.so", &model, &error) == TILEWRIGHT_NOT_READABLE && model == 0);
  CHECK(says("cannot read the library /nowhere/model.so: No such file"));
  CHECK(tilewright_open(folder, &model, &error) == TILEWRIGHT_NOT_READABLE && says("not a file"));
  CHECK(tilewright_open("/dev/zero", &model, &error) == TILEWRIGHT_NOT_READABLE);
  CHECK(tilewright_open(NULL, &model, &error) == TILEWRIGHT_INVALID_ARGUMENT);
  CHECK(tilewright_open_linked(NULL, &model, &error) == TILEWRIGHT_INVALID_ARGUMENT);
  CHECK(tilewright_open(library("loop"), &model, &error) == TILEWRIGHT_UNSUPPORTED && says("virtual machine"));
  CHECK(tilewright_open(library("functions"), &model, &error) == TILEWRIGHT_UNSUPPORTED && says("not a model"));
  char path[4096];
  snprintf(path, sizeof path, "%s/damaged", folder);
  DIR* damaged = opendir(path);
  CHECK(damaged != NULL);
  int count = 0;
  for (struct dirent* item; (item = readdir(damaged)) != NULL;) {
    if (item->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "%s/damaged/%s", folder, item->d_name);
    tilewright_status status = tilewright_open(path, &model, &error);
    if (status != TILEWRIGHT_BAD_LIBRARY && status != TILEWRIGHT_UNSUPPORTED) {
      fprintf(stderr, "%s was not refused: %d\n", path, status);
      exit(1);
    }
    CHECK(strstr(error.message, item->d_name));
    ++count;
  }
  closedir(damaged);
  CHECK(count > 20);
}

/* A file that is cut after it was opened: mapped pages would be gone. */
static void test_file_changes(void) {
  char path[4096], command[9000];
  snprintf(path, sizeof path, "/tmp/tilewright-test-%d.so", (int)getpid());
  snprintf(command, sizeof command, "cp %s %s", library("rows"), path);
  CHECK(system(command) == 0);
  tilewright_model model;
  CHECK(!tilewright_open(path, &model, &error));
  CHECK(truncate(path, 100) == 0);
  float rows[12];
  CHECK(!run_rows(model, ids, rows, &error) && are_rows(rows));
  tilewright_model again;
  CHECK(tilewright_open(path, &again, &error) == TILEWRIGHT_BAD_LIBRARY);
  unlink(path);
  CHECK(!tilewright_close(model, &error));
}

static void test_closed(void) {
  tilewright_model model = open_model("rows");
  CHECK(!tilewright_close(model, &error));
  float rows[12];
  const char* text;
  tilewright_value value;
  int64_t dims[2];
  CHECK(run_rows(model, ids, rows, &error) == TILEWRIGHT_CLOSED && says("has been closed"));
  CHECK(tilewright_close(model, &error) == TILEWRIGHT_CLOSED);
  CHECK(tilewright_describe(model, &text, NULL, NULL, NULL, &error) == TILEWRIGHT_CLOSED);
  CHECK(tilewright_inspect(model, TILEWRIGHT_INPUT, 0, &value, &error) == TILEWRIGHT_CLOSED);
  CHECK(tilewright_metadata(model, &text, &error) == TILEWRIGHT_CLOSED);
  CHECK(tilewright_set_num_threads(model, 1, &error) == TILEWRIGHT_CLOSED);
  CHECK(tilewright_output_shapes(model, NULL, 0, dims, 2, &error) == TILEWRIGHT_CLOSED);
  /* The place is used again; the old number still stands for nothing. */
  tilewright_model other = open_model("rows");
  CHECK(other != model && run_rows(model, ids, rows, &error) == TILEWRIGHT_CLOSED);
  for (tilewright_model invented = -3; invented < 4; ++invented) CHECK(tilewright_close(invented, NULL) == TILEWRIGHT_CLOSED);
  CHECK(!tilewright_close(other, &error));
}

/* ---------------------------------------------------------------- threads */

static tilewright_model shared;
static int closed_seen, failures;

static void* hammer(void* given) {
  int until_closed = given != NULL;
  for (int i = 0; i < 300 || until_closed; ++i) {
    float rows[12] = {0};
    tilewright_error said = {0};
    tilewright_status status = run_rows(shared, ids, rows, &said);
    if (status == TILEWRIGHT_CLOSED && until_closed) {
      __atomic_add_fetch(&closed_seen, 1, __ATOMIC_SEQ_CST);
      break;
    }
    if (status || !are_rows(rows)) __atomic_add_fetch(&failures, 1, __ATOMIC_SEQ_CST);
  }
  return NULL;
}

static void test_threads(void) {
  enum { THREADS = 4 };
  pthread_t threads[THREADS];
  closed_seen = 0;
  for (int closing = 0; closing < 2; ++closing) {
    shared = open_model("rows");
    for (int i = 0; i < THREADS; ++i) CHECK(!pthread_create(&threads[i], NULL, hammer, closing ? &shared : NULL));
    if (closing) {
      usleep(20000);
      CHECK(!tilewright_close(shared, &error));
    }
    for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
    if (!closing) CHECK(!tilewright_close(shared, &error));
  }
  CHECK(failures == 0 && closed_seen == THREADS);
}

static void test_gpu_refused(void) {
  tilewright_model model;
  CHECK(tilewright_open(library("device_open"), &model, &error) == TILEWRIGHT_UNSUPPORTED && says("device (opencl)"));
}

static void run_digits(const char* name, float* probabilities, int64_t* digit) {
  float image[35];
  for (int i = 0; i < 35; ++i) image[i] = i % 3 == 0;
  tilewright_model model = open_model(name);
  const tilewright_tensor inputs[] = {TENSOR(image, TILEWRIGHT_FLOAT32, 1, 7, 5)};
  const tilewright_tensor outputs[] = {{probabilities, 40, (const int64_t[]){1, 10}, 2, TILEWRIGHT_FLOAT32},
                                       {digit, 8, (const int64_t[]){1}, 1, TILEWRIGHT_INT64}};
  CHECK(!tilewright_run(model, inputs, 1, outputs, 2, &error));
  CHECK(tilewright_run(model, inputs, 0, outputs, 2, &error) == TILEWRIGHT_INVALID_ARGUMENT);
  CHECK(!tilewright_close(model, &error));
  CHECK(tilewright_run(model, inputs, 1, outputs, 2, &error) == TILEWRIGHT_CLOSED);
}

/* The same answers on a device as on the processor. */
static void test_gpu(void) {
  float here[10], there[10];
  int64_t digit_here, digit_there;
  run_digits("digits", here, &digit_here);
  run_digits("device", there, &digit_there);
  CHECK(digit_here == digit_there);
  for (int i = 0; i < 10; ++i) CHECK(here[i] - there[i] < 1e-5f && there[i] - here[i] < 1e-5f);
}

static const struct {
  const char* name;
  void (*function)(void);
} tests[] = {
    {"load", test_load},
    {"run", test_run},
    {"other sources", test_other_sources},
    {"dynamic shapes", test_dynamic},
    {"async", test_async},
    {"errors: arguments", test_wrong_arguments},
    {"errors: symbols", test_wrong_symbols},
    {"errors: libraries", test_bad_libraries},
    {"errors: the file changes", test_file_changes},
    {"errors: closed", test_closed},
    {"errors: threads", test_threads},
    {"gpu refused", test_gpu_refused},
};
enum { TESTS = sizeof tests / sizeof *tests };

static int next_descriptor(void) {
  int descriptor = dup(0);
  close(descriptor);
  return descriptor;
}

/* Libraries are loaded by now, and equal bytes are loaded once: all tests again must leave nothing behind. (The leak checker at
   the end of a program takes seconds on some machines; this counts the same memory.) */
static void test_leaks(void) {
  int descriptor = next_descriptor(), is_same = 0;
  /* The system keeps memory of threads that have ended; a leak shows in every round. */
  for (int round = 0; !is_same && round < 5; ++round) {
    size_t bytes = __sanitizer_get_current_allocated_bytes();
    for (int i = 0; i < TESTS; ++i) tests[i].function();
    is_same = __sanitizer_get_current_allocated_bytes() == bytes || IS_FOR_THREADS;
  }
  CHECK(next_descriptor() == descriptor);
  CHECK(is_same);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  folder = argv[1];
  for (int i = 0; i < 20; ++i) table[i] = (float)i + 0.5f;
  for (int i = 0; i < TESTS; ++i) {
    tests[i].function();
    printf("ok %s\n", tests[i].name);
  }
  fflush(stdout);
  test_leaks();
  printf("ok leaks\n");
  /* Only where a device is, and last: drivers keep memory of their own. */
  if (getenv("TILEWRIGHT_GPU") != NULL) {
    test_gpu();
    printf("ok gpu\n");
  }
  return 0;
}
