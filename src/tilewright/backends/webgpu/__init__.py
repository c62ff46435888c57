"""WGSL, the language of WebGPU: types, helper functions, expressions and kernels."""
