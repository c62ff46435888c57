"""The tensor processor and the CPU at once: equal results, and overlap where neither waits for the other."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.graph.fixed_layers import RandomLayers
from tilewright.accel.config import AccelConfig
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.machine import Counters
from tilewright.backends.accel.driver import AccelDevice, accel_device
from tilewright.graph.ir.expr import Function, GraphExpr, Tuple, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.plan_memory import plan_memory
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.runtime.core.artifact import ArgKind, DeviceKernelInfo, KernelInfo
from tilewright.runtime.device.command_queue import CommandQueue
from tilewright.runtime.device.host_calls import HostCall, HostValues
from tilewright.runtime.device.steps import Place, PlannedStep
from tilewright.support.errors import CompilerBug, UserError

BOTH = {"accel": "accel -config=uop_bytes:16384", "host": "native"}


def _branches() -> IRModule:
    """Layers of the processor, and products in float32 of the host, of one input; the host's branch comes first."""
    x = Var("x", tensor_type((1, 32, 16, 16), "int8"))
    make = RandomLayers(3)
    rows = call("reshape", call("cast", x, dtype=FLOAT32), shape=(32, 256))
    weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32) / 256
    for _ in range(6):
        rows = call("tanh", call("matmul", rows, constant(weight)))
    layer = make.layer(x, 32, 32, (3, 3), padding=(1, 1, 1, 1))
    layer = make.layer(layer, 32, 32, (3, 3), x, padding=(1, 1, 1, 1))
    return infer_types(IRModule([Function("main", (x,), Tuple((rows, layer)))]))


def _data() -> np.ndarray:
    return np.random.default_rng(1).integers(-128, 128, (1, 32, 16, 16)).astype(np.int8)


HOST_KERNELS = 7
"""Of the model above, those of the branch of the host."""


class Patient(FunctionalMachine):
    """A machine whose programs take until the host has computed its branch: without overlap they would wait in vain."""

    def run(self, address: int, count: int, most_cycles: int | None = None) -> Counters:
        spans, end = accel_device(0).spans, time.monotonic() + 20
        while spans is not None and sum(span.place == "host" for span in spans) < HOST_KERNELS + 1:
            assert time.monotonic() < end, "the host does not go on while a program runs"
            time.sleep(0.001)
        return super().run(address, count, most_cycles)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[AccelDevice]:
    """The first device, on such a machine."""
    known = accel_device(0)
    known.wait()
    monkeypatch.setattr(known, "_make", Patient)
    known._exchange(AccelConfig(), known._machine.dram_bytes)
    put = known._queue.put

    def put_and_begin(action: Callable[[], None], writes: Sequence[tuple[int, int]] = ()) -> None:
        """A command that finds the queue idle has begun when the host goes on."""
        is_first, has_begun = known._queue.is_idle, threading.Event()
        put(lambda: (has_begun.set(), action())[1], writes)
        assert not is_first or has_begun.wait(20)

    monkeypatch.setattr(known._queue, "put", put_and_begin)
    yield known
    known.wait()
    monkeypatch.undo()
    known._exchange(AccelConfig(), known._machine.dram_bytes)


def test_branches_run_at_once(device: AccelDevice, tmp_path: Path) -> None:
    module, x = _branches(), _data()
    exe = tw.compile(module, target=BOTH)
    expected = tw.compile(module)(x)
    for result, value in zip(exe(x), expected, strict=True):
        np.testing.assert_array_equal(result, value)
    timeline = exe.timeline(x)
    assert timeline.places == ("functional simulator", "host")
    on_host = [span for span in timeline.spans if span.place == "host"]
    on_chip = [span for span in timeline.spans if span.place != "host"]
    assert len(on_chip) == 2
    # One packs the data for the processor, one unpacks its results; the others are done while it computes.
    inside = [span for span in on_host if span.end <= on_chip[0].end]
    assert len(on_host) == HOST_KERNELS + 2 and len(inside) == HOST_KERNELS + 1
    assert timeline.overlap > 0
    assert "several at once for" in timeline.text()
    timeline.save(tmp_path / "a.json")
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == set(timeline.places)
    assert len([event for event in events if event["ph"] == "X"]) == len(timeline.spans)


def test_calls_of_several_threads(device: AccelDevice) -> None:
    exe = tw.compile(_branches(), target=BOTH)
    inputs = [_data(), -_data() // 2, _data() // 3]
    expected = [exe(x) for x in inputs]
    results: list[object] = [None] * 6

    def work(number: int) -> None:
        results[number] = exe(inputs[number % 3])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in enumerate(results):
        for one, other in zip(result, expected[number % 3], strict=True):  # type: ignore[arg-type]
            np.testing.assert_array_equal(one, other)


def test_threads_with_models_for_other_configurations() -> None:
    """The machine is another one for every launch, while others read and write its memory."""
    x, module = _data(), _branches()
    models = [tw.compile(module, target={"accel": config, "host": "native"}) for config in (BOTH["accel"], "")]
    expected = models[0](x)
    results: list[object] = [None] * 4

    def work(number: int) -> None:
        results[number] = models[number % 2](x)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        for one, other in zip(result, expected, strict=True):  # type: ignore[call-overload]
            np.testing.assert_array_equal(one, other)


def test_models_on_the_cpu_have_no_timeline() -> None:
    exe = tw.compile(_branches())
    with pytest.raises(UserError, match="only models on devices have a timeline"):
        exe.timeline(_data())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"accel": "accel -config=block_in:12"}, "block_in is 12, which is no power of two"),
        ({"accel": "cuda -arch=sm_90"}, "the target of the kind 'accel' is"),
        ({"accel": "", "host": "accel"}, "no back end for the target kind 'accel'"),
        ({"accel": "", "cuda": ""}, "one kind of device and a host"),
    ],
)
def test_pairs_that_make_no_sense(target: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tw.compile(_branches(), target=target)


# ------------------------------------------------------------------------ the queue


def test_a_reader_waits_for_what_it_reads_only() -> None:
    queue, gate, done = CommandQueue(), threading.Event(), []
    queue.put(lambda: done.append("first"), [(0, 64)])
    queue.put(lambda: (gate.wait(10), done.append("second"))[0], [(64, 128)])
    queue.wait_for(0, 64)
    assert done == ["first"] and not queue.is_idle
    gate.set()
    queue.wait_for(100, 101)
    assert done == ["first", "second"]
    queue.wait()
    assert queue.is_idle


def test_errors_are_raised_where_one_waits_and_end_what_follows() -> None:
    queue, gate, done = CommandQueue(), threading.Event(), []

    def fail() -> None:
        gate.wait(10)
        raise CompilerBug("it stopped")

    queue.put(fail, [(0, 64)])
    queue.put(lambda: done.append("after"), [(64, 128)])
    gate.set()
    with pytest.raises(CompilerBug, match="it stopped"):
        queue.wait_for(64, 128)
    queue.put(lambda: done.append("next"))
    queue.wait()
    assert done == ["next"] and queue.is_idle


def test_a_command_that_fails_in_an_unknown_way_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    queue = CommandQueue()

    def fail() -> None:
        raise AssertionError("never")

    queue.put(fail)
    with pytest.raises(CompilerBug, match="failed in an unknown way"):
        queue.wait()
    done: list[int] = []
    queue.put(lambda: done.append(1))
    queue.wait()
    assert done == [1]
    for thread in threading.enumerate():
        if thread.name == "accel":
            thread.join()
    assert len(said) == 1


# ------------------------------------------------------------------------ values of the host


class Memory:
    """The memory of a run: what is read and written."""

    def __init__(self) -> None:
        self.device = accel_device(0)
        self.moved: list[str] = []

    def read(self, place: Place, array: np.ndarray) -> None:
        self.moved.append(f"read {place.offset}")

    def write(self, place: Place, array: np.ndarray) -> None:
        self.moved.append(f"write {place.offset}")


def _part(offset: int, size: int = 64, kind: ArgKind = ArgKind.WORKSPACE) -> Place:
    return Place(kind, 0, offset, size)


def _moved(*steps: tuple[str, list[Place], list[Place]], kept: tuple[Place, ...] = ()) -> list[str]:
    """What calls of the host copy in a run of steps: of the host or the device, with what they read and write."""
    memory, values, calls = Memory(), HostValues(kept), []
    for number, (where, reads, writes) in enumerate(steps):
        written = tuple(range(len(reads), len(reads) + len(writes)))
        info = DeviceKernelInfo(f"k{number}", (), (64,) * (len(reads) + len(writes)), written)
        native = (lambda packed: 0) if where == "host" else None
        step = PlannedStep(number, KernelInfo(f"k{number}"), info, (), (*reads, *writes), native)
        if native is None:
            values.launched(step)
        else:
            calls.append(HostCall(memory, step, values))
    for call_ in calls:
        call_()
    return memory.moved


def test_what_the_host_reads_again_stays_there() -> None:
    x, a, b, c = _part(0, kind=ArgKind.INPUT), _part(64), _part(128), _part(192)
    assert _moved(("host", [x], [a]), ("host", [a], [b])) == ["read 0"]
    # A kernel of the device reads it, whole or in part.
    assert _moved(("host", [x], [a]), ("device", [a], [b]), ("host", [a], [c])) == ["read 0", "write 64"]
    assert _moved(("host", [x], [a]), ("device", [_part(96, 8)], [b])) == ["read 0", "write 64"]
    # A kernel of the device writes over it: the host's array is old then.
    assert _moved(("host", [x], [a]), ("device", [x], [a]), ("host", [a], [b])) == ["read 0", "write 64", "read 64"]
    # The host reads another part than it wrote.
    assert _moved(("host", [x], [a]), ("host", [_part(64, 32)], [b])) == ["read 0", "write 64", "read 64"]
    # A part is written over, and the rest is read.
    steps = ("host", [x], [a]), ("host", [x], [_part(64, 32)]), ("device", [a], [b])
    assert _moved(*steps) == ["read 0", "write 64", "read 0", "write 64"]
    # Results of the model, and what is read after the run.
    assert _moved(("host", [x], [_part(0, kind=ArgKind.OUTPUT)])) == ["read 0", "write 0"]
    assert _moved(("host", [x], [a]), kept=(_part(64, 8),)) == ["read 0", "write 64"]


# ------------------------------------------------------------------------ the order


def _names(module: IRModule) -> list[str]:
    plan = plan_memory(fuse(infer_types(module), GraphOptions()))
    return [str(step.function.notes["name"]) for step in plan.steps]


def test_layers_begin_before_what_does_not_wait_for_them() -> None:
    data, weight = tensor_type((1, 1, 4, 4, 1, 4), "int8"), constant(np.ones((1, 1, 1, 1, 4, 4), np.int8))
    x, y = Var("x", data), Var("y", tensor_type((8, 8), "float32"))
    parameters = constant(np.zeros((1, 4, 4), np.int32))

    def layer(value: GraphExpr) -> GraphExpr:
        return call("accel.conv2d", value, weight, parameters)

    first = layer(call("negative", x))
    after = call("abs", first)
    other = call("nn.softmax", y)
    last = layer(after)
    names = _names(IRModule([Function("main", (x, y), Tuple((other, call("nn.softmax", other), last)))]))
    # The layer, then what waits for none, then what waits for it.
    assert [name.removeprefix("fused_") for name in names] == [
        "negative", "accel_conv2d", "nn_softmax", "nn_softmax_1", "abs", "accel_conv2d_1",
    ]  # fmt: skip
    # Without layers the order is that of the graph.
    plain = IRModule([Function("main", (x, y), Tuple((other, after)))])
    assert _names(IRModule([Function("main", (y,), Tuple((other, call("exp", y))))]))[0].endswith("softmax")
    assert len(_names(plain)) == 4
