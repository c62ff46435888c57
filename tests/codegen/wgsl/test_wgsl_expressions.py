"""Scalar semantics of WGSL on a device: 64-bit integers of pairs, packed elements, floats with special values."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen import portable
from tests.codegen.c.test_c_expressions import TYPES
from tests.codegen.on_device import on_webgpu


@settings(max_examples=6)
@given(data=st.data())
def test_random_integers(data: st.DataObject) -> None:
    portable.check_random_integers(on_webgpu, data)


def test_integers() -> None:
    portable.check_integers(on_webgpu)


def test_integers_to_floats_round_once() -> None:
    portable.check_integers_to_floats(on_webgpu, ("float16", "bfloat16", "float32"))


def test_floats() -> None:
    portable.check_floats(on_webgpu, (*TYPES, "float16", "bfloat16"))


def test_halves() -> None:
    portable.check_halves(on_webgpu)
