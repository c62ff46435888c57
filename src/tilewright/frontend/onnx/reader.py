"""From a file, bytes or a `ModelProto` to the plain data of `tilewright.frontend.onnx.model`.

All contact with the onnx package and with protobuf is here and in `functions.py`. The model passed in is never
changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from tilewright.frontend.core.scopes import Lazy, TensorValue
from tilewright.frontend.onnx.model import (
    AttributeValue,
    OnnxFunction,
    OnnxGraph,
    OnnxModel,
    OnnxNode,
    Reference,
    ValueInfo,
    canonical_domain,
)
from tilewright.ir.dtype import DataType
from tilewright.support.errors import MissingDependencyError, UnsupportedError, UserError
from tilewright.support.file_kinds import looks_like
from tilewright.support.text import kind_of

Proto = Any
"""Protobuf messages have no static types here."""
T = TypeVar("T")

DATA_TYPES: dict[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4_e2m1fn",
    24: "float8_e8m0fnu",
    25: "uint2",
    26: "int2",
}
"""Element types of ONNX by their number, where there is a data type for them."""
_MALFORMED = (ValueError, TypeError, OverflowError, KeyError, IndexError, UnicodeError, MemoryError)
"""What decoding raises for contents that make no sense."""


def onnx_package() -> ModuleType:
    """The onnx package, or an error that says how to get it."""
    try:
        import onnx
        import onnx.external_data_helper
        import onnx.numpy_helper
    except ImportError as error:
        raise MissingDependencyError.for_extra("onnx", "onnx", "importing an ONNX model") from error
    module: ModuleType = onnx
    return module


def data_type(number: int, what: str) -> DataType:
    """The data type of an ONNX element type number."""
    if number in DATA_TYPES:
        return DataType.of(DATA_TYPES[number])
    raise UnsupportedError(f"{what} has the element type {type_name(number)}, which is not supported")


def type_name(number: int) -> str:
    """The name ONNX gives an element type."""
    onnx = onnx_package()
    try:
        return str(onnx.TensorProto.DataType.Name(number)).lower()
    except ValueError:
        return f"number {number}"


def read_model(model: object) -> OnnxModel:
    """Read a path, bytes or a `ModelProto`."""
    onnx = onnx_package()
    if isinstance(model, onnx.ModelProto):
        return _Reader("the model", None).model(model)
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _Reader("the model", None).model(_parse(onnx, bytes(model), "the bytes"))
    if isinstance(model, (str, os.PathLike)):
        path = Path(os.fspath(model))
        return _Reader(str(path), path.parent).model(read_proto(path))
    raise UserError(f"cannot import a model from {kind_of(model)}", hint=_hint_for(model))


def _hint_for(model: object) -> str:
    """What to do with an object that is no ONNX model."""
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(model).__mro__}
    if "torch.nn.modules.module.Module" in kinds:
        return "import a PyTorch module with tw.frontend.from_torch(module, (example_input,))"
    if "torch.export.exported_program.ExportedProgram" in kinds:
        return "import an exported PyTorch program with tw.frontend.from_torch(program)"
    if "onnxruntime.capi.onnxruntime_inference_collection.InferenceSession" in kinds:
        return "a session of onnxruntime holds no model any more: pass the file it was made from"
    return "pass a path, the bytes of a file, or an onnx.ModelProto"


def read_proto(path: Path) -> Proto:
    """The protobuf message in a file, without the weights that lie in other files."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}", hint="check the path of the model") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    return _parse(onnx_package(), data, str(path))


def _parse(onnx: ModuleType, data: bytes, source: str) -> Proto:
    from google.protobuf.message import DecodeError

    if not data:
        raise UserError(f"{source}: the file is empty")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise _no_model(data, source, "or it is damaged or cut short") from error
    if not model.HasField("graph"):
        raise _no_model(data, source, "it has no graph")
    return model


def _no_model(data: bytes, source: str, why: str) -> UserError:
    """Why bytes are no ONNX model: what they look like, if that can be told."""
    kind = looks_like(data, Path(source))
    if kind is not None:
        return UserError(f"{source} is not an ONNX model: it looks like {kind.name}", hint=kind.hint)
    separator = "," if why.startswith("or") else ":"
    return UserError(
        f"{source} is not an ONNX model{separator} {why}",
        hint="an ONNX model is a binary protobuf file; download or export it again",
    )


class _Reader:
    """Reads one model; knows its name for messages and the folder of its external data."""

    def __init__(self, source: str, folder: Path | None) -> None:
        self.source = source
        self.folder = folder
        self.onnx = onnx_package()

    def model(self, proto: Proto) -> OnnxModel:
        return self._guard("the model", partial(self._model, proto))

    def _guard(self, what: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except _MALFORMED as error:
            raise UserError(f"{self.source}: {what} is damaged: {error}", hint="export the model again") from error

    def _model(self, proto: Proto) -> OnnxModel:
        if not proto.HasField("graph"):
            raise UserError(
                f"{self.source} is not an ONNX model: it has no graph",
                hint="an ONNX model is a binary protobuf file; download or export it again",
            )
        opsets = _opsets(proto.opset_import)
        if not opsets:
            if proto.ir_version >= 3 or proto.ir_version == 0:
                raise UserError(f"{self.source} names no operator set (opset_import)", hint="export the model again")
            opsets = {"": 1}
        functions: dict[tuple[str, str, str], OnnxFunction] = {}
        for item in proto.functions:
            function = self.function(item)
            functions[(function.domain, function.name, _text(getattr(item, "overload", "")))] = function
        metadata = {_text(item.key): _text(item.value) for item in proto.metadata_props}
        return OnnxModel(self.source, self.graph(proto.graph), opsets, functions, metadata)

    def function(self, proto: Proto) -> OnnxFunction:
        return OnnxFunction(
            name=_text(proto.name),
            domain=canonical_domain(_text(proto.domain)),
            inputs=tuple(_text(name) for name in proto.input),
            outputs=tuple(_text(name) for name in proto.output),
            nodes=tuple(self.node(item) for item in proto.node),
            opsets=_opsets(proto.opset_import),
            defaults={_text(item.name): self.attribute(item) for item in proto.attribute_proto},
            attribute_names=tuple(_text(name) for name in proto.attribute),
        )

    def graph(self, proto: Proto) -> OnnxGraph:
        initializers: dict[str, Lazy] = {}
        for item in proto.initializer:
            name = _text(item.name)
            initializers[name] = self._lazy(item, f"the initializer '{name}'")
        for item in proto.sparse_initializer:
            name = _text(item.values.name)
            what = f"the sparse initializer '{name}'"
            initializers[name] = lru_cache(maxsize=1)(partial(self._sparse, item, what))
        return OnnxGraph(
            name=_text(proto.name),
            inputs=tuple(self.value_info(item) for item in proto.input),
            outputs=tuple(self.value_info(item) for item in proto.output),
            nodes=tuple(self.node(item) for item in proto.node),
            initializers=initializers,
        )

    def value_info(self, proto: Proto) -> ValueInfo:
        return self._typed(_text(proto.name), proto.type)

    def _typed(self, name: str, holder: Proto) -> ValueInfo:
        kind = holder.WhichOneof("value")
        if kind is None:
            return ValueInfo(name, None, None)
        if kind in ("sequence_type", "optional_type"):
            item = self._typed(name, getattr(holder, kind).elem_type)
            return ValueInfo(name, None, None, kind.removesuffix("_type"), item=item)
        if kind != "tensor_type":
            return ValueInfo(name, None, None, kind.removesuffix("_type").replace("_", " "))
        tensor = holder.tensor_type
        dtype = DataType.of(DATA_TYPES[tensor.elem_type]) if tensor.elem_type in DATA_TYPES else None
        label = "tensor" if dtype is not None else f"tensor of {type_name(tensor.elem_type)}"
        if not tensor.HasField("shape"):
            return ValueInfo(name, dtype, None, label)
        dims = tuple(_dim(dim) for dim in tensor.shape.dim)
        return ValueInfo(name, dtype, dims, label)

    def node(self, proto: Proto) -> OnnxNode:
        outputs = tuple(_text(name) for name in proto.output)
        op_type = _text(proto.op_type)
        first = next((name for name in outputs if name), "")
        return OnnxNode(
            op_type=op_type,
            domain=canonical_domain(_text(proto.domain)),
            name=_text(proto.name) or f"{op_type}:{first}",
            inputs=tuple(_text(name) for name in proto.input),
            outputs=outputs,
            attributes={_text(item.name): self.attribute(item) for item in proto.attribute},
            overload=_text(getattr(proto, "overload", "")),
            proto=proto,
        )

    def attribute(self, proto: Proto) -> AttributeValue:
        if proto.ref_attr_name:
            return Reference(_text(proto.ref_attr_name))
        kinds = self.onnx.AttributeProto
        match proto.type:
            case kinds.INT:
                return int(proto.i)
            case kinds.FLOAT:
                return float(proto.f)
            case kinds.STRING:
                return bytes(proto.s)
            case kinds.INTS:
                return tuple(int(item) for item in proto.ints)
            case kinds.FLOATS:
                return tuple(float(item) for item in proto.floats)
            case kinds.STRINGS:
                return tuple(bytes(item) for item in proto.strings)
            case kinds.TENSOR:
                return self._lazy(proto.t, f"the tensor of attribute '{_text(proto.name)}'")
            case kinds.TYPE_PROTO:
                return self._typed(_text(proto.name), proto.tp)
            case kinds.SPARSE_TENSOR:
                what = f"the tensor of attribute '{_text(proto.name)}'"
                return lru_cache(maxsize=1)(partial(self._sparse, proto.sparse_tensor, what))
            case kinds.GRAPH:
                return self.graph(proto.g)
        return None

    def _lazy(self, proto: Proto, what: str) -> Lazy:
        return lru_cache(maxsize=1)(partial(self._guard, what, partial(self._tensor, proto, what)))

    def _tensor(self, proto: Proto, what: str) -> TensorValue:
        dtype = data_type(proto.data_type, f"{self.source}: {what}")
        storage = dtype.numpy()
        if any(dim < 0 for dim in proto.dims):
            raise UserError(f"{self.source}: {what} has a negative dimension: {tuple(proto.dims)}")
        if proto.data_location == self.onnx.TensorProto.EXTERNAL:
            proto = self._external(proto, what)
        try:
            array = np.asarray(self.onnx.numpy_helper.to_array(proto))
        except _MALFORMED as error:
            raise UserError(
                f"{self.source}: the data of {what} does not fit its shape {tuple(proto.dims)}",
                hint="the file is damaged: download or export it again",
            ) from error
        if dtype.is_string:
            texts = np.empty(array.size, object)
            texts[:] = [_text(item) for item in array.reshape(-1).tolist()]
            array = texts.reshape(array.shape)
        if array.shape != tuple(proto.dims):
            raise UserError(f"{self.source}: {what} has shape {array.shape}, its dimensions say {tuple(proto.dims)}")
        if dtype.name == "bfloat16":
            array = array.view(np.uint16)
        elif dtype.is_small_float:
            array = array.view(np.uint8)
        return TensorValue(array.astype(storage, copy=False), dtype)

    def _external(self, proto: Proto, what: str) -> Proto:
        """A copy of a tensor with its data read from the file beside the model."""
        if self.folder is None:
            raise UserError(
                f"{what} is stored in an external file, whose folder is not known",
                hint="pass the path of the model instead of its contents",
            )
        copy = self.onnx.TensorProto()
        copy.CopyFrom(proto)
        place = {_text(entry.key): _text(entry.value) for entry in proto.external_data}.get("location", "")
        where = f"{self.source}: {what}"
        if not place or not (self.folder / place).is_file():
            raise UserError(
                f"{where}: its external data file '{place}' is missing",
                hint="keep the data files in the folder of the model",
            )
        try:
            self.onnx.external_data_helper.load_external_data_for_tensor(copy, str(self.folder))
        except (OSError, ValueError, RuntimeError, self.onnx.checker.ValidationError) as error:
            raise UserError(f"{where}: cannot read its external data '{place}': {error}") from error
        copy.data_location = self.onnx.TensorProto.DEFAULT
        return copy

    def _sparse(self, proto: Proto, what: str) -> TensorValue:
        return self._guard(what, partial(self._dense, proto, what))

    def _dense(self, proto: Proto, what: str) -> TensorValue:
        values = self._tensor(proto.values, what)
        places = self._tensor(proto.indices, what).array.astype(np.int64)
        shape = tuple(int(dim) for dim in proto.dims)
        flat = np.zeros(int(np.prod(shape, dtype=np.int64)), values.array.dtype)
        flat[places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), shape)] = values.array
        return TensorValue(flat.reshape(shape), values.dtype)


def _dim(proto: Proto) -> int | str | None:
    match proto.WhichOneof("value"):
        case "dim_value":
            # Some exporters write -1 for "unknown".
            return int(proto.dim_value) if proto.dim_value >= 0 else None
        case "dim_param":
            name = _text(proto.dim_param)
            return None if _is_no_name(name) else name
    return None


def _is_no_name(text: str) -> bool:
    """Whether a dimension's name says only that it is open ("?", "*", "-1", "None"): such are not all of one size."""
    return text.strip() in ("-1", "None") or not any(letter.isalnum() for letter in text)


def _text(value: str | bytes) -> str:
    """A protobuf string, which comes as bytes if it is not valid UTF-8."""
    return value if isinstance(value, str) else value.decode(errors="replace")


def _opsets(entries: Iterable[Proto]) -> dict[str, int]:
    return {canonical_domain(_text(entry.domain)): int(entry.version) for entry in entries}


def read_function(proto: Proto, source: str) -> OnnxFunction:
    """Read a `FunctionProto` (the body that ONNX itself gives an operator)."""
    return _Reader(source, None).function(proto)
