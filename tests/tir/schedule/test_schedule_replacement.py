"""Blocks replaced by an equivalent program: what it becomes, what is refused, and what verification finds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright import te
from tilewright.support import settings
from tilewright.support.errors import CompilerBug, UserError
from tilewright.tir.agreement import disagreement
from tilewright.tir.equivalents import Equivalent, Parameters, declare_equivalent, find_equivalent
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.resize import resized
from tilewright.tir.schedule import Schedule, ScheduleError, Trace, replay
from tilewright.tir.schedule.remembered import ScheduleTree
from tilewright.tir.script.printer import to_script

ROWS, COLUMNS = 6, 8


def program(rows: int | te.Var = ROWS, columns: int = COLUMNS) -> PrimFunc:
    """D = (2 A + 1) - 1, in three stages."""
    a = te.placeholder((rows, columns), name="A")
    b = te.compute((rows, columns), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute((rows, columns), lambda i, j: b[i, j] + 1.0, name="C")
    d = te.compute((rows, columns), lambda i, j: c[i, j] - 1.0, name="D")
    return te.create_prim_func([a, d])


def elementwise(function: Callable[..., object], shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Equivalent:
    """An equivalent that computes each element of one operand by a function."""

    def build(func: PrimFunc, parameters: Parameters) -> PrimFunc:
        x = te.placeholder(shape, name="X")
        y = te.compute(shape, lambda *i: function(x[i], *parameters.values()), name="Y")
        return te.create_prim_func([x, y])

    return Equivalent("elementwise", "a function of each element", build)


def replaced(equivalent: Equivalent, *names: str, func: PrimFunc | None = None, tolerance: float = 1e-6) -> Schedule:
    sch = Schedule(func or program())
    blocks = [sch.get_block(name) for name in names or ("B", "C")]
    sch.replace_by_equivalent(*blocks, equivalent=equivalent, tolerance=tolerance)
    return sch


TWICE = elementwise(lambda x: x + x + 1.0)


def test_before_and_after() -> None:
    """Stages become the program of the equivalent, on their buffers; the rest stays."""
    assert to_script(replaced(TWICE).func) == AFTER.strip()


AFTER = """
@script.function
def main(A: Buffer[(6, 8), "float32"], D: Buffer[(6, 8), "float32"]):
    C = alloc_buffer((6, 8), "float32")
    for i0, i1 in grid(6, 8):
        with block("Y"):
            v_i0, v_i1 = spatial(6, i0), spatial(8, i1)
            reads(A[v_i0, v_i1])
            writes(C[v_i0, v_i1])
            C[v_i0, v_i1] = A[v_i0, v_i1] + A[v_i0, v_i1] + 1.0
    for i, j in grid(6, 8):
        with block("D"):
            v_i, v_j = spatial(6, i), spatial(8, j)
            reads(C[v_i, v_j])
            writes(D[v_i, v_j])
            D[v_i, v_j] = C[v_i, v_j] - 1.0
"""


def test_it_goes_on_being_scheduled() -> None:
    """The new blocks move like any other, and the program computes what it did."""
    sch = replaced(TWICE)
    block = sch.get_block("Y")
    outer, inner = sch.split(sch.get_loops(sch.get_block("D"))[0], [None, 4])
    sch.compute_at(block, outer)
    sch.parallel(outer)
    sch.vectorize(sch.get_loops(block)[-1])
    a = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    d = np.zeros_like(a)
    interpret(sch.func, a, d)
    np.testing.assert_allclose(d, 2 * a, rtol=1e-5, atol=1e-6)
    assert inner in sch.get_loops(sch.get_block("D"))


def test_trace() -> None:
    """A trace has the name, the tolerance and the parameters, and replays from its text."""
    scaled = declare_equivalent(
        Equivalent("scaled", "by numbers", elementwise(lambda x, factor, more: x * factor + more).build)
    )
    sch = Schedule(program())
    blocks = [sch.get_block(name) for name in "BC"]
    sch.replace_by_equivalent(*blocks, equivalent=scaled, tolerance=1e-6, parameters={"factor": 2, "more": 1})
    call = (
        "sch.replace_by_equivalent(b0, b1, equivalent='scaled', tolerance=1e-06, parameters={'factor': 2, 'more': 1})"
    )
    assert sch.trace.lines()[-1] == f"b2, = {call}"
    again = replay(Trace.from_json(sch.trace.to_json()), program())
    assert again.show() == sch.show()
    with pytest.raises(UserError, match="instruction 2 of the trace"):
        replay(sch.trace, program(ROWS, COLUMNS + 1))


def test_schedules_that_remember() -> None:
    """A tree of schedules replaces once."""
    builds: list[PrimFunc] = []

    def build(func: PrimFunc, parameters: Parameters) -> PrimFunc:
        builds.append(func)
        return TWICE.build(func, parameters)

    counted, tree = Equivalent("counted", "as above", build), ScheduleTree(program())
    shown = set()
    for _ in range(2):
        sch = tree.schedule()
        sch.replace_by_equivalent(sch.get_block("B"), sch.get_block("C"), equivalent=counted, tolerance=0.0)
        shown.add(sch.show())
    assert len(builds) == 1 and len(shown) == 1


def test_symbolic_sizes() -> None:
    """Symbols of the equivalent's parameters are bound to those of the program, and verification gives them sizes."""
    m = te.var("m")
    twice = elementwise(lambda x: x + x + 1.0, (m, COLUMNS))
    sch = replaced(twice, func=program(te.var("n")))
    assert "(n, 8)" in sch.show() and "m" not in {var.name for var in sch.func.symbolic_dims()}


def test_whole_program() -> None:
    """All stages may be replaced, and intermediate buffers go with them."""
    sch = replaced(elementwise(lambda x: x + x), "B", "C", "D", tolerance=1e-5)
    assert not sch.func.root.allocations and [block.name for block in sch.blocks()] == ["Y"]


def reads_more(func: PrimFunc, parameters: Parameters) -> PrimFunc:
    x, y = te.placeholder((ROWS, COLUMNS), name="X"), te.placeholder((ROWS, COLUMNS), name="Y")
    return te.create_prim_func([x, y, te.compute((ROWS, COLUMNS), lambda i, j: x[i, j] + y[i, j], name="Z")])


def reads_nothing(func: PrimFunc, parameters: Parameters) -> PrimFunc:
    x = te.placeholder((ROWS, COLUMNS), name="X")
    return te.create_prim_func([x, te.compute((ROWS, COLUMNS), lambda i, j: te.const(1.0), name="Z")])


def leaves_its_buffer(func: PrimFunc, parameters: Parameters) -> PrimFunc:
    x = te.placeholder((ROWS, COLUMNS), name="X")
    return te.create_prim_func([x, te.compute((ROWS, COLUMNS), lambda i, j: x[i + 1, j], name="Z")])


def refuses(func: PrimFunc, parameters: Parameters) -> PrimFunc:
    raise UserError("only for attentions", hint="do something else")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (reads_more, "its program has 3 parameters, not 2: A, C"),
        (reads_nothing, "its program does not read A, what it replaces does"),
        (leaves_its_buffer, r"block Z reads A\[v_i \+ 1, v_j\] out of bounds"),
        (refuses, "only for attentions"),
        (
            elementwise(lambda x: x, (ROWS, COLUMNS + 1)).build,
            r"its parameter Buffer\(X, \(6, 9\), float32\)",
        ),
        (elementwise(lambda x: x.astype("float64")).build, r"its parameter Buffer\(Y, \(6, 8\), float64\)"),
    ],
)
def test_other_interfaces_are_refused(build: Callable[[PrimFunc, Parameters], PrimFunc], message: str) -> None:
    """What is read, written, its types and shapes must be the same; the program stays as it was."""
    sch = Schedule(program())
    before = sch.show()
    with pytest.raises(ScheduleError, match=message), settings.VERIFY.override(False):
        sch.replace_by_equivalent(
            sch.get_block("B"), sch.get_block("C"), equivalent=Equivalent("other", "", build), tolerance=1e-6
        )
    assert sch.show() == before


def test_tested_equivalents_are_checked_where_asked() -> None:
    """Whoever says that tests show it is believed, but for verification."""
    trusted = Equivalent("trusted", "", leaves_its_buffer, is_tested=True)
    with settings.VERIFY.override(False):
        replaced(trusted)
    with settings.VERIFY.override(True), pytest.raises(ScheduleError, match="trusted: "):
        replaced(trusted)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("B", "D"), "block C stands among those to be replaced"),
        (("root",), "block root is no stage of the function"),
    ],
)
def test_regions_are_neighbouring_stages(names: tuple[str, ...], message: str) -> None:
    """Blocks to be replaced are all those of neighbouring loop nests."""
    with pytest.raises(ScheduleError, match=message):
        replaced(TWICE, *names)


def test_names_in_use_are_refused() -> None:
    """A new block may not have the name of one that stays."""

    def build(func: PrimFunc, parameters: Parameters) -> PrimFunc:
        x = te.placeholder((ROWS, COLUMNS), name="X")
        return te.create_prim_func([x, te.compute((ROWS, COLUMNS), lambda i, j: x[i, j] * 2.0 + 1.0, name="D")])

    with pytest.raises(ScheduleError, match="there is a block D already"):
        replaced(Equivalent("same_name", "", build))


def test_wrong_calls() -> None:
    """Without blocks, with an unknown name, or with no tolerance."""
    sch = Schedule(program())
    with pytest.raises(UserError, match="needs blocks"):
        sch.replace_by_equivalent(equivalent=TWICE, tolerance=0.0)
    with pytest.raises(UserError, match="there is no equivalent 'nowhere'"):
        sch.replace_by_equivalent(sch.get_block("B"), equivalent="nowhere", tolerance=0.0)
    for tolerance in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ScheduleError, match="is no tolerance"):
            sch.replace_by_equivalent(sch.get_block("B"), equivalent=TWICE, tolerance=tolerance)
    first = declare_equivalent(Equivalent("declared_twice", "", TWICE.build))
    assert declare_equivalent(first) is find_equivalent("declared_twice")
    with pytest.raises(UserError, match="another equivalent is declared as 'declared_twice'"):
        declare_equivalent(Equivalent("declared_twice", "", reads_more))


# ---------------------------------------------------------------- verification


def test_verification_finds_other_results() -> None:
    """Where it is asked for, a program that computes something else is refused, with an element that differs."""
    wrong = elementwise(lambda x: x + x + 1.01)
    with settings.VERIFY.override(True), pytest.raises(ScheduleError, match=r"beyond 1e-06: C\[0, 0\] is .*, not "):
        replaced(wrong)
    with settings.VERIFY.override(True):
        replaced(wrong, tolerance=0.05)
    with settings.VERIFY.override(False):
        replaced(wrong)


def test_large_programs_are_verified_by_smaller_ones() -> None:
    """A program that is too large to be interpreted needs a smaller one of its structure."""
    large = program(2048, 2048)
    twice = elementwise(lambda x: x + x + 1.0, (2048, 2048))

    def build(func: PrimFunc, parameters: Parameters) -> PrimFunc:
        rows, columns = func.buffers[0].static_shape or ()
        return elementwise(lambda x: x * 2.5 + 1.0, (rows, columns)).build(func, {})

    def smaller(func: PrimFunc, parameters: Parameters) -> tuple[PrimFunc, Parameters]:
        sch = Schedule(func)
        return resized(func, {handle.var: 4 for handle in sch.get_loops(sch.get_block("B"))}), parameters

    with settings.VERIFY.override(True):
        with pytest.raises(ScheduleError, match="too large to be verified"):
            replaced(twice, func=large)
        with pytest.raises(ScheduleError, match="computes something else"):
            replaced(Equivalent("wrong", "", build, smaller), func=large)
    with settings.VERIFY.override(False):
        replaced(twice, func=large)


def test_agreement_of_types() -> None:
    """Integers and halves are compared too; parameters that are only read are not."""

    def squares(dtype: str, plus: int) -> PrimFunc:
        a = te.placeholder((5,), dtype, "A")
        return te.create_prim_func([a, te.compute((5,), lambda i: a[i] * a[i] + te.const(plus, dtype), name="B")])

    for dtype in ("int32", "float16", "bfloat16", "uint8"):
        assert disagreement(squares(dtype, 0), squares(dtype, 0), 0.0) is None
        found = disagreement(squares(dtype, 0), squares(dtype, 1), 0.01)
        assert found is not None and found.startswith("B[0] is ")


def test_resized() -> None:
    """Loops that count the same have the same new extent; programs with other indices have one size only."""
    a, w = te.placeholder((32, 64), name="A"), te.placeholder((64, 16), name="W")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((32, 16), lambda i, j: te.sum(a[i, k] * w[k, j], axis=k), name="C")
    func = te.create_prim_func([a, w, te.compute((32, 16), lambda i, j: c[i, j] + 1.0, name="D")])
    sch = Schedule(func)
    rows, _, steps = (loop.var for loop in sch.get_loops(sch.get_block("C")))
    small = resized(func, {rows: 3, steps: 2})
    assert [buffer.static_shape for buffer in small.buffers] == [(3, 2), (2, 16), (3, 16)]
    arrays = [np.ones(buffer.static_shape or (), np.float32) for buffer in small.buffers]
    interpret(small, *arrays)
    assert (arrays[-1] == 3).all()
    shifted = te.create_prim_func([a, te.compute((31, 64), lambda i, j: a[i + 1, j], name="S")])
    loop = Schedule(shifted).get_loops(Schedule(shifted).get_block("S"))[0]
    with pytest.raises(CompilerBug, match="is no iterator: its program has one size only"):
        resized(shifted, {loop.var: 4})
