"""Sizes of exported libraries: what they have beside their constants, and the budget of ResNet-18."""

from __future__ import annotations

import json

import pytest

from bench import sizes
from tests.integration import small_models
from tests.requirements import need
from tilewright.compiler import Compilation


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64", "armv7"])
def test_a_small_model_has_little_beside_its_constants(target: str) -> None:
    """A library for two threads has the pool, the description, the table of symbols and three kernels."""
    need("linker")
    model = bytes(small_models.classifier().SerializeToString())
    size = sizes.size_of("classifier", Compilation(model, target, threads=2))
    assert size["library"] == size["constants"] + size["rest"]
    assert size["constants"] > 1000
    assert size["rest"] < 20_000
    assert "classifier" in sizes.render({"classifier": {target: size}})


@pytest.mark.fuzz
def test_resnet18_is_within_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    need("linker")
    assert sizes.main(["--models", "resnet18", "--targets", "x86-64-v3"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["sizes"]["resnet18"]
    assert found["x86-64-v3"]["rest"] <= sizes.MOST_BYTES
    parameters = 4 * 11_689_512
    assert found["x86-64-v3, direct"]["library"] <= parameters + sizes.MOST_BYTES, "over the model's own parameters"


def test_models_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert sizes.main(["--models", "mystery"]) == 2
    assert "mystery" in capsys.readouterr().err
