"""Bad input of every kind: a clear `UserError`, or it simply works; nothing is lost and the process lives."""

from __future__ import annotations

import os
import platform
import resource
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import tilewright as tw
from tests.integration import small_models
from tests.integration.small_models import FLOAT, one_node, onnxruntime_outputs
from tests.requirements import find_tool, need
from tilewright.runtime.core.seal import SEAL_BYTES
from tilewright.support import settings as tilewright_settings
from tilewright.support.errors import UnsupportedError, UserError

ROOT = Path(__file__).resolve().parents[2]


def compile_model(model: onnx.ModelProto, **options: object) -> tw.Executable:
    return tw.compile(model.SerializeToString(), threads=1, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def classifier() -> tw.Executable:
    return compile_model(small_models.classifier())


# Files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"# not a model\n" * 20, "is not an ONNX model: it looks like a text"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is not an ONNX model: it looks like a PNG image"),
        (b"\x00\xff" * 40, "is not an ONNX model, or it is damaged or cut short"),
    ],
)
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        tw.compile(path)


def test_a_path_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        tw.compile(tmp_path / "absent.onnx")
    with pytest.raises(UserError, match="is a folder without a model"):
        tw.compile(tmp_path)
    with pytest.raises(UserError, match="cannot import a model from an int"):
        tw.compile(42)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.999])
def test_a_truncated_model(tmp_path: Path, share: float) -> None:
    whole = small_models.classifier().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UserError, match="damaged or cut short"):
        tw.compile(path)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_model_never_ends_in_a_crash(changes: list[tuple[int, int]]) -> None:
    """Flipped bytes either stay without effect or are named; nothing but a `UserError` comes out."""
    content = bytearray(small_models.classifier(channels=2).SerializeToString())
    for place, value in changes:
        content[place % len(content)] = value
    with suppress(UserError):
        assert tw.Compilation(bytes(content), threads=1).lowered.info.outputs


# Models


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (one_node("Frobnicate", {"x": (FLOAT, [2])}), "unknown operator Frobnicate"),
        (one_node("Relu", {"x": (FLOAT, [2])}, domain="com.acme"), "unknown operator Relu in the domain com.acme"),
        (one_node("Relu", {"x": (FLOAT, [2])}, opset=999), "the model uses opset 999, the newest supported is"),
        (one_node("Det", {"x": (FLOAT, ["n", "n"])}), "must be a number here"),
    ],
)
def test_what_is_not_supported_is_named(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compile_model(model)


def test_errors_name_the_node() -> None:
    with pytest.raises(UnsupportedError) as caught:
        compile_model(one_node("Frobnicate", {"x": (FLOAT, [2])}))
    assert "node 'the_node' (Frobnicate" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (one_node("Add", {"a": (FLOAT, [2, 3]), "b": (FLOAT, [4, 5])}), "do not broadcast"),
        (one_node("MatMul", {"a": (FLOAT, [2, 3]), "b": (FLOAT, [4, 5])}), "must be equal"),
        (one_node("Add", {"a": (FLOAT, [2]), "b": (TensorProto.INT64, [2])}), "the data types differ"),
        (one_node("Softmax", {"a": (FLOAT, [2, 3])}, axis=7), "axis 7 is out of range"),
        (one_node("Transpose", {"a": (FLOAT, [2, 3])}, perm=[0, 0]), "is no order of the dimensions"),
        (
            one_node("Conv", {"a": (FLOAT, [1, 3, 4, 4])}, weights={"w": np.ones((4, 3, 7, 7), np.float32)}),
            "the window does not fit",
        ),
        (
            one_node("Reshape", {"a": (FLOAT, [2, 3])}, weights={"s": np.array([5, 5], np.int64)}),
            "cannot reshape",
        ),
        (
            one_node("Gather", {"a": (FLOAT, [2, 3])}, weights={"i": np.array([1, 9], np.int64)}),
            r"the index 9 \(element 1 of the indices\) is out of range for axis 0 of size 2",
        ),
    ],
)
def test_a_model_that_contradicts_itself(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        compile_model(model)
    assert "the_node" in str(caught.value)


def test_a_graph_that_does_not_hang_together() -> None:
    shape = (FLOAT, [2])
    relu = helper.make_node("Relu", ["nowhere"], ["y"], name="relu")
    with pytest.raises(UserError, match="nothing produces its input 'nowhere'"):
        compile_model(small_models.model([relu], {"x": shape}, {"y": shape}))
    circle = [helper.make_node("Relu", ["b"], ["a"], name="r1"), helper.make_node("Relu", ["a"], ["b"], name="r2")]
    with pytest.raises(UserError, match="cycle through the nodes 'r1', 'r2'"):
        compile_model(small_models.model(circle, {"x": shape}, {"b": shape}))
    relu = helper.make_node("Relu", ["x"], ["a"], name="relu")
    with pytest.raises(UserError, match="nothing produces the output 'q'"):
        compile_model(small_models.model([relu], {"x": shape}, {"q": shape}))
    with pytest.raises(UserError, match="the model has no outputs"):
        compile_model(small_models.model([relu], {"x": shape}, {}))


def test_odd_but_valid_graphs_work() -> None:
    shape = (FLOAT, [2])
    x = np.array([-1, 2], np.float32)
    straight = compile_model(small_models.model([], {"x": shape}, {"x": shape}))
    np.testing.assert_array_equal(straight(x), x)
    constant = helper.make_node("Relu", ["w"], ["y"])
    np.testing.assert_array_equal(compile_model(small_models.model([constant], {}, {"y": shape}, {"w": x}))(), [0, 2])
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["y"], ["z"])]
    inputs = {"x": shape, "unused": (FLOAT, [7])}
    twice = compile_model(small_models.model(nodes, inputs, {"y": shape, "z": shape, "x": shape}))
    first, second, third = twice(x, np.zeros(7, np.float32))
    np.testing.assert_array_equal(first, [0, 2])
    np.testing.assert_array_equal(second, [0, 2])
    np.testing.assert_array_equal(third, x)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers(value: float) -> None:
    model = small_models.classifier()
    weight = next(item for item in model.graph.initializer if item.name == "fc")
    array = onnx.numpy_helper.to_array(weight).copy()
    array[3, :] = value
    weight.CopyFrom(onnx.numpy_helper.from_array(array, "fc"))
    inputs = {"image": small_models.image()}
    [expected] = onnxruntime_outputs(model, inputs)
    [actual] = compile_model(model).run(inputs)
    assert not np.isfinite(actual[0, 3])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


ZERO_SIZED = [
    ("Relu", [(0, 3)], {}),
    ("Softmax", [(2, 0)], {"axis": 1}),
    ("ReduceSum", [(2, 0)], {}),
    ("ReduceMean", [(0, 3)], {"axes": [1]}),
    ("Transpose", [(0, 3)], {}),
    ("Add", [(2, 0), (1, 1)], {}),
    ("MatMul", [(2, 0), (0, 3)], {}),
    ("MatMul", [(0, 4), (4, 3)], {}),
    ("Concat", [(2, 0), (2, 3)], {"axis": 1}),
    ("Conv", [(0, 3, 8, 8), (4, 3, 3, 3)], {}),
    ("MaxPool", [(0, 3, 8, 8)], {"kernel_shape": [2, 2]}),
    ("Flatten", [(0, 3, 2)], {}),
]


@pytest.mark.parametrize(("operator", "shapes", "attributes"), ZERO_SIZED)
def test_dimensions_of_size_zero(operator: str, shapes: list[tuple[int, ...]], attributes: dict[str, object]) -> None:
    names = [f"x{place}" for place in range(len(shapes))]
    inputs = {name: (FLOAT, list(shape)) for name, shape in zip(names, shapes, strict=True)}
    opset = 17 if operator != "ReduceMean" else 13
    model = one_node(operator, inputs, opset=opset, **attributes)
    arrays = {name: np.ones(shape, np.float32) for name, shape in zip(names, shapes, strict=True)}
    [expected] = onnxruntime_outputs(model, arrays)
    [actual] = compile_model(model).run(arrays)
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)


# Arguments


def test_inputs_that_do_not_fit(classifier: tw.Executable) -> None:
    x = small_models.image()
    with pytest.raises(UserError, match=r"the model takes 1 input .*, not 0"):
        classifier()
    with pytest.raises(UserError, match="the input 'image' is missing"):
        classifier.run({})
    with pytest.raises(UserError, match="the model has no input 'picture'"):
        classifier.run({"image": x, "picture": x})
    with pytest.raises(UserError, match="axis 2 must be 32, not 16"):
        classifier(x[:, :, :16])
    with pytest.raises(UserError, match=r"the shape \[3, 32, 32\] \(3 dimensions\), expected"):
        classifier(x[0])
    with pytest.raises(UserError, match="the data type float64, expected float32"):
        classifier(x.astype(np.float64))
    with pytest.raises(UserError, match="holds object elements, not numbers"):
        classifier(None)


def misaligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts one byte past an aligned address."""
    room = np.empty(array.nbytes + 1, np.uint8)
    result = room[1:].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


def read_only(array: np.ndarray) -> np.ndarray:
    result = array.copy()
    result.flags.writeable = False
    return result


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(np.asfortranarray, id="column-major"),
        pytest.param(lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1], id="negative strides"),
        pytest.param(lambda x: np.repeat(x, 2, axis=3)[..., ::2], id="strided view"),
        pytest.param(misaligned, id="unaligned"),
        pytest.param(lambda x: x.astype(">f4"), id="big-endian"),
        pytest.param(read_only, id="read-only"),
        pytest.param(lambda x: x.tolist(), id="lists"),
    ],
)
def test_memory_of_every_kind(classifier: tw.Executable, change: object) -> None:
    assert callable(change)
    x = small_models.image(3)
    np.testing.assert_array_equal(classifier(change(x)), classifier(x))


def test_options_that_make_no_sense() -> None:
    model = small_models.classifier().SerializeToString()
    for threads in (0, -1, "2", 1.5):
        with pytest.raises(UserError, match="the number of threads must be a whole number of at least 1"):
            tw.compile(model, threads=threads)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unknown kind of target 'gameboy'"):
        tw.compile(model, target="gameboy")
    with pytest.raises(UserError, match=r"a target is a text or a tw\.Target, not an int"):
        tw.compile(model, target=3)  # type: ignore[arg-type]
    if platform.system() != "Darwin":
        with pytest.raises(UserError, match="programs for Metal run on macOS"):
            tw.compile(model, target="metal")
    with pytest.raises(UserError, match="one kind of device and a host, not 'host'"):
        tw.compile(model, target={"host": "native"})
    with pytest.raises(UserError, match="the target of the kind 'cuda' is 'opencl"):
        tw.compile(model, target={"cuda": "opencl"})
    with pytest.raises(UserError, match="is not this machine, so the model cannot run here"):
        tw.compile(model, target="llvm -mtriple=riscv64-linux-gnu -mcpu=generic-rv64")


def test_shapes_that_do_not_fit() -> None:
    model = one_node("Relu", {"x": (FLOAT, ["n", 3])})
    assert compile_model(model, shapes={"x": (4, 3)}).output_info[0].shape == (4, 3)
    with pytest.raises(UserError, match="shapes names 'z', which is no input of the model"):
        compile_model(model, shapes={"z": (4, 3)})
    with pytest.raises(UserError, match="the model fixes dimension 1 of 'x' at 3, not 5"):
        compile_model(model, shapes={"x": (4, 5)})
    with pytest.raises(UserError, match="has a negative dimension"):
        compile_model(model, shapes={"x": (-1, 3)})


# The cache, the disk, other processes


def test_a_cache_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    # Below a file, no folder can be made, not even by root.
    with (
        tilewright_settings.CACHE_DIR.override(tmp_path / "file" / "cache"),
        pytest.warns(RuntimeWarning, match=r"cannot be written .*Set TILEWRIGHT_CACHE_DIR"),
    ):
        executable = compile_model(small_models.classifier(seed=1))
    assert executable(small_models.image()).shape == (1, 10)


def cache_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_damaged_cache_objects_heal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All in this process: a child would use other keys when the sources of the compiler are edited meanwhile.
    monkeypatch.setattr("tilewright.lower.parallel._WORTH_A_PROCESS", 1000)
    model = small_models.classifier(seed=2)
    x = small_models.image()
    with tilewright_settings.CACHE_DIR.override(tmp_path), warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = compile_model(model)(x)
        files = cache_files(tmp_path)
        assert files
        whole = {path: path.read_bytes() for path in files}
        for number, path in enumerate(files):
            content = whole[path]
            path.write_bytes((b"", content[: len(content) // 2], content[:-1] + bytes([content[-1] ^ 1]))[number % 3])
        np.testing.assert_array_equal(compile_model(model)(x), expected)
        # The thread pool is kept in memory too, so its object may not have been read again.
        healed = [path for path in cache_files(tmp_path) if path.read_bytes() == whole.get(path)]
        assert len(healed) >= len(files) - 1


COMPILE_SCRIPT = """
import sys, time
import numpy as np, tilewright as tw
model, image, output, start = sys.argv[1:]
while time.time() < float(start):
    time.sleep(0.005)
np.save(output, tw.compile(model, threads=1)(np.load(image)))
"""


def test_two_processes_compile_at_once_with_a_cold_cache(tmp_path: Path) -> None:
    model, image = tmp_path / "model.onnx", tmp_path / "image.npy"
    onnx.save(small_models.classifier(seed=3), model)
    np.save(image, small_models.image())
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    # Both begin at one moment, after their interpreters have started.
    start = str(time.time() + 1.5)
    outputs = [tmp_path / f"y{number}.npy" for number in range(2)]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", COMPILE_SCRIPT, str(model), str(image), str(output), start],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for output in outputs
    ]
    for child in children:
        _, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors
    first, second = (np.load(output) for output in outputs)
    np.testing.assert_array_equal(first, second)
    assert not [path for path in cache_files(tmp_path / "cache") if path.suffix == ".tmp"]


def export_here(path: str, limit: int) -> None:
    """In a child process: export with a limit on the size of files, and report what happens."""
    executable = compile_model(small_models.classifier(channels=512))
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        executable.export_library(path)
    except UserError as error:
        print(f"UserError: {error}")
    # The process is alive, and the model still runs.
    print("alive", executable(small_models.image()).shape)


def run_export(path: Path, limit: int, prefix: list[str]) -> subprocess.CompletedProcess[str]:
    code = f"from tests.integration.test_bad_input import export_here; export_here({str(path)!r}, {limit})"
    command = [*prefix, sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)


def test_a_disk_that_fills_up_on_export(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(b"the library of yesterday")
    done = run_export(path, 60_000, [])
    assert "alive (1, 10)" in done.stdout, done.stderr
    assert "UserError: cannot write model.so" in done.stdout
    assert path.read_bytes() == b"the library of yesterday"
    assert [item.name for item in tmp_path.iterdir()] == ["model.so"]


def test_a_small_file_system_that_is_full(tmp_path: Path) -> None:
    """The same with a real file system of 64 KiB, where this process may mount one."""
    need("mount")
    unshare, mount = find_tool("unshare"), find_tool("mount")
    script = f'{mount} -t tmpfs -o size=64k none "$0"'
    prefix = [unshare, "-m", "sh", "-c", f'{script} && "$@" && ls -A "$0" && echo listed', str(tmp_path)]
    done = run_export(tmp_path / "model.so", 0, prefix)
    assert "alive (1, 10)" in done.stdout, done.stderr
    assert "UserError: cannot write model.so: No space left on device" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["alive (1, 10)", "listed"]


def test_export_into_places_that_are_none(classifier: tw.Executable, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the folder does not exist"):
        classifier.export_library(tmp_path / "absent" / "model.so")
    with pytest.raises(UserError, match="it is there and is not a file"):
        classifier.export_library(tmp_path)
    with pytest.raises(UserError, match="it is there and is not a file"):
        classifier.export_library("/dev/null")
    assert not Path("/dev/null").is_file()


def test_libraries_that_are_none(classifier: tw.Executable, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    classifier.export_library(path)
    whole = path.read_bytes()
    broken = tmp_path / "broken.so"
    for content, message in [
        (b"", "the file is not a shared library"),
        (b"#!/bin/sh\n" * 20, "the file is not a shared library"),
        (whole[:1000], "the library is truncated"),
        (whole[: -8 - SEAL_BYTES], "the library is truncated"),
    ]:
        broken.write_bytes(content)
        with pytest.raises(UserError, match=message):
            tw.load(broken)
    with pytest.raises(UserError, match="cannot read the library: No such file"):
        tw.load(tmp_path / "absent.so")


INTERRUPT_SCRIPT = """
import sys
from tilewright.lower import parallel
from tilewright.cli.main import main
start = parallel._start_child
def announce():
    child = start()
    print("working", flush=True)
    return child
parallel._start_child = announce
parallel._WORTH_A_PROCESS = 1
sys.exit(main(["compile", *sys.argv[1:]]))
"""


def test_an_interrupt_while_kernels_compile(tmp_path: Path) -> None:
    """Control-C goes to every process of the terminal: one message, no traceback, nothing written."""
    model = tmp_path / "model.onnx"
    onnx.save(small_models.classifier(), model)
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPT_SCRIPT, str(model), "-o", str(tmp_path / "model.so")],
        env={
            **os.environ,
            "TILEWRIGHT_CACHE": "0",
            "TILEWRIGHT_PROGRESS": "never",
            "TILEWRIGHT_COMPILE_PROCESSES": "2",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Whoever runs the tests in the background may ignore interrupts, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "working\n"
    os.killpg(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (130, "interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
