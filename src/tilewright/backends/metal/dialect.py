"""Metal Shading Language 2.3 and newer. float64 is unknown to it."""

from __future__ import annotations

from typing import ClassVar, Final

from tilewright.codegen.c.dialect import SHORT_TYPES, math_name
from tilewright.codegen.c.kernels import CLanguage
from tilewright.codegen.c.vectors import vector_spellings
from tilewright.ir.dtype import DataType

_SPACES: Final = {"shared": "threadgroup ", "local": "thread "}


class MetalDialect(CLanguage):
    """Metal's C++: address spaces are written out, functions are overloaded and named with their precision."""

    name: ClassVar[str] = "Metal"
    suffix: ClassVar[str] = ".metal"
    types: ClassVar[dict[str, str]] = SHORT_TYPES
    function_prefix: ClassVar[str] = "static inline "
    vector_types: ClassVar[dict[tuple[str, int], str]] = vector_spellings(
        (2, 4), {name: spelling for name, spelling in types.items() if name != "bool"}, types
    )
    infinity: ClassVar[str] = "as_type<float>(0x7f800000u)"
    not_a_number: ClassVar[str] = "as_type<float>(0x7fc00000u)"

    def preamble(self, uses_double: bool) -> str:
        """The standard library."""
        return "#include <metal_stdlib>\nusing namespace metal;\n"

    def signature(self, name: str, parameters: list[str], threads: int) -> str:
        """The head of a kernel: arguments are numbered, and places come as arguments too."""
        numbered = [f"{text} [[buffer({number})]]" for number, text in enumerate(map(_argument, parameters))]
        places = [
            "uint3 tw_group [[threadgroup_position_in_grid]]",
            "uint3 tw_local [[thread_position_in_threadgroup]]",
        ]
        bounds = f"[[max_total_threads_per_threadgroup({threads})]]"
        return f"{bounds} kernel void {name}({', '.join([*numbered, *places])})"

    def pointer(self, element: str, name: str, is_written: bool, is_constant: bool, is_alone: bool) -> str:
        """A pointer to device memory that no other parameter reaches."""
        return f"device {'' if is_written else 'const '}{element}*{' __restrict' if is_alone else ''} {name}"

    def shared(self, element: str, name: str, size: int) -> str:
        """Memory of the threadgroup, aligned for vector accesses."""
        return f"threadgroup __attribute__((aligned(16))) {element} {name}[{size}];"

    def axis(self, name: str) -> str:
        """A component of the places that the kernel is given."""
        kind, letter = name.split(".")
        return f"(int){'tw_group' if kind == 'blockIdx' else 'tw_local'}.{letter}"

    def barrier(self, scope: str) -> str:
        """A barrier of the threadgroup."""
        device = "" if scope == "shared" else " | mem_flags::mem_device"
        return f"threadgroup_barrier(mem_flags::mem_threadgroup{device});"

    def math(self, name: str, dtype: DataType) -> str:
        """The function of the library, the precise one: without it mathematics is fast and loose."""
        if name in ("isnan", "isinf", "isfinite", "copysign"):
            return name
        return f"precise::{math_name(name)}"

    def bits(self, value: str, source: DataType, target: DataType) -> str:
        """`as_type`."""
        return f"as_type<{self.types[target.element.name]}>({value})"

    def half_helpers(self) -> dict[str, str]:
        """Conversions through the type of halves."""
        head = self.function_prefix
        return {
            "tw_half_bits_float": f"{head}ushort tw_half_bits_float(float x) {{ return as_type<ushort>(half(x)); }}",
            "tw_half_value": f"{head}float tw_half_value(ushort bits) {{ return float(as_type<half>(bits)); }}",
        }

    def count_bits(self, value: str, wide: bool, leading: bool) -> str:
        """`clz` and `popcount`."""
        return f"(int){'clz' if leading else 'popcount'}(({'ulong' if wide else 'uint'}){value})"

    def load_vector(self, element: str, lanes: int, place: str, scope: str) -> str:
        """A read through a pointer to vectors in the space of the scope."""
        return f"*({_SPACES.get(scope, 'device ')}const {self.vector_type(element, lanes)}*)({place})"

    def load_word(self, place: str) -> str:
        """A read through a pointer to words of the device."""
        return f"*(device const int*)({place})"

    def store_vector(self, element: str, place: str, values: list[str], scope: str) -> str:
        """A write through a pointer to vectors in the space of the scope."""
        kind = self.vector_type(element, len(values))
        return f"*({_SPACES.get(scope, 'device ')}{kind}*)({place}) = {kind}({', '.join(values)});"


def _argument(text: str) -> str:
    """Scalars are read from constant memory."""
    if "*" in text:
        return text
    kind, _, name = text.removeprefix("const ").rpartition(" ")
    return f"constant {kind}& {name}"
