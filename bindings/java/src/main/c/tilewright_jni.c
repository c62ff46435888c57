/* The runtime for C as native methods of dev.tilewright.Native: see there for what they take. */

#include <jni.h>
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

#define METHOD(name) JNIEXPORT jint JNICALL Java_dev_tilewright_Native_##name

/* Writes the sentence of an error to Java's array, as much as it has room for; gives back the status. */
static jint finish(JNIEnv* env, tilewright_status status, const tilewright_error* error, jbyteArray to) {
  if (status) {
    jsize room = (*env)->GetArrayLength(env, to), length = (jsize)strnlen(error->message, sizeof error->message);
    (*env)->SetByteArrayRegion(env, to, 0, length < room ? length : room, (const jbyte*)error->message);
  }
  return status;
}

static jbyteArray bytes_of(JNIEnv* env, const char* text) {
  if (text == NULL) return NULL;
  jsize length = (jsize)strlen(text);
  jbyteArray bytes = (*env)->NewByteArray(env, length);
  if (bytes != NULL) (*env)->SetByteArrayRegion(env, bytes, 0, length, (const jbyte*)text);
  return bytes;
}

METHOD(open)(JNIEnv* env, jclass class, jbyteArray path, jlongArray model, jbyteArray to) {
  (void)class;
  tilewright_error error;
  tilewright_model opened = 0;
  jbyte* text = (*env)->GetByteArrayElements(env, path, NULL);
  if (text == NULL) return TILEWRIGHT_OUT_OF_MEMORY;
  tilewright_status status = tilewright_open((const char*)text, &opened, &error);
  (*env)->ReleaseByteArrayElements(env, path, text, JNI_ABORT);
  jlong number = opened;
  (*env)->SetLongArrayRegion(env, model, 0, 1, &number);
  return finish(env, status, &error, to);
}

METHOD(openBytes)(JNIEnv* env, jclass class, jbyteArray library, jlongArray model, jbyteArray to) {
  (void)class;
  tilewright_error error;
  tilewright_model opened = 0;
  jbyte* bytes = (*env)->GetByteArrayElements(env, library, NULL);
  if (bytes == NULL) return TILEWRIGHT_OUT_OF_MEMORY;
  tilewright_status status = tilewright_open_bytes(bytes, (*env)->GetArrayLength(env, library), &opened, &error);
  (*env)->ReleaseByteArrayElements(env, library, bytes, JNI_ABORT);
  jlong number = opened;
  (*env)->SetLongArrayRegion(env, model, 0, 1, &number);
  return finish(env, status, &error, to);
}

METHOD(close)(JNIEnv* env, jclass class, jlong model, jbyteArray to) {
  (void)class;
  tilewright_error error;
  return finish(env, tilewright_close(model, &error), &error, to);
}

METHOD(describe)(JNIEnv* env, jclass class, jlong model, jobjectArray name, jintArray counts, jbyteArray to) {
  (void)class;
  tilewright_error error;
  const char* text = NULL;
  jint numbers[2];
  tilewright_status status = tilewright_describe(model, &text, &numbers[0], &numbers[1], NULL, &error);
  if (!status) {
    (*env)->SetIntArrayRegion(env, counts, 0, 2, numbers);
    (*env)->SetObjectArrayElement(env, name, 0, bytes_of(env, text));
  }
  return finish(env, status, &error, to);
}

METHOD(inspect)(JNIEnv* env, jclass class, jlong model, jint role, jint index, jintArray numbers, jobjectArray shape,
                jobjectArray texts, jbyteArray to) {
  (void)class;
  tilewright_error error;
  tilewright_value value;
  tilewright_status status = tilewright_inspect(model, role, index, &value, &error);
  if (status) return finish(env, status, &error, to);
  jint both[] = {value.dtype, value.rank};
  (*env)->SetIntArrayRegion(env, numbers, 0, 2, both);
  jlongArray sizes = (*env)->NewLongArray(env, value.rank);
  jclass bytes_class = (*env)->FindClass(env, "[B");
  jobjectArray all = sizes && bytes_class ? (*env)->NewObjectArray(env, value.rank + 1, bytes_class, NULL) : NULL;
  if (all == NULL) return TILEWRIGHT_OUT_OF_MEMORY;
  for (int32_t axis = 0; axis < value.rank; ++axis) {
    jlong size = value.shape[axis];
    (*env)->SetLongArrayRegion(env, sizes, axis, 1, &size);
    (*env)->SetObjectArrayElement(env, all, axis + 1, bytes_of(env, value.symbolic[axis]));
  }
  (*env)->SetObjectArrayElement(env, all, 0, bytes_of(env, value.name));
  (*env)->SetObjectArrayElement(env, shape, 0, sizes);
  (*env)->SetObjectArrayElement(env, texts, 0, all);
  return TILEWRIGHT_OK;
}

METHOD(metadata)(JNIEnv* env, jclass class, jlong model, jobjectArray json, jbyteArray to) {
  (void)class;
  tilewright_error error;
  const char* text;
  tilewright_status status = tilewright_metadata(model, &text, &error);
  if (!status) (*env)->SetObjectArrayElement(env, json, 0, bytes_of(env, text));
  return finish(env, status, &error, to);
}

METHOD(setNumThreads)(JNIEnv* env, jclass class, jlong model, jlong threads, jbyteArray to) {
  (void)class;
  tilewright_error error;
  return finish(env, tilewright_set_num_threads(model, threads, &error), &error, to);
}

/* Descriptions of arrays with copies of their shapes behind them; `buffers` may be NULL. The caller frees them. */
static tilewright_tensor* tensors_of(JNIEnv* env, jobjectArray buffers, jobjectArray shapes, jintArray dtypes, jsize* count) {
  *count = (*env)->GetArrayLength(env, dtypes);
  size_t dims = 0;
  for (jsize i = 0; i < *count; ++i) {
    jlongArray shape = (*env)->GetObjectArrayElement(env, shapes, i);
    dims += (size_t)(*env)->GetArrayLength(env, shape);
    (*env)->DeleteLocalRef(env, shape);
  }
  tilewright_tensor* tensors = calloc(1, (size_t)*count * sizeof *tensors + dims * sizeof(int64_t) + 1);
  int64_t* at = tensors == NULL ? NULL : (int64_t*)(tensors + *count);
  for (jsize i = 0; tensors != NULL && i < *count; ++i) {
    jlongArray shape = (*env)->GetObjectArrayElement(env, shapes, i);
    tensors[i].rank = (*env)->GetArrayLength(env, shape);
    tensors[i].shape = at;
    (*env)->GetLongArrayRegion(env, shape, 0, tensors[i].rank, (jlong*)at);
    (*env)->GetIntArrayRegion(env, dtypes, i, 1, &tensors[i].dtype);
    at += tensors[i].rank;
    (*env)->DeleteLocalRef(env, shape);
    if (buffers == NULL) continue;
    jobject buffer = (*env)->GetObjectArrayElement(env, buffers, i);
    tensors[i].data = (*env)->GetDirectBufferAddress(env, buffer);
    tensors[i].bytes = (*env)->GetDirectBufferCapacity(env, buffer);
    (*env)->DeleteLocalRef(env, buffer); /* the array keeps it alive */
  }
  return tensors;
}

METHOD(outputShapes)(JNIEnv* env, jclass class, jlong model, jobjectArray shapes, jintArray dtypes, jlongArray dimensions,
                     jbyteArray to) {
  (void)class;
  tilewright_error error = {TILEWRIGHT_OUT_OF_MEMORY, "no memory to describe the arrays"};
  jsize count, capacity = (*env)->GetArrayLength(env, dimensions);
  tilewright_tensor* tensors = tensors_of(env, NULL, shapes, dtypes, &count);
  int64_t* dims = calloc((size_t)capacity + 1, sizeof *dims);
  tilewright_status status = TILEWRIGHT_OUT_OF_MEMORY;
  if (tensors != NULL && dims != NULL) status = tilewright_output_shapes(model, tensors, count, dims, capacity, &error);
  if (!status) (*env)->SetLongArrayRegion(env, dimensions, 0, capacity, (const jlong*)dims);
  free(tensors);
  free(dims);
  return finish(env, status, &error, to);
}

METHOD(run)(JNIEnv* env, jclass class, jlong model, jobjectArray buffers, jobjectArray shapes, jintArray dtypes, jint inputs,
            jbyteArray to) {
  (void)class;
  tilewright_error error = {TILEWRIGHT_OUT_OF_MEMORY, "no memory to describe the arrays"};
  jsize count;
  tilewright_tensor* tensors = tensors_of(env, buffers, shapes, dtypes, &count);
  tilewright_status status = TILEWRIGHT_OUT_OF_MEMORY;
  if (tensors != NULL) status = tilewright_run(model, tensors, inputs, tensors + inputs, count - inputs, &error);
  free(tensors);
  return finish(env, status, &error, to);
}
