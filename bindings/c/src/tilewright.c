/* The whole runtime as one translation unit, for those who would rather compile one file into their program. */

#include "seal.c"

#ifdef _WIN32
#include "pe.c"

#include "system_windows.c"
#else
#include "system_linux.c"
#endif

#include "library.c"

#include "model.c"

#include "job.c"

#include "device.c"

#include "opencl.c"

#include "cuda.c"
