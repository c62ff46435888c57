"""The tables of an artifact survive JSON, and damaged ones are refused."""

from __future__ import annotations

import json

import pytest

from tests.runtime import mini
from tilewright.runtime import TensorInfo
from tilewright.runtime.core.artifact import artifact_from_metadata
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.version import VERSION


def test_round_trip() -> None:
    for artifact in (mini.model_artifact(), mini.functions_artifact()):
        artifact.requires = ("avx2",)
        data = json.loads(json.dumps(artifact.metadata()))
        back = artifact_from_metadata(data, where="x.so")
        assert (back.triple, back.cpu, back.features) == (artifact.triple, artifact.cpu, artifact.features)
        assert back.model == artifact.model
        assert back.functions == artifact.functions
        assert back.requires == artifact.requires
        assert data["tilewright"] == VERSION


def test_newer_format() -> None:
    data = {**mini.model_artifact().metadata(), "format": 99, "tilewright": "7.0"}
    with pytest.raises(UserError, match=r"newer Tilewright \(7.0, format 99\)") as caught:
        artifact_from_metadata(data, where="x.so")
    assert "x.so" in str(caught.value)
    assert "upgrade" in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        {"format": "one"},
        {"triple": 3},
        {"model": {}},
        {"functions": "none"},
        {"functions": [{"symbol": "f", "params": [{"name": "x", "dtype": "float32", "shape": [1.5], "is_output": 0}]}]},
        {"requires": [4]},
    ],
)
def test_damaged_metadata(damage: dict[str, object]) -> None:
    with pytest.raises(UserError, match="damaged"):
        artifact_from_metadata({**mini.model_artifact().metadata(), **damage}, where="x.so")


def test_every_field_of_a_model_is_needed() -> None:
    whole = mini.model_artifact().metadata()
    since_format_2 = {"symbols", "slots", "requires", "program", "segments", "variants", "fixed"}
    since_format_2 |= {"checks", "first_check", "sizes", "state"}
    first = {key: value for key, value in whole["model"].items() if key not in since_format_2}
    assert artifact_from_metadata({**whole, "format": 1, "model": first}, where="x.so").model is not None
    for name in first:
        part = {key: value for key, value in whole["model"].items() if key != name}
        with pytest.raises(UserError, match="damaged"):
            artifact_from_metadata({**whole, "model": part}, where="x.so")


def test_tensor_info() -> None:
    info = TensorInfo("x", (2, 3), "float16")
    assert str(info) == "x: float16[2, 3]"
    assert info.nbytes == 12
    with pytest.raises(CompilerBug, match="symbolic shape"):
        _ = TensorInfo("x", ("n",), "float32").nbytes


def test_version_is_the_package_version() -> None:
    from importlib.metadata import version

    assert version("tilewright") == VERSION
