/* The whole runtime as one translation unit, for those who would rather compile one file into their program. */

#include "library.c"

#include "model.c"

#include "job.c"

#include "device.c"

#include "opencl.c"

#include "cuda.c"
