"""A program of the virtual machine as machine.js reads it: plain data for model.json, or a refusal by name."""

from __future__ import annotations

import math
from base64 import b64decode
from typing import Any, Final

from tilewright.backends.wasm.elements import array_of
from tilewright.backends.wasm.extents import describe_extent
from tilewright.runtime.core.artifact import ModelInfo, TensorInfo
from tilewright.runtime.core.checks import code_messages
from tilewright.runtime.core.dtypes import bits_of
from tilewright.runtime.host.registry import HostAttribute
from tilewright.runtime.vm.codec import decode
from tilewright.runtime.vm.program import BlobConstant, HostCall, Program, TextConstant, VmFunction
from tilewright.runtime.vm.types import Kind, ValueType
from tilewright.support.errors import UnsupportedError

HOST_FUNCTIONS: Final = frozenset(
    """axes.from_end axes.insert axes.remove axes.to_end host.col2im host.compress host.fail host.mel_weights
    host.non_max_suppression host.nonzero host.rank host.require host.resize_weights host.topk host.unique
    optional.get optional.has optional.make random.key sequence.at
    sequence.concatenate sequence.erase sequence.insert sequence.length sequence.make sequence.split
    sequence.stack shape.broadcast shape.match shape.pad shape.range shape.reshape shape.slice shape.split
    shape.tile text.concat text.concatenate text.equal text.from_numbers text.full_match text.lookup text.ngrams
    text.normalize text.split text.take text.to_numbers text.transpose text.where""".split()
)
"""The host functions that hosts.js has."""
_VALUES: Final = ("sequence(", "optional(")
"""How types of outputs begin that are no tensors, and that JavaScript has values of."""
_LARGEST: Final = 1 << 53
"""Numbers of JavaScript are exact below this."""
_REMEDY = "leave that part to the program around the model (export the rest), or deploy a native library"


def read_program(model: ModelInfo) -> Program:
    """The program of a model, which packages must be able to run: else an error says what they cannot."""
    program = decode(b64decode(model.program), model.name)
    for kind, info in zip(program.inputs, model.inputs, strict=True):
        if not _is_value(kind):
            raise _refused(model, f"the input '{info.name}' ({info.value or kind.name})")
    for info in model.outputs:
        if info.value and not info.value.startswith(_VALUES):
            raise _refused(model, f"the output '{info.name}' ({info.value})")
    for call in program.hosts:
        if call.name not in HOST_FUNCTIONS:
            raise _refused(model, f"'{call.name}'", call.where)
    return program


def _is_value(kind: ValueType) -> bool:
    """Whether JavaScript has values of a type: tensors, and sequences and optional values of them."""
    if kind.kind in (Kind.SEQUENCE, Kind.OPTIONAL):
        return all(map(_is_value, kind.items))
    return kind.kind in (Kind.TENSOR, Kind.ANY_SHAPE)


def describe_type(kind: ValueType) -> dict[str, Any]:
    """A type as inputs.js checks values against it."""
    if kind.kind in (Kind.SEQUENCE, Kind.OPTIONAL):
        return {"kind": kind.kind.name.lower(), "item": describe_type(kind.items[0])}
    shape = None if kind.kind is Kind.ANY_SHAPE else list(map(describe_extent, kind.shape))
    return {"kind": "tensor", "dtype": kind.name, "array": array_of(kind.name), "shape": shape}


def _refused(model: ModelInfo, what: str, where: str = "") -> UnsupportedError:
    message = f"packages for JavaScript cannot run {what} of the model '{model.name}'"
    return UnsupportedError(message, where=where or None, hint=_REMEDY)


def describe_program(model: ModelInfo) -> dict[str, Any]:
    """What machine.js reads: the tables of the program, and its segments."""
    program = read_program(model)
    return {
        "inputs": [
            {"name": info.name, **describe_type(kind)} for kind, info in zip(program.inputs, model.inputs, strict=True)
        ],
        "outputs": len(model.outputs),
        "functions": list(map(_function, program.functions)),
        "constants": list(map(_constant, program.constants)),
        "hosts": list(map(_host, program.hosts)),
        "constructors": [item.name for item in program.constructors],
        "extents": list(map(describe_extent, program.extents)),
        "texts": list(program.texts),
        "segments": list(map(_segment, model.segments)),
    }


def program_steps(model: ModelInfo) -> list[dict[str, Any]]:
    """The rows of a profile: segments, then host calls."""
    rows = [
        {"kernel": segment.name, "nodes": list(dict.fromkeys(node for info in segment.kernels for node in info.nodes))}
        for segment in model.segments
    ]
    return rows + [{"kernel": call.name, "nodes": [call.where]} for call in read_program(model).hosts]


def program_entries(model: ModelInfo) -> list[str]:
    """The functions of the linked code that the machine calls."""
    entries = [part.entry for part in model.segments]
    return entries + [part.planner for part in model.segments if part.symbols]


def _function(function: VmFunction) -> dict[str, Any]:
    return {
        "name": function.name,
        "given": function.captured + function.params,
        "registers": function.registers,
        "symbols": function.symbols,
        "code": function.code,
    }


def _constant(constant: BlobConstant | TextConstant) -> dict[str, Any]:
    shape = list(constant.shape)
    if isinstance(constant, TextConstant):
        return {"shape": shape, "texts": list(constant.items)}
    return {"offset": constant.offset, "shape": shape, "dtype": constant.dtype, "bits": bits_of(constant.dtype)}


def _host(call: HostCall) -> dict[str, Any]:
    attributes = {name: _attribute(value) for name, value in call.attributes}
    return {"name": call.name, "attributes": attributes, "where": call.where}


def _attribute(value: HostAttribute) -> Any:
    """An attribute as JSON has it; machine.js reads the rest of the floats out of their texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, bytes) or (isinstance(value, int) and abs(value) >= _LARGEST):
        raise UnsupportedError(f"packages for JavaScript have no attributes that are {value!r}", hint=_REMEDY)
    return [_attribute(item) for item in value] if isinstance(value, tuple) else value


def _segment(segment: ModelInfo) -> dict[str, Any]:
    return {
        "entry": segment.entry,
        "planner": segment.planner,
        "symbols": list(segment.symbols),
        "inputs": list(map(_tensor, segment.inputs)),
        "outputs": list(map(_tensor, segment.outputs)),
        "workspace_bytes": segment.workspace_bytes,
        "slots": list(map(describe_extent, segment.slots)),
        "requires": [[str(left), str(right)] for left, right in segment.requires],
        "messages": {str(code): text for code, text in code_messages(segment).items()},
    }


def _tensor(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "dtype": info.dtype, "shape": list(map(describe_extent, info.shape))}
