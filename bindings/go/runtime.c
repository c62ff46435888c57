/* The runtime for C, compiled into the package. */

#include "../c/src/tilewright.c"
