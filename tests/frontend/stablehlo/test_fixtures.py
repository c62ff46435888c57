"""Programs that JAX wrote, as text and as bytecode, give what JAX gives (`record.py` records them)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend import from_stablehlo
from tilewright.graph.interpreter import evaluate
from tilewright.graph.text import to_text

FOLDER = Path(__file__).parent / "fixtures"
NAMES = sorted(path.stem for path in FOLDER.glob("*.mlirbc"))
GENERIC = sorted(path.name.split(".")[0] for path in FOLDER.glob("*.generic.mlir"))


@pytest.fixture(scope="module")
def answers():
    with np.load(FOLDER / "answers.npz", allow_pickle=False) as stored:
        return dict(stored)


def _arrays(answers, name, side):
    found = []
    while f"{name}/{side}{len(found)}" in answers:
        found.append(answers[f"{name}/{side}{len(found)}"])
    return found


def _as_tuple(found):
    return found if isinstance(found, tuple) else (found,)


def _check(found, expected):
    for item, wanted in zip(_as_tuple(found), expected, strict=True):
        assert item.shape == wanted.shape
        assert item.dtype == wanted.dtype
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(item, wanted, rtol=1e-4, atol=1e-5 * max(1, np.abs(wanted).max()))
        else:
            np.testing.assert_array_equal(item, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_bytecode_gives_what_jax_gives(name, answers):
    module = from_stablehlo(FOLDER / f"{name}.mlirbc")
    _check(evaluate(module, *_arrays(answers, name, "in")), _arrays(answers, name, "out"))


@pytest.mark.parametrize("name", NAMES)
def test_text_is_the_same_program(name):
    first, second = (to_text(from_stablehlo(FOLDER / f"{name}.{form}")) for form in ("mlir", "mlirbc"))
    assert str(first) == str(second)


@pytest.mark.parametrize("name", GENERIC)
def test_the_generic_form_is_the_same_program(name, answers):
    module = from_stablehlo((FOLDER / f"{name}.generic.mlir").read_text())
    _check(evaluate(module, *_arrays(answers, name, "in")), _arrays(answers, name, "out"))


@pytest.mark.parametrize("name", ["mlp", "places", "control", "long_scan"])
def test_compiled_programs_give_what_jax_gives(name, answers):
    executable = tw.compile(from_stablehlo(FOLDER / f"{name}.mlirbc"), threads=1)
    _check(executable(*_arrays(answers, name, "in")), _arrays(answers, name, "out"))


def test_open_sizes_are_symbols():
    executable = tw.compile(from_stablehlo(FOLDER / "open.mlirbc", dimension_names={(0, 0): "b"}), threads=1)
    assert executable.model.inputs[0].shape == ("b", 6)
    for rows in (1, 7):
        x = np.random.default_rng(rows).normal(size=(rows, 6)).astype(np.float32)
        total, twice, _, numbers, part = executable(x)
        np.testing.assert_allclose(total, x.sum(), rtol=1e-5)
        np.testing.assert_array_equal(twice, np.concatenate([x, x]))
        np.testing.assert_array_equal(numbers, np.arange(2 * rows))
        np.testing.assert_array_equal(part, x[:, ::2])


def test_names_and_places_are_those_of_the_program():
    module = from_stablehlo(FOLDER / "orders.mlirbc")
    assert [param.name for param in module["main"].params] == ["x", "y"]
    assert module.attributes["output_names"][:3] == ("result[0][0]", "result[0][1]", "result[1]")
    assert "jit(_orders)/" in str(to_text(module))
