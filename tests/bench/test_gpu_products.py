"""The bench of products on GPUs: layers compile where there is none and say what was chosen; what comes of times."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from pathlib import Path
from unittest import mock

import pytest

from bench.cuda_kernels import CudaFunction
from bench.gpu_layers import LAYERS, Layer, function_of
from bench.gpu_products import PRECISIONS, Candidate, LayerOnGpu, build, measure, summary, sums
from bench.gpu_records import best_tiles, shape_of
from bench.harness import write_json
from tests.codegen.on_device import require_nvrtc
from tilewright.ir.expr import const_value
from tilewright.target import Target
from tilewright.topi.schedule.gpu.tile_choice import ranked_tiles

HOPPER = Target(PRECISIONS["float32"].target)
LAYER = next(layer for layer in LAYERS if layer.name == "resnet18/3x3s1_256-256@14")


@pytest.mark.parametrize(
    ("layer", "precision", "question", "launches"),
    [
        (Layer("few rows, many steps", 0, 1024, 128, rows=128, residual=True), "float16", "group_tile", 2),
        (Layer("convolution", 28, 64, 64, 3, batch=16), "tf32", "group_tile", 1),
        (Layer("products", 0, 64, 64, rows=64, batch=2), "float32", "tile", 1),
    ],
)
def test_layers_compile(layer: Layer, precision: str, question: str, launches: int) -> None:
    require_nvrtc()
    # Other processes compile: what they make must travel.
    made = pickle.loads(pickle.dumps(build(layer, precision, 0)))
    assert isinstance(made, Candidate) and list(made.answers) == [question]
    assert len(made.function.launches) == launches and len(made.function.workspaces) == launches - 1


def test_other_tiles_are_tried() -> None:
    require_nvrtc()
    layer = Layer("small", 0, 64, 64, rows=128)
    made = [build(layer, "float32", number) for number in range(3)]
    assert len({one.answers["tile"] for one in made if one}) == 3
    assert build(layer, "float32", 1000) is None


def test_names_and_shapes_of_layers() -> None:
    assert len({layer.name for layer in LAYERS}) == len(LAYERS)
    strided = next(layer for layer in LAYERS if layer.name == "resnet18/7x7s2_3-64@224")
    assert strided.result == (1, 112, 112, 64) and strided.products == 112 * 112 * 64 * 3 * 49
    for layer in LAYERS:
        shapes = [buffer.shape for buffer in function_of(layer).buffers]
        assert [tuple(const_value(dim) for dim in shape) for shape in shapes] == [*layer.operands, layer.result]


class _Fake(LayerOnGpu):
    """A GPU on which tiles take the given times, and others are wrong."""

    def __init__(self, layer: Layer, times: dict[tuple[int, ...], float]) -> None:
        self.layer = layer
        self.times = times

    def library(self) -> float:
        return 20.0

    def error(self, made: Candidate) -> float:
        return float("nan") if self._tile(made) not in self.times else 1e-7

    def time(self, made: Candidate) -> float:
        return self.times[self._tile(made)]

    def _tile(self, made: Candidate) -> tuple[int, ...]:
        tile = made.answers["tile"]
        assert isinstance(tile, tuple)
        return tile


def _done(tile: tuple[int, ...] | None) -> Future[Candidate | None]:
    future: Future[Candidate | None] = Future()
    future.set_result(None if tile is None else Candidate(mock.Mock(CudaFunction), None, {"tile": tile}))
    return future


def test_what_is_measured_becomes_records(tmp_path: Path) -> None:
    shape = shape_of(function_of(LAYER), HOPPER)
    assert shape is not None
    single = [tile.answer for tile in ranked_tiles(shape, HOPPER) if tile.cluster == 1]
    default, wrong, quick = single[0], single[1], next(tile for tile in single[2:] if tile[:6] != single[0][:6])
    on_gpu = _Fake(LAYER, {default: 10.0, quick: 8.0})
    failed: Future[Candidate | None] = Future()
    failed.set_exception(RuntimeError("out of registers"))
    result = measure(on_gpu, "float32", [_done(default), _done(wrong), failed, _done(quick), _done(None)])
    assert (result["library_us"], result["default_us"], result["best_us"]) == (20.0, 10.0, 8.0)
    assert ["problem" in row for row in result["tiles"]] == [False, True, True, False]
    line = summary(result)
    assert (
        "x2.00" in line
        and f"best 8.00 {{'tile': {list(quick)}}}" in line
        and "2 of 4 failed: RuntimeError: wrong" in line
    )
    worse = measure(on_gpu, "float32", [failed])
    assert worse["default_us"] is None and "default" not in summary(worse)
    assert sums([result]) == ["resnet18 float32 {'library_us': 60.0, 'default_us': 30.0, 'best_us': 24.0}"]
    path = tmp_path / "results.json"
    # Other precisions, and runs without the default to compare with, say nothing.
    write_json(path, [result, {**result, "precision": "tf32", "default_us": 100.0}, worse])
    assert best_tiles([path], HOPPER) == {shape: (quick, 1.25)}
    write_json(path, [measure(_Fake(LAYER, {default: 10.0, quick: 9.9}), "float32", [_done(default), _done(quick)])])
    assert best_tiles([path], HOPPER) == {}
