"""Models with symbolic shapes, compiled once and run at many sizes: against the graph interpreter, and in C."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.graph.helpers import function, op, random
from tilewright.arith.analyzer import Analyzer
from tilewright.backends.llvm.entry import emit_entry
from tilewright.backends.llvm.jit import JitLibrary
from tilewright.backends.llvm.toolchain import compile_ir
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Tuple, Var, constant
from tilewright.ir.build import floordiv, floormod, maximum, minimum, select
from tilewright.ir.expr import LT, IntImm, PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import substitute
from tilewright.lower.symbols import SymbolTable
from tilewright.runtime.core.artifact import ModelInfo, TensorInfo
from tilewright.runtime.core.shapes import evaluate as extent_value
from tilewright.support.errors import CompilerBug, UserError
from tilewright.target import Target

B, N = Symbol("batch"), Symbol("n")
SIZES = ((1, 1), (2, 7), (3, 33), (1, 64), (0, 4), (2, 0))


def attention() -> IRModule:
    """Scores, softmax and sum: all three kinds of symbolic product (rows, columns, depth)."""
    x = Var("x", tensor_type((B, N, 16), "float32"))
    w = [constant(random(seed, 16, 16) / 4) for seed in range(3)]
    q, k, v = (op("matmul", x, weights) for weights in w)
    scores = op("matmul", q, op("transpose", k, axes=(0, 2, 1)))
    mixed = op("matmul", op("nn.softmax", scores, axis=2), v)
    body = op("nn.relu", op("add", mixed, x))
    return IRModule([function([x], Tuple((body, op("sum", body, axes=(1,), keepdims=False))))])


@pytest.fixture(scope="module")
def exe() -> tw.Executable:
    return tw.compile(attention(), threads=2)


@pytest.mark.parametrize("sizes", SIZES)
def test_one_compilation_serves_all_sizes(exe: tw.Executable, sizes: tuple[int, int]) -> None:
    data = random(1, *sizes, 16)
    expected = evaluate(attention(), data)
    assert isinstance(expected, tuple)
    for found, wanted in zip(exe(data), expected, strict=True):
        assert found.shape == np.shape(wanted)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_interface_names_its_symbols(exe: tw.Executable) -> None:
    assert exe.model.symbols == ("batch", "n")
    assert [str(info) for info in (*exe.input_info, *exe.output_info)] == [
        "x: float32[batch, n, 16]",
        "output_0: float32[batch, n, 16]",
        "output_1: float32[batch, 16]",
    ]


def test_messages_name_input_and_axis() -> None:
    x, y = Var("x", tensor_type((B, 4), "float32")), Var("y", tensor_type((4, B), "float32"))
    exe = tw.compile(IRModule([function([x, y], op("matmul", x, y))]), threads=1)
    with pytest.raises(UserError, match=r"the input 'x' has the shape \[2, 5\].*axis 1 must be 4, not 5"):
        exe(np.zeros((2, 5), np.float32), np.zeros((4, 2), np.float32))
    with pytest.raises(UserError, match=r"the input 'y' .*axis 1 must be 2 \(batch = 2 here\), not 3"):
        exe(np.zeros((2, 4), np.float32), np.zeros((4, 3), np.float32))
    with pytest.raises(UserError, match=r"\(1 dimensions\), expected \[batch, 4\]"):
        exe(np.zeros(2, np.float32), np.zeros((4, 2), np.float32))


def test_profiles_count_the_work_of_the_sizes_given(exe: tw.Executable) -> None:
    small, large = (exe.profile(random(0, 1, n, 16), repeat=1) for n in (8, 16))
    work = [sum(row.flops for row in profile.rows) for profile in (small, large)]
    assert 2 * work[0] < work[1] < 4 * work[0]


PROGRAM = r"""
#include <stdio.h>
#include "net.h"
int main(void) {
  int64_t shapes[NET_INPUT_0_RANK] = {2, 5, 16}, symbols[NET_NUM_SYMBOLS], out[3 + 2], bytes;
  static float x[2 * 5 * 16], y[2 * 5 * 16], z[2 * 16];
  for (int i = 0; i < 160; ++i) x[i] = (float)(i % 7) / 7 - 0.4f;
  if (net_shapes(shapes, symbols, out, &bytes)) return 10;
  if (out[0] != 2 || out[1] != 5 || out[2] != 16 || out[3] != 2 || out[4] != 16 || bytes <= 0) return 11;
  void* inputs[] = {x};
  void* outputs[] = {y, z};
  int32_t code = net_run(inputs, outputs, 0, symbols);
  if (code) return code;
  shapes[2] = 17;
  if (net_shapes(shapes, symbols, out, &bytes) != 3) return 12;
  for (int i = 0; i < 32; ++i) printf("%.9g\n", z[i]);
  return 0;
}
"""


def test_in_c_and_loaded_again(tmp_path: Path, c_compiler: str) -> None:
    module = attention().with_attributes(model_name="net")
    exe = tw.compile(module, threads=1)
    exe.export_library(tmp_path / "net.so")
    data = (np.arange(160) % 7 / np.float32(7) - np.float32(0.4)).astype(np.float32).reshape(2, 5, 16)
    _, expected = exe(data)
    loaded = tw.load(tmp_path / "net.so")
    np.testing.assert_array_equal(loaded(data)[1], expected)
    (tmp_path / "main.c").write_text(PROGRAM)
    command = [c_compiler, "-Wall", "-Werror", "main.c", "net.so", "-lpthread", f"-Wl,-rpath,{tmp_path}", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    text = subprocess.run(["./main"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    np.testing.assert_allclose([float(line) for line in text.split()], expected.reshape(-1), rtol=1e-6)


def test_specialized_sizes_run_code_of_their_own(tmp_path: Path) -> None:
    module = attention()
    exe = tw.compile(module, threads=1, specialize=[{"batch": 1, "n": 8}, {"batch": 2, "n": 5}])
    plain = tw.compile(module, threads=1)
    assert [part.fixed for part in exe.model.variants] == [(1, 8), (2, 5)]
    # Weights are stored once; only those that a schedule arranges otherwise come again.
    assert exe.artifact.constants.nbytes < 3 * plain.artifact.constants.nbytes
    exe.export_library(tmp_path / "net.so")
    for program in (exe, tw.load(tmp_path / "net.so")):
        for sizes, special in (((1, 8), 0), ((2, 5), 1), ((3, 4), None)):
            data = random(2, *sizes, 16)
            prepared = program._runner.prepare([data])
            assert prepared.part.info.fixed == (() if special is None else program.model.variants[special].fixed)
            for found, wanted in zip(program(data), evaluate(module, data), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(run_in_c(tmp_path / "net.so", data), program(data)[0], rtol=1e-6)
    with pytest.raises(UserError, match="specialize needs a size of every symbolic dimension"):
        tw.compile(module, specialize=[{"batch": 1}])


def run_in_c(path: Path, data: np.ndarray) -> np.ndarray:
    """Through the C interface, in a workspace that the call takes itself."""
    library = ctypes.CDLL(str(path))
    symbols = (ctypes.c_int64 * 2)(*data.shape[:2])
    outputs = [np.empty(data.shape, np.float32), np.empty((data.shape[0], 16), np.float32)]
    pointers = [(ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays)) for arrays in ([data], outputs)]
    assert library.net_run(*pointers, None, symbols) == 0
    return outputs[0]


def test_dimensions_that_nothing_decides_may_be_anything() -> None:
    x, y = Var("x", tensor_type((N, 4), "float32")), Var("y", tensor_type((B * 2, N), "float32"))
    exe = tw.compile(IRModule([function([x, y], op("exp", x))]), threads=1)
    data = random(1, 3, 4)
    for rows in (4, 7):
        np.testing.assert_allclose(exe(data, np.zeros((rows, 3), np.float32)), np.exp(data), rtol=1e-5)
    with pytest.raises(UserError, match=r"the input 'y' .*axis 1 must be 3"):
        exe(data, np.zeros((4, 5), np.float32))


def expressions() -> st.SearchStrategy:
    leaves = st.one_of(st.sampled_from([B, N]), st.integers(-3, 9).map(IntImm))

    def combine(inner: st.SearchStrategy) -> st.SearchStrategy:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda p: p[0] + p[1]),
            pairs.map(lambda p: p[0] - p[1]),
            pairs.map(lambda p: p[0] * p[1]),
            pairs.map(lambda p: minimum(*p)),
            pairs.map(lambda p: maximum(*p)),
            st.tuples(inner, st.integers(1, 5)).map(lambda p: floordiv(p[0], p[1])),
            st.tuples(inner, st.integers(1, 5)).map(lambda p: floormod(p[0], p[1])),
            pairs.map(lambda p: select(LT(p[0], p[1]), p[0], p[1])),
        )

    return st.recursive(leaves, combine, max_leaves=6)


@settings(max_examples=12, deadline=None)
@given(st.lists(expressions(), min_size=6, max_size=6), st.integers(0, 9), st.integers(0, 9))
def test_extents_in_native_code_and_in_python_agree(exprs: list, batch: int, n: int) -> None:
    table = SymbolTable()
    names = (table.name(B), table.name(N))
    extents = tuple(table.extent(expr) for expr in exprs)
    outputs = tuple(TensorInfo(f"y{k}", (extent,), "int8") for k, extent in enumerate(extents))
    info = ModelInfo("sizes", (TensorInfo("x", names, "int8"),), outputs, 0, symbols=names, slots=extents)
    code, found, size = native_shapes(info, (batch, n))
    expected = [extent_value(extent, {"batch": batch, "n": n}) for extent in extents]
    assert found == expected
    negative = next((k for k, value in enumerate(expected) if value < 0), None)
    assert code == (0 if negative is None else -1 - negative)
    assert size == sum(-(-max(value, 0) // 64) * 64 for value in expected)


@settings(max_examples=300, deadline=None)
@given(expressions(), st.integers(0, 9), st.integers(0, 9))
def test_the_text_of_an_extent_means_what_the_expression_means(expr: PrimExpr, batch: int, n: int) -> None:
    table = SymbolTable()
    names = table.name(B), table.name(N)
    value = Analyzer().simplify(substitute(expr, {B: IntImm(batch), N: IntImm(n)}))
    assert isinstance(value, IntImm)
    assert extent_value(table.extent(expr), dict(zip(names, (batch, n), strict=True))) == value.value


def test_a_sum_that_starts_with_a_minimum_stands_in_brackets() -> None:
    expr = floordiv(minimum(B, N) + 1, 2)
    assert SymbolTable().extent(expr) == "(min(batch, n) + 1) // 2"


def native_shapes(info: ModelInfo, shape: tuple[int, int]) -> tuple[int, list[int], int]:
    target = Target("native")
    code = compile_ir(emit_entry(info), triple=target.triple, cpu=target.cpu, features=target.features, opt_level=0)
    library = JitLibrary([code], {})
    call = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(library.symbol(info.binder))
    dims, symbols, size = (ctypes.c_int64 * len(info.outputs))(), (ctypes.c_int64 * 2)(), ctypes.c_int64()
    result = call((ctypes.c_int64 * 2)(*shape), symbols, dims, ctypes.byref(size))
    return result, list(dims), size.value


def test_names_of_symbols_are_identifiers_of_their_own() -> None:
    table = SymbolTable()
    symbols = [Symbol(name) for name in ("batch size", "batch_size", "0", "min", "for", "")]
    names = [table.name(symbol) for symbol in symbols]
    assert names == ["batch_size", "batch_size_1", "d_0", "min_1", "d_for", "d_"]
    assert table.extent(symbols[0] * 2 + 1) == "(batch_size * 2) + 1"


def test_a_symbol_that_no_input_has_is_refused() -> None:
    info = ModelInfo("net", (TensorInfo("x", ("2 * n",), "int8"),), (), 0, symbols=("n",))
    with pytest.raises(CompilerBug, match="the symbol n of model net is no dimension of an input"):
        emit_entry(info)
