"""Pass tests as pairs of texts: the program before, and the program expected after."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.graph.helpers import inputs_for
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.text import parse_text
from tilewright.ir.function import IRModule
from tilewright.ir.structural import assert_same_ir

_SHORT_TYPES = {"f32": "float32", "i64": "int64", "f16": "float16", "i32": "int32", "f64": "float64"}


def program(text: str, *, constants: Sequence[np.ndarray] = (), **params: str) -> IRModule:
    """A typed module: statements of `main`, whose `params` are types such as f32[2, 3] by name, or whole functions.

    `constants` are what the text calls const[0], const[1], ...
    """
    text = textwrap.dedent(text).strip()
    if not text.startswith("@graph.function"):
        signature = ", ".join(f"{name}: {_type(kind)}" for name, kind in params.items())
        text = f"@graph.function\ndef main({signature}):\n{textwrap.indent(text, '    ')}\n"
    parsed = parse_text(text, constants=[constant(array) for array in constants])
    return infer_types(IRModule([parsed]) if isinstance(parsed, Function) else parsed)


def _type(kind: str) -> str:
    match = re.fullmatch(r"(\w+)\[(.*)\]", kind)
    assert match is not None, f"{kind!r} is not a type such as f32[2, 3]"
    dims = match[2].strip()
    return f'Tensor[({dims}{"," if dims else ""}), "{_SHORT_TYPES.get(match[1], match[1])}"]'


def assert_becomes(
    transform: Callable[[IRModule], object],
    before: str,
    expected: str,
    *,
    constants: Sequence[np.ndarray] = (),
    rtol: float = 1e-5,
    **params: str,
) -> object:
    """Assert what a pass makes of a program, and that the new program computes what the old one did.

    Of a pass that makes no program, the printed result is compared.
    """
    source = program(before, constants=constants, **params)
    result = transform(source)
    if not isinstance(result, IRModule):
        printed = "\n".join(line.rstrip() for line in str(result).splitlines())
        assert printed == textwrap.dedent(expected).strip(), f"expected otherwise:\n{printed}"
        return result
    assert_same_ir(result, program(expected, constants=constants, **params))
    assert_same_meaning(source, result, rtol)
    return result


def assert_same_meaning(before: IRModule, after: IRModule, rtol: float = 1e-5) -> None:
    """Assert that two programs compute the same of the same random inputs (a pass may give symbolic sizes values)."""
    main = after["main"]
    assert isinstance(main, Function)
    arrays = inputs_for(main)
    for ours, theirs in zip(_leaves(evaluate(after, *arrays)), _leaves(evaluate(before, *arrays)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)


def _leaves(value: object) -> list[Any]:
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, tuple) else [value]
