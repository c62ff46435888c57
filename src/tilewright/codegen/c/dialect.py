"""What one C-like language spells in its own way: types, constants, mathematics, vectors, instructions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

from tilewright.ir.dtype import DataType
from tilewright.support.errors import CompilerBug, UnsupportedError

CPP_TYPES: Final = {
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
"""How C++ spells the types of elements where `long` is not 64 bits everywhere: CUDA and HIP."""
CPP_VECTORS: Final = {
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "uint32": "uint",
    "int16": "short",
    "uint16": "ushort",
    "int8": "char",
    "uint8": "uchar",
    "int64": "longlong",
    "uint64": "ulonglong",
}
"""How names of their vector types begin."""

SHORT_TYPES: Final = {
    "bool": "bool",
    "int8": "char",
    "int16": "short",
    "int32": "int",
    "int64": "long",
    "uint8": "uchar",
    "uint16": "ushort",
    "uint32": "uint",
    "uint64": "ulong",
    "float32": "float",
}
"""The types of elements where `long` is 64 bits and unsigned types have short names: OpenCL C and Metal."""


DOT4_FUNCTION: Final = "tw_dot4"
"""The function `int (int sum, int a, int b)` of the instruction `tir.machine.DOT4`."""
FLOAT8: Final = ("float8_e4m3fn", "float8_e5m2")
"""Types of 8 bits that some processors convert: their bits in memory, float in registers."""


def math_name(name: str) -> str:
    """What C calls a function of mathematics."""
    return {"round": "rint", "abs": "fabs"}.get(name, name)


class Dialect(ABC):
    """A C-like language. Half-precision values live in registers as float, in memory as their bits."""

    name: ClassVar[str]
    types: ClassVar[dict[str, str]]
    """The spelling of each scalar type that a register may hold."""
    function_prefix: ClassVar[str]
    """What stands before helper functions."""
    long_suffix: ClassVar[str] = "L"
    """What constants of 64-bit integers end in."""
    least_int64: ClassVar[str] = "(-9223372036854775807L - 1)"
    infinity: ClassVar[str]
    not_a_number: ClassVar[str]
    half_functions: ClassVar[dict[str, str]] = {}
    """Functions of a float `x` with the digits of half precision (`Capabilities.half_mathematics`): bodies by name."""
    vector_types: ClassVar[dict[tuple[str, int], str]] = {}
    """Types of 2 and 4 neighbouring elements, by the spelling of an element; what is missing is accessed singly."""

    def register_type(self, dtype: DataType) -> str:
        """The type of a value of a data type in a register."""
        name = dtype.element.name
        if name in ("float16", "bfloat16", *FLOAT8):
            return self.types["float32"]
        found = self.types.get(name)
        if found is None:
            raise UnsupportedError(
                f"{self.name} kernels do not compute in {name}", hint="cast it to a wider type first"
            )
        return found

    def memory_type(self, dtype: DataType) -> str:
        """The type of an element of a data type in memory."""
        name = dtype.element.name
        if name in ("float16", "bfloat16"):
            return self.types["uint16"]
        return self.types["uint8"] if name == "bool" or name in FLOAT8 else self.register_type(dtype)

    def shuffle(self, value: str, thread: str) -> str:
        """The value that a register has in another thread of the same warp, by its number in the block."""
        raise CompilerBug(f"{self.name} kernels exchange no registers: {value} of thread {thread}")

    @abstractmethod
    def math(self, name: str, dtype: DataType) -> str:
        """The function that computes an intrinsic of the same number of arguments."""

    @abstractmethod
    def bits(self, value: str, source: DataType, target: DataType) -> str:
        """The bits of a float as an integer of its width, or the other way round (32 and 64 bits)."""

    @abstractmethod
    def half_helpers(self) -> dict[str, str]:
        """`tw_half_bits_float` and `tw_half_bits_double` (round to the bits of a half) and `tw_half_value`.

        Also `tw_brain_bits` (round to the bits of a bfloat16) where it is not to be computed with integers.
        """

    def float8_body(self, kind: str, rounds: bool) -> str:
        """The body of a function that rounds `x` to the `bits` of an 8-bit float, or gives their value.

        Where there is no such conversion, `legalize_small_types` has made integer arithmetic of it.
        """
        raise CompilerBug(f"{self.name} kernels do not convert {kind}")

    def rounded_byte(self, least: float, most: float, zero: int, kind: str) -> str | None:
        """The body of a function of a float `x`: round(x) + zero as a byte, kept in its range; None for plain C.

        `least` and `most` are the bounds of x that give the bounds of the byte.
        """
        return None

    def byte_value(self) -> str | None:
        """The body of a function: the float of the byte `n` of the words at `bytes`; None where a cast is as good."""
        return None

    def extreme(self, dtype: DataType, lesser: bool) -> str | None:
        """The body of a function of `a` and `b`: the lesser or the greater, NaN if either is; None for plain C."""
        return None

    @abstractmethod
    def count_bits(self, value: str, wide: bool, leading: bool) -> str:
        """The ones (or the leading zeros) of an unsigned integer of 32 or 64 bits, as an int."""

    def vector_type(self, element: str, lanes: int) -> str | None:
        """The type of some neighbouring elements, if there is one."""
        return self.vector_types.get((element, lanes))

    def lane(self, vector: str, element: str, lanes: int, number: int) -> str:
        """An element of a vector, as it is in memory."""
        return f"{vector}.{'xyzw'[number]}"

    def load_vector(self, element: str, lanes: int, place: str, scope: str) -> str:
        """The vector at an address in memory of a scope, which is a multiple of its size."""
        return f"*(const {self.vector_type(element, lanes)}*)({place})"

    def load_word(self, place: str) -> str:
        """The four bytes at an address in global memory, a multiple of four, as an int."""
        return f"*(const {self.types['int32']}*)({place})"

    def copy_words(self, element: str, size: int, target: str, source: str) -> str | None:
        """The copy of neighbours, so many bytes, to memory of one thread; None where elements are copied one by one."""
        return None

    def store_vector(self, element: str, place: str, values: list[str], scope: str) -> str:
        """The statement that stores a vector at an address in memory of a scope, a multiple of its size."""
        kind = self.vector_type(element, len(values))
        return f"*({kind}*)({place}) = make_{kind}({', '.join(values)});"

    def instruction_helper(self, name: str) -> tuple[str, str] | None:
        """The function that is an instruction of the device (see `tir.machine`), and its text; None if it has none."""
        return None

    def copy_async_helper(self, size: int) -> str | None:
        """`tw_copy_async_<size>(to, from, bytes)`: start to copy that many bytes and fill up with zeros.

        None where there are no such copies.
        """
        return None

    def cluster_load_helper(self, name: str, element: str, lanes: int) -> str:
        """The text of `name(place, block)`: what lies at a place of shared memory in another block of the cluster."""
        raise UnsupportedError(f"{self.name} kernels do not read the shared memory of other blocks")

    def async_helper(self, name: str) -> str | None:
        """`tw_async_commit()` (the copies started are a group) or `tw_async_wait_<n>()` (for all groups but n)."""
        return None
