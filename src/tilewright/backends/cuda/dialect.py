"""CUDA C++, as NVRTC compiles it without any header."""

from __future__ import annotations

from typing import ClassVar, Final

from tilewright.backends.cuda.instructions import function_name, instruction_text
from tilewright.backends.cuda.row_instructions import row_instruction_text
from tilewright.codegen.c.dialect import CPP_TYPES, CPP_VECTORS, DOT4_FUNCTION, math_name
from tilewright.codegen.c.kernels import CLanguage
from tilewright.codegen.c.vectors import vector_spellings
from tilewright.ir.dtype import DataType
from tilewright.tir.machine import DOT4

_BITS = {
    ("float32", "int32"): "__float_as_int",
    ("float32", "uint32"): "__float_as_uint",
    ("int32", "float32"): "__int_as_float",
    ("uint32", "float32"): "__uint_as_float",
    ("float64", "int64"): "__double_as_longlong",
    ("int64", "float64"): "__longlong_as_double",
}


_WORDS: Final = {4: "unsigned int", 8: "uint2", 16: "uint4"}
"""Words by how many bytes they have together."""


def _on_hopper(instruction: str) -> str:
    return f'#if __CUDA_ARCH__ >= 900\nasm volatile("{instruction}" ::: "memory");\n#endif'


_EXP2 = 'float e; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"({}));'
_RECIPROCAL = 'float q; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(q) : "f"({}));'
_ERFC = (
    "float a = fabsf(x), p = fmaf(a, -0.00287850755f, 0.0293595415f); p = fmaf(a, p, -0.148398432f); "
    f"p = fmaf(a, p, -0.918626926f); p = fmaf(a, p, -1.62787319f); {_EXP2.format('p * a')}"
)
"""`e` is the complement of the error function of |x|."""
_HALF_FUNCTIONS: Final = {
    "half_exp": f"{_EXP2.format('x * 1.44269504f')} return e;",
    "half_sigmoid": f"{_EXP2.format('x * -1.44269504f')} {_RECIPROCAL.format('1.0f + e')} return q;",
    # Near 0 the series, where the difference from 1 would have few digits.
    "half_tanh": f"{_EXP2.format('x * 2.88539008f')} {_RECIPROCAL.format('1.0f + e')} "
    "float s = x * x; return fabsf(x) < 0.1f ? x * (1.0f + s * (-0.33333333f + s * 0.13333333f)) : 1.0f - 2.0f * q;",
    # 1 - 2**(|x| p(|x|)), whose error is below 1e-6 and which needs no bounds, and the series near 0.
    "half_erf_plus_one": f"{_ERFC} return x < 0.0f ? e : 2.0f - e;",
    "half_erf": f"{_ERFC} float s = x * x; "
    "return a < 0.2f ? x * (1.12837917f + s * (-0.37612639f + s * 0.11283792f)) : copysignf(1.0f - e, x);",
}
"""Some 18 bits of each function, by the instructions of the unit for special functions."""


class CudaDialect(CLanguage):
    """CUDA C++: one address space in the text, mathematics by type."""

    name: ClassVar[str] = "CUDA"
    suffix: ClassVar[str] = ".cu"
    types: ClassVar[dict[str, str]] = CPP_TYPES
    function_prefix: ClassVar[str] = "static __device__ __forceinline__ "
    vector_types: ClassVar[dict[tuple[str, int], str]] = vector_spellings((2, 4), CPP_VECTORS, types)
    half_functions: ClassVar[dict[str, str]] = _HALF_FUNCTIONS
    long_suffix: ClassVar[str] = "LL"
    least_int64: ClassVar[str] = "((long long)(-9223372036854775807LL) - 1)"
    infinity: ClassVar[str] = "__int_as_float(0x7f800000)"
    not_a_number: ClassVar[str] = "__int_as_float(0x7fc00000)"

    def preamble(self, uses_double: bool) -> str:
        """Nothing: what is used is built in."""
        return ""

    def signature(self, name: str, parameters: list[str], threads: int) -> str:
        """The head of a kernel, with its launch bounds."""
        return f'extern "C" __global__ void __launch_bounds__({threads}) {name}({", ".join(parameters)})'

    def pointer(self, element: str, name: str, is_written: bool, is_constant: bool, is_alone: bool) -> str:
        """A pointer that no other parameter reaches, if it is alone.

        What earlier kernels write is not said to be so: compilers would read it before the kernel waits for them.
        """
        kind = " __restrict__" if is_alone and (is_written or is_constant) else ""
        return f"{'' if is_written else 'const '}{element}*{kind} {name}"

    def shared(self, element: str, name: str, size: int) -> str:
        """Shared memory of the block, aligned for vector accesses."""
        return f"__shared__ __align__(16) {element} {name}[{size}];"

    def wait_for_predecessors(self) -> str:
        """Programmatic dependent launch: returns at once where the launch did not ask for it."""
        return _on_hopper("griddepcontrol.wait;")

    def release_successors(self) -> str:
        """Programmatic dependent launch: the last block to come here lets the next kernel start."""
        return _on_hopper("griddepcontrol.launch_dependents;")

    def axis(self, name: str) -> str:
        """A builtin variable."""
        return f"(int){name}"

    def barrier(self, scope: str) -> str:
        """A barrier of the block; it orders shared and global memory."""
        if scope == "cluster":
            return 'asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");'
        return "__syncthreads();"

    def shuffle(self, value: str, thread: str) -> str:
        """A shuffle of the whole warp: the number of the thread counts modulo its size."""
        return f"__shfl_sync(0xffffffffu, {value}, {thread})"

    def math(self, name: str, dtype: DataType) -> str:
        """The function of the CUDA mathematics for the type."""
        base = math_name(name)
        return base if dtype.bits == 64 or base in ("isnan", "isinf", "isfinite") else f"{base}f"

    def vector_type(self, element: str, lanes: int) -> str | None:
        """A vector type; eight elements of 16 bits are four words, and so are sixteen bytes."""
        if lanes < 8:
            return super().vector_type(element, lanes)
        return _WORDS.get(lanes * self._small_size(element))

    def _small_size(self, element: str) -> int:
        """Bytes of an element of 8 or 16 bits, whose vectors are words; 0 for others."""
        return {self.types["uint16"]: 2, self.types["uint8"]: 1, self.types["int8"]: 1}.get(element, 0)

    def lane(self, vector: str, element: str, lanes: int, number: int) -> str:
        """An element of a vector; of eight and more, a part of a word."""
        if lanes < 8:
            return super().lane(vector, element, lanes, number)
        size = self._small_size(element)
        word, part = divmod(number * size, 4)
        return f"({element})({vector}.{'xyzw'[word]}{f' >> {8 * part}' if part else ''})"

    def store_vector(self, element: str, place: str, values: list[str], scope: str) -> str:
        """A store of a vector; of eight elements and more, as words."""
        if len(values) < 8:
            return super().store_vector(element, place, values, scope)
        size = self._small_size(element)
        # Bits above those of an element would be in the way of its neighbours.
        narrow = f"({self.types['uint8']})" if size == 1 else ""
        parts = [f"((unsigned int){narrow}{text} << {8 * size * n % 32})" for n, text in enumerate(values)]
        words = [" | ".join(parts[n : n + 4 // size]) for n in range(0, len(parts), 4 // size)]
        kind = self.vector_type(element, len(values))
        return f"*({kind}*)({place}) = make_{kind}({', '.join(words)});"

    def copy_words(self, element: str, size: int, target: str, source: str) -> str | None:
        """Elements smaller than a word are copied by words."""
        word = _WORDS.get(size)
        if word is None or not self._small_size(element):
            return None
        return f"*({word}*)({target}) = *(const {word}*)({source});"

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
            "tw_brain_bits": f"{head}unsigned short tw_brain_bits(float x) {{\n"
            "#if __CUDA_ARCH__ >= 800\n"
            f'  unsigned short bits; {asm}"cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x)); return bits;\n'
            "#else\n"
            "  unsigned int b = __float_as_uint(x);\n"
            "  return x != x ? 0x7fc0 : (unsigned short)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);\n"
            "#endif\n}",
        }

    def float8_body(self, kind: str, rounds: bool) -> str:
        """Conversions of two at a time; they keep what is too large to the greatest value, and NaN has no sign."""
        name = kind.removeprefix("float8_").removesuffix("fn")
        if not rounds:
            return (
                f'unsigned int pair; asm("cvt.rn.f16x2.{name}x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)bits)); '
                'float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)pair)); return x;'
            )
        # Half of the last step more than the greatest value, which a tie is rounded to where its last digit is even.
        beyond = "!(fabsf(x) <= 464.f)" if name == "e4m3" else "!(fabsf(x) < 61440.f)"
        code = "0x7f" if name == "e4m3" else "(x != x ? 0x7e : 0x7c)"
        sign = "((__float_as_uint(x) >> 24) & 0x80u)"
        return (
            f'unsigned short pair; asm("cvt.rn.satfinite.{name}x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(x)); '
            f"return (unsigned char)({beyond} ? {sign} | {code} : pair);"
        )

    def rounded_byte(self, least: float, most: float, zero: int, kind: str) -> str | None:
        """Rounded by a sum whose last digit is that of units: conversions take four times as long as sums."""
        bits = f"__float_as_int(fminf(fmaxf(x, {least}f), {most}f) + 12582912.f)"
        # `fmaxf` makes the least of what is no number, which is 0 where no byte is less.
        known = "" if kind == self.types["uint8"] else "x != x ? 0 : "
        return f"return ({kind})({known}{bits} + {zero});"

    def byte_value(self) -> str:
        """A word whose last byte it is, and whose upper ones say where units are; less what these say."""
        word = "*(const unsigned int*)(bytes + (n & ~3))"
        return f"return __uint_as_float(__byte_perm({word}, 0x4b000000u, 0x7540u + (n & 3))) - 8388608.f;"

    def extreme(self, dtype: DataType, lesser: bool) -> str | None:
        """One instruction from sm_80 on."""
        if dtype.name != "float32":
            return None
        name, test = ("min", "a < b") if lesser else ("max", "a > b")
        return (
            "\n#if __CUDA_ARCH__ >= 800\n"
            f'float c; asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c;\n'
            f"#else\nreturn {test} || a != a ? a : b;\n#endif\n"
        )

    def count_bits(self, value: str, wide: bool, leading: bool) -> str:
        """`__clz` and `__popc`."""
        name = {(False, True): "__clz", (True, True): "__clzll", (False, False): "__popc", (True, False): "__popcll"}
        return f"{name[wide, leading]}(({self.types['uint64' if wide else 'uint32']}){value})"

    def shared_array(self, size: int, is_dynamic: bool) -> str | None:
        """An array of fixed size, or the one whose size the launch gives, by an address in a register.

        The address of a shared array is that of the block in its cluster, which is slow to read: the compiler would
        read it again at each use, were it not hidden from it. Swizzled tiles start at multiples of 1024 bytes.
        """
        extent, kind = ("", "extern __shared__") if is_dynamic else (str(size), "__shared__")
        return (
            f"{kind} __align__(1024) unsigned char tw_memory[{extent}];\n"
            "  unsigned int tw_address;\n"
            '  asm volatile("mov.u32 %0, %1;" : "=r"(tw_address) : '
            '"r"((unsigned int)__cvta_generic_to_shared(tw_memory)));\n'
            "  unsigned char* const tw_shared = (unsigned char*)__cvta_shared_to_generic(tw_address);"
        )

    def private(self, element: str, name: str, size: int) -> str:
        """An array that the compiler keeps in registers; small elements are read several at a time."""
        aligned = "" if element in ("float", "int", "double", "long long") else "__align__(16) "
        return f"{aligned}{element} {name}[{size}];"

    def instruction_helper(self, name: str) -> tuple[str, str] | None:
        """Inline PTX."""
        if name == DOT4:
            body = 'int d; asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d;'
            return DOT4_FUNCTION, f"{self.function_prefix}int {DOT4_FUNCTION}(int c, int a, int b) {{ {body} }}"
        text = row_instruction_text(name) or instruction_text(name)
        return None if text is None else (function_name(name), text)

    def copy_async_helper(self, size: int) -> str | None:
        """`cp.async`; a plain copy on GPUs before it. Sixteen bytes need not pass through the first-level cache.

        Other accesses may move across it: what it writes is read behind a wait and a barrier, which they do not cross.
        """
        word = _WORDS[size]
        zero = {4: "0u", 8: "make_uint2(0u, 0u)", 16: "make_uint4(0u, 0u, 0u, 0u)"}[size]
        cache = "cg" if size == 16 else "ca"
        return (
            f"{self.function_prefix}void tw_copy_async_{size}(void* to, const void* from, int bytes) {{\n"
            "#if __CUDA_ARCH__ >= 800\n"
            f'  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size}, %2;"\n'
            '    :: "r"((unsigned int)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes));\n'
            "#else\n"
            f"  *({word}*)to = bytes ? *(const {word}*)from : {zero};\n"
            "#endif\n"
            "}"
        )

    def cluster_load_helper(self, name: str, element: str, lanes: int) -> str:
        """`ld.shared::cluster` at the address that `mapa` gives. It stays behind the barrier, which is volatile too."""
        kind, letter = {
            "float": ("f32", "f"),
            "int": ("s32", "r"),
            "unsigned int": ("u32", "r"),
            "double": ("f64", "d"),
        }[element]
        vector = element if lanes == 1 else str(self.vector_type(element, lanes))
        parts = ["v"] if lanes == 1 else [f"v.{lane}" for lane in "xyzw"[:lanes]]
        outputs = ", ".join(f'"={letter}"({part})' for part in parts)
        registers = ", ".join(f"%{number}" for number in range(lanes))
        target = registers if lanes == 1 else f"{{{registers}}}"
        suffix = "" if lanes == 1 else f".v{lanes}"
        return (
            f"{self.function_prefix}{vector} {name}(const {element}* place, int block) {{\n"
            "  unsigned int address;\n"
            '  asm("mapa.shared::cluster.u32 %0, %1, %2;"\n'
            '    : "=r"(address) : "r"((unsigned int)__cvta_generic_to_shared(place)), "r"(block));\n'
            f"  {vector} v;\n"
            f'  asm volatile("ld.shared::cluster{suffix}.{kind} {target}, [%{lanes}];"\n'
            f'    : {outputs} : "r"(address));\n'
            "  return v;\n"
            "}"
        )

    def async_helper(self, name: str) -> str | None:
        """`tw_async_commit()` and `tw_async_wait_<n>()`: `cp.async.commit_group` and `cp.async.wait_group`."""
        instruction = name.removeprefix("tw_async_").replace("commit", "commit_group").replace("wait_", "wait_group ")
        return (
            f"{self.function_prefix}void {name}() {{\n"
            "#if __CUDA_ARCH__ >= 800\n"
            f'  asm volatile("cp.async.{instruction};" ::: "memory");\n'
            "#endif\n"
            "}"
        )
