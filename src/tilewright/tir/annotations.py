"""Annotations of loops and blocks: every one that the compiler reads, declared once with the type of its value.

Statements carry a plain mapping from names to plain values: that is what scripts show, what is hashed, and where users
may keep notes under names of their own. The keys below read and write it with types:

    LAYOUT.of(block)                  # Layout.NHWC, or None
    PIPELINE.is_on(loop)
    loop = ZIGZAG.put(loop, True)
    compute(shape, element, name, ANCHOR.entry(Anchor.CONV2D) | LAYOUT.entry(Layout.NHWC))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from tilewright.support.errors import UserError
from tilewright.tir.stmt import Block, For, Stmt

T = TypeVar("T")
S = TypeVar("S", For, Block)


class Anchor(StrEnum):
    """What a block computes, where templates know it: the contraction or window that a schedule is built around."""

    MATMUL = "matmul"
    CONV2D = "conv2d"
    DEPTHWISE_CONV2D = "depthwise_conv2d"
    WINDOW_DOTS = "window_dots"
    """A depthwise convolution by dot products of neighbouring pixels."""
    CONV2D_TRANSPOSE = "conv2d_transpose"
    CONV2D_WEIGHT_GRADIENT = "conv2d_weight_gradient"
    """A convolution's gradient for its weights: sums over all pixels."""
    POOL2D = "pool2d"
    ATTENTION = "attention"
    WINOGRAD = "winograd"
    WINOGRAD_OPEN = "winograd_open"
    """Winograd's algorithm for images of open height or width."""
    WINOGRAD_PLAIN = "winograd_plain"
    """Winograd's algorithm with transforms and weights made as the kernel runs."""
    HALF = "half"
    """Partial sums of products of half-precision numbers."""
    HALF_TOTAL = "half_total"
    """The sum of those."""
    PACKED = "packed"
    """Sums over a group of products with packed codes."""
    PACKED_TOTAL = "packed_total"
    """The sum of those, each with its scale."""
    SCALED = "scaled"
    """Sums over a block of products of 8-bit floats."""
    SCALED_TOTAL = "scaled_total"
    """The sum of those, each with its scale."""
    UNPACKED = "unpacked"
    """The numbers that packed codes stand for."""
    BLOCKED_PRODUCT = "blocked_product"
    """Sums of products of bytes, in blocks of channels."""
    BLOCKED_POOL = "blocked_pool"
    """Bytes in blocks of channels as accumulators, of which windows take the greatest."""
    BLOCKED_COPY = "blocked_copy"
    """Elements in blocks of channels, each at several places."""
    BITSERIAL = "bitserial"
    """How many bits of two bit planes meet."""
    BITSERIAL_TOTAL = "bitserial_total"
    """The sum of that over all pairs of planes."""
    RECURRENCE = "recurrence"
    """The products of all steps of a recurrent network."""
    INTEGER_RECURRENCE = "integer_recurrence"
    """The products of all steps in bytes."""
    RECURRENT_STEP = "recurrent_step"
    """The products of one step."""


class Layout(StrEnum):
    """The order of the axes of images."""

    NCHW = "NCHW"
    NHWC = "NHWC"


class Prefetch(NamedTuple):
    """What iterations of a loop fetch ahead of one buffer: runs of elements."""

    elements: int
    """The length of a run."""
    start: int
    """How far after the first element in use the first run begins."""
    runs: int = 1
    stride: int = 0
    """How far apart runs begin."""


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """The values that an annotation may have."""

    words: str
    """For errors: "a number"."""
    read: Callable[[object], T | None]
    """The typed value of a plain one; None where it is none of this form."""
    plain: Callable[[T], object]


class Place(StrEnum):
    """What an annotation stands on."""

    LOOP = "loop"
    BLOCK = "block"


@dataclass(frozen=True, slots=True, eq=False)
class Annotation(Generic[T]):
    """A name that statements may carry, with the type of its value."""

    name: str
    """As scripts show it."""
    form: Form[T]
    place: Place
    meaning: str
    owner: str | None = None
    """Where the annotation changes what a program does: who alone makes it, and how to ask for it."""
    needs: Annotation[Any] | None = None
    """The annotation that must be there too."""

    def __str__(self) -> str:
        return self.name

    def of(self, stmt: Stmt) -> T | None:
        """The value on a statement; None where it has none."""
        if not isinstance(stmt, (For, Block)) or self.name not in stmt.annotations:
            return None
        return self.read(stmt.annotations[self.name])

    def read(self, plain: object) -> T:
        """The typed value of a plain one."""
        value = self.form.read(plain)
        if value is None:
            raise UserError(f"the annotation {self.name!r} is {self.form.words}, not {plain!r}")
        return value

    def is_on(self, stmt: Stmt) -> bool:
        """Whether a statement has the annotation, whatever its value."""
        return isinstance(stmt, (For, Block)) and self.name in stmt.annotations

    def plain(self, value: T) -> Any:
        """A value as statements hold it and scripts show it."""
        return self.form.plain(value)

    def entry(self, value: T) -> dict[str, object]:
        """The annotation as a mapping: such mappings are joined with `|`."""
        return {self.name: self.plain(value)}

    def put(self, stmt: S, value: T) -> S:
        """A statement with the annotation, in place of one that it may have."""
        return stmt.replace(annotations=stmt.annotations | self.entry(value))

    def drop(self, stmt: S) -> S:
        """A statement without the annotation."""
        return stmt.replace(annotations=without(stmt, self))


def without(stmt: For | Block, *keys: Annotation[Any]) -> dict[str, object]:
    """The annotations of a statement but for some."""
    names = {key.name for key in keys}
    return {name: value for name, value in stmt.annotations.items() if name not in names}


def problems(annotations: Mapping[str, object], place: Place) -> Iterator[str]:
    """What is wrong with known annotations on a loop or a block; names that are nobody's may hold anything."""
    for name, value in annotations.items():
        key = ANNOTATIONS.get(name)
        if key is None:
            continue
        if key.place is not place:
            yield f"the annotation {name!r} is for {key.place}s, not for a {place}"
        elif key.form.read(value) is None:
            yield f"the annotation {name!r} is {key.form.words}, not {value!r}"
        elif key.needs is not None and key.needs.name not in annotations:
            yield f"the annotation {name!r} needs {key.needs.name!r} beside it"


# ---------------------------------------------------------------- forms


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _read_switch(value: object) -> bool | None:
    return bool(value) if isinstance(value, int) and value in (0, 1) else None


_SWITCH: Final = Form("True or False", _read_switch, bool)


def _number(low: int, high: int | None = None) -> Form[int]:
    words = f"a number from {low} on" if high is None else f"a number from {low} to {high}"

    def read(value: object) -> int | None:
        fits = isinstance(value, int) and _is_number(value) and value >= low and (high is None or value <= high)
        return value if fits and isinstance(value, int) else None

    return Form(words, read, int)


E = TypeVar("E", bound=StrEnum)


def _one_of(kind: type[E]) -> Form[E]:
    values = {str(item): item for item in kind}
    words = f"one of {', '.join(values)}"
    return Form(words, lambda value: values.get(value) if isinstance(value, str) else None, str)


_TEXT: Final[Form[str]] = Form("a name", lambda value: value if isinstance(value, str) else None, str)


def _read_names(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        return None
    return tuple(value)


_NAMES: Final = Form("a list of names", _read_names, list)


def _read_pair(value: object) -> tuple[int, int] | None:
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(map(_is_number, value)):
        return None
    return value[0], value[1]


_PAIR: Final = Form("two numbers", _read_pair, tuple)


def _read_prefetches(value: object) -> dict[str, Prefetch] | None:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return None
    runs = {name: _read_prefetch(item) for name, item in value.items()}
    whole = {name: item for name, item in runs.items() if item is not None}
    return whole if len(whole) == len(runs) else None


def _read_prefetch(value: object) -> Prefetch | None:
    numbers = value if isinstance(value, (list, tuple)) else (value, value)
    if len(numbers) not in (2, 4) or not all(map(_is_number, numbers)):
        return None
    return Prefetch(*numbers)


def _plain_prefetches(value: Mapping[str, Prefetch]) -> dict[str, object]:
    """As short as it can be written: a number alone is a run that begins where the elements in use end."""
    return {
        name: list(item) if item.runs != 1 else item.elements if item.start == item.elements else list(item[:2])
        for name, item in value.items()
    }


_PREFETCHES: Final = Form(
    "names of buffers with a number, two or four each: elements, where they begin, runs, how far apart",
    _read_prefetches,
    _plain_prefetches,
)


# ---------------------------------------------------------------- what blocks compute

ANCHOR: Final = Annotation("anchor", _one_of(Anchor), Place.BLOCK, "what the block computes: templates look for it")
LAYOUT: Final = Annotation("layout", _one_of(Layout), Place.BLOCK, "the order of the axes of the images it reads")
PHASES: Final = Annotation(
    "phases", _PAIR, Place.BLOCK, "rows and columns of a transposed convolution repeat with these periods (its strides)"
)
DIAGONALS: Final = Annotation(
    "diagonals", _PAIR, Place.BLOCK, "an attention whose query i sees the keys from i plus the first to i plus the last"
)
TILES: Final = Annotation("tiles", _number(1), Place.BLOCK, "Winograd's algorithm: output tiles of all images")
COLUMNS: Final = Annotation("columns", _number(1), Place.BLOCK, "Winograd's algorithm: output tiles in a row")
KEPT: Final = Annotation("kept", _SWITCH, Place.BLOCK, "the block keeps a buffer of its own: it is not inlined")
WINDOW: Final = Annotation(
    "window", _SWITCH, Place.BLOCK, "a padded image of which a thread reads its window before it computes"
)
ROWS: Final = Annotation(
    "rows", _SWITCH, Place.BLOCK, "the block computes a row by statements of its own: loops inside it are not scheduled"
)

# ---------------------------------------------------------------- how blocks run

TENSOR_INTRIN: Final = Annotation(
    "tensor_intrin",
    _TEXT,
    Place.BLOCK,
    "the block's loops are computed by this tensor instruction",
    "use tensorize(target, intrinsic), which proves that the intrinsic computes the same",
)
TENSOR_INTRIN_RESET: Final = Annotation(
    "tensor_intrin_reset",
    _TEXT,
    Place.BLOCK,
    "the block is the init of a reduction that this tensor instruction computes",
    "decompose_reduction of a tensorized block gives its init this note",
)
LAST_STEP: Final = Annotation(
    "last_step_epilogue",
    _SWITCH,
    Place.BLOCK,
    "the block is a reduction with its epilogue, which runs at the last step",
    "use fuse_reduction_epilogue(block, epilogue), which proves that it runs at the last step",
)

# ---------------------------------------------------------------- how loops run

INDEPENDENT: Final = Annotation(
    "independent",
    _SWITCH,
    Place.LOOP,
    "somebody's word that iterations write different elements where data decide which",
    "use promise_independent(loop), which says of what it is believed",
)
REDUCTION: Final = Annotation(
    "reduction",
    _SWITCH,
    Place.LOOP,
    "the loop drives a reduction: its sums may be reassociated",
    "lowering finds the loops that reduce by itself: give the block a reduce iterator",
)
ZIGZAG: Final = Annotation(
    "zigzag",
    _SWITCH,
    Place.LOOP,
    "backwards in every second iteration of the serial loop around it",
    "use zigzag(loop), which proves that the iterations may run backwards",
)
_PIPELINES: Final = "use software_pipeline(loop, stages) or double_buffer(block)"
PIPELINE: Final = Annotation(
    "software_pipeline", _number(1), Place.LOOP, "a software pipeline of so many stages", _PIPELINES
)
STAGE: Final = Annotation(
    "software_pipeline_stage",
    _number(0),
    Place.LOOP,
    "the stage of a software pipeline that this statement of its body belongs to",
    _PIPELINES,
)
ORDER: Final = Annotation(
    "software_pipeline_order",
    _number(0),
    Place.LOOP,
    "the place of this statement in an iteration of a software pipeline",
    _PIPELINES,
)
WOVEN: Final = Annotation(
    "software_pipeline_woven",
    _number(0, 16),
    Place.LOOP,
    "instructions of a software pipeline's two stages go between each other",
    needs=PIPELINE,
)
LATE: Final = Annotation(
    "software_pipeline_late",
    _number(0, 16),
    Place.LOOP,
    "buffers of a software pipeline have so many copies more: iterations whose reads may still be under way",
    needs=PIPELINE,
)
PRODUCERS: Final = Annotation(
    "software_pipeline_producers",
    _PAIR,
    Place.LOOP,
    "a warp group of its own makes the copies of this software pipeline: registers of its threads, and of the others",
)
BEHIND: Final = Annotation(
    "software_pipeline_behind",
    _NAMES,
    Place.LOOP,
    "buffers of a software pipeline with producers: products that read them go on during the next iteration",
    needs=PRODUCERS,
)
ORDERED: Final = Annotation(
    "software_pipeline_buffers",
    _NAMES,
    Place.LOOP,
    "buffers whose uses the barrier of this software pipeline orders",
    "lowering makes it of software pipelines",
)
MEMORY_BOUND: Final = Annotation(
    "memory_bound",
    _SWITCH,
    Place.LOOP,
    "reading constants bounds the loop's speed: the next kernel may begin to read its own meanwhile",
)
ROLLED: Final = Annotation(
    "rolled",
    _SWITCH,
    Place.LOOP,
    "the loop stays a loop: compilers of kernels must not unroll it, and an unrolled one is copied by no pass",
)
WHOLE: Final = Annotation(
    "whole",
    _SWITCH,
    Place.LOOP,
    "the loop is not split where conditions turn: loops inside it are, at ends that move with it",
)
PREFETCH: Final = Annotation(
    "prefetch",
    _PREFETCHES,
    Place.LOOP,
    "what to fetch ahead into the second cache level: the copies of an unrolled loop share it",
)
PREFETCH_NEAR: Final = Annotation(
    "prefetch_near",
    _PREFETCHES,
    Place.LOOP,
    "what to fetch from the second cache level into the first; an unrolled loop has no use for it",
)
# Compilers like to add two registers up instead, which takes x86 processors an operation more wherever an operand is in
# memory.
PLAIN_ADDRESSES: Final = Annotation(
    "plain_addresses",
    _NAMES,
    Place.LOOP,
    "buffers whose elements are found by one register and a constant each; for loops that store nothing",
)
ROW_VECTORS: Final = Annotation(
    "row_vectors",
    _SWITCH,
    Place.LOOP,
    "numbers that are spread over vectors come from memory with their neighbours, for multiply-adds that take a lane",
)

ANNOTATIONS: Final[Mapping[str, Annotation[Any]]] = {
    key.name: key for key in list(globals().values()) if isinstance(key, Annotation)
}
"""Every annotation, by name."""
