"""The virtual machine: bytecode for what is no straight run of kernels, its codec, verifier, text and interpreter."""
