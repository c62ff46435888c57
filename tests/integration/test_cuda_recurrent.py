"""Recurrent layers of several sequences on tensor cores: their text on fibers of this machine, and their schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.cuda_on_fibers import use_fibers
from tests.topi.test_recurrent import FUNCTIONS, operands
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target


def layer(kind: str, arrays: list[np.ndarray], **attributes: Any) -> tuple[IRModule, list[np.ndarray]]:
    """A module of one layer with constant weights, and what it is called with."""
    params = [Var(f"p{n}", tensor_type(a.shape, a.dtype.name)) for n, a in enumerate(arrays) if n != 1]
    body = call(f"nn.{kind}", params[0], constant(arrays[1]), *params[1:], activations=FUNCTIONS[kind], **attributes)
    return IRModule([Function("main", tuple(params), body)]), [a for n, a in enumerate(arrays) if n != 1]


def template_of(module: IRModule, target: str = "cuda -arch=sm_90a", **options: Any) -> str:
    compilation = Compilation(module, target=Target(target), **options)
    text = "\n".join(str(compilation.scheduled(kernel)) for kernel in compilation.kernels)
    return "fragments" if "cuda.mma" in text else "threads"


SIZES = {
    "whole tiles": (16, 64),
    "few sequences, odd rows": (5, 50),
    "several groups of sequences": (40, 100),
    "many warps": (16, 330),
}


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "float16") for name in SIZES), ("few sequences, odd rows", "bfloat16")]
)
def test_weights_and_hidden_states_are_halves_and_cells_are_not(
    monkeypatch: pytest.MonkeyPatch, name: str, precision: str
) -> None:
    use_fibers(monkeypatch)
    batch, size = SIZES[name]
    arrays = operands("lstm", 3, batch, size)
    arrays[1] *= size**-0.5 / 0.3
    module, given = layer("lstm", arrays)
    assert template_of(module, precision=precision) == "fragments"
    wanted = evaluate(infer_types(module), *given)
    tolerance = 2e-3 if precision == "float16" else 2e-2
    for found, right in zip(tw.compile(module, target="cuda", precision=precision)(*given), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("kind", "lengths"), [("lstm", True), ("gru", False), ("rnn", True)])
def test_layers_of_halves(monkeypatch: pytest.MonkeyPatch, kind: str, lengths: bool) -> None:
    use_fibers(monkeypatch)
    arrays = operands(kind, 3, 9, 70, lengths=lengths, dtype="float16")
    arrays[1] = (arrays[1] * 70**-0.5 / 0.3).astype("float16")
    more = {"reset_after": True} if kind == "gru" else {}
    module, given = layer(kind, arrays, backward=lengths, **more)
    assert template_of(module) == "fragments"
    found, wanted = tw.compile(module, target="cuda")(*given), evaluate(infer_types(module), *given)
    pairs = zip(*(item if isinstance(item, tuple) else (item,) for item in (found, wanted)), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a.astype("float32"), b.astype("float32"), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(("batch", "size", "dtype"), [(1, 64, "float16"), (16, 64, "float32"), (16, 2200, "float16")])
def test_threads_compute_what_tensor_cores_do_not(batch: int, size: int, dtype: str) -> None:
    module, _ = layer("lstm", operands("lstm", 2, batch, size, dtype=dtype))
    assert template_of(module) == "threads"


def test_states_that_shared_memory_does_not_hold_are_not_for_tensor_cores() -> None:
    module, _ = layer("lstm", operands("lstm", 2, 16, 330, dtype="float16"))
    assert template_of(module) == "fragments"
    assert template_of(module, "cuda -arch=sm_90a -shared-bytes=16384") == "threads"
