"""Bodies for operators that ONNX defines by simpler ones: such an operator without a converter is expanded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tilewright.frontend.onnx.model import OnnxFunction, OnnxNode
from tilewright.frontend.onnx.reader import DATA_TYPES, Proto, onnx_package, read_function
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.expr import IntImm
from tilewright.ir.types import OptionalType, SequenceType, TensorType, TupleType, Type
from tilewright.support.errors import UnsupportedError

_NUMBERS = {name: number for number, name in DATA_TYPES.items()}


def is_known_operator(domain: str, op_type: str) -> bool:
    """Whether ONNX itself defines an operator (in any opset)."""
    return op_type in _operator_names(domain)


@lru_cache(maxsize=8)
def _operator_names(domain: str) -> frozenset[str]:
    onnx = onnx_package()
    return frozenset(schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == domain)


def schema_version(op_type: str, opset: int) -> int | None:
    """The opset in which a standard operator got the form that it has in an opset; None if it is not there yet."""
    onnx = onnx_package()
    try:
        return int(onnx.defs.get_schema(op_type, opset, "").since_version)
    except onnx.defs.SchemaError:
        return None


def schema_function(node: OnnxNode, opset: int, inputs: Sequence[GraphExpr | None]) -> OnnxFunction | None:
    """The body that the operator's own definition gives for these inputs, if it has one."""
    onnx = onnx_package()
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return None
    proto = None
    if schema.has_function:
        # The body must be written for an opset that means the same as the model's.
        text = schema.get_function_with_opset_version(opset) if _has_body(schema, opset) else b""
        proto = text or schema.function_body
    elif schema.has_context_dependent_function:
        versions = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
        if not versions:
            return None
        types = [_type_proto(value).SerializeToString() for value in inputs]
        try:
            proto = schema.get_context_dependent_function_with_opset_version(
                max(versions), _node_proto(node).SerializeToString(), types
            )
        except (RuntimeError, ValueError) as error:
            raise UnsupportedError(f"{node.op_type}: ONNX gives no body for these inputs: {error}") from error
    if proto is None:
        return None
    if isinstance(proto, bytes):
        return _read(proto, node.op_type, opset, node.domain) if proto else None
    return _with_defaults(read_function(proto, f"the definition of {node.op_type}"), schema)


@lru_cache(maxsize=64)
def _read(body: bytes, op_type: str, opset: int, domain: str) -> OnnxFunction:
    """A body as ONNX gives it, which many nodes of a model share."""
    onnx = onnx_package()
    parsed = onnx.FunctionProto()
    parsed.ParseFromString(body)
    schema = onnx.defs.get_schema(op_type, opset, domain)
    return _with_defaults(read_function(parsed, f"the definition of {op_type}"), schema)


def _has_body(schema: Proto, opset: int) -> bool:
    return any(version <= opset for version in schema.function_opset_versions)


def _with_defaults(function: OnnxFunction, schema: Proto) -> OnnxFunction:
    """Defaults that the schema declares, filled in: bodies refer to them."""
    onnx = onnx_package()
    defaults = dict(function.defaults)
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name and name not in defaults:
            probe = onnx.NodeProto()
            probe.attribute.append(attribute.default_value)
            holder = onnx.FunctionProto()
            holder.node.append(probe)
            defaults[name] = read_function(holder, "a schema").nodes[0].attributes[name]
    return OnnxFunction(
        function.name,
        function.domain,
        function.inputs,
        function.outputs,
        function.nodes,
        function.opsets,
        defaults,
        tuple(schema.attributes),
    )


def _node_proto(node: OnnxNode) -> Proto:
    onnx = onnx_package()
    if node.proto is not None:
        return node.proto
    proto = onnx.NodeProto()
    proto.op_type, proto.domain, proto.name = node.op_type, node.domain, node.name
    proto.input.extend(node.inputs)
    proto.output.extend(node.outputs)
    for name, value in node.attributes.items():
        if isinstance(value, (int, float, str, bytes)) or (isinstance(value, tuple) and value):
            proto.attribute.append(onnx.helper.make_attribute(name, value))
        elif value != ():
            raise UnsupportedError(f"{node.op_type} with the attribute '{name}' (a graph or a tensor) is not supported")
    return proto


def _type_proto(value: GraphExpr | None) -> Proto:
    proto = onnx_package().TypeProto()
    if value is not None and value.type is not None:
        _fill_type(proto, value.type)
    return proto


def _fill_type(proto: Proto, kind: Type) -> None:
    """Write a type into a `TypeProto`."""
    if isinstance(kind, TensorType):
        proto.tensor_type.elem_type = _NUMBERS[kind.dtype.name]
        for dim in kind.shape or ():
            made = proto.tensor_type.shape.dim.add()
            if isinstance(dim, IntImm):
                made.dim_value = dim.value
    elif isinstance(kind, SequenceType):
        _fill_type(proto.sequence_type.elem_type, kind.item)
    elif isinstance(kind, OptionalType):
        _fill_type(proto.optional_type.elem_type, kind.item)
    elif isinstance(kind, TupleType) and kind.items:
        _fill_type(proto.sequence_type.elem_type, kind.items[0])
