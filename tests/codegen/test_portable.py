"""What every device must do, on those that are here and on stand-ins of those that are not: scalars, then kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen import portable, portable_kernels
from tests.codegen.c.test_c_expressions import TYPES
from tests.codegen.on_device import VULKAN, WEBGPU, on_vulkan, on_webgpu, require_device, require_halves
from tests.codegen.on_threads import METAL, ROCM, on_hip, on_metal
from tests.topi.samples import SAMPLES
from tests.topi.test_scheduled import CASES
from tilewright.target import Target
from tilewright.topi.registry import registered

_FIRST = {sample[0]: sample for sample in reversed(SAMPLES)}


def _shorter(case: portable_kernels.Case) -> portable_kernels.Case:
    """Winograd's algorithm on tiles of 2 pixels: on larger ones its sums, written out, are a third of all the text."""
    name, arrays, attributes = case
    if not name.startswith("nn.conv2d_winograd"):
        return case
    kernel = arrays[1][:4, :4] if name == "nn.conv2d_winograd" else arrays[1]
    return name, [arrays[0], np.ascontiguousarray(kernel), *arrays[2:]], {**attributes, "tile": 2}


@dataclass(frozen=True)
class Language:
    """A language of kernels: how functions are run, whether it has doubles, and a choice of operators."""

    build: portable.Build
    target: Target
    doubles: tuple[str, ...]
    operators: Sequence[portable_kernels.Case]


def _has_halves(case: portable_kernels.Case) -> bool:
    return case[0].startswith("half.") or any(array.dtype.itemsize == 2 for array in case[1])


HIP = Language(on_hip, ROCM, ("float64",), CASES[::5])
MSL = Language(on_metal, METAL, (), CASES[::5])
SPIRV = Language(
    on_vulkan,
    VULKAN,
    ("float64",),
    # Operators in 16-bit floats crash some drivers: `test_halves` knows which.
    [case for case in SAMPLES if "winograd" not in case[0] and not _has_halves(case)][::6],
)
WGSL = Language(on_webgpu, WEBGPU, (), [_shorter(case) for case in _FIRST.values()])

every = pytest.mark.parametrize("language", [HIP, MSL, SPIRV, WGSL], ids=lambda language: str(language.target.kind))
with_devices = pytest.mark.parametrize("language", [SPIRV, WGSL], ids=lambda language: str(language.target.kind))


@with_devices
@settings(max_examples=6)
@given(data=st.data())
def test_random_integers(language: Language, data: st.DataObject) -> None:
    portable.check_random_integers(language.build, data)


@every
def test_integers(language: Language) -> None:
    portable.check_integers(language.build)


@every
def test_integers_to_floats_round_once(language: Language) -> None:
    require_halves(language.target)
    portable.check_integers_to_floats(language.build, ("float16", "bfloat16", "float32", *language.doubles))


@every
def test_floats(language: Language) -> None:
    portable.check_floats(language.build, (*TYPES, "float16", "bfloat16", *language.doubles))


@every
def test_halves(language: Language) -> None:
    require_halves(language.target)
    portable.check_halves(language.build)


@every
def test_scalars(language: Language) -> None:
    require_halves(language.target)
    portable_kernels.check_scalars(language.build, (*portable_kernels.SCALARS, *language.doubles))


@every
def test_tiles_with_barriers(language: Language) -> None:
    portable_kernels.check_tiles(language.build)


@every
def test_operators(language: Language) -> None:
    portable_kernels.check_operators(language.build, language.target, language.operators)


def test_every_operator_runs_on_a_device() -> None:
    assert {case[0] for case in WGSL.operators} == {name for name in registered() if not name.startswith("loops.")}


@with_devices
def test_large_grids(language: Language) -> None:
    portable_kernels.check_large_grids(language.build)


@with_devices
def test_symbolic_sizes(language: Language) -> None:
    require_device(language.target)
    portable_kernels.check_symbolic_sizes(language.target.kind)
