"""A program of the virtual machine as machine.js reads it: plain data for model.json, or a refusal by name."""

from __future__ import annotations

import math
from base64 import b64decode
from typing import Any, Final

from tilewright.backends.wasm.extents import describe_extent
from tilewright.runtime.core.artifact import ModelInfo, TensorInfo
from tilewright.runtime.core.checks import code_messages
from tilewright.runtime.core.dtypes import bits_of
from tilewright.runtime.host.registry import HostAttribute
from tilewright.runtime.vm.codec import decode
from tilewright.runtime.vm.program import BlobConstant, HostCall, Program, TextConstant, VmFunction
from tilewright.runtime.vm.types import Kind
from tilewright.support.errors import UnsupportedError

HOST_FUNCTIONS: Final = frozenset(
    """axes.from_end axes.insert axes.remove axes.to_end host.col2im host.compress host.fail host.mel_weights
    host.non_max_suppression host.nonzero host.rank host.require host.resize_weights host.topk host.unique
    optional.get optional.has optional.make random.categories random.normal random.uniform sequence.at
    sequence.concatenate sequence.erase sequence.insert sequence.length sequence.make sequence.split
    sequence.stack shape.broadcast shape.match shape.pad shape.range shape.reshape shape.slice shape.split
    shape.tile text.ngrams""".split()
)
"""The host functions that hosts.js has."""
_REMEDY = "leave that part to the program around the model (export the rest), or deploy a native library"


def read_program(model: ModelInfo) -> Program:
    """The program of a model, which packages must be able to run: else an error says what they cannot."""
    program = decode(b64decode(model.program), model.name)
    for kind, info in zip(program.inputs, model.inputs, strict=True):
        if kind.kind is not Kind.TENSOR or kind.name == "string":
            raise _refused(model, f"the input '{info.name}' ({info.value or kind.name})")
    for info in model.outputs:
        if info.value or info.dtype == "string":
            raise _refused(model, f"the output '{info.name}' ({info.value or info.dtype})")
    for call in program.hosts:
        if call.name not in HOST_FUNCTIONS:
            raise _refused(model, f"'{call.name}'", call.where)
    if any(isinstance(item, TextConstant) for item in program.constants):
        raise _refused(model, "constants that are texts")
    return program


def _refused(model: ModelInfo, what: str, where: str = "") -> UnsupportedError:
    message = f"packages for JavaScript cannot run {what} of the model '{model.name}'"
    return UnsupportedError(message, where=where or None, hint=_REMEDY)


def describe_program(model: ModelInfo) -> dict[str, Any]:
    """What machine.js reads: the tables of the program, and its segments."""
    program = read_program(model)
    return {
        "inputs": [
            {"name": info.name, "dtype": kind.name, "shape": list(map(describe_extent, kind.shape))}
            for kind, info in zip(program.inputs, model.inputs, strict=True)
        ],
        "outputs": len(model.outputs),
        "functions": list(map(_function, program.functions)),
        "constants": [_constant(item) for item in program.constants if isinstance(item, BlobConstant)],
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


def _constant(constant: BlobConstant) -> dict[str, Any]:
    shape = list(constant.shape)
    return {"offset": constant.offset, "shape": shape, "dtype": constant.dtype, "bits": bits_of(constant.dtype)}


def _host(call: HostCall) -> dict[str, Any]:
    attributes = {name: _attribute(value) for name, value in call.attributes}
    return {"name": call.name, "attributes": attributes, "where": call.where}


def _attribute(value: HostAttribute) -> Any:
    """An attribute as JSON has it."""
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
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
