"""Operators that the host does: results sized by data, texts, sequences and optionals (`tilewright.runtime.host`).

The operator and the host function have one name, and the function is the operator's reference. Dimensions that only a
run decides are symbols in the attribute `dims`, which is for the type rule alone: a host function never sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, NoAttributes, Types, operator
from tilewright.graph.ops.common import broadcast_shapes, constant_dim, dims, product, require_axis, shape_text, tensor
from tilewright.ir.dtype import BOOL, FLOAT32, INT64, STRING, DataType
from tilewright.ir.expr import PrimExpr
from tilewright.ir.node import node
from tilewright.ir.types import OptionalType, SequenceType, TensorType, TupleType, Type
from tilewright.runtime.host import host_function
from tilewright.runtime.host.registry import HostAttribute
from tilewright.support.errors import CompilerBug, UserError

Dims = tuple[PrimExpr, ...]
Plain = bool | int | float | str | None
_FOR_THE_RULE = frozenset({"dims", "result"})
"""Attributes that say what the result is: the rule reads them, the host function does not."""


def host_attributes(attributes: Attributes) -> dict[str, HostAttribute]:
    """The attributes of a call as plain data, as its host function takes them."""
    found: dict[str, HostAttribute] = {}
    for name, value in zip(attributes.fields, attributes.field_values(), strict=True):
        if name not in _FOR_THE_RULE:
            found[name] = _plain(name, value)
    return found


def _plain(name: str, value: object) -> HostAttribute:
    if isinstance(value, DataType):
        return value.name
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, tuple):
        return tuple(_plain(name, item) for item in value)
    raise CompilerBug(f"the attribute {name} of a host function holds {value!r}, which is no plain data")


Rule = Callable[[Types, Any], Type]


def host_operator(
    name: str,
    *inputs: str,
    attributes: type[Attributes] = NoAttributes,
    variadic: bool = False,
    optional: int = 0,
) -> Callable[[Rule], Rule]:
    """Register an operator done by the host function of its name; decorates the type rule."""
    run = host_function(name)

    def reference(values: list[Array], found: Attributes) -> Array | tuple[Array, ...]:
        results: list[Any] = run(list(values), host_attributes(found))
        return tuple(results) if len(results) > 1 else results[0]

    return operator(
        name,
        inputs=inputs,
        kind=FusionKind.OPAQUE,
        reference=reference,
        attributes=attributes,
        variadic=variadic,
        optional=optional,
        host=True,
    )


def _sized(found: Sequence[PrimExpr], count: int, name: str) -> Dims:
    if len(found) != count:
        raise UserError(f"{name} needs {count} symbols for what only a run knows, it has {len(found)}")
    return tuple(found)


def _text(kind: Type, what: str) -> tuple[PrimExpr | None, ...]:
    shape, dtype = _ranked(kind, what)
    if dtype is not STRING:
        raise UserError(f"{what} must be texts, it is {dtype}")
    return shape


def _ranked(kind: Type, what: str) -> tuple[tuple[PrimExpr | None, ...], DataType]:
    found = tensor((kind,), 0, what)
    if found.shape is None:
        raise UserError(f"the rank of {what} is not known")
    return found.shape, found.dtype


# Results sized by data


@node()
class NonzeroAttributes(Attributes):
    """The data type of the input and the symbol of the number of places."""

    dims: Dims
    dtype: DataType = FLOAT32


@host_operator("host.nonzero", "data", attributes=NonzeroAttributes)
def nonzero(types: Types, attributes: NonzeroAttributes) -> Type:
    """The places of elements other than zero, one column a place: (rank, count)."""
    shape, _ = _ranked(types[0], "the data")
    return TensorType((*dims((len(shape),)), *_sized(attributes.dims, 1, "host.nonzero")), INT64)


@node()
class RequireAttributes(Attributes):
    """What to say where the condition does not hold, and the symbol of the number of elements (one)."""

    dims: Dims
    message: str


@host_operator("host.require", "condition", attributes=RequireAttributes)
def require(types: Types, attributes: RequireAttributes) -> Type:
    """The condition, one element, which must hold: a run where it does not ends with a message."""
    shape, dtype = _ranked(types[0], "the condition")
    if not dtype.is_bool or shape_text(shape) != shape_text(dims((1,))):
        raise UserError(f"a condition is a bool[1], not {dtype}{shape_text(shape)}")
    return TensorType(_sized(attributes.dims, 1, "host.require"), BOOL)


@node()
class CompressAttributes(Attributes):
    """The axis (-1: the flattened data) and the symbol of the number of slices."""

    dims: Dims
    axis: int = -1


@host_operator("host.compress", "data", "condition", attributes=CompressAttributes)
def compress(types: Types, attributes: CompressAttributes) -> Type:
    """The slices along an axis where a condition holds."""
    shape, dtype = _ranked(types[0], "the data")
    [count] = _sized(attributes.dims, 1, "host.compress")
    if attributes.axis < 0:
        return TensorType((count,), dtype)
    require_axis(attributes.axis, len(shape))
    return TensorType((*shape[: attributes.axis], count, *shape[attributes.axis + 1 :]), dtype)


@node()
class UniqueAttributes(Attributes):
    """The axis (-1: the flattened data), the order (sorted, or of appearance) and the symbol of the number."""

    dims: Dims
    axis: int = -1
    sorted: bool = True
    dtype: DataType = FLOAT32


@host_operator("host.unique", "data", attributes=UniqueAttributes)
def unique(types: Types, attributes: UniqueAttributes) -> Type:
    """The distinct elements or slices, where each is first, which one each place holds, how often each occurs."""
    shape, dtype = _ranked(types[0], "the data")
    [count] = _sized(attributes.dims, 1, "host.unique")
    places = TensorType((count,), INT64)
    if attributes.axis < 0:
        return TupleType((TensorType((count,), dtype), places, TensorType((product(shape),), INT64), places))
    require_axis(attributes.axis, len(shape))
    values = TensorType((*shape[: attributes.axis], count, *shape[attributes.axis + 1 :]), dtype)
    return TupleType((values, places, TensorType((shape[attributes.axis],), INT64), places))


@node()
class HostTopKAttributes(Attributes):
    """The axis, which end of the order, and the symbol of k."""

    dims: Dims
    axis: int
    largest: bool = True
    dtype: DataType = FLOAT32


@host_operator("host.topk", "data", "k", attributes=HostTopKAttributes)
def topk(types: Types, attributes: HostTopKAttributes) -> Type:
    """`topk` for a k that is computed."""
    shape, dtype = _ranked(types[0], "the data")
    require_axis(attributes.axis, len(shape))
    [count] = _sized(attributes.dims, 1, "host.topk")
    found = (*shape[: attributes.axis], count, *shape[attributes.axis + 1 :])
    return TupleType((TensorType(found, dtype), TensorType(found, INT64)))


@node()
class SuppressionAttributes(Attributes):
    """The form of the boxes and the symbol of the number of rows."""

    dims: Dims
    center_point_box: bool = False


@host_operator(
    "host.non_max_suppression", "boxes", "scores", "most", "overlap", "least",
    attributes=SuppressionAttributes, optional=1,
)  # fmt: skip
def non_max_suppression(types: Types, attributes: SuppressionAttributes) -> Type:
    """Rows (image, class, box) of the boxes of each class by falling score, without those covered too much."""
    return TensorType((*_sized(attributes.dims, 1, "host.non_max_suppression"), *dims((3,))), INT64)


@node()
class MelAttributes(Attributes):
    """The data type of the result and the symbols of its two dimensions."""

    dims: Dims
    dtype: DataType = FLOAT32


@host_operator("host.mel_weights", "bands", "length", "rate", "low", "high", attributes=MelAttributes)
def mel_weights(types: Types, attributes: MelAttributes) -> Type:
    """Weights of the frequencies of a spectrum in bands of the mel scale."""
    return TensorType(_sized(attributes.dims, 2, "host.mel_weights"), attributes.dtype)


@node()
class CoupleAttributes(Attributes):
    """The number of classes."""

    classes: int


@host_operator("host.couple", "chances", attributes=CoupleAttributes)
def couple(types: Types, attributes: CoupleAttributes) -> Type:
    """Probabilities of classes from the chances of each pair of classes."""
    shape, dtype = _ranked(types[0], "the chances")
    pairs = attributes.classes * (attributes.classes - 1) // 2
    if len(shape) != 2 or constant_dim(shape[1]) not in (pairs, None):
        raise UserError(f"{attributes.classes} classes make {pairs} pairs, the chances are {shape_text(shape)}")
    return TensorType((shape[0], *dims((attributes.classes,))), dtype)


# Axes that are data


@node()
class TargetAttributes(Attributes):
    """The dimensions of the result."""

    dims: Dims


def _rearranged(types: Types, attributes: TargetAttributes, change: int) -> Type:
    shape, dtype = _ranked(types[0], "the data")
    return TensorType(_sized(attributes.dims, len(shape) + change, "the result"), dtype)


def _count(types: Types) -> int:
    shape, _ = _ranked(types[1], "the axes")
    count = constant_dim(shape[0]) if len(shape) == 1 else 1
    if count is None or len(shape) > 1:
        raise UserError(f"the number of axes must be known, they are {shape_text(shape)}")
    return count


@host_operator("axes.to_end", "data", "axes", attributes=TargetAttributes)
def axes_to_end(types: Types, attributes: TargetAttributes) -> Type:
    """The data with some axes moved to the end."""
    return _rearranged(types, attributes, 0)


@host_operator("axes.from_end", "data", "axes", attributes=TargetAttributes)
def axes_from_end(types: Types, attributes: TargetAttributes) -> Type:
    """What `axes.to_end` moved, back in its place."""
    return _rearranged(types, attributes, 0)


@host_operator("axes.insert", "data", "axes", attributes=TargetAttributes)
def axes_insert(types: Types, attributes: TargetAttributes) -> Type:
    """New dimensions of 1 at places counted in the result."""
    return _rearranged(types, attributes, _count(types))


@host_operator("axes.remove", "data", "axes", attributes=TargetAttributes)
def axes_remove(types: Types, attributes: TargetAttributes) -> Type:
    """Without some dimensions, which must be 1."""
    return _rearranged(types, attributes, -_count(types))


# Texts


@host_operator("text.concat", "left", "right")
def text_concat(types: Types, attributes: NoAttributes) -> Type:
    """Pairs of texts joined, with broadcasting."""
    return TensorType(broadcast_shapes([_text(types[0], "the left side"), _text(types[1], "the right side")]), STRING)


@host_operator("text.equal", "left", "right")
def text_equal(types: Types, attributes: NoAttributes) -> Type:
    """Whether texts are the same, with broadcasting."""
    return TensorType(broadcast_shapes([_text(types[0], "the left side"), _text(types[1], "the right side")]), BOOL)


@node()
class SplitTextAttributes(Attributes):
    """The delimiter (empty: white space), the most splits (-1: all), and the symbol of the number of parts."""

    dims: Dims
    delimiter: str = ""
    maxsplit: int = -1


@host_operator("text.split", "data", attributes=SplitTextAttributes)
def text_split(types: Types, attributes: SplitTextAttributes) -> Type:
    """The parts of each text along a new last axis, padded with empty texts, and how many there are."""
    shape = _text(types[0], "the data")
    parts = (*shape, *_sized(attributes.dims, 1, "text.split"))
    return TupleType((TensorType(parts, STRING), TensorType(shape, INT64)))


@node()
class PatternAttributes(Attributes):
    """A regular expression."""

    pattern: str


@host_operator("text.full_match", "data", attributes=PatternAttributes)
def text_full_match(types: Types, attributes: PatternAttributes) -> Type:
    """Whether each whole text matches a regular expression."""
    return TensorType(_text(types[0], "the data"), BOOL)


@node()
class NormalizeTextAttributes(Attributes):
    """The change of case, the words to drop, and the symbol of the number of texts that stay."""

    dims: Dims
    case_change_action: str = "NONE"
    is_case_sensitive: bool = False
    stopwords: tuple[str, ...] = ()


@host_operator("text.normalize", "data", attributes=NormalizeTextAttributes)
def text_normalize(types: Types, attributes: NormalizeTextAttributes) -> Type:
    """Texts in one case, without stop words."""
    shape = _text(types[0], "the data")
    [count] = _sized(attributes.dims, 1, "text.normalize")
    if len(shape) not in (1, 2) or (len(shape) == 2 and constant_dim(shape[0]) not in (1, None)):
        raise UserError(f"texts to normalize come as (n,) or (1, n), not {shape_text(shape)}")
    return TensorType((count,) if len(shape) == 1 else (*dims((1,)), count), STRING)


@node()
class LookupAttributes(Attributes):
    """A table from keys to values, the value of everything else, and the data type of the values."""

    keys: tuple[Plain, ...]
    values: tuple[Plain, ...]
    default: Plain
    dtype: DataType = STRING


@host_operator("text.lookup", "data", attributes=LookupAttributes)
def text_lookup(types: Types, attributes: LookupAttributes) -> Type:
    """Each element (text or number) replaced by the value of its key."""
    shape, _ = _ranked(types[0], "the data")
    if len(attributes.keys) != len(attributes.values):
        raise UserError(f"{len(attributes.keys)} keys for {len(attributes.values)} values")
    return TensorType(shape, attributes.dtype)


@node()
class NumberAttributes(Attributes):
    """The data type of the numbers."""

    dtype: DataType = FLOAT32


@host_operator("text.from_numbers", "data", attributes=NumberAttributes)
def text_from_numbers(types: Types, attributes: NumberAttributes) -> Type:
    """Numbers written out."""
    return TensorType(_ranked(types[0], "the data")[0], STRING)


@host_operator("text.to_numbers", "data", attributes=NumberAttributes)
def text_to_numbers(types: Types, attributes: NumberAttributes) -> Type:
    """Texts read as numbers."""
    return TensorType(_text(types[0], "the data"), attributes.dtype)


@node()
class NgramAttributes(Attributes):
    """The pool of n-grams, where those of each length start in it, their places in the result of a width."""

    pool: tuple[Plain, ...]
    starts: tuple[int, ...]
    places: tuple[int, ...]
    shortest: int
    longest: int
    skips: int
    width: int


@host_operator("text.ngrams", "data", attributes=NgramAttributes)
def text_ngrams(types: Types, attributes: NgramAttributes) -> Type:
    """How often each n-gram of a pool occurs in each row."""
    shape, _ = _ranked(types[0], "the data")
    if len(shape) not in (1, 2):
        raise UserError(f"n-grams are counted in rows, the data is {shape_text(shape)}")
    return TensorType((*shape[:-1], *dims((attributes.width,))), FLOAT32)


@node()
class AxesAttributes(Attributes):
    """An order of the dimensions."""

    axes: tuple[int, ...]


@host_operator("text.transpose", "data", attributes=AxesAttributes)
def text_transpose(types: Types, attributes: AxesAttributes) -> Type:
    """Dimensions in another order."""
    shape = _text(types[0], "the data")
    if sorted(attributes.axes) != list(range(len(shape))):
        raise UserError(f"axes {attributes.axes} are no order of {len(shape)} dimensions")
    return TensorType(tuple(shape[axis] for axis in attributes.axes), STRING)


@node()
class AxisAttributes(Attributes):
    """An axis."""

    axis: int = 0


@host_operator("text.take", "data", "indices", attributes=AxisAttributes)
def text_take(types: Types, attributes: AxisAttributes) -> Type:
    """Slices at places along an axis."""
    shape, (places, _) = _text(types[0], "the data"), _ranked(types[1], "the places")
    require_axis(attributes.axis, len(shape))
    return TensorType((*shape[: attributes.axis], *places, *shape[attributes.axis + 1 :]), STRING)


@node()
class JoinAttributes(Attributes):
    """An axis, and the dimension of the result along it."""

    dims: Dims
    axis: int = 0


@host_operator("text.concatenate", "data", attributes=JoinAttributes, variadic=True)
def text_concatenate(types: Types, attributes: JoinAttributes) -> Type:
    """Tensors of texts one after the other along an axis."""
    shape = list(_text(types[0], "the data"))
    require_axis(attributes.axis, len(shape))
    [shape[attributes.axis]] = _sized(attributes.dims, 1, "text.concatenate")
    return TensorType(tuple(shape), STRING)


@host_operator("text.where", "condition", "left", "right")
def text_where(types: Types, attributes: NoAttributes) -> Type:
    """One text or another, by a condition."""
    left, right = _text(types[1], "the left side"), _text(types[2], "the right side")
    return TensorType(broadcast_shapes([_ranked(types[0], "the condition")[0], left, right]), STRING)


# Sequences and optionals


@node()
class ResultAttributes(Attributes):
    """The type of the result."""

    result: Type


def _item(kind: Type) -> Type:
    if not isinstance(kind, SequenceType):
        raise UserError(f"a sequence is needed here, not {kind!r}")
    return kind.item


@host_operator("sequence.make", "items", attributes=ResultAttributes, variadic=True)
def sequence_make(types: Types, attributes: ResultAttributes) -> Type:
    """A sequence of the inputs; of none, an empty one."""
    _item(attributes.result)
    return attributes.result


@host_operator("sequence.insert", "sequence", "item", "position", attributes=ResultAttributes, optional=1)
def sequence_insert(types: Types, attributes: ResultAttributes) -> Type:
    """A sequence with one item more, before a position or at the end."""
    _item(types[0])
    return attributes.result


@host_operator("sequence.erase", "sequence", "position", optional=1)
def sequence_erase(types: Types, attributes: NoAttributes) -> Type:
    """A sequence without the item at a position, or without the last."""
    return SequenceType(_item(types[0]))


@host_operator("sequence.at", "sequence", "position", attributes=ResultAttributes)
def sequence_at(types: Types, attributes: ResultAttributes) -> Type:
    """The item at a position; its type has a symbol for each dimension that differs from item to item."""
    _item(types[0])
    return attributes.result


@host_operator("sequence.length", "sequence")
def sequence_length(types: Types, attributes: NoAttributes) -> Type:
    """The number of items."""
    _item(types[0])
    return TensorType((), INT64)


@node()
class ConcatenateAttributes(Attributes):
    """The axis, whether it is a new one, and the type of the result."""

    result: Type
    axis: int = 0
    new_axis: bool = False


@host_operator("sequence.concatenate", "sequence", attributes=ConcatenateAttributes)
def sequence_concatenate(types: Types, attributes: ConcatenateAttributes) -> Type:
    """The items one after the other, along an axis they have or a new one."""
    _item(types[0])
    return attributes.result


@node()
class SplitAttributes(Attributes):
    """The axis, whether single slices keep it, and the type of the result."""

    result: Type
    axis: int = 0
    keepdims: bool = True


@host_operator("sequence.split", "data", "sizes", attributes=SplitAttributes, optional=1)
def sequence_split(types: Types, attributes: SplitAttributes) -> Type:
    """Parts of a tensor along an axis, as a sequence."""
    require_axis(attributes.axis, len(_ranked(types[0], "the data")[0]))
    _item(attributes.result)
    return attributes.result


@host_operator("sequence.pairs", "keys", "values", attributes=ResultAttributes)
def sequence_pairs(types: Types, attributes: ResultAttributes) -> Type:
    """For each row of a matrix, the pair of the keys and the row."""
    _item(attributes.result)
    return attributes.result


@host_operator("optional.make", "value", attributes=ResultAttributes, optional=1)
def optional_make(types: Types, attributes: ResultAttributes) -> Type:
    """A value that may be missing: the input, or nothing."""
    if not isinstance(attributes.result, OptionalType):
        raise UserError(f"an optional is made here, not {attributes.result!r}")
    return attributes.result


@host_operator("optional.has", "value")
def optional_has(types: Types, attributes: NoAttributes) -> Type:
    """Whether a value is there."""
    return TensorType((), BOOL)


@host_operator("optional.get", "value", attributes=ResultAttributes)
def optional_get(types: Types, attributes: ResultAttributes) -> Type:
    """The value, which must be there."""
    if not isinstance(types[0], OptionalType):
        raise UserError(f"an optional is needed here, not {types[0]!r}")
    return attributes.result
