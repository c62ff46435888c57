"""Copies and pickles of compiled programs: they run as the first does, here and in another process."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import pickletools

import numpy as np
import pytest

from tests.runtime import mini
from tilewright.backends.llvm import deploy
from tilewright.runtime import Executable, Module, load
from tilewright.support.errors import UserError


@pytest.fixture(scope="module")
def exe() -> Executable:
    return deploy.executable(mini.model_artifact())


def _same(other: Executable, exe: Executable) -> None:
    x = mini.sample_input()
    for got, want in zip(other(x), exe(x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_share_code_and_have_threads_of_their_own(exe: Executable, copied: object) -> None:
    other = copied(exe)  # type: ignore[operator]
    assert other is not exe
    assert other.library is exe.library
    other.set_num_threads(1)
    assert (other.threads, exe.threads) == (1, 2)
    _same(other, exe)
    _same(copied([exe])[0], exe)  # type: ignore[operator]


def test_bytes_and_pickles(exe: Executable) -> None:
    content = exe.to_bytes()
    assert content[:4] == b"\x7fELF"
    one = copy.copy(exe)
    one.set_num_threads(1)
    for other in (load(content), pickle.loads(pickle.dumps(exe)), pickle.loads(pickle.dumps(load(content)))):
        assert isinstance(other, Executable)
        _same(other, exe)
        assert other.threads == 2
    assert pickle.loads(pickle.dumps(one)).threads == 1


def test_a_pickle_names_the_loader_and_nothing_else(exe: Executable) -> None:
    text = pickle.dumps(exe, 2)
    called = [argument for code, argument, _ in pickletools.genops(text) if code.name in ("GLOBAL", "STACK_GLOBAL")]
    assert "tilewright.runtime.core.load load" in called
    assert set(called) <= {"tilewright.runtime.core.load load", "_codecs encode"}


def test_a_damaged_pickle_is_damage(exe: Executable) -> None:
    text = bytearray(pickle.dumps(exe))
    text[len(text) // 2] ^= 1
    with pytest.raises(UserError, match="does not fit its checksum"):
        pickle.loads(bytes(text))


def test_functions_too() -> None:
    module = deploy.module(mini.functions_artifact())
    source, result = np.arange(3, dtype=np.float32), np.empty(3, np.float32)
    for other in (copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert isinstance(other, Module)
        other["scale"](source, result, 3.0)
        np.testing.assert_array_equal(result, 3 * source)


def _run(exe: Executable, queue: object) -> None:
    queue.put([np.asarray(item) for item in exe(mini.sample_input())])  # type: ignore[attr-defined]


def test_another_process_gets_one(exe: Executable) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_run, args=(exe, queue))
    process.start()
    got = queue.get(timeout=60)
    process.join()
    for mine, its in zip(exe(mini.sample_input()), got, strict=True):
        np.testing.assert_array_equal(mine, its)


def test_a_program_without_an_exporter_says_so() -> None:
    artifact = mini.functions_artifact()
    bare = Module(artifact, deploy.load_artifact(artifact))
    with pytest.raises(UserError, match="cannot be exported again"):
        pickle.dumps(bare)
