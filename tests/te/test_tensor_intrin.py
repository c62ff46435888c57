"""Declaring tensor intrinsics: names, rules, software implementations, pointers and what is refused."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.ir.expr import Call
from tilewright.support.errors import UserError
from tilewright.te.schedule import Schedule
from tilewright.te.tensor import Tensor
from tilewright.tir.accel_instructions import RESET
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.lower_tensor_intrinsics import lower_tensor_intrinsics
from tilewright.tir.script import parse_script, to_script
from tilewright.tir.tensor_intrin import TensorIntrin, extern_call, find_intrinsic
from tilewright.tir.verify import verify


def declare(prefix: str, strides: bool = False) -> TensorIntrin:
    """z[4, 8] += w[4, 8] * x[8, 8] transposed, by instructions `<prefix>_gemm`, `_zero` and `_add`."""
    w, x = te.placeholder((4, 8), name="w"), te.placeholder((8, 8), name="x")
    k = te.reduce_axis((0, 8), name="k")
    z = te.compute((4, 8), lambda i, j: te.sum(w[i, k] * x[j, k], axis=k), name="z")

    def rule(inputs, outputs):
        pointers = [item.access_ptr("r") for item in inputs] + [outputs[0].access_ptr("w")]
        extra = [inputs[0].strides[0], inputs[1].strides[0], outputs[0].strides[0]] if strides else []
        return (
            te.hardware_intrin(f"{prefix}_gemm", *pointers, *extra),
            te.hardware_intrin(f"{prefix}_zero", pointers[-1], *extra[2:]),
            te.hardware_intrin(f"{prefix}_add", *pointers, *extra),
        )

    open_rows = {w: (None, 1), x: (None, 1), z: (None, 1)} if strides else None
    return te.decl_tensor_intrin(z.op, rule, name=prefix, strides=open_rows)


def staged(intrinsic: TensorIntrin) -> tuple[Schedule, list[Tensor]]:
    """A product whose tiles are copied to memory of their own for the intrinsic."""
    m, n, k = 16, 16, 24
    w, x = te.placeholder((m, k), name="W"), te.placeholder((n, k), name="X")
    r = te.reduce_axis((0, k), name="r")
    y = te.compute((m, n), lambda i, j: te.sum(w[i, r] * x[j, r], axis=r), name="Y")
    s = te.create_schedule(y.op)
    acc = s.cache_write(y, "acc")
    _, xo, _, _ = s[y].tile(*y.op.axis, 4, 8)
    s[acc].compute_at(s[y], xo)
    (i, j), (q,) = s[acc].op.axis, s[acc].op.reduce_axis
    qo, qi = s[acc].split(q, 8)
    s[acc].reorder(qo, i, j, qi)
    for tensor, scope in ((w, "wgt"), (x, "inp")):
        s[s.cache_read(tensor, scope, [acc])].compute_at(s[acc], qo)
    s[acc].tensorize(i, intrinsic)
    return s, [w, x, y]


def plain(intrinsic: TensorIntrin) -> tuple[Schedule, list[Tensor]]:
    """A product whose tiles lie where they are."""
    w, x = te.placeholder((8, 16), name="W"), te.placeholder((16, 16), name="X")
    r = te.reduce_axis((0, 16), name="r")
    y = te.compute((8, 16), lambda i, j: te.sum(w[i, r] * x[j, r], axis=r), name="Y")
    s = te.create_schedule(y.op)
    yo, xo, yi, xi = s[y].tile(*y.op.axis, 4, 8)
    ro, ri = s[y].split(y.op.reduce_axis[0], 8)
    s[y].reorder(yo, xo, ro, yi, xi, ri)
    s[y].tensorize(yi, intrinsic)
    return s, [w, x, y]


def inputs_of(args: list[Tensor]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = [tuple(int(dim.value) for dim in arg.shape) for arg in args]  # type: ignore[attr-defined]
    return [random.integers(-3, 4, shape).astype(np.float32) for shape in shapes]


def test_calls_by_address_are_well_formed_and_interpret() -> None:
    s, args = staged(declare("addr"))
    func = lower_tensor_intrinsics(te.lower(s, args))
    verify(func, "scheduled")
    assert to_script(parse_script(to_script(func))) == to_script(func)


def _c_source(name: str) -> str:
    loops = "for (int i = 0; i < 4; i++) for (int j = 0; j < 8; j++)"
    return f"""
#include <stdint.h>
int32_t {name}_zero(float *z, int64_t s) {{ {loops} z[i * s + j] = 0; return 0; }}
int32_t {name}_add(float *w, float *x, float *z, int64_t a, int64_t b, int64_t s) {{
  {loops} for (int k = 0; k < 8; k++) z[i * s + j] += w[i * a + k] * x[j * b + k]; return 0; }}
int32_t {name}packed_zero(float *z) {{ return {name}_zero(z, 8); }}
int32_t {name}packed_add(float *w, float *x, float *z) {{ return {name}_add(w, x, z, 8, 8, 8); }}
"""


def test_extern_instructions_are_called(c_compiler: str, tmp_path: Path) -> None:
    """Packed tiles in memory of their own, and strided tiles in place, by real extern functions."""
    source, library = tmp_path / "gemm.c", tmp_path / "gemm.so"
    source.write_text(_c_source("twtest"))
    subprocess.run([c_compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    for s, args in (staged(declare("twtestpacked")), plain(declare("twtest", strides=True))):
        a, b, c = inputs_of(args)
        tw.build(s, args)(a, b, c)
        np.testing.assert_array_equal(c, a @ b.T)


def test_strided_tiles_need_open_strides() -> None:
    s, args = plain(declare("unpacked"))
    with pytest.raises(UserError, match="operand z must have stride 8 in dimension 0, and Y has not"):
        tw.build(s, args)


def test_software_implementations_take_the_place_of_calls() -> None:
    intrinsic = declare("soft")
    te.implement_intrin(
        "soft_zero",
        parse_script(
            """
@script.function
def soft_zero(z: Buffer[(4, 8), "float32"]):
    for i, j in grid(4, 8):
        z[i, j] = 0.0
"""
        ),
    )
    add = parse_script(
        """
@script.function
def soft_add(w: Buffer[(4, 8), "float32"], x: Buffer[(8, 8), "float32"], z: Buffer[(4, 8), "float32"]):
    for i, k in grid(4, 8):
        for j in vectorized(8):
            z[i, j] = z[i, j] + w[i, k] * x[j, k]
"""
    )
    te.implement_intrin("soft_add", add)
    for s, args in (staged(intrinsic), plain(intrinsic)):
        a, b, c = inputs_of(args)
        tw.build(s, args)(a, b, c)
        np.testing.assert_array_equal(c, a @ b.T)
        meaning = np.zeros_like(c)
        interpret(te.lower(s, args), a, b, meaning)
        np.testing.assert_array_equal(meaning, c)
    te.implement_intrin("soft_add", parse_script(to_script(add).replace("(8, 8)", "(8, 9)")))
    with pytest.raises(UserError, match="the implementation takes"):
        tw.build(*plain(intrinsic))
    te.implement_intrin("soft_add", find_intrinsic("soft").description)
    te.implement_intrin("soft_zero", find_intrinsic("soft").description)
    with pytest.raises(UserError, match="with 1 arguments"):
        tw.build(*plain(intrinsic))
    with pytest.raises(UserError, match="must be a PrimFunc"):
        te.implement_intrin("soft_add", 3)  # type: ignore[arg-type]


def test_names_of_intrinsics() -> None:
    a = te.placeholder((4,), name="a")
    one = te.compute((4,), lambda i: a[i] + 1, name="b")
    two = te.compute((4,), lambda i: a[i] + 2, name="b")

    def naming(inputs, outputs):
        return te.hardware_intrin("nothing", outputs[0].access_ptr("w"))

    first = te.decl_tensor_intrin(one.op, naming)
    assert (first.name, te.decl_tensor_intrin(one.op, naming).name) == ("naming", "naming")
    assert te.decl_tensor_intrin(two.op, naming).name == "naming_1"
    assert find_intrinsic("naming").block.name == "b"
    with pytest.raises(UserError, match="another intrinsic is declared as 'naming'"):
        te.decl_tensor_intrin(two.op, naming, name="naming")
    with pytest.raises(UserError, match="there is no tensor intrinsic 'nonesuch'"):
        find_intrinsic("nonesuch")


def test_instructions_of_processors_are_called_by_their_names() -> None:
    known, other = extern_call(te.hardware_intrin(RESET, 0, 16)), extern_call(te.hardware_intrin("fill_zero", 0, 16))
    assert isinstance(known, Call) and isinstance(other, Call)
    assert (known.name, len(known.args)) == ("accel.reset", 2)
    assert (other.name, len(other.args)) == ("call_extern", 3)


def test_declarations_that_are_refused() -> None:
    a = te.placeholder((4,), name="a")
    n = te.var("n")
    b = te.compute((4,), lambda i: a[i] + 1, name="b")

    def rule(inputs, outputs):
        return None

    with pytest.raises(UserError, match="is not a computation"):
        te.decl_tensor_intrin(a.op, rule)
    with pytest.raises(UserError, match="must compute from placeholders alone"):
        te.decl_tensor_intrin(te.compute((4,), lambda i: b[i] * 2, name="c").op, rule)
    symbolic = te.placeholder((n,), name="s")
    with pytest.raises(UserError, match="must be constant"):
        te.decl_tensor_intrin(te.compute((n,), lambda i: symbolic[i], name="c").op, rule)
    k = te.reduce_axis((0, 4), name="k")
    pair = te.compute_many((1,), lambda i: te.argmax((k.var, a[k]), axis=k), name="p")
    with pytest.raises(UserError, match="computes 2 tensors at once"):
        te.decl_tensor_intrin(pair[0].op, rule)


def test_rules_that_are_refused() -> None:
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] + 1, name="b")

    def tensorize(rule, name: str) -> None:
        s = te.create_schedule(b.op)
        s[b].tensorize(b.op.axis[0], te.decl_tensor_intrin(b.op, rule, name=name))

    with pytest.raises(UserError, match="gave 2 parts"):
        tensorize(lambda i, o: (None, None), "pair_rule")
    with pytest.raises(UserError, match="the lowering rule gave 'text'"):
        tensorize(lambda i, o: "text", "text_rule")
    with pytest.raises(UserError, match="the mode of operand a is 'x'"):
        tensorize(lambda i, o: te.hardware_intrin("f", i[0].access_ptr("x")), "mode_rule")
    with pytest.raises(UserError, match="has 1 dimensions, indexed with 2"):
        tensorize(lambda i, o: o[0].store((0, 0), 1.0), "rank_rule")
    s = te.create_schedule(b.op)
    with pytest.raises(UserError, match="is not a tensor intrinsic"):
        s[b].tensorize(b.op.axis[0], 3)  # type: ignore[arg-type]
