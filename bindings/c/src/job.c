/* Runs on threads of their own. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct tilewright_job {
  tilewright_entry_* model;
  pthread_t thread;
  tilewright_done done;
  void* context;
  tilewright_error error;
  int32_t input_count, output_count;
  tilewright_tensor* tensors; /* inputs, then outputs; behind them their shapes */
};

static void* run_job(void* given) {
  tilewright_job* job = given;
  job->error.status = tilewright_run_held_(job->model, job->tensors, job->input_count, job->tensors + job->input_count,
                                           job->output_count, &job->error);
  tilewright_release_(job->model);
  if (job->done != NULL) job->done(job->context, job->error.status, &job->error);
  return NULL;
}

/* Copies of the descriptions of arrays, with their shapes. */
static tilewright_tensor* copy_tensors(const tilewright_tensor* inputs, int32_t input_count, const tilewright_tensor* outputs,
                                       int32_t output_count) {
  size_t count = (size_t)input_count + (size_t)output_count, dims = 0;
  for (size_t i = 0; i < count; ++i)
    dims += (size_t)(i < (size_t)input_count ? inputs[i] : outputs[i - (size_t)input_count]).rank;
  tilewright_tensor* copies = malloc(count * sizeof *copies + dims * sizeof(int64_t) + 1);
  if (copies == NULL) return NULL;
  int64_t* shape = (int64_t*)(copies + count);
  for (size_t i = 0; i < count; ++i) {
    copies[i] = i < (size_t)input_count ? inputs[i] : outputs[i - (size_t)input_count];
    if (copies[i].rank) memcpy(shape, copies[i].shape, (size_t)copies[i].rank * sizeof *shape);
    copies[i].shape = shape;
    shape += copies[i].rank;
  }
  return copies;
}

tilewright_status tilewright_start(tilewright_model model, const tilewright_tensor* inputs, int32_t input_count,
                                   const tilewright_tensor* outputs, int32_t output_count, tilewright_done done,
                                   void* context, tilewright_job** job, tilewright_error* error) {
  if (job == NULL) return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "the place for the job is NULL");
  *job = NULL;
  tilewright_status status = tilewright_check_(model, inputs, input_count, outputs, output_count, error);
  if (status) return status;
  tilewright_job* started = calloc(1, sizeof *started);
  tilewright_tensor* tensors = copy_tensors(inputs, input_count, outputs, output_count);
  if (started == NULL || tensors == NULL) {
    free(started);
    free(tensors);
    return tilewright_fail_(error, TILEWRIGHT_OUT_OF_MEMORY, "no memory for another job");
  }
  *started = (tilewright_job){.done = done, .context = context, .input_count = input_count, .output_count = output_count};
  started->tensors = tensors;
  status = tilewright_hold_(model, &started->model, error);
  if (!status && pthread_create(&started->thread, NULL, run_job, started)) {
    tilewright_release_(started->model);
    status = tilewright_fail_(error, TILEWRIGHT_OUT_OF_MEMORY, "the system gives no thread for another job");
  }
  if (status) {
    free(tensors);
    free(started);
    return status;
  }
  *job = started;
  return TILEWRIGHT_OK;
}

tilewright_status tilewright_wait(tilewright_job* job, tilewright_error* error) {
  if (job == NULL) return tilewright_fail_(error, TILEWRIGHT_INVALID_ARGUMENT, "there is no job to wait for");
  pthread_join(job->thread, NULL);
  tilewright_status status = job->error.status;
  if (error != NULL && status) *error = job->error;
  free(job->tensors);
  free(job);
  return status;
}
