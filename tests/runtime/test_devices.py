"""Which device of several a model runs on: numbers in targets, and what is said where there is none."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, var
from tests.requirements import need
from tilewright import te
from tilewright.backends.opencl import driver as opencl_driver
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.runtime.device.devices import Driver, choosing, find_device, split_index
from tilewright.runtime.device.program import pick
from tilewright.support.errors import UserError


def test_numbers_in_texts() -> None:
    assert split_index("cuda:1 -arch=sm_90") == ("cuda -arch=sm_90", 1)
    assert split_index(" opencl:12") == ("opencl", 12)
    for text in ("cuda", "native", "llvm -mcpu=neoverse-n1", "cuda -arch=sm_90", ""):
        assert split_index(text) == (text, 0)
    with pytest.raises(UserError, match="'llvm' is no kind of device"):
        split_index("llvm:1")


def test_a_number_that_is_not_there() -> None:
    with pytest.raises(UserError, match="there is no CUDA device 2: this machine has 2 such devices"):
        pick(["a", "b"], 2, "CUDA")


def test_choices_end_with_their_context(monkeypatch: pytest.MonkeyPatch) -> None:
    class Toy:
        def __init__(self, number: int) -> None:
            self.number = number

    monkeypatch.setattr(opencl_driver, "DRIVER", Driver(Toy))  # type: ignore[arg-type]
    with choosing("opencl", 3):
        found = find_device("opencl")
        assert (found.number, found.index) == (3, 3)  # type: ignore[attr-defined]
        with choosing("cuda", 1):
            assert find_device("opencl").index == 3
    assert find_device("opencl").index == 0


def model() -> IRModule:
    x = var("x", 2, 3)
    return infer_types(IRModule([function([x], op("nn.relu", x))]))


def test_models_programs_and_libraries_name_their_device(tmp_path: Path) -> None:
    need("opencl")
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    executable = tw.compile(model(), target="opencl:0")
    np.testing.assert_array_equal(executable(x), np.maximum(x, 0))
    assert copy.copy(executable).device is executable.device
    for compile_there in (
        lambda: tw.compile(model(), target="opencl:97"),
        lambda: tw.build(te.create_prim_func([doubled()]), target="opencl:97"),
    ):
        with pytest.raises(UserError, match="there is no OpenCL device 97"):
            compile_there()
    executable.export_library(tmp_path / "m.so")
    loaded = tw.load(tmp_path / "m.so", device="opencl:0")
    np.testing.assert_array_equal(loaded(x), np.maximum(x, 0))
    with pytest.raises(UserError, match="there is no OpenCL device 97"):
        tw.load(tmp_path / "m.so", device="opencl:97")
    with pytest.raises(UserError, match="the model is for opencl, not for the device 'cuda:0'"):
        tw.load(tmp_path / "m.so", device="cuda:0")


def doubled() -> te.Tensor:
    return te.compute((8,), lambda i: te.cast(i, "float32") * 2.0, name="doubled")
