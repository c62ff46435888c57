"""The CUDA runtime against a driver that is a toy: which calls it makes, in which order, and what it says of errors."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.runtime.toy_cuda import BAD_ADDRESS, CALLS, NOT_READY, SUCCESS, ToyDriver, floats
from tilewright.backends.cuda.driver import CudaDevice
from tilewright.backends.cuda.graph import POLICIES, even_share
from tilewright.runtime.core.artifact import LaunchInfo
from tilewright.runtime.device.array import DeviceArray
from tilewright.runtime.device.program import BoundCall, ImportedArray, Scalar
from tilewright.support.errors import UserError


def double(source: int, target: int) -> None:
    """A kernel."""
    floats(target)[:] = floats(source) * 2


def shift(source: int, target: int, amount: int) -> None:
    """A kernel with a number."""
    floats(target)[:] = floats(source) + amount


CODE = b"\x7fELF"
EARLY = "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
LAUNCHES = [
    LaunchInfo("double", (2, 1, 1), (64, 1, 1), (0, 1), dependent=True),
    LaunchInfo("shift", (2, 1, 1), (64, 1, 1), (0, 1, 2), 100_000, 100_000, (2, 1, 1), dependent=True),
]


@pytest.fixture
def driver() -> ToyDriver:
    return ToyDriver({"double": double, "shift": shift})


@pytest.fixture
def device(driver: ToyDriver) -> Iterator[CudaDevice]:
    made = CudaDevice(driver, 0)
    yield made
    driver.state = SUCCESS


def _calls(device: CudaDevice, memory: list[Any]) -> list[BoundCall]:
    kernels = device.load(CODE, LAUNCHES)
    first = BoundCall(kernels["double"], (2, 1, 1), (64, 1, 1), memory[:2])
    second = BoundCall(kernels["shift"], (2, 1, 1), (64, 1, 1), [*memory[1:], Scalar(3, "int64")])
    return [first, first, second]


def _read(device: CudaDevice, memory: Any) -> list[float]:
    array = np.zeros(4, np.float32)
    device.download(memory, array)
    found: list[float] = array.tolist()
    return found


def test_the_numbers_of_a_gpu(device: CudaDevice) -> None:
    assert device.name == "Toy"
    assert device.numbers() == {"arch": "sm_90a", "cores": 4, "l2_bytes": 1 << 20, "shared_bytes": 1 << 17}


def test_a_recording_is_a_graph_for_each_set_of_addresses(driver: ToyDriver, device: CudaDevice) -> None:
    x = np.arange(4, dtype=np.float32)
    source, other = device.upload(x), device.upload(x + 10)
    between, result = device.allocate(16), device.allocate(16)
    calls = _calls(device, [source, between, result])
    recording = device.record(calls)
    recording.run()
    recording.run()
    assert _read(device, result) == [3, 5, 7, 9]
    for number in (0, 1):
        recording.replace(number, [other, between])
    recording.run()
    assert _read(device, result) == [23, 25, 27, 29]
    for number in (0, 1):
        recording.replace(number, [source, between])
    recording.run()
    assert _read(device, result) == [3, 5, 7, 9]
    # The ways to launch were tried, then three sets of arguments seen: as recorded, exchanged, and exchanged back.
    assert driver.calls.count("cuGraphInstantiate") == len(POLICIES) + 3


def test_what_was_bound_keeps_its_arguments_and_its_graph(driver: ToyDriver, device: CudaDevice) -> None:
    x = np.arange(4, dtype=np.float32)
    between, result = device.allocate(16), device.allocate(16)
    sources = [device.upload(x + 10 * number) for number in range(12)]
    recording = device.record(_calls(device, [sources[0], between, result]))
    starts = [recording.bound()]
    tried = driver.calls.count("cuGraphExecDestroy")
    for source in sources[1:]:
        for number in (0, 1):
            recording.replace(number, [source, between])
        starts.append(recording.bound())
    # More sets than are remembered: none is given back that somebody may still start.
    assert driver.calls.count("cuGraphExecDestroy") == tried
    for number in (11, 0, 5):
        starts[number]()
        assert _read(device, result) == [3 + 20 * number + 2 * place for place in range(4)]
    del starts[0]
    assert driver.calls.count("cuGraphExecDestroy") == tried + 1


class PlainTensor:
    """As much of a tensor as the short way of a call looks at."""

    is_cuda = True

    def __init__(self, shape: tuple[int, ...], dtype: str, device: str = "cuda:0", place: int = 64) -> None:
        self.shape, self.dtype, self.device, self.place, self.rows = shape, dtype, device, place, True

    def get_device(self) -> int:
        return int(self.device[-1])

    def is_contiguous(self) -> bool:
        return self.rows

    def data_ptr(self) -> int:
        return self.place


def test_tensors_of_torch_are_read_and_made_where_streams_are_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    device = CudaDevice(ToyDriver({}), 0)
    streams, captured = [0], [False]
    torch = SimpleNamespace(
        float32="float32",
        float16="float16",
        Tensor=PlainTensor,
        empty_strided=lambda shape, strides, dtype, device: PlainTensor(shape, dtype, device, len(strides) * 64),
        device=lambda kind, number: f"{kind}:{number}",
        cuda=SimpleNamespace(is_current_stream_capturing=lambda: captured[0]),
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: streams[ordinal]),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    make = device.tensor_maker([((2, 3), "float32")])
    assert make is not None
    (made,), results = make()
    assert (made.shape, made.dtype, made.device) == ((2, 3), "float32", "cuda:0")
    assert results == (128,) and [item.address for item in device.at(results)] == [128]
    assert device.tensor_maker([((2,), "float4_e2m1fn")]) is None  # torch has no such type
    read = device.tensor_reader(["float32"])
    assert read is not None

    def places(value: Any) -> tuple[int, ...] | None:
        return read([value])

    tensor = PlainTensor((2,), "float32", place=128)
    assert places(tensor) == (128,)
    assert read([tensor, tensor]) is None and read([]) is None
    strided, between = PlainTensor((2,), "float32"), PlainTensor((2,), "float32", place=72)
    strided.rows = False
    other, half = PlainTensor((2,), "float32", "cuda:1"), PlainTensor((2,), "float16")
    assert [places(value) for value in (strided, between, other, half, np.zeros(2, np.float32))] == [None] * 5
    streams[0] = int(device.stream) + 1
    assert places(tensor) is None  # another stream, which ours is not ordered with
    streams[0] = int(device.stream)
    assert places(tensor) == (128,)
    captured[0] = True
    assert places(tensor) is None  # the graph's own memory is to be used


def test_launches_ask_for_clusters_shared_memory_and_early_starts(driver: ToyDriver, device: CudaDevice) -> None:
    memory = [device.allocate(16) for _ in range(3)]
    calls = _calls(device, memory)
    assert "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=100000" in driver.calls
    driver.time_of = lambda configs: 2.0 - sum(len(config.attrs) for config in configs)
    device.record(calls).run()
    (first, _), (second, _), (third, _) = driver.launches[-CALLS:]
    assert first.attrs == [] and first.sharedMemBytes == 0
    assert [attribute.id for attribute in second.attrs] == [EARLY]
    assert [attribute.id for attribute in third.attrs] == ["CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", EARLY]
    assert third.sharedMemBytes == 100_000 and third.attrs[0].value.clusterDim.x == 2
    assert device.describe(calls[0]) == "2 x 64, 32 registers +32 B, 2% full"


def _early(driver: ToyDriver) -> list[bool]:
    """Which kernels of the last graph start early."""
    return [any(item.id == EARLY for item in config.attrs) for config, _ in driver.launches[-CALLS:]]


def test_the_quickest_way_to_launch_is_kept(driver: ToyDriver, device: CudaDevice) -> None:
    calls = _calls(device, [device.allocate(16) for _ in range(3)])
    for wanted in ([False, False, False], [False, True, False], [False, True, True]):
        driver.time_of = lambda configs, wanted=wanted: float(_early(driver) != wanted)  # type: ignore[misc]
        device.record(calls).run()
        assert _early(driver) == wanted
        # Two blocks for four multiprocessors: one each, if a block takes more than half of the shared memory.
        kept_apart = (1 << 17) - 32 if wanted[1] else 0
        assert [config.sharedMemBytes for config, _ in driver.launches[-2:]] == [kept_apart, 100_000]


@pytest.mark.parametrize(
    ("blocks", "own", "expected"), [(132, 0, 114_001), (100, 120_000, 120_000), (264, 0, 76_001), (396, 90_000, 90_000)]
)
def test_an_even_share(blocks: int, own: int, expected: int) -> None:
    assert even_share(blocks, 132, 228_000, own, 227_000) == expected


def test_kernels_may_leave_room_for_others(driver: ToyDriver, device: CudaDevice) -> None:
    assert even_share(130, 132, 228_000, 0, 227_000, kernels=2) == 76_001
    calls = _calls(device, [device.allocate(16) for _ in range(3)])
    # Less shared memory than blocks that are kept apart take, but some.
    driver.time_of = lambda configs: abs(configs[1].sharedMemBytes - 80_000.0)
    device.record(calls).run()
    assert 0 < driver.launches[-2][0].sharedMemBytes < (1 << 17) - 32 and _early(driver)[1]


def test_memory_goes_back_when_nothing_refers_to_it(driver: ToyDriver, device: CudaDevice) -> None:
    memory = device.upload(np.arange(4, dtype=np.float32))
    view = device.view(memory, 8, 8)
    array = DeviceArray(view, (2,), "float32", device)
    del memory
    assert array.numpy().tolist() == [2, 3] and len(driver.memory) == 1
    del array, view
    assert not driver.memory


def test_memory_of_the_host_is_used_again_when_the_gpu_is_done(driver: ToyDriver, device: CudaDevice) -> None:
    waits: list[int] = []
    driver.cuStreamSynchronize = lambda stream: (waits.append(1), (SUCCESS,))[1]  # type: ignore[method-assign, func-returns-value]
    first, other = device.host_memory(64), device.host_memory(5000)
    assert first is not None and other is not None
    assert (len(first.words), len(other.words), len(driver.host_memory)) == (512, 1024, 2)
    first.words[3] = 7
    address = first.address
    del first
    assert not waits
    again = device.host_memory(8)
    # What the last owner started may write it until the GPU is done.
    assert again is not None and again.address == address and waits == [1] and again.words[3] == 7
    assert len(driver.host_memory) == 2


def test_whether_the_gpu_is_done(driver: ToyDriver, device: CudaDevice) -> None:
    assert device.is_done()
    driver.state = NOT_READY
    assert not device.is_done()
    driver.state = BAD_ADDRESS
    with pytest.raises(UserError, match="a kernel failed on Toy: CUDA_ERROR_ILLEGAL_ADDRESS"):
        device.is_done()


def test_arrays_that_begin_between_vectors_are_copied(driver: ToyDriver, device: CudaDevice) -> None:
    values = np.arange(12, dtype=np.float32)
    memory = device.upload(values)
    whole = ImportedArray(device.view(memory, 16, 32), (8,), "float32")
    assert device._aligned(whole) is whole
    moved = device._aligned(ImportedArray(device.view(memory, 4, 32), (8,), "float32"))
    assert moved.memory.address % 16 == 0
    got = np.zeros(8, np.float32)
    device.download(moved.memory, got)
    np.testing.assert_array_equal(got, values[1:9])


def test_errors_name_the_kernel_and_what_to_do(driver: ToyDriver, device: CudaDevice) -> None:
    with pytest.raises(UserError, match=r"no memory left for 2\.00 GiB"):
        device.allocate(2 << 30)
    with pytest.raises(UserError, match="cannot load the machine code: CUDA_ERROR_NO_BINARY_FOR_GPU"):
        device.load(b"text", LAUNCHES)
    call = _calls(device, [device.allocate(16) for _ in range(3)])[0]
    call.block = (2048, 1, 1)
    with pytest.raises(UserError, match=r"does not start the kernel double on \(2, 1, 1\) blocks of \(2048, 1, 1\)"):
        device.launch(call.kernel, call.grid, call.block, call.args)
    driver.state = BAD_ADDRESS
    with pytest.raises(UserError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        device.wait()
    assert caught.value.hint is not None and "TILEWRIGHT_TRACE=launch" in caught.value.hint


def test_a_kernel_that_does_not_start_is_named_while_a_graph_is_made(driver: ToyDriver, device: CudaDevice) -> None:
    calls = _calls(device, [device.allocate(16) for _ in range(3)])
    calls[1].grid = (2, 70_000, 1)
    with pytest.raises(UserError, match=r"does not start the kernel double on \(2, 70000, 1\) blocks"):
        device.record(calls).run()
    # The stream records no longer: what comes next runs.
    assert driver.calls[-1] == "cuStreamEndCapture" and driver.capturing is None
    driver.is_whole = True
    calls[1].grid = (2, 1, 1)
    device.record(calls).run()


def test_what_was_recorded_before_an_interrupt_goes_back(driver: ToyDriver, device: CudaDevice) -> None:
    calls = _calls(device, [device.allocate(16) for _ in range(3)])

    def policy(gpu: object, call: BoundCall) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        device.captured(calls, policy)
    assert driver.calls[-2:] == ["cuStreamEndCapture", "cuGraphDestroy"] and driver.capturing is None


class ToyTorch:
    """As much of torch as a captured call asks for: its stream, and memory of its own."""

    uint8 = "uint8"

    def __init__(self) -> None:
        self.given: list[np.ndarray] = []
        self.is_capturing = True
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: self.is_capturing,
            current_stream=lambda ordinal: SimpleNamespace(cuda_stream=77),
        )

    def empty(self, size: int, dtype: str, device: str) -> Any:
        assert dtype == "uint8" and device == "cuda:0"
        self.given.append(np.empty(size, np.uint8))
        place = self.given[-1]
        return SimpleNamespace(data_ptr=lambda: place.ctypes.data, place=place)


def test_calls_go_into_the_graph_that_torch_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ToyDriver({"k": lambda *addresses: None})
    driver.CUstream = int  # type: ignore[attr-defined]
    device = CudaDevice(driver, 0)
    own, torch = device.stream, ToyTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    with device.joined():
        assert device.capturing and device.stream == 77
        memory = device.allocate(64)
        assert memory.address == torch.given[0].ctypes.data and "cuMemAllocAsync" not in driver.calls
        assert type(device.record([BoundCall(None, (1, 1, 1), (1, 1, 1), [])])).__name__ == "Recording"
        for step in (
            lambda: device.write(memory, np.zeros(4)),
            lambda: device.download(memory, np.zeros(4)),
            device.wait,
        ):
            with pytest.raises(UserError, match="torch captures a CUDA graph"):
                step()
        seen: list[bool] = []
        other = threading.Thread(target=lambda: seen.append(device.capturing or device.stream != own))
        other.start()
        other.join()
        assert seen == [False]  # other threads go on as before
    assert not device.capturing and device.stream == own
    torch.is_capturing = False
    with device.joined():
        assert not device.capturing
