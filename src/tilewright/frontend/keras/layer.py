"""A layer (or operation) as a configuration describes it: its class, options and weights, before it is called."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.frontend.keras.registry import Kind, Slot, find_layer, find_operation, known_layers
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import BFLOAT16, FLOAT16, DataType
from tilewright.support.errors import UnsupportedError, UserError

MODELS = frozenset({"Functional", "Model", "Sequential"})
"""Classes that are graphs of layers."""
_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 string".split()
)
_MOST_SIZE = 1 << 31
"""The most of any size that a configuration states."""


class Scope:
    """The weights of a layer: those of a file under a path."""

    def __init__(self, read: Callable[[str], Array | None], prefix: str = "") -> None:
        self._read = read
        self.prefix = prefix

    def child(self, name: str) -> Scope:
        """The weights of a part."""
        return Scope(self._read, f"{self.prefix}{name}/")

    def array(self, path: str) -> Array | None:
        """The numbers of a variable; None if the file has none."""
        return self._read(self.prefix + path)


@dataclass(eq=False)
class Layer:
    """A layer, an operation or a model."""

    kind: str
    """The name of its class."""
    name: str
    config: dict[str, Any]
    weights: Scope
    is_operation: bool = False
    registered: str = ""
    """The name that a class of the user's own is registered under."""
    entry: Mapping[str, Any] = field(default_factory=dict)
    """The whole description, with the nodes of the graph it stands in."""
    parts: dict[str, Layer] = field(default_factory=dict)
    """Layers inside this one that were asked for, by the names of the attributes that hold them."""
    depth: int = 0

    @property
    def where(self) -> str:
        """What messages call it."""
        return f"{'operation' if self.is_operation else 'layer'} '{self.name}' ({self.kind})"

    @property
    def is_model(self) -> bool:
        """Whether it is a graph of layers."""
        return self.kind in MODELS or (
            isinstance(self.config.get("layers"), list) and "output_layers" in self.config and not self.is_operation
        )

    # Options

    def option(self, name: str, default: Any = None) -> Any:
        """An option as the configuration has it."""
        return self.config.get(name, default)

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole-number option."""
        return _whole(self.config.get(name, default), name)

    def number(self, name: str, default: float) -> float:
        """A number option."""
        value = self.config.get(name, default)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        raise UserError(f"{name} must be a number, it is {value!r}")

    def flag(self, name: str, default: bool = False) -> bool:
        """An option that is true or false."""
        value = self.config.get(name, default)
        if value is None or isinstance(value, (bool, int)):
            return bool(value)
        raise UserError(f"{name} must be true or false, it is {value!r}")

    def text(self, name: str, default: str) -> str:
        """An option that is one of some words."""
        value = self.config.get(name, default)
        if not isinstance(value, str):
            raise UserError(f"{name} must be a text, it is {value!r}")
        return value

    def integers(self, name: str, count: int | None = None, default: Any = None) -> tuple[int, ...]:
        """A list of whole numbers; a single one stands for all of `count`."""
        value = self.config.get(name, default)
        if isinstance(value, (list, tuple)):
            numbers = tuple(_whole(item, name) for item in value)
            if count is not None and len(numbers) != count:
                raise UserError(f"{name} must have {count} entries, it is {list(numbers)}")
            return numbers
        return (_whole(value, name),) * (1 if count is None else count)

    @property
    def dtype(self) -> DataType:
        """The type that the layer computes in."""
        name = self.policy
        if name.startswith("mixed_"):
            return BFLOAT16 if name == "mixed_bfloat16" else FLOAT16
        return as_dtype(name.rpartition("_from_")[2].removeprefix("mixed_") if "_from_" in name else name)

    @property
    def policy(self) -> str:
        """The name of the policy of types: `float32`, `mixed_float16`, `int8_from_float32`."""
        return policy_name(self.config.get("dtype"))

    @property
    def channels_first(self) -> bool:
        """Whether images have their channels before their sizes."""
        name = self.config.get("data_format")
        if name in (None, "channels_last"):
            return False
        if name != "channels_first":
            raise UserError(f"data_format {name!r} is not known")
        return True

    @property
    def is_trainable(self) -> bool:
        """Whether training changes its weights, which says where a `.h5` file has them."""
        return self.config.get("trainable") is not False

    # Parts

    def part(self, attribute: str, described: Any) -> Layer:
        """A layer inside this one, described by an option, whose weights lie under the name of an attribute."""
        if attribute not in self.parts:
            self.parts[attribute] = read_layer(described, self.weights.child(attribute), self.depth + 1, attribute)
        return self.parts[attribute]

    def listed_parts(self, attribute: str, described: Any) -> list[Layer]:
        """Layers inside this one that are items of a list."""
        if not isinstance(described, list):
            raise UserError(f"{attribute} must be a list of layers, it is {described!r}")
        used: dict[str, int] = {}
        made: list[Layer] = []
        for number, item in enumerate(described):
            kind = item.get("class_name") if isinstance(item, dict) else None
            if not isinstance(kind, str):
                raise UserError(f"{attribute}[{number}] is no layer: {str(item)[:60]}")
            made.append(self.part(f"{attribute}/{unique(snake_case(kind), used)}", item))
        return made


def find_kind(layer: Layer, own: Mapping[str, Any] | None = None) -> Kind:
    """What is known of a layer's class; an error if that is nothing."""
    for name in (layer.registered, layer.kind):
        if own and name in own:
            return Kind(own[name])
    found = find_operation(layer.kind) if layer.is_operation else None
    for name in (layer.registered, layer.kind) if not layer.is_operation else ():
        found = found or find_layer(name)
    if found is not None:
        return found
    if layer.is_operation:
        raise UnsupportedError(
            f"the operation {layer.kind} of Keras is not supported",
            where=layer.where,
            hint="write it with other operations, or export the model as SavedModel, TFLite or ONNX",
        )
    raise UnsupportedError(
        f"the layer {layer.kind} is not known",
        where=layer.where,
        hint=f"say what it means: from_keras(..., layers={{{layer.kind!r}: function}}), or export the model as "
        f"SavedModel, TFLite or ONNX (model.export). Known are {', '.join(known_layers()[:6])} ...",
    )


def read_layer(described: Any, weights: Scope, depth: int, default_name: str = "layer") -> Layer:
    """A layer from its description."""
    if not isinstance(described, dict) or not isinstance(described.get("class_name"), str):
        raise UserError(f"a layer is described by {str(described)[:60]!r}, which has no class_name")
    if depth > 32:
        raise UserError("layers are inside each other more than 32 times")
    kind, config = described["class_name"], described.get("config")
    if isinstance(config, list) and kind == "Sequential":
        config = {"layers": config}  # as Keras wrote models before 2.2.3
    config = {} if config is None else config
    if not isinstance(config, dict):
        raise UserError(f"the layer {kind} has no configuration")
    name = described.get("name") or config.get("name") or default_name
    registered = described.get("registered_name")
    return Layer(
        kind.rpartition(">")[2],
        str(name),
        config,
        weights,
        _is_operation(described, config),
        registered if isinstance(registered, str) else kind,
        described,
        depth=depth,
    )


def _is_operation(described: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    module = described.get("module")
    if isinstance(module, str):
        return module.startswith("keras.src.ops") or module == "keras.ops"
    # Without a module, as .h5 files have it: every layer says its type and whether it is trained.
    kind = described["class_name"]
    if "trainable" in config or "batch_input_shape" in config or find_operation(kind) is None:
        return False
    return find_layer(kind) is None or ("dtype" not in config and "inbound_nodes" in described)


def policy_name(described: Any) -> str:
    """The name of a policy of types, from its description."""
    if described is None:
        return "float32"
    if isinstance(described, str):
        return described
    if isinstance(described, dict) and isinstance(described.get("config"), dict):
        config = described["config"]
        if described.get("class_name") == "DTypePolicyMap":
            return policy_name(config.get("default_policy"))
        if isinstance(config.get("mode"), str):
            return f"{config['mode']}_from_{config.get('source_name')}"
        if isinstance(config.get("name"), str):
            return str(config["name"])
    raise UserError(f"the type {str(described)[:60]!r} is not known")


def as_dtype(name: Any) -> DataType:
    """A type by its name in Keras."""
    if not isinstance(name, str) or name not in _DTYPES:
        raise UserError(f"the type {name!r} is not known", hint=f"one of {', '.join(sorted(_DTYPES))}")
    return DataType.of(name)


def _whole(value: Any, name: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST_SIZE:
        raise UserError(f"{name} must be a whole number, it is {value!r}")
    return value


_CLASSES = {"GroupQueryAttention": "GroupedQueryAttention"}
"""Names of layers in configurations that are not those of their classes."""


def snake_case(name: str) -> str:
    """The name that Keras makes of a class for its weights: `Conv2D` is `conv2d`."""
    name = _CLASSES.get(name, name)
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def unique(name: str, used: dict[str, int]) -> str:
    """A name, with a number behind it from its second use on."""
    if name in used:
        used[name] += 1
        return f"{name}_{used[name]}"
    used[name] = 0
    return name


def kernel_and_bias(layer: Layer) -> Sequence[Slot]:
    """The variables of most layers: a kernel, and a bias if it has one."""
    return variables(1 + layer.flag("use_bias", True))


def variables(count: int, prefix: str = "", trainable: bool = True) -> list[Slot]:
    """So many variables, by their numbers."""
    return [Slot(f"{prefix}vars/{number}", trainable) for number in range(count)]
