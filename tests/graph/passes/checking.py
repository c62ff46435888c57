"""Pass tests as pairs of texts: the program before, and the program expected after."""

from __future__ import annotations

import re
import textwrap

from tilewright.graph.ir.expr import Function
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.text import parse_text
from tilewright.ir.function import IRModule
from tilewright.ir.structural import assert_same_ir


def program(text: str, **params: str) -> IRModule:
    """A typed module from statements; `params` are types such as f32[2, 3] by name."""
    signature = ", ".join(f"{name}: {_type(kind)}" for name, kind in params.items())
    body = textwrap.indent(textwrap.dedent(text).strip(), "    ")
    parsed = parse_text(f"@graph.function\ndef main({signature}):\n{body}\n")
    assert isinstance(parsed, Function)
    return infer_types(IRModule([parsed]))


def _type(kind: str) -> str:
    found = re.fullmatch(r"(\w+)\[(.*)\]", kind)
    assert found is not None
    dtype = {"f32": "float32", "i64": "int64", "f16": "float16", "i32": "int32", "f64": "float64"}.get(
        found[1], found[1]
    )
    dims = found[2].strip()
    return f'Tensor[({dims}{"," if dims else ""}), "{dtype}"]'


def check(transform, before: str, after: str, **params: str) -> IRModule:
    """Assert what a pass makes of a program."""
    result = transform(program(before, **params))
    assert_same_ir(result, program(after, **params))
    return result
