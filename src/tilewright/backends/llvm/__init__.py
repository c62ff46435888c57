"""The LLVM back end: code generation, toolchain, object cache, JIT loading, thread pool, linking of exports."""
