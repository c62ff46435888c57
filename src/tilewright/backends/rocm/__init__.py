"""HIP C++ for AMD GPUs: the dialect."""
