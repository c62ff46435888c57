"""SPIR-V for Vulkan: assembler, modules, expressions and kernels."""
