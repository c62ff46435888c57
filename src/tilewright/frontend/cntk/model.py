"""A CNTK model as functions and variables: blocks taken apart, names of outputs resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.cntk.dictionary import Axis
from tilewright.support.errors import UnsupportedError, UserError

OPERATORS = (
    "Negate Sigmoid Tanh ReLU Exp Log Sqrt Floor Abs Reciprocal Softmax Hardmax TransposeAxes Where Slice "
    "Dropout Reshape Pooling SumAll Plus Minus ElementTimes Equal NotEqual Less LessEqual Greater "
    "GreaterEqual PackedIndex GatherPacked ScatterPacked Times TransposeTimes Convolution SquaredError "
    "CrossEntropyWithSoftmax ClassificationError PastValue FutureValue ReduceElements BatchNormalization "
    "Clip Select Splice Combine RandomSample RandomSampleInclusionFrequency ROIPooling Logistic "
    "OptimizedRNNStack ReconcileDynamicAxis LogSoftmax LogPlus CosDistance Sin Cos Pass Block Unpooling "
    "LambdaRank NDCG EditDistanceError NoOp LabelsToGraph StopGradient ELU ForwardBackward "
    "CosDistanceWithNegativeSamples OneHot Pow ToSequence ToSequenceLike UnpackSequence Assign Gather "
    "StableSigmoid RandomDistribution Sinh Cosh UnpackBatch ToBatch Asin Acos Pad Crop Atanh Asinh TopK "
    "Squeeze ConstantOp LatticeSequenceWithSoftmax Cast EyeLikeOp CustomProxyOp StraightThrough Tan Atan "
    "ConvolutionSequenceShape"
).split()
"""The names of the operators, by their numbers."""
INPUT, PARAMETER, CONSTANT, PLACEHOLDER = 0, 2, 3, 4
_END = "_Output_"


@dataclass(frozen=True)
class Variable:
    """An input, parameter, constant or placeholder."""

    uid: str
    name: str
    kind: int
    shape: tuple[int, ...]
    """As the file has it: the fastest dimension first."""
    axes: tuple[Axis, ...]
    data_type: int
    value: Any

    @property
    def has_batch(self) -> bool:
        """Whether there is one for each sample."""
        return any(not axis.is_static and not axis.ordered for axis in self.axes)

    @property
    def has_sequence(self) -> bool:
        """Whether there is one for each step of a sequence."""
        return any(axis.is_sequence for axis in self.axes)


@dataclass(frozen=True)
class PrimitiveFunction:
    """One operator."""

    uid: str
    name: str
    operator: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Its name in messages and profiles."""
        return self.name or self.uid


@dataclass(frozen=True)
class Model:
    """A composite function: everything it is made of, by uid."""

    name: str
    root: str
    variables: Mapping[str, Variable]
    functions: Mapping[str, PrimitiveFunction]
    aliases: Mapping[str, str]
    """What outputs of blocks and placeholders stand for."""

    def resolve(self, uid: str) -> str:
        """The variable or output that a uid stands for."""
        for _ in range(len(self.aliases) + 1):
            if uid not in self.aliases:
                return uid
            uid = self.aliases[uid]
        raise UserError(f"'{uid}' stands for itself")

    def owner(self, uid: str) -> tuple[PrimitiveFunction, int] | None:
        """The function whose output a uid is, and which one; None for variables."""
        name, found, index = uid.rpartition(_END)
        if not found or name not in self.functions or not index.isdigit():
            return None
        return self.functions[name], int(index)

    def outputs(self) -> list[tuple[str, str]]:
        """The names and uids of the model's results."""
        root = self.functions.get(self.root)
        if root is None:
            resolved = self.resolve(f"{self.root}{_END}0")
            found = self.owner(resolved)
            return [(found[0].label if found else resolved, resolved)]
        if root.operator != "Combine":
            return [(root.label, f"{self.root}{_END}0")]
        names: list[tuple[str, str]] = []
        for uid in root.inputs:
            resolved = self.resolve(uid)
            found = self.owner(resolved)
            label = found[0].label if found else resolved
            names.append((label if label not in [name for name, _ in names] else f"{label}_{len(names)}", resolved))
        return names


def read_model(dictionary: dict[str, Any]) -> Model:
    """The model that a dictionary says."""
    if dictionary.get("type") != "CompositeFunction" or not isinstance(dictionary.get("primitive_functions"), list):
        raise UserError(
            "the dictionary is no CNTK function",
            hint="save the model with Function.save; a checkpoint of training is none",
        )
    variables = {item["uid"]: _variable(item) for item in dictionary.get("inputs", ())}
    functions: dict[str, PrimitiveFunction] = {}
    aliases: dict[str, str] = {}
    for item in dictionary["primitive_functions"]:
        function = _function(item)
        if function.operator == "Block":
            _take_apart(item, aliases)
        else:
            functions[function.uid] = function
        if function.operator == "Combine":
            aliases |= {f"{function.uid}{_END}{at}": uid for at, uid in enumerate(function.inputs)}
    root = str(dictionary["root"])
    return Model(str(dictionary.get("name", "")) or root, root, variables, functions, aliases)


def _take_apart(item: dict[str, Any], aliases: dict[str, str]) -> None:
    """A block: its outputs are those of the function inside, placeholders there are its inputs."""
    root = item["block_function_composite"]["root"]
    for index in range(8):
        aliases[f"{item['uid']}{_END}{index}"] = f"{root}{_END}{index}"
    keys = item["block_function_composite_arguments_map_keys"]
    values = item["block_function_composite_arguments_map_values"]
    aliases.update(zip(map(str, keys), map(str, values), strict=True))


def _variable(item: dict[str, Any]) -> Variable:
    kind, data_type = int(item["kind"]), int(item["data_type"])
    axes = tuple(axis for axis in item.get("dynamic_axis", ()) if isinstance(axis, Axis))
    name, shape = str(item.get("name", "")), item.get("shape") or ()
    return Variable(str(item["uid"]), name, kind, tuple(shape), axes, data_type, item.get("value"))


def _function(item: dict[str, Any]) -> PrimitiveFunction:
    if item.get("type") == "UserDefinedFunction" or "op" not in item:
        raise UnsupportedError(
            f"a function of a program's own ('{item.get('name') or item.get('uid')}')",
            hint="only CNTK's own operators can be imported",
        )
    number = int(item["op"])
    if not 0 <= number < len(OPERATORS):
        raise UserError(f"the operator number {number} is not known")
    inputs = tuple(str(uid) for uid in item.get("inputs", ()))
    return PrimitiveFunction(
        str(item["uid"]), str(item.get("name", "")), OPERATORS[number], inputs, item.get("attributes") or {}
    )
