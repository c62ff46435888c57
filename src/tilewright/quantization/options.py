"""`QuantizeOptions`: everything that can be said of a quantisation beside the model and the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypedDict

from tilewright.quantization.observers import OBSERVERS
from tilewright.support.errors import UserError

SCHEMES = ("static", "dynamic", "weights")
ROUNDINGS = ("nearest", "learned")
ACTIVATIONS = ("uint8", "int8")
ARITHMETICS = ("float32", "fixed_point")


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """How a model is quantised. Values are checked when it is made."""

    scheme: str = "static"
    """What is rounded: "static" weights and activations, with ranges from calibration; "dynamic" the same, with ranges
    of activations taken when the model runs (matrix products alone); "weights" only weights, computed in float32."""
    weight_bits: int = 8
    """Bits of weights, 2 to 8."""
    per_channel: bool = True
    """Whether each output channel of a weight has a scale of its own."""
    group: int = 0
    """For matrix products of the scheme "weights": inputs that share a scale (0: all inputs of an output)."""
    affine: bool = False
    """Whether weights of the scheme "weights" have zero points: their ranges need not be symmetric about zero then."""
    activations: str = "uint8"
    """"uint8" with a zero point (affine), or "int8" with none (symmetric)."""
    activation_bits: int = 8
    """Bits of activations of the scheme "static", 1 to 8 (2 to 8 for "int8"); few bits of both are for bit-serial
    kernels."""
    arithmetic: str = "float32"
    """How sums of the scheme "static" become integers: by scales of float32, or in "fixed_point" by a multiplier and a
    shift, as processors without floats do."""
    observer: str = "minmax"
    """How the range of an activation is taken from what calibration saw: see `observers.py`."""
    rounding: str = "nearest"
    """How weights are rounded: each to the nearest, or "learned": one after another, so that later ones make up for
    the errors of earlier ones on the calibration data."""
    products: bool = False
    """Whether products of two activations (attention) are quantised too. In float32 they are one kernel with the
    softmax between them."""
    equalize: bool = False
    """Whether channels between two layers are scaled to like ranges first."""
    correct_bias: bool | None = None
    """Whether the mean error that rounded weights make on the calibration data is taken off the layer's result; None
    for the scheme "static" alone, whose inputs are like the calibration data in any case."""
    skip: Sequence[str] = ()
    """Layers that stay in float32, by their names in the model."""
    max_drop: float | None = None
    """How much worse the metric may become: the most sensitive layers stay in float32 until it holds."""
    sensitivity: bool = False
    """Whether to measure what each layer costs alone for the report; it always is for `max_drop`."""

    def __post_init__(self) -> None:
        for name, choices in (
            ("scheme", SCHEMES),
            ("rounding", ROUNDINGS),
            ("activations", ACTIVATIONS),
            ("arithmetic", ARITHMETICS),
            ("observer", tuple(OBSERVERS)),
        ):
            if getattr(self, name) not in choices:
                raise UserError(f"there is no {name} {getattr(self, name)!r}", hint=f"one of {', '.join(choices)}")
        if not isinstance(self.weight_bits, int) or not 2 <= self.weight_bits <= 8:
            raise UserError(f"weights have 2 to 8 bits, not {self.weight_bits!r}")
        self._check_activation_bits()
        if not isinstance(self.group, int) or self.group < 0:
            raise UserError(f"the group is a number of inputs, 0 for all of them, not {self.group!r}")
        if self.arithmetic == "fixed_point" and (self.scheme, self.weight_bits, self.activation_bits) != (
            "static",
            8,
            8,
        ):
            raise UserError("fixed point is for the scheme 'static' in 8 bits", hint="arithmetic='float32'")
        if self.group and self.scheme != "weights":
            raise UserError("scales of groups are for the scheme 'weights'", hint="scheme='weights', or group=0")
        if self.affine and (self.scheme != "weights" or self.rounding != "nearest"):
            raise UserError(
                "zero points of weights are for the scheme 'weights' with rounding to the nearest",
                hint="scheme='weights', rounding='nearest', or affine=False",
            )
        if self.max_drop is not None and not (isinstance(self.max_drop, (int, float)) and self.max_drop >= 0):
            raise UserError(f"max_drop is a number that is not negative, not {self.max_drop!r}")
        if isinstance(self.skip, str):
            raise UserError("skip is a list of names, not one text", hint=f"skip=[{self.skip!r}]")
        object.__setattr__(self, "skip", tuple(self.skip))

    def _check_activation_bits(self) -> None:
        least = 1 if self.activations == "uint8" else 2
        if not isinstance(self.activation_bits, int) or not least <= self.activation_bits <= 8:
            raise UserError(f"activations of {self.activations} have {least} to 8 bits, not {self.activation_bits!r}")
        if self.activation_bits < 8 and self.scheme != "static":
            raise UserError(
                f"the scheme {self.scheme!r} has no activations of {self.activation_bits} bits", hint='scheme="static"'
            )

    @property
    def corrects_bias(self) -> bool:
        """Whether the mean error of rounded weights is taken off."""
        return self.scheme == "static" if self.correct_bias is None else self.correct_bias


class QuantizeFields(TypedDict, total=False):
    """The fields of `QuantizeOptions` as keywords of a call."""

    scheme: str
    weight_bits: int
    per_channel: bool
    group: int
    affine: bool
    activations: str
    activation_bits: int
    arithmetic: str
    observer: str
    rounding: str
    products: bool
    equalize: bool
    correct_bias: bool | None
    skip: Sequence[str]
    max_drop: float | None
    sensitivity: bool


FIELDS = tuple(item.name for item in fields(QuantizeOptions))
