"""State of executables: values kept from call to call, written over themselves only where that is right."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, random, var
from tests.requirements import need
from tests.runtime.test_trials import Trying
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import If, Tuple, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.state import state_pairs, with_state
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.runtime.core.state import DeviceState
from tilewright.runtime.device.array import DeviceArray
from tilewright.runtime.device.program import Recording
from tilewright.support.errors import UserError

TARGETS = ["native", "opencl", "vulkan"]


@pytest.fixture(params=TARGETS)
def target(request) -> str:
    if request.param != "native":
        need(request.param)
    return request.param


def module_of(params, *results) -> IRModule:
    return infer_types(IRModule([function(params, Tuple(tuple(results)) if len(results) > 1 else results[0])]))


def update() -> IRModule:
    """y = x w + x g; w = w - g."""
    w, g, x = var("w", 8, 8), var("g", 8, 8), var("x", 3, 8)
    y = op("add", op("matmul", x, w), op("matmul", x, g))
    return module_of([w, g, x], y, op("subtract", w, g))


def swapped() -> IRModule:
    """a, b = b, a + b: each reads the old value of the other."""
    a, b, x = var("a", 5), var("b", 5), var("x", 5)
    return module_of([a, b, x], op("add", op("multiply", a, x), b), op("exp", op("tanh", b)), op("add", a, b))


def read_after() -> IRModule:
    """The new value is needed for the result, which also reads the old one."""
    w, x = var("w", 8, 8), var("x", 8, 8)
    new = op("matmul", x, w)
    return module_of([w, x], op("add", op("matmul", new, w), op("transpose", w, axes=(1, 0))), new)


def reversed_state() -> IRModule:
    """Each element of the new value is computed from another of the old one."""
    w, x = var("w", 64), var("x", 64)
    return module_of(
        [w, x],
        op("add", op("transpose", op("reshape", w, shape=(8, 8)), axes=(1, 0)), constant(1.0, "float32")),
        op("add", op("reshape", op("transpose", op("reshape", w, shape=(8, 8)), axes=(1, 0)), shape=(64,)), x),
    )


def unchanged() -> IRModule:
    """A new value that is the old one, and another that is an input."""
    w, v, x = var("w", 6), var("v", 6), var("x", 6)
    return module_of([w, v, x], op("add", w, v), w, x)


PROGRAMS = {
    "update": (update, {"w": 1}),
    "swapped": (swapped, {"a": 1, "b": 2}),
    "read_after": (read_after, {"w": 1}),
    "reversed": (reversed_state, {"w": 1}),
    "unchanged": (unchanged, {"w": 1, "v": 2}),
}


def assert_runs_as_interpreted(module: IRModule, state, target="native", calls=3, **options) -> tw.Executable:
    exe = tw.compile(module, target, threads=1, state=state, **options)
    main = module["main"]
    names = [param.name for param in main.params]
    held = {
        name: random(number, *main.params[names.index(name)].type.static_shape) for number, name in enumerate(state)
    }
    exe.state.assign(held)
    for call in range(calls):
        given = {
            p.name: random(7 * call + n, *p.type.static_shape) for n, p in enumerate(main.params) if p.name not in state
        }
        expected = evaluate(module, *(held.get(name, given.get(name)) for name in names))
        expected = expected if isinstance(expected, tuple) else (expected,)
        found = exe.run(given)
        rest = [value for number, value in enumerate(expected) if number not in state.values()]
        for a, b in zip(found, rest, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
        held = {name: expected[result] for name, result in state.items()}
        for name, value in held.items():
            np.testing.assert_allclose(exe.state[name], value, rtol=1e-4, atol=1e-4)
        held = exe.state.snapshot()
    return exe


@pytest.mark.parametrize("name", PROGRAMS)
def test_state_is_what_the_interpreter_hands_on(name, target) -> None:
    make, state = PROGRAMS[name]
    assert_runs_as_interpreted(make(), state, target)


def test_written_over_the_old_value_where_nothing_reads_it_later() -> None:
    exe = tw.compile(update(), threads=1, state={"w": 1})
    assert [item.in_place for item in exe.model.state] == [True]
    steps = Compilation(update(), threads=1, state={"w": 1}).lowered.plans[0].steps
    assert steps[-1].function.notes["name"] == "subtract"
    for make, state in (PROGRAMS["swapped"], PROGRAMS["read_after"]):
        assert not all(item.in_place for item in tw.compile(make(), threads=1, state=state).model.state)


def test_sizes_may_be_symbols_and_special() -> None:
    n = Symbol("n")
    w, x = var("w", 4, 4), var("x", n, 4)
    module = module_of([w, x], op("matmul", x, w), op("subtract", w, op("matmul", op("transpose", x, axes=(1, 0)), x)))
    exe = tw.compile(module, threads=1, state={"w": 1}, specialize=[{"n": 3}])
    value = np.eye(4, dtype=np.float32)
    exe.state["w"] = value
    for rows in (2, 3, 5, 3):
        x = random(rows, rows, 4)
        np.testing.assert_allclose(exe(x), x @ value, rtol=1e-4, atol=1e-4)
        value = value - x.T @ x
        np.testing.assert_allclose(exe.state["w"], value, rtol=1e-4, atol=1e-4)


def test_programs_of_the_machine_have_state() -> None:
    flag, w, x = var("flag", dtype="bool"), var("w", 3), var("x", 3)
    new = If(flag, op("add", w, x), op("subtract", w, x))
    module = module_of([flag, w, x], op("multiply", w, x), new)
    exe = tw.compile(module, threads=1, state={"w": 1})
    x = random(1, 3)
    for turn, expected in ((True, x), (False, 0 * x), (False, -x)):
        exe(np.asarray(turn), x)
        np.testing.assert_allclose(exe.state["w"], expected, atol=1e-6)


def checked() -> IRModule:
    """y = w[index]; w = w + x, where an index may be none of w."""
    w, x, index = var("w", 4), var("x", 4), var("index", 2, dtype="int64")
    status = op("check_values", index, what="index", sizes=(4,), axes=(0,), shape=(2,))
    taken = op("take", w, op("checked", index, status, what="index"), axis=0)
    return module_of([w, x, index], taken, op("add", w, x))


def checked_late() -> IRModule:
    """y = x[w' ]; w = w': the check is of the new value itself."""
    w, step = var("w", 2, dtype="int64"), var("step", 2, dtype="int64")
    x = var("x", 4)
    new = op("add", w, step)
    status = op("check_values", new, what="index", sizes=(4,), axes=(0,), shape=(2,))
    return module_of([w, step, x], op("take", x, op("checked", new, status, what="index"), axis=0), new)


def test_a_call_that_fails_leaves_state_as_it_was(target) -> None:
    exe = tw.compile(checked(), target, threads=1, state={"w": 1})
    before = random(3, 4)
    exe.state["w"] = before
    with pytest.raises(UserError, match="index"):
        exe(random(4, 4), np.array([0, 9]))
    np.testing.assert_array_equal(exe.state["w"], before)
    np.testing.assert_array_equal(exe(0 * before, np.array([0, 3])), before[[0, 3]])


def test_a_check_of_a_new_value_leaves_state_as_it_was(target) -> None:
    exe = tw.compile(checked_late(), target, threads=1, state={"w": 1})
    x = random(1, 4)
    np.testing.assert_array_equal(exe(np.array([1, 3]), x), x[[1, 3]])
    with pytest.raises(UserError, match="index"):
        exe(np.array([2, 2]), x)
    np.testing.assert_array_equal(exe.state["w"], [1, 3])
    np.testing.assert_array_equal(exe(np.array([1, -1]), x), x[[2, 2]])


def test_state_behind_checks_is_written_where_it_is(monkeypatch) -> None:
    """A run waits for its checks before it writes over state: no copies of state, call after call."""
    need("opencl")
    exe = tw.compile(checked(), "opencl", threads=1, state={"w": 1})
    device = exe.runner.device
    copied = []
    copy = type(device).copy
    monkeypatch.setattr(type(device), "copy", lambda self, *args: (copied.append(args[2]), copy(self, *args)))
    held = exe._runner._arrays[0].memory
    x = random(4, 4)
    for call in range(3):
        np.testing.assert_allclose(exe(x, np.array([1, 2])), call * x[[1, 2]], rtol=1e-6)
    assert copied and all(memory is not held for memory in copied)
    np.testing.assert_allclose(exe.state["w"], 3 * x, rtol=1e-6)


@pytest.mark.parametrize("name", ["update", "swapped"])
def test_results_stay_on_the_device_with_state(name) -> None:
    """However many places arguments come from: later calls copy those, and never state."""
    need("opencl")
    make, state = PROGRAMS[name]
    there, host = (tw.compile(make(), place, threads=1, state=state) for place in ("opencl", "native"))
    first = {info.name: random(3, *info.static_shape) for info in host.state.info}
    for exe in (there, host):
        exe.state.assign(first)
    kept = []
    for call in range(40):
        given = [0.1 * random(call + n, *info.static_shape) for n, info in enumerate(host.input_info)]
        kept.append([there.to_device(array) for array in given])
        found = there(*kept[-1])
        assert isinstance(found, DeviceArray)
        np.testing.assert_allclose(found.numpy(), host(*given), rtol=1e-3, atol=1e-3)
    for key, value in host.state.items():
        np.testing.assert_allclose(there.state[key], value, rtol=1e-3, atol=1e-3)


def test_state_keeps_its_memory_on_a_device() -> None:
    need("opencl")
    exe = tw.compile(update(), "opencl", threads=1, state={"w": 1})
    assert isinstance(exe.runner, DeviceState) and exe.model.state[0].in_place
    before = exe.runner.joined([None, None])[0].memory
    exe(random(1, 8, 8), random(2, 3, 8))
    exe.state["w"] = random(3, 8, 8)
    assert exe.runner.joined([None, None])[0].memory is before
    figure = exe.time_evaluator(number=3, repeat=2)(np.ones((8, 8), np.float32), random(2, 3, 8))
    assert figure.median > 0
    # A run to warm up, and six that are timed.
    np.testing.assert_allclose(exe.state["w"], random(3, 8, 8) - 7, rtol=1e-5)


def test_libraries_and_copies_have_state_of_their_own(tmp_path) -> None:
    exe = tw.compile(update(), threads=1, state={"w": 1})
    exe.state["w"] = value = random(0, 8, 8)
    exe.export_library(tmp_path / "update.so")
    loaded = tw.load(tmp_path / "update.so")
    assert list(loaded.state) == ["w"] and not loaded.state["w"].any()
    twin = copy.deepcopy(exe)
    g, x = random(1, 8, 8), random(2, 3, 8)
    twin(g, x)
    np.testing.assert_array_equal(exe.state["w"], value)
    np.testing.assert_allclose(twin.state["w"], value - g, rtol=1e-6)
    exe.profile(g, x, repeat=2)
    np.testing.assert_array_equal(exe.state["w"], value)


def test_what_is_read_is_a_copy() -> None:
    exe = tw.compile(update(), threads=1, state={"w": 1})
    given = random(0, 8, 8)
    exe.state["w"] = given
    held = exe.state["w"]
    held[...] = 0
    given[...] = 1
    assert exe.state["w"].any() and not (exe.state["w"] == 1).all()
    with pytest.raises(UserError, match="belongs to the model"):
        del exe.state["w"]


def test_calls_of_several_threads_follow_each_other() -> None:
    w, x = var("w", 16), var("x", 16)
    exe = tw.compile(module_of([w, x], op("sum", x, axes=(0,)), op("add", w, x)), threads=1, state={"w": 1})
    ones = np.ones(16, np.float32)
    workers = [threading.Thread(target=lambda: [exe(ones) for _ in range(200)]) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (exe.state["w"] == 800).all()


def test_saved_and_loaded(tmp_path) -> None:
    exe = tw.compile(swapped(), threads=1, state={"a": 1, "b": 2})
    exe.state.assign({"a": random(0, 5), "b": random(1, 5)})
    kept = exe.state.snapshot()
    exe.state.save(tmp_path / "state.npz")
    exe.state.reset()
    assert not any(value.any() for value in exe.state.values())
    exe.state.load(tmp_path / "state.npz")
    for name, value in kept.items():
        np.testing.assert_array_equal(exe.state[name], value)
    assert [item.name for item in tmp_path.iterdir()] == ["state.npz"]
    other = tw.compile(update(), threads=1, state={"w": 1})
    with pytest.raises(UserError, match="the file has no state 'w'"):
        other.state.load(tmp_path / "state.npz")
    with pytest.raises(UserError, match="there is no such file"):
        exe.state.load(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes((tmp_path / "state.npz").read_bytes()[:100])
    with pytest.raises(UserError, match=r"no \.npz file, or damaged"):
        exe.state.load(tmp_path / "bad.npz")
    tw.compile(
        module_of([a := var("a", 5)], op("sum", a, axes=(0,)), op("exp", a)), threads=1, state={"a": 1}
    ).state.save(tmp_path / "one.npz")
    only = tw.compile(module_of([b := var("b", 5)], op("sum", b, axes=(0,)), op("exp", b)), threads=1, state={"b": 1})
    with pytest.raises(UserError, match="the file has no state 'b'"):
        only.state.load(tmp_path / "one.npz")


def test_wrong_values_are_refused() -> None:
    exe = tw.compile(update(), threads=1, state={"w": 1})
    for value, message in (
        (np.zeros((8, 7), np.float32), r"the state 'w' has the shape"),
        (np.zeros((8, 8), np.int32), "the state 'w' has the data type float32, not int32"),
    ):
        with pytest.raises(UserError, match=message):
            exe.state["w"] = value
    with pytest.raises(UserError, match="the model has no state 'v'"):
        exe.state["v"] = 0
    with pytest.raises(UserError, match="the model takes 2 inputs"):
        exe(np.zeros((8, 8), np.float32))
    assert len(tw.compile(update(), threads=1).state) == 0


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"v": 1}, "the state 'v' is no input of the model"),
        ({"w": 2}, "the state 'w' has no result 2"),
        ({"w": "new"}, "the state 'w' has no result 'new'"),
        ({"w": 0}, "the state 'w' is .* but its next value, the result 0, is"),
        ({"w": 1, "g": 1}, "the result 1 is the next value of more than one state: 'w', 'g'"),
        ({"w": 1.5}, "the result of the state 'w' is its name or number, not"),
        ({1: 1}, "state is a mapping of inputs to outputs"),
        ([("w", 1)], "state is a mapping of inputs to outputs"),
    ],
)
def test_wrong_declarations_are_refused(state, message) -> None:
    with pytest.raises(UserError, match=message):
        tw.compile(update(), threads=1, state=state)


def test_state_of_unknown_sizes_is_refused() -> None:
    w = var("w", Symbol("n"))
    with pytest.raises(UserError, match="state is tensors of known shapes"):
        tw.compile(module_of([w], op("sum", w, axes=(0,)), op("exp", w)), state={"w": 1})


def test_a_module_that_declares_its_state_needs_no_option() -> None:
    module = with_state(update().with_attributes(output_names=("y", "after")), {"w": "after"})
    assert [(pair.parameter, pair.result) for pair in state_pairs(module)] == [(0, 1)]
    assert list(tw.compile(module, threads=1).state) == ["w"]


def test_a_module_without_types_is_given_them() -> None:
    w, x = var("w", 4), var("x", 4)
    module = IRModule([function([w, x], Tuple((op("exp", w), op("add", w, x))))])
    assert list(tw.compile(module, threads=1, state={"w": 1}).state) == ["w"]


def test_trials_of_launches_leave_state_as_it_is(monkeypatch) -> None:
    """Runs that only decide how kernels are launched change nothing that is kept."""
    need("opencl")
    exe = tw.compile(update(), "opencl", threads=1, state={"w": 1})
    device = exe.runner.device
    monkeypatch.setattr(type(device), "record", lambda self, calls: Trying(self, calls))
    draw = np.random.default_rng(0)
    w, g, x = (draw.standard_normal((rows, 8), np.float32) for rows in (8, 8, 3))
    exe.state["w"] = w
    for call in range(3):
        np.testing.assert_allclose(exe(g, x), x @ (w - call * g) + x @ g, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(exe.state["w"], w - 3 * g, rtol=1e-5, atol=1e-5)


def test_trials_of_what_comes_before_state_is_written_copy_nothing(monkeypatch) -> None:
    """State need not be kept aside where the calls before the first that writes it are most of them."""
    need("opencl")
    exe = tw.compile(update(), "opencl", threads=1, state={"w": 1})
    device = exe.runner.device
    recordings: list[Recording] = []
    monkeypatch.setattr(
        type(device), "record", lambda self, calls: recordings.append(Trying(self, calls)) or recordings[-1]
    )
    monkeypatch.setattr(type(device), "copy", lambda *args: pytest.fail("state is copied"))
    w, g, x = (random(number, rows, 8) for number, rows in enumerate((8, 8, 3)))
    exe.state["w"] = w
    exe(g, x)
    assert [0 < recording.tried < len(recording.calls) for recording in recordings] == [True]
    np.testing.assert_allclose(exe.state["w"], w - g, rtol=1e-5, atol=1e-5)


def test_trials_of_launches_wait_for_checks(monkeypatch) -> None:
    """What writes over state is tried only when the data is known to be good."""
    need("opencl")
    exe = tw.compile(checked(), "opencl", threads=1, state={"w": 1})
    monkeypatch.setattr(type(exe.runner.device), "record", lambda self, calls: Trying(self, calls))
    x = random(4, 4)
    for call in range(2):
        with pytest.raises(UserError, match="index"):
            exe(x, np.array([0, 7]))
        np.testing.assert_allclose(exe(x, np.array([1, 2])), call * x[[1, 2]], rtol=1e-6)
    np.testing.assert_allclose(exe.state["w"], 2 * x, rtol=1e-6)
