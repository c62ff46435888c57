"""What one C-like language spells in its own way: types, qualifiers, thread indices, barriers, mathematics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tilewright.codegen.c.kernels import emit_kernels
from tilewright.codegen.language import KernelLanguage
from tilewright.ir.dtype import DataType
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.tir.passes.split_host_device import DeviceKernel


class Dialect(KernelLanguage):
    """A C-like language for kernels. Half-precision values live in registers as float, in memory as their bits."""

    types: ClassVar[dict[str, str]]
    """The spelling of each scalar type that a register may hold."""
    function_prefix: ClassVar[str]
    """What stands before helper functions."""
    meets_after_loops: ClassVar[bool] = False
    """Whether a barrier follows each loop with barriers inside, for the sake of the language's compilers."""
    infinity: ClassVar[str]
    not_a_number: ClassVar[str]

    def emit(self, kernels: Sequence[DeviceKernel]) -> str:
        """One program of several kernels."""
        return emit_kernels(kernels, self)

    def register_type(self, dtype: DataType) -> str:
        """The type of a value of a data type in a register."""
        name = dtype.element.name
        if name in ("float16", "bfloat16"):
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
        return self.types["uint8"] if name == "bool" else self.register_type(dtype)

    @abstractmethod
    def preamble(self, uses_double: bool) -> str:
        """The text before everything else."""

    @abstractmethod
    def signature(self, name: str, parameters: list[str], threads: int) -> str:
        """The head of a kernel that runs in blocks of so many threads."""

    @abstractmethod
    def pointer(self, element: str, name: str, is_written: bool) -> str:
        """A buffer parameter."""

    @abstractmethod
    def shared(self, element: str, name: str, size: int) -> str:
        """The declaration of memory that a block of threads shares."""

    @abstractmethod
    def axis(self, name: str) -> str:
        """The place of a thread or block along an axis, as an int."""

    @abstractmethod
    def barrier(self, scope: str) -> str:
        """The statement at which the threads of a block meet; memory of the scope is then seen by all."""

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
        """`tw_half_bits_float` and `tw_half_bits_double` (round to the bits of a half) and `tw_half_value`."""

    @abstractmethod
    def count_bits(self, value: str, wide: bool, leading: bool) -> str:
        """The ones (or the leading zeros) of an unsigned integer of 32 or 64 bits, as an int."""
