"""Whole models from the cache: hits, what makes another key, damage, and what is never looked up."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.integration.small_models import FLOAT, classifier, model
from tilewright import compiler
from tilewright.backends.llvm.cache import shared_cache
from tilewright.frontend.onnx import registry
from tilewright.lower import model_cache
from tilewright.support import extensions, settings
from tilewright.target import Target

IMAGE = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    # Verified compilations look at every stage.
    monkeypatch.setenv("TILEWRIGHT_VERIFY", "0")
    # Other tests register operators of their own in this process, which would keep all models out of the cache.
    monkeypatch.setattr(extensions, "_foreign", [])


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one whenever a model is really compiled."""
    done: list[object] = []
    real = compiler.lower_model

    def counting(module: tw.IRModule, *rest: Any) -> object:
        done.append(module)
        return real(module, *rest)

    monkeypatch.setattr(compiler, "lower_model", counting)
    return done


def small(scale: float = 2.0) -> bytes:
    """y = max(x * scale, 0)."""
    nodes = [onnx.helper.make_node("Mul", ["x", "w"], ["t"]), onnx.helper.make_node("Relu", ["t"], ["y"])]
    weights = {"w": np.full((8,), scale, np.float32)}
    made = model(nodes, {"x": (FLOAT, (4, 8))}, {"y": (FLOAT, (4, 8))}, weights)
    return bytes(made.SerializeToString())


X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)


def test_the_second_compilation_reads_the_first(lowered: list[object], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(classifier().SerializeToString())
    first = tw.compile(path, threads=1)
    second = tw.compile(str(path), threads=1)
    third = tw.compile(path.read_bytes(), threads=1)
    assert len(lowered) == 1
    np.testing.assert_array_equal(first(IMAGE), second(IMAGE))
    np.testing.assert_array_equal(first(IMAGE), third(IMAGE))
    assert first.artifact.metadata() == second.artifact.metadata()
    assert first.artifact.objects == second.artifact.objects
    assert second.artifact.constants.ctypes.data % 64 == 0


def test_everything_that_decides_the_result_is_in_the_key(lowered: list[object]) -> None:
    tw.compile(small(), threads=1)
    changes: list[Callable[[], object]] = [
        lambda: tw.compile(small(3.0), threads=1),
        lambda: tw.compile(small(), threads=2),
        lambda: tw.compile(small(), threads=1, winograd=False),
        lambda: tw.compile(small(), threads=1, infinities=True),
        lambda: tw.compile(small(), threads=1, shapes={"x": (4, 8)}),
        lambda: tw.compile(small(), Target("native").replace(l2_bytes=1 << 19), threads=1),
    ]
    for number, change in enumerate(changes):
        change()
        assert len(lowered) == 2 + number
    for change in changes:
        change()
    assert len(lowered) == 1 + len(changes)


def test_changed_sources_are_another_key(lowered: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    tw.compile(small(), threads=1)
    monkeypatch.setattr(model_cache, "source_fingerprint", lambda: "another compiler")
    tw.compile(small(), threads=1)
    assert len(lowered) == 2


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_entry_is_compiled_again(lowered: list[object], tmp_path: Path, damage: str) -> None:
    expected = tw.compile(small(), threads=1)(X)
    path = max((tmp_path / "cache").rglob("*.o"), key=lambda item: b'"constant_bytes"' in item.read_bytes())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"truncate": content[:-9], "flip": content, "empty": b""}[damage])
    for _ in range(2):
        np.testing.assert_array_equal(tw.compile(small(), threads=1)(X), expected)
    assert len(lowered) == 2


def test_what_is_looked_at_is_compiled(lowered: list[object], tmp_path: Path) -> None:
    tw.compile(small(), threads=1)
    with settings.VERIFY.override(True):
        tw.compile(small(), threads=1)
    with settings.OVERRIDE_DIR.override(tmp_path):
        tw.compile(small(), threads=1)
    with settings.TRACE.override(frozenset(["dump"])), settings.DUMP_DIR.override(tmp_path / "dump"):
        tw.compile(small(), threads=1)
    with settings.CACHE.override(False):
        tw.compile(small(), threads=1)
    assert len(lowered) == 5


def test_kernels_whose_stages_are_files_are_compiled_and_not_kept(tmp_path: Path) -> None:
    """A stage that a file replaces is seen though the kernel is cached, and is gone with the file."""
    plain = tw.compile(small(), threads=1)(X)
    dump = tmp_path / "dump"
    with settings.TRACE.override(frozenset(["dump"])), settings.DUMP_DIR.override(dump):
        tw.compile(small(), threads=1)
    [kernel] = dump.glob("cpu.*")
    first = min(kernel.iterdir())
    first.write_text(first.read_text().replace("float32(0.0)", "float32(-1.0)").replace(" 0.0", " -1.0"))
    for other in [path for path in dump.rglob("*") if path.is_file() and path != first]:
        other.unlink()
    for folder in (tmp_path / "cache", tmp_path / "empty"):
        with settings.CACHE_DIR.override(folder):
            with settings.OVERRIDE_DIR.override(dump):
                changed = tw.compile(small(), threads=1)(X)
            np.testing.assert_array_equal(changed, np.maximum(X * 2, -1))
            np.testing.assert_array_equal(tw.compile(small(), threads=1)(X), plain)


def test_models_with_converters_of_the_user_are_compiled(
    lowered: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    tw.compile(small(), threads=1)
    monkeypatch.setattr(extensions, "_foreign", [])
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
    registry.converter("Twice", domain="mine")(lambda node: node.call("negative", node.input(0)))
    tw.compile(small(), threads=1)
    assert len(lowered) == 2


def test_data_beside_the_model_is_not_part_of_the_key(tmp_path: Path, lowered: list[object]) -> None:
    path = tmp_path / "model.onnx"
    made = onnx.load_from_string(small())
    onnx.save(made, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    for _ in range(2):
        np.testing.assert_array_equal(tw.compile(path, threads=1)(X), np.maximum(X * 2, 0))
    assert len(lowered) == 2


@pytest.mark.parametrize("piece", [1, 3, 7, 1 << 20])
def test_models_are_read_in_pieces(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has the key of its bytes, and what lies across two pieces is seen."""
    path, content = tmp_path / "model.onnx", small()
    whole = model_cache.model_key(content, [], {})
    monkeypatch.setattr(model_cache, "_PIECE", piece)
    path.write_bytes(content)
    assert whole is not None and model_cache.model_key(path, [], {}) == whole
    plain = b"0123456789" * 5
    digest = model_cache._digest(io.BytesIO(plain))
    assert digest is not None and digest != model_cache._digest(io.BytesIO(plain[:-1]))
    for start in range(20):
        marked = plain[:start] + model_cache._EXTERNAL_DATA + plain[start:]
        assert model_cache._digest(io.BytesIO(marked)) is None


def test_models_that_would_fill_the_cache_are_not_kept(lowered: list[object]) -> None:
    with settings.CACHE_LIMIT.override(4096):
        for _ in range(2):
            tw.compile(small(), threads=1)
    assert len(lowered) == 2


def test_modules_are_compiled_and_stages_stay_visible(lowered: list[object]) -> None:
    module = tw.frontend.from_onnx(small())
    for _ in range(2):
        tw.compile(module, threads=1)
    tw.compile(onnx.load_from_string(small()), threads=1)
    assert len(lowered) == 3
    compilation = tw.Compilation(small(), threads=1)
    assert compilation.kernels and compilation.artifact() is compilation.artifact()


def test_a_large_entry_is_read_without_copies(tmp_path: Path) -> None:
    store = shared_cache()
    assert store is not None
    content = np.arange(100_000, dtype=np.uint8)
    store.store("ab" + "0" * 62, content.data, b"tail")
    found = store.load_array("ab" + "0" * 62)
    assert found is not None
    assert found.tobytes() == content.tobytes() + b"tail"
    assert found.ctypes.data % 64 == 0
    assert store.load("ab" + "0" * 62) == found.tobytes()
