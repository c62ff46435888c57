"""The import of PyTorch programs: exported programs, modules with example inputs, and graphs of ATen operators."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any, Literal

import numpy as np

from tilewright.frontend.core.builder import check_size, dtype_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.torch.assertions import ASSERTIONS, assertion, constant_item
from tilewright.frontend.torch.builder import TorchBuilder, from_torch_dtype
from tilewright.frontend.torch.complex_numbers import ComplexType, convert_complex, has_complex
from tilewright.frontend.torch.conditions import Pair, conditions
from tilewright.frontend.torch.control import Control
from tilewright.frontend.torch.decompositions import UPDATES_STATISTICS, decomposed
from tilewright.frontend.torch.numbers import ITEMS, as_operand, compute, item, known_number
from tilewright.frontend.torch.registry import find_converter, refusal
from tilewright.frontend.torch.sizes import dimension_names
from tilewright.frontend.torch.torchscript import exported_script
from tilewright.frontend.torch.training import in_training_mode
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.expr import Constant, Function, GraphExpr, Var
from tilewright.graph.state import with_state
from tilewright.ir.dtype import INT64, UINT8, DataType
from tilewright.ir.expr import PrimExpr
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType, tensor_type
from tilewright.support.errors import CompilerBug, MissingDependencyError, UnsupportedError, UserError
from tilewright.support.span import Span
from tilewright.support.text import kind_of

_PLACEMENT = frozenset(
    {"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator", "copy", "implicit", "out"}
)
"""Arguments that say where and how a result is stored, not what it is."""


signature = cache(inspect.signature)
"""The parameters of a converter."""


def load_torch() -> ModuleType:
    """The torch package, or an error that says how to get it."""
    try:
        import torch
        import torch._dynamo.exc
        import torch._subclasses.fake_tensor
        import torch.export
        import torch.fx.experimental.symbolic_shapes
    except ImportError:
        raise MissingDependencyError.for_extra("torch", "torch", "importing PyTorch programs") from None
    found: ModuleType = torch
    return found


def from_torch(
    program: Any,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    seed: int | Literal["input"] | None = None,
    return_changes: bool = False,
    state: bool = False,
    training: bool = False,
) -> IRModule:
    """Import a PyTorch program: a `torch.export.ExportedProgram`, or a module with example inputs to export it with.

    `example_inputs` are the positional arguments of the module (a tuple), or keyword arguments (a mapping). The result
    has a function "main" whose parameters are named as the program's inputs; weights are constants. Its attributes hold
    `model_name` and `output_names`. Dimensions that `dynamic_shapes` (as in `torch.export.export`) leaves open are
    symbols, named as their `torch.export.Dim` or after the input (`x_0`).

    A program that draws random numbers needs a `seed`: a number, from which it draws the same numbers in every run, or
    "input", for an input `seed` more. With `return_changes`, what a program writes to its inputs and buffers becomes
    further outputs of their names; a buffer that it writes to is an input as well, and its value is in the attribute
    `buffers`. With `state` as well, these buffers are state of the compiled program, which begins with their values:
    it neither takes nor gives them (`Executable.state`).

    With `training` a module is exported in training mode, whatever mode it is in: normalisation by the statistics of
    the batch, dropout. What that changes (running statistics) is returned, and if it draws random numbers, "input" is
    the seed unless another is given.
    """
    torch = load_torch()
    asked = dynamic_shapes
    if training and not isinstance(program, torch.nn.Module):
        raise UserError(
            "only a module is imported for training", hint="from_torch(model, example_inputs, training=True)"
        )
    if isinstance(program, torch.nn.Module):
        if example_inputs is None:
            raise UserError(
                "a module is imported with example inputs", hint="from_torch(model, (torch.randn(1, 3, 224, 224),))"
            )
        name = type(program).__name__
        with in_training_mode(program) if training else nullcontext():
            program = _export(torch, program, example_inputs, dynamic_shapes)
    elif isinstance(program, torch.export.ExportedProgram):
        name = "main"
        if example_inputs is not None or dynamic_shapes is not None:
            raise UserError("an exported program has its inputs already", hint="from_torch(program)")
    else:
        raise UserError(
            f"a torch.nn.Module or torch.export.ExportedProgram is needed, not {kind_of(program)}",
            hint="wrap functions in a module",
        )
    functional = program if _is_plain(torch, program.graph) else decomposed(program)
    importer = _ProgramImporter(torch, functional, program, return_changes or state or training)
    importer.seed("input" if training and seed is None else seed, is_optional=training and seed is None)
    importer.names = dimension_names(asked, program.graph_signature.user_inputs)
    module = importer.module(name)
    if not state:
        return module
    kept = module.attributes.get("buffers", {})
    assert isinstance(kept, dict)
    return with_state(module, {buffer: buffer for buffer in kept}) if kept else module


def _is_plain(torch: Any, graph: Any) -> bool:
    """Whether a graph has only operators that are converted whole, none of which writes to its inputs."""
    for node in graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
            return False
        if _operator_name(node.target) in ASSERTIONS:
            continue
        if find_converter(node.target.name()) is None:
            return False
        if node.target.name() == UPDATES_STATISTICS and node.args[5]:
            return False
    return True


def _export(torch: Any, program: Any, example_inputs: Any, dynamic_shapes: Any) -> Any:
    if isinstance(example_inputs, Mapping):
        args: tuple[Any, ...] = ()
        kwargs = dict(example_inputs)
    else:
        args = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
        kwargs = {}
    if isinstance(program, torch.jit.ScriptModule):
        return exported_script(torch, program, args, kwargs, dynamic_shapes)
    fake, symbolic = torch._subclasses.fake_tensor, torch.fx.experimental.symbolic_shapes
    refusals = (
        fake.DataDependentOutputException,
        fake.DynamicOutputShapeException,
        symbolic.GuardOnDataDependentSymNode,
        symbolic.PendingUnbackedSymbolNotFound,
        torch._dynamo.exc.UserError,
    )
    try:
        with torch.no_grad():
            return torch.export.export(program, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except refusals as error:
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(
            f"torch cannot export the module: {type(error).__name__}: {reason}",
            hint="torch.export.draft_export(model, inputs) says more",
        ) from error


class GraphImporter:
    """Turns the nodes of an fx graph of ATen operators into graph values."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.builder = TorchBuilder()
        self.control = Control(self.builder, self._run_graph)
        self.names: dict[tuple[str, int], str] = {}
        """Names of dimensions that vary: (input, axis) -> name."""
        self.values: dict[Any, Any] = {}
        """fx nodes to graph values, numbers, or sequences of them."""
        self.asserted: list[Pair] = []
        """Sizes that must be equal because the graph that is being imported asserts something."""

    def parameter(self, name: str, example: Any) -> Var:
        """A parameter of the function for an example tensor."""
        for axis, dim in enumerate(example.shape):
            self.builder.sizes.declare(dim, self.names.get((name, axis), f"{name}_{axis}"))
        kind = tensor_type(self.builder.sizes.shape(example.shape), from_torch_dtype(example.dtype))
        check_size(kind)
        var = Var(name, kind)
        var.span = Span(name)
        return var

    def value_of(self, var: Var) -> GraphExpr:
        """What a parameter is in the graph: itself, or a constant if it has no elements."""
        shape = sizes_of(var)
        if 0 not in shape:
            return var
        assert var.type is not None
        return self.builder.empty(shape, getattr(var.type, "dtype"))  # noqa: B009

    def constant(self, name: str, tensor: Any, *, is_weight: bool = False) -> GraphExpr | Complex:
        """A weight or another tensor that the program holds: its span says which (training asks)."""
        if not isinstance(tensor, self.torch.Tensor):
            raise UnsupportedError(f"the constant '{name}' is {kind_of(tensor)}, not a tensor")
        if tensor.is_complex():
            parts = [self._constant(name, part) for part in (tensor.real, tensor.imag)]
            return Complex(*parts)
        made = self._constant(name, tensor)
        if is_weight:
            self.builder.weights[id(made)] = made
        else:
            made.span = Span(name, operation="buffer")
        return made

    def _constant(self, name: str, tensor: Any) -> Constant:
        dtype = from_torch_dtype(tensor.dtype)
        made = Constant(to_array(self.torch, tensor, dtype), dtype)
        made.span = Span(name)
        return made

    def run(self, nodes: Sequence[Any]) -> list[Any]:
        """Import the calls of a graph whose placeholders have values; gives the arguments of its output."""
        outside, self.asserted = self.asserted, []
        try:
            outputs = self._run(nodes)
            return self.under(self.asserted, outputs) if self.asserted else outputs
        finally:
            self.asserted = outside

    def _run(self, nodes: Sequence[Any]) -> list[Any]:
        needed = _needed(nodes)
        for node in nodes:
            if node.op == "call_function":
                if node in needed:
                    self.values[node] = self.convert(node)
            elif node.op == "output":
                return self.outputs(node)
            elif node.op == "get_attr":
                self.values[node] = self._attribute(node)
        return []

    def _run_graph(self, graph: Any, values: Sequence[Any]) -> list[Any]:
        """Import the graph of a body with values for its inputs."""
        nodes = list(graph.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        self.values.update(zip(placeholders, values, strict=True))
        span = self.builder.span
        results = self.run(nodes)
        self.builder.span = span
        return results

    def _attribute(self, node: Any) -> Any:
        found = node.graph.owning_module
        for part in node.target.split("."):
            found = getattr(found, part)
        if isinstance(found, self.torch.fx.GraphModule):
            return found
        return self.constant(node.target, found)

    def outputs(self, node: Any) -> list[Any]:
        """What a graph gives."""
        return [self._argument(item) for item in _flat(node.args[0])]

    def convert(self, node: Any) -> Any:
        """What a call gives."""
        with self._located(node):
            return self._call(node)

    def _call(self, node: Any) -> Any:
        target, meta = node.target, node.meta.get("val")
        if target is operator.getitem:
            return self._argument(node.args[0])[node.args[1]]
        if isinstance(target, self.torch._ops.OpOverload):
            if _operator_name(target) in ASSERTIONS:
                return self._assert(node)
            if _operator_name(target) in ITEMS:
                return self._item(node)
        elif any(self._is_held(value) for value in node.args) or isinstance(meta, self.torch.SymFloat):
            return compute(self.builder, target, [self._argument(value) for value in node.args])
        if isinstance(meta, (int, self.torch.SymInt)) and not isinstance(meta, bool):
            # Arithmetic of sizes: torch has done it already.
            return self.builder.sizes.size(meta)
        if isinstance(meta, (bool, self.torch.SymBool)) and not isinstance(target, self.torch._ops.OpOverload):
            return meta  # a condition on sizes, for an assertion
        if isinstance(target, self.torch._ops.HigherOrderOperator):
            found = self.control.convert(target.name(), [self._argument(item) for item in node.args])
            if found is not None:
                return self._checked(node, found)
        if not isinstance(target, self.torch._ops.OpOverload):
            raise UnsupportedError(f"the operator {target} is not supported")
        name = target.name()
        reason = refusal(name)
        if reason is not None:
            raise UnsupportedError(f"the operator {target} is not supported: {reason}")
        convert = find_converter(name)
        if convert is None:
            raise UnsupportedError(f"the operator {target} is not supported")
        self.builder.meta = node.meta.get("val")
        first = node.args[0] if node.args else None
        self.builder.operand_meta = first.meta.get("val") if isinstance(first, self.torch.fx.Node) else None
        self.builder.used = _used_results(node)
        arguments = self._arguments(node)
        if has_complex(list(arguments.values())):
            return self._checked(node, convert_complex(self.builder, name, arguments))
        try:
            signature(convert).bind(self.builder, **arguments)
        except TypeError as error:
            raise UnsupportedError(f"the operator {target} is not supported with these arguments: {error}") from None
        return self._checked(node, convert(self.builder, **arguments))

    def _item(self, node: Any) -> Any:
        """The number that a tensor holds: a tensor again, or what torch knows it to be."""
        x = self._argument(node.args[0])
        number = known_number(node.meta["val"])
        if number is None:
            return item(self.builder, x)
        self.asserted += constant_item(self.builder, x, number)
        return number

    def _is_held(self, value: Any) -> bool:
        """Whether an argument is a number that a tensor holds."""
        if not isinstance(value, self.torch.fx.Node) or not isinstance(self.values[value], GraphExpr):
            return False
        numbers = (bool, int, float, self.torch.SymBool, self.torch.SymInt, self.torch.SymFloat)
        return isinstance(value.meta.get("val"), numbers)

    def _assert(self, node: Any) -> Any:
        """Remember what an assertion demands; some give their last argument back."""
        given = dict(zip((argument.name for argument in node.target._schema.arguments), node.args, strict=False))
        given = {name: self.values.get(value, value) for name, value in {**given, **node.kwargs}.items()}
        self.asserted += assertion(self.builder, _operator_name(node.target), given)
        return given.get("dep_token")

    def under(self, pairs: Sequence[Pair], outputs: Sequence[Any]) -> list[Any]:
        """The outputs, of which one is there only if pairs of sizes are equal."""
        place = next((n for n, value in enumerate(outputs) if _is_computed(value)), None)
        if place is None:
            raise UnsupportedError("conditions on a program that computes no tensor")
        return [self.builder.under(value, pairs) if n == place else value for n, value in enumerate(outputs)]

    def _arguments(self, node: Any) -> dict[str, Any]:
        """The arguments of a call by name; those left out are left to the converter's defaults."""
        given: dict[str, Any] = {}
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            given[argument.name] = value
        given.update(node.kwargs)
        layout = given.get("layout")
        if layout is not None and layout is not self.torch.strided:
            raise UnsupportedError(f"tensors of layout {layout} are not supported")
        found = {name: self._argument(value) for name, value in given.items() if name not in _PLACEMENT}
        for argument in node.target._schema.arguments:
            if any(self._is_held(value) for value in _flat(given.get(argument.name))):
                found[argument.name] = self._operand(argument, found)
        first = "a" if node.target.namespace == "prims" else "self"
        return {"x" if name == first else name: value for name, value in found.items()}

    def _operand(self, argument: Any, arguments: Mapping[str, Any]) -> GraphExpr:
        """A number that a tensor holds as an argument of an operator on tensors."""
        number = arguments[argument.name]
        if not isinstance(number, GraphExpr) or not isinstance(argument.type, self.torch.TensorType):
            raise UnsupportedError(
                f"the argument '{argument.name}' is a number that a tensor holds",
                hint="give sizes and other plain numbers as such",
            )
        others = [value for name, value in arguments.items() if isinstance(value, GraphExpr) and name != argument.name]
        return as_operand(self.builder, number, others)

    def _argument(self, value: Any) -> Any:
        match value:
            case self.torch.fx.Node():
                found = self.values[value]
                return self._argument(found) if isinstance(found, self.torch.SymBool) else found
            case list() | tuple():
                return [self._argument(item) for item in value]
            case self.torch.dtype():
                return ComplexType() if value.is_complex else from_torch_dtype(value)
            case self.torch.SymInt():
                return self.builder.sizes.size(value)
            case self.torch.SymFloat() | self.torch.SymBool():
                raise UnsupportedError("numbers computed from dimensions that vary are not supported")
        return value

    def _checked(self, node: Any, result: Any) -> Any:
        """What a converter gave, which must have the shapes and types that torch said it would."""
        meta = node.meta.get("val")
        if isinstance(meta, (tuple, list)) and isinstance(result, (tuple, list)):
            return [self._fitted(node, *pair) for pair in zip(meta, result, strict=False)]
        return self._fitted(node, meta, result)

    def _fitted(self, node: Any, expected: Any, made: Any) -> Any:
        if isinstance(made, Complex):
            return Complex(*(self._fitted(node, expected.real, part) for part in made.parts))
        if not isinstance(expected, self.torch.Tensor) or not isinstance(made, GraphExpr):
            return made
        shape, found = self.builder.sizes.shape(expected.shape), sizes_of(made)
        wrong = len(found) != len(shape) or any(map(dimensions.different, found, shape))
        if wrong or dtype_of(made) is not from_torch_dtype(expected.dtype):
            raise CompilerBug(
                f"{node.target} gives {made.type!r} at '{_place(node)}', torch says {expected.dtype}{tuple(shape)}"
            )
        # Torch may know more about sizes than can be proved from their symbols: that is checked when the model runs.
        return self.builder.match(made, shape)

    @contextmanager
    def _located(self, node: Any) -> Iterator[None]:
        """Put the node's name on what is built, and on errors that do not say where they are."""
        place = _place(node)
        self.builder.span = Span(place, operation=str(node.target))
        try:
            yield
        except UserError as error:
            if error.where is None:
                error.where = f"node '{place}' ({node.target})"
            raise


class _ProgramImporter(GraphImporter):
    """The import of an exported program; `called` is the program as the user has it, with structured inputs."""

    def __init__(self, torch: Any, program: Any, called: Any, return_changes: bool) -> None:
        super().__init__(torch)
        self.program, self.called, self.return_changes = program, called, return_changes
        self.last: list[Var] = []
        """Parameters after those of the program's own inputs."""
        self.seed_if_drawn: Var | None = None
        """The seed where it is a parameter only of programs that draw."""

    def seed(self, seed: int | str | None, *, is_optional: bool) -> None:
        """Say what random numbers are drawn from; an optional seed is a parameter only if any are."""
        if seed == "input":
            var = Var("seed", tensor_type((), INT64))
            self.builder.seed = var
            if is_optional:
                self.seed_if_drawn = var
            else:
                self.last.append(var)
        elif isinstance(seed, int) and not isinstance(seed, bool):
            self.builder.seed = self.builder.scalar(seed, INT64)
        elif seed is not None:
            raise UserError(f"the seed is {seed!r}", hint="a whole number, or 'input'")

    def module(self, name: str) -> IRModule:
        """The whole program as a module."""
        program, kinds = self.program, self.torch.export.graph_signature.InputKind
        nodes = list(program.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        changed = self._changes()
        # Taken apart, a program may have other names for its inputs.
        names = iter(
            [item.arg.name for item in self.called.graph_signature.input_specs if item.kind is kinds.USER_INPUT]
        )
        params: list[Var] = []
        buffers: dict[str, Any] = {}
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            if spec.kind is kinds.USER_INPUT or spec.target in changed:
                input_name = next(names) if spec.kind is kinds.USER_INPUT else _plain_name(spec.target)
                example = node.meta.get("val")
                if not isinstance(example, self.torch.Tensor):
                    self.values[node] = example
                    continue
                var = self.parameter(input_name, example)
                (params if spec.kind is kinds.USER_INPUT else self.last).append(var)
                if spec.kind is not kinds.USER_INPUT:
                    stored = program.state_dict.get(spec.target)
                    stored = program.constants[spec.target] if stored is None else stored
                    buffers[input_name] = to_array(self.torch, stored, dtype_of(var)).copy()
                self.values[node] = self.value_of(var)
            elif spec.kind in (kinds.PARAMETER, kinds.BUFFER, kinds.CONSTANT_TENSOR):
                stored = program.state_dict.get(spec.target)
                if stored is None:
                    stored = program.constants[spec.target]
                self.values[node] = self.constant(spec.target, stored, is_weight=spec.kind is kinds.PARAMETER)
            else:
                raise UnsupportedError(f"the input '{node.name}' ({spec.kind.name}) is not supported")
        outputs = self.run(nodes)
        if self.seed_if_drawn is not None and self.builder.draws:
            self.last.insert(0, self.seed_if_drawn)
        shapes = {param.name: sizes_of(param) for param in params}
        wanted = conditions(program, self.called, self.builder.sizes, shapes)
        if wanted:
            outputs = self.under(wanted, outputs)
        # Torch gives what was changed first.
        count = len(changed)
        results = [*self._output_names()[count:], *(_plain_name(item) for item in changed)]
        outputs = [*outputs[count:], *outputs[:count]]
        made = finish_module(self.builder, name, [*params, *self.last], outputs, results, self.control.functions)
        return made.with_attributes(buffers=buffers) if buffers else made

    def _changes(self) -> list[str]:
        """The inputs and buffers that the program writes to, in the order of their values among the outputs."""
        specs = [spec for spec in self.program.graph_signature.output_specs if spec.kind.name != "USER_OUTPUT"]
        for spec in specs if not self.return_changes else ():
            if spec.kind.name == "BUFFER_MUTATION":
                raise UnsupportedError(
                    f"the program changes its buffer '{spec.target}'",
                    hint="export it for inference: model.eval() before torch.export.export; or, where the buffer is "
                    "meant to change, from_torch(..., return_changes=True)",
                )
            raise UnsupportedError(
                f"the program changes its input '{spec.target}' in place",
                hint="clone the input in the model, or from_torch(..., return_changes=True)",
            )
        return [spec.target for spec in specs]

    def _output_names(self) -> list[str]:
        return [getattr(spec.arg, "name", "constant") for spec in self.program.graph_signature.output_specs]


def _plain_name(target: str) -> str:
    """The name of a buffer as one of an input."""
    return target.replace(".", "_")


def finish_module(
    builder: TorchBuilder,
    name: str,
    params: Sequence[Var],
    outputs: Sequence[Any],
    names: Sequence[str],
    functions: Sequence[Function] = (),
) -> IRModule:
    """A module with a function "main" and those of its loops."""
    kept: list[GraphExpr] = []
    kept_names: list[str] = []
    builder.span = None
    for value, given in zip(outputs, names, strict=True):
        if value is None:
            continue
        if isinstance(value, PrimExpr):
            value = builder.reshape(builder.shape_tensor((value,)), ())
        elif isinstance(value, (bool, int, float)):
            value = builder.constant(np.asarray(value))
        if isinstance(value, Complex):
            raise UnsupportedError(
                f"the output '{given}' is complex", hint="return torch.view_as_real(value), or its parts"
            )
        if not isinstance(value, GraphExpr) or isinstance(value.type, TupleType):
            raise UnsupportedError(f"the output '{given}' is no tensor")
        kept.append(value)
        kept_names.append(given)
    if not kept:
        raise UserError("the program has no outputs")
    function = Function("main", tuple(params), builder.body(builder.tuple(kept)))
    return IRModule([function, *functions], attributes={"model_name": name, "output_names": tuple(kept_names)})


def to_array(torch: Any, tensor: Any, dtype: DataType) -> Any:
    """The elements of a tensor as numpy stores them (the tensor's own memory where that is possible)."""
    plain = tensor.detach().cpu().contiguous()
    if dtype.name == "bfloat16":
        return plain.view(torch.int16).numpy().view(np.uint16)
    if dtype is UINT8 or dtype.is_small_float:
        return plain.view(torch.uint8).numpy()
    return plain.numpy()


def _is_computed(value: Any) -> bool:
    return isinstance(value, GraphExpr) and isinstance(value.type, TensorType) and not isinstance(value, Constant)


def _operator_name(target: Any) -> str:
    return str(target.name()).removeprefix("aten::").split(".")[0]


def _needed(nodes: Sequence[Any]) -> set[Any]:
    """The nodes that outputs and assertions need; what nothing needs may be what is not supported."""
    needed: set[Any] = set()
    for node in reversed(nodes):
        binds_sizes = bool(node.meta.get("unbacked_bindings"))
        if node in needed or binds_sizes or node.op == "output" or _asserts(node.target):
            needed.add(node)
            needed.update(node.all_input_nodes)
    return needed


def _used_results(node: Any) -> frozenset[int] | None:
    """Which of several results of a node are used; None where it has one, or somebody takes all of them."""
    if any(user.target is not operator.getitem for user in node.users):
        return None
    return frozenset(user.args[1] for user in node.users)


def _asserts(target: Any) -> bool:
    return hasattr(target, "_schema") and _operator_name(target) in ASSERTIONS


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [item for part in value for item in _flat(part)]
    return [value]


def _place(node: Any) -> str:
    """The name of a node within the module it comes from: `layer1.0.conv1/conv2d`."""
    stack = node.meta.get("nn_module_stack")
    path = next(reversed(stack.values()))[0] if stack else ""
    return f"{path}/{node.name}" if path else str(node.name)
