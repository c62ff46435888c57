"""CUDA C++, as NVRTC compiles it without any header."""

from __future__ import annotations

from typing import ClassVar

from tilewright.codegen.c.dialect import Dialect
from tilewright.ir.dtype import DataType

_BITS = {
    ("float32", "int32"): "__float_as_int",
    ("float32", "uint32"): "__float_as_uint",
    ("int32", "float32"): "__int_as_float",
    ("uint32", "float32"): "__uint_as_float",
    ("float64", "int64"): "__double_as_longlong",
    ("int64", "float64"): "__longlong_as_double",
}


class CudaDialect(Dialect):
    """CUDA C++: one address space in the text, mathematics by type."""

    name: ClassVar[str] = "CUDA"
    types: ClassVar[dict[str, str]] = {
        "bool": "bool",
        "int8": "signed char",
        "int16": "short",
        "int32": "int",
        "int64": "long long",
        "uint8": "unsigned char",
        "uint16": "unsigned short",
        "uint32": "unsigned int",
        "uint64": "unsigned long long",
        "float32": "float",
        "float64": "double",
    }
    function_prefix: ClassVar[str] = "static __device__ __forceinline__ "
    infinity: ClassVar[str] = "__int_as_float(0x7f800000)"
    not_a_number: ClassVar[str] = "__int_as_float(0x7fc00000)"

    def preamble(self, uses_double: bool) -> str:
        """Nothing: what is used is built in."""
        return ""

    def signature(self, name: str, parameters: list[str], threads: int) -> str:
        """The head of a kernel, with its launch bounds."""
        return f'extern "C" __global__ void __launch_bounds__({threads}) {name}({", ".join(parameters)})'

    def pointer(self, element: str, name: str, is_written: bool) -> str:
        """A pointer that no other parameter reaches."""
        return f"{'' if is_written else 'const '}{element}* __restrict__ {name}"

    def shared(self, element: str, name: str, size: int) -> str:
        """Shared memory of the block, aligned for vector accesses."""
        return f"__shared__ __align__(16) {element} {name}[{size}];"

    def axis(self, name: str) -> str:
        """A builtin variable."""
        return f"(int){name}"

    def barrier(self, scope: str) -> str:
        """A barrier of the block; it orders shared and global memory."""
        return "__syncthreads();"

    def shuffle(self, value: str, thread: str) -> str:
        """A shuffle of the whole warp: the number of the thread counts modulo its size."""
        return f"__shfl_sync(0xffffffffu, {value}, {thread})"

    def math(self, name: str, dtype: DataType) -> str:
        """The function of the CUDA mathematics for the type."""
        base = {"round": "rint", "abs": "fabs"}.get(name, name)
        return base if dtype.bits == 64 or base in ("isnan", "isinf", "isfinite") else f"{base}f"

    def bits(self, value: str, source: DataType, target: DataType) -> str:
        """The intrinsics that keep bits."""
        found = _BITS.get((source.element.name, target.element.name))
        if found is not None:
            return f"{found}({value})"
        if source.is_float:
            return f"({self.types['uint64']})__double_as_longlong({value})"
        return f"__longlong_as_double((long long){value})"

    def half_helpers(self) -> dict[str, str]:
        """Conversions by the instructions themselves, so that no header is needed."""
        head = self.function_prefix
        asm = "asm("
        return {
            "tw_half_bits_float": f"{head}unsigned short tw_half_bits_float(float x) {{ unsigned short bits; "
            f'{asm}"cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); return bits; }}',
            "tw_half_bits_double": f"{head}unsigned short tw_half_bits_double(double x) {{ unsigned short bits; "
            f'{asm}"cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(x)); return bits; }}',
            "tw_half_value": f"{head}float tw_half_value(unsigned short bits) {{ float x; "
            f'{asm}"cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits)); return x; }}',
        }

    def count_bits(self, value: str, wide: bool, leading: bool) -> str:
        """`__clz` and `__popc`."""
        name = {(False, True): "__clz", (True, True): "__clzll", (False, False): "__popc", (True, False): "__popcll"}
        return f"{name[wide, leading]}(({self.types['uint64' if wide else 'uint32']}){value})"
