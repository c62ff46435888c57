"""`CompileOptions`: everything that can be said of a compilation beside the model and the target, in one object.

It goes as it is through `compile`, `Compilation`, the request, the name of the result in the cache, the command line,
`torch.compile` and tuning. A field that is added here is in all of these.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from tilewright.support.errors import UserError
from tilewright.support.text import kind_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from tilewright.lower.database import Database

CalibrationLike: TypeAlias = "str | os.PathLike[str] | npt.NDArray[Any] | Mapping[str, Any] | Iterable[object] | None"
DatabaseLike: TypeAlias = "Database | str | os.PathLike[str] | None"
SHIPPED = "shipped"
"""As a database: the records that come with Tilewright, and no others."""
LOW_PRECISIONS = ("int8", "mixed", "int4_weights")
"""Precisions that models are quantised for (`quantization/precision.py` says how)."""
PRECISIONS = ("float32", "tf32", "float16", "bfloat16", "float8", *LOW_PRECISIONS)
"""What float32 models may be computed in: as they are, with products of rounded operands, in half precision, in half
precision with products of 8-bit floats, or in few bits."""
HALVES = {"float16": "float16", "bfloat16": "bfloat16", "float8": "float16"}
"""The type of half precision that each precision of it computes in."""
_NOT_IN_KEY = "not in the key"


def not_in_key(reason: str) -> dict[str, str]:
    """The metadata of a dataclass field that `key_parts` leaves out, and why its value does not decide the result."""
    return {_NOT_IN_KEY: reason}


def key_parts(value: Any) -> dict[str, object]:
    """The fields of a dataclass that decide a result, for its name in a cache: all but those that say why not."""
    return {item.name: getattr(value, item.name) for item in fields(value) if _NOT_IN_KEY not in item.metadata}


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How a model is compiled: `tw.compile(model, threads=1)`, or `options=CompileOptions(threads=1)`.

    Values are checked, and sequences become tuples, when it is made.
    """

    threads: int | None = None
    """Threads to run on (None: every core this process may use); with one, kernels have no parallel code."""
    shapes: Mapping[str, Sequence[int]] | None = None
    """Shapes of inputs, by their names, where a model file leaves them open."""
    winograd: bool = True
    """Whether 3 x 3 convolutions may be computed by Winograd's algorithm; the direct one rounds a little less."""
    infinities: bool = False
    """Whether infinities and NaN among values mean something: they then reach only what is computed from them.

    Convolutions are not rewritten to forms that multiply them by zero or subtract them from each other.
    """
    specialize: Sequence[Mapping[str, int]] = ()
    """Sizes of all symbolic dimensions that get code of their own: `[{"batch": 1, "length": 128}, ...]`."""
    likely: Mapping[str, int] | None = None
    """Sizes that symbolic dimensions have most of the time: `{"height": 224, "width": 224}`.

    What is decided for speed alone is decided for them, and any size is right. None: what the model file says, if it
    does.
    """
    database: DatabaseLike = field(
        default=None, metadata=not_in_key("what it says of the kernels (`CompileRequest.answers`) is in the key")
    )
    """Measured schedules, which `tilewright tune` finds.

    None: the user's own, where there is one, and those that come with Tilewright; "shipped": these alone.
    """
    precision: str = "float32"
    """What float32 models are computed in; inputs and results keep their types.

    "tf32" lets tensor cores of NVIDIA GPUs round the operands of products. In "float16" and "bfloat16" products and
    what lies between them are computed, with sums in float32. "float8" is "float16" with large matrix products, and
    those whose operand another product gives, in 8-bit floats (e4m3) on GPUs that multiply them.

    In "int8" convolutions and matrix products are computed in 8-bit integers, with ranges of activations from
    `calibration`; without it, matrix products alone, with ranges taken when the model runs. "mixed" leaves the layers
    that lose most in float32, and needs `calibration`. "int4_weights" stores weights in 4 bits.
    """
    calibration: CalibrationLike = field(
        default=None, compare=False, metadata=not_in_key("a model that is calibrated has no key: it is compiled anew")
    )
    """Examples of inputs for a precision of few bits, as `tw.quantize` takes them."""
    cpus: Sequence[str] = ()
    """Processors of the target that an exported library has code for: `("x86-64-v2", "x86-64-v3")`.

    The last of them that a machine can run is what runs there. Features follow a name: "armv8.2-a+dotprod".
    """
    on_host: Sequence[str] = ()
    """Kernels of a model for a device that the host computes, by their symbols: `tw.place` finds the best."""
    unchecked: bool = False
    """Whether data is not checked when the model runs.

    An index out of range then reads or writes some other element (never outside the data), and what a division of whole
    numbers by zero gives is anything.
    """
    state: Mapping[str, str | int] | None = None
    """Inputs that the executable keeps from call to call, each with the output that is its next value.

    `{"count": "count_after"}`, or with the output's number. See `Executable.state`.
    """

    def __post_init__(self) -> None:
        threads = self.threads
        if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
            raise UserError(f"the number of threads must be a whole number of at least 1, not {threads!r}")
        if self.precision not in PRECISIONS:
            raise UserError(f"there is no precision {self.precision!r}", hint=f"one of {', '.join(PRECISIONS)}")
        if self.calibration is not None and self.precision not in LOW_PRECISIONS:
            raise UserError(
                f"calibration data changes nothing in precision {self.precision!r}",
                hint=f"precision= one of {', '.join(LOW_PRECISIONS)}",
            )
        for name in ("winograd", "infinities", "unchecked"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"the option {name} is True or False, not {getattr(self, name)!r}")
        if self.shapes is not None:
            object.__setattr__(self, "shapes", {name: tuple(shape) for name, shape in self.shapes.items()})
        if self.state is not None:
            if not isinstance(self.state, Mapping) or not all(isinstance(name, str) for name in self.state):
                raise UserError(
                    f"state is a mapping of inputs to outputs, not {kind_of(self.state)}",
                    hint="state={'count': 'count_after'}",
                )
            object.__setattr__(self, "state", dict(self.state))
        if self.likely is not None:
            object.__setattr__(self, "likely", _checked_sizes(self.likely))
        object.__setattr__(self, "specialize", tuple(dict(sizes) for sizes in self.specialize))
        if isinstance(self.cpus, str) or not all(isinstance(cpu, str) for cpu in self.cpus):
            raise UserError(f"cpus are texts in a list, not {self.cpus!r}", hint='cpus=["x86-64-v2", "x86-64-v3"]')
        object.__setattr__(self, "cpus", tuple(self.cpus))
        if isinstance(self.on_host, str) or not all(isinstance(symbol, str) for symbol in self.on_host):
            raise UserError(f"on_host are symbols of kernels in a list, not {self.on_host!r}")
        object.__setattr__(self, "on_host", tuple(sorted(self.on_host)))


def _checked_sizes(likely: object) -> dict[str, int]:
    """Likely sizes, as they must be."""
    if not isinstance(likely, Mapping) or not all(
        isinstance(name, str) and type(size) is int and size > 0 for name, size in likely.items()
    ):
        raise UserError(
            f"likely sizes are whole numbers from 1 on by the names of dimensions, not {likely!r}",
            hint='likely={"height": 224, "width": 224}',
        )
    return dict(likely)


class OptionFields(TypedDict, total=False):
    """The fields of `CompileOptions` as keywords of a call, but for `threads`, which may come after the target."""

    shapes: Mapping[str, Sequence[int]] | None
    winograd: bool
    infinities: bool
    specialize: Sequence[Mapping[str, int]]
    likely: Mapping[str, int] | None
    database: DatabaseLike
    precision: str
    calibration: CalibrationLike
    cpus: Sequence[str]
    on_host: Sequence[str]
    unchecked: bool
    state: Mapping[str, str | int] | None


def make_options(
    options: CompileOptions | None, threads: int | None, changes: Mapping[str, Any] | OptionFields
) -> CompileOptions:
    """The options of a call: `options` (None: the defaults) with what the call says by itself in place of theirs."""
    if options is not None and not isinstance(options, CompileOptions):
        raise UserError(f"options are a tw.CompileOptions, not {kind_of(options)}", hint="tw.CompileOptions(threads=1)")
    known = [item.name for item in fields(CompileOptions)]
    for name in changes:
        if name not in known:
            raise UserError(f"there is no option {name!r}", hint=f"options: {', '.join(known)}")
    given = {**changes, **({} if threads is None else {"threads": threads})}
    return replace(options or CompileOptions(), **given)
