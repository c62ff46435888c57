"""Checks of data on a CUDA device, without a GPU: the host sees what they find while the rest of a run goes on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.codegen.cuda_on_fibers import FiberDriver, use_fibers
from tests.codegen.on_threads import require_clang
from tests.requirements import need_module
from tests.runtime.test_state import checked
from tests.runtime.toy_cuda import BAD_ADDRESS, NO_MEMORY, NOT_READY, SUCCESS
from tilewright.backends.cuda.driver import CudaDevice
from tilewright.runtime.device import checks
from tilewright.runtime.device.array import DeviceArray
from tilewright.runtime.device.model import DevicePrepared, DeviceRunner
from tilewright.support.errors import CompilerBug, UserError

torch = need_module("torch")

TABLE = np.arange(20, dtype=np.float32).reshape(5, 4)
GOOD, BAD = np.array([0, 1, -5]), np.array([0, 7, 1])
KEPT: list[Any] = []
"""Tensors live until all runs are over: torch's own memory on a GPU is given to others in the order of its stream."""
MESSAGE = "the index 7 (element 1 of the indices) is out of range for axis 0 of size 5"


class LateDriver(FiberDriver):
    """A driver whose graphs run in a thread of their own, some time after they are started."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: deque[list[Callable[[], None]]] = deque()
        self.pending = 0
        self.delay = 0.0
        self.fails = self.loses = False
        """Whether graphs fail, or do nothing."""
        self.may_end = threading.Event()
        """Let graphs go on to their last kernel."""
        self.may_end.set()
        self.changed = threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.queue)
                graph = self.queue.popleft()
            time.sleep(self.delay)
            if self.fails:
                self.state = BAD_ADDRESS
            for number, run in enumerate(() if self.fails or self.loses else graph):
                if number == len(graph) - 1:
                    self.may_end.wait(60)
                run()
            with self.changed:
                self.pending -= 1
                self.changed.notify_all()

    def cuGraphLaunch(self, graph: Any, stream: Any) -> tuple[Any]:
        with self.changed:
            self.queue.append(graph)
            self.pending += 1
            self.changed.notify_all()
        return (SUCCESS,)

    def cuStreamSynchronize(self, stream: Any) -> tuple[Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: not self.pending, 60)
        return (self.state,)

    def cuStreamQuery(self, stream: Any) -> tuple[Any]:
        return (NOT_READY if self.pending and self.state is SUCCESS else self.state,)

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: Any) -> tuple[Any]:
        self.cuStreamSynchronize(stream)
        return super().cuMemcpyHtoDAsync(target, source, size, stream)

    cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoDAsync

    def cuMemFreeAsync(self, address: int, stream: Any) -> tuple[Any]:
        """Some time later than asked: here, never."""
        return (SUCCESS,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateDriver]:
    require_clang()
    made = LateDriver()
    use_fibers(monkeypatch, CudaDevice(made, 0))
    yield made
    made.may_end.set()
    made.cuStreamSynchronize(None)
    made.state = SUCCESS
    KEPT.clear()


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors of torch's on the CPU look like those of the GPU: they are in its memory here."""

    def make(shape: Any, strides: Any, dtype: Any, device: Any, empty: Any = torch.empty_strided) -> Any:
        KEPT.append(empty(shape, strides, dtype=dtype))
        return KEPT[-1]

    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 0, raising=False)
    monkeypatch.setattr(torch, "empty_strided", make)


def gather(more: int = 0) -> Any:
    """y = softmax(table[i]), of which sums of rows are taken a few times more."""
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["rows"], name="rows"),
        helper.make_node("Softmax", ["rows"], ["y0"], axis=0),
    ]
    nodes += [helper.make_node("CumSum", [f"y{n}", "axis"], [f"y{n + 1}"]) for n in range(more)]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("i", TensorProto.INT64, GOOD.shape)],
        [helper.make_tensor_value_info(f"y{more}", TensorProto.FLOAT, None)],
        [
            helper.make_tensor("table", TensorProto.FLOAT, TABLE.shape, TABLE.tobytes(), raw=True),
            helper.make_tensor("axis", TensorProto.INT64, [], [0]),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    exe = tw.compile(made, "cuda")
    assert exe.model.checks and isinstance(exe.runner, DeviceRunner)
    return exe


def wanted(indices: np.ndarray = GOOD) -> np.ndarray:
    rows = np.exp(TABLE[indices] - TABLE[indices].max(0))
    return rows / rows.sum(0)


def tensor(array: np.ndarray) -> Any:
    KEPT.append(torch.from_numpy(array.copy()))
    return KEPT[-1]


def short_way(exe: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[np.ndarray], Any]:
    """A call with torch's tensors, which fails if it takes the long way."""
    np.testing.assert_allclose(exe(GOOD), wanted(), rtol=1e-5)
    monkeypatch.setattr(DevicePrepared, "call", lambda *args, **how: pytest.fail("the long way"))
    return lambda indices: exe(tensor(indices))


def ways(name: str, exe: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[np.ndarray], Any]:
    return {
        "host": lambda: exe,
        "names": lambda: lambda indices: exe.run({"i": indices})[0],
        "device": lambda: lambda indices: exe(exe.to_device(indices)),
        "torch": lambda: short_way(exe, monkeypatch),
    }[name]()


@pytest.mark.parametrize("way", ["host", "names", "device", "torch"])
@pytest.mark.usefixtures("on_gpu")
def test_every_way_of_a_call_says_what_is_wrong(way: str, driver: LateDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ways(way, gather(), monkeypatch)
    driver.delay = 2e-3
    for turn in range(4):
        found = run(GOOD)
        found = found.numpy() if isinstance(found, DeviceArray) else found
        driver.cuStreamSynchronize(None)
        np.testing.assert_allclose(found, wanted(), rtol=1e-5)
        for _ in range(1 + turn % 2):
            with pytest.raises(UserError) as caught:
                run(BAD)
            assert caught.value.message == MESSAGE and caught.value.where == "node 'rows' (Gather)"
    # One frame serves all calls, and nothing is gathered on the device.
    assert len(driver.host_memory) == 1


@pytest.mark.usefixtures("on_gpu")
def test_a_call_waits_for_its_checks_alone(driver: LateDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    run = short_way(gather(), monkeypatch)
    run(GOOD)
    driver.cuStreamSynchronize(None)
    driver.may_end.clear()
    found = run(np.array([4, 4, 2]))
    assert driver.pending
    driver.may_end.set()
    driver.cuStreamSynchronize(None)
    np.testing.assert_allclose(found, wanted(np.array([4, 4, 2])), rtol=1e-5)


@pytest.mark.usefixtures("on_gpu")
def test_a_kernel_that_fails_is_an_error_of_the_call(driver: LateDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    run = short_way(gather(), monkeypatch)
    run(GOOD)
    driver.fails, driver.delay = True, 5e-3
    with pytest.raises(UserError, match=r"a kernel failed on .*CUDA_ERROR_ILLEGAL_ADDRESS"):
        run(GOOD)


@pytest.mark.usefixtures("on_gpu")
def test_a_check_that_writes_nothing_does_not_hang(driver: LateDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    run = short_way(gather(), monkeypatch)
    run(GOOD)
    driver.loses = True
    with pytest.raises(CompilerBug, match="has left no status"):
        run(GOOD)


@pytest.mark.usefixtures("on_gpu")
def test_memory_of_an_interrupted_call_serves_no_other(driver: LateDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interrupted run writes late would else be taken for what the next one found."""
    run = short_way(gather(), monkeypatch)
    run(BAD[::-1] * 0)
    driver.cuStreamSynchronize(None)
    driver.delay = 0.05

    def interrupt(seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        sleep(seconds)

    with monkeypatch.context() as patched:
        patched.setattr(checks.time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(GOOD)
    with pytest.raises(UserError, match="the index 7"):
        run(BAD)


def test_what_trials_of_launches_wrote_is_not_taken_for_the_run(driver: LateDriver) -> None:
    """The first call tries how kernels are started best: its own checks may write when the next call has begun."""
    exe = gather(3)
    trials: list[int] = []
    driver.time_of = lambda configs: float(trials.append(1) or 1)
    good, bad = exe.to_device(GOOD), exe.to_device(BAD)
    driver.delay = 0.02
    exe(good)
    assert trials
    with pytest.raises(UserError, match="the index 7"):
        exe(bad)


@pytest.mark.usefixtures("on_gpu")
def test_without_memory_of_the_host_checks_are_gathered(driver: LateDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuMemHostAlloc", lambda size, flags: (NO_MEMORY, 0))
    exe = gather()
    np.testing.assert_allclose(exe(GOOD), wanted(), rtol=1e-5)
    for _ in range(2):
        wrong = exe(exe.to_device(BAD))
        with pytest.raises(UserError, match="the index 7"):
            wrong.numpy()
        with pytest.raises(UserError, match="the index 7"):
            exe(BAD)
        np.testing.assert_allclose(exe(exe.to_device(GOOD)).numpy(), wanted(), rtol=1e-5)


@pytest.mark.parametrize("way", ["host", "torch"])
@pytest.mark.usefixtures("on_gpu")
def test_state_stays_as_it_was_where_data_is_wrong(
    way: str, driver: LateDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    exe = tw.compile(checked(), "cuda", threads=1, state={"w": 1})
    x = np.array([1, 2, 3, 4], np.float32)
    exe(0 * x, np.array([0, 1]))
    if way == "torch":
        monkeypatch.setattr(DevicePrepared, "call_over", lambda *args, **how: pytest.fail("the long way"))
    given = tensor if way == "torch" else np.copy
    driver.delay = 2e-3
    for turn in range(3):
        with pytest.raises(UserError, match="the index 9"):
            exe(given(x), given(np.array([0, 9])))
        found = exe(given(x), given(np.array([1, 3])))
        driver.cuStreamSynchronize(None)
        np.testing.assert_allclose(found, turn * x[[1, 3]])
    np.testing.assert_allclose(exe.state["w"], 3 * x)
    driver.fails = True
    with pytest.raises(UserError, match="a kernel failed"):
        exe(given(x), given(np.array([1, 3])))


def test_runs_that_are_timed_need_no_look_at_checks(driver: LateDriver) -> None:
    exe = gather()
    assert exe.time_evaluator(number=3, repeat=2)(GOOD).median > 0
    with pytest.raises(UserError, match="the index 7"):
        exe(BAD)


@pytest.mark.usefixtures("on_gpu")
def test_calls_of_several_threads(driver: LateDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    run = short_way(gather(), monkeypatch)
    driver.delay = 1e-4
    wrong: list[str] = []

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for _ in range(40):
            indices = draw.integers(0, 5, 3)
            indices[1] = 7 if draw.integers(2) else indices[1]
            try:
                found = run(indices)
                driver.cuStreamSynchronize(None)
                if indices[1] == 7 or not np.allclose(found, wanted(indices), rtol=1e-5):
                    wrong.append(f"{indices} gave {found}")
            except UserError as error:
                if indices[1] != 7 or error.message != MESSAGE:
                    wrong.append(f"{indices}: {error}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
