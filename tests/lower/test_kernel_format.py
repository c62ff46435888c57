"""Kernels as bytes: what is written is read again, and nothing else is read as a kernel."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path

import pytest

from tilewright.backends.llvm.cache import ObjectCache
from tilewright.lower import kernel as kernel_module
from tilewright.lower.kernel import CompiledKernel, compile_kernel, make_kernel
from tilewright.lower.kernel_format import DamagedKernelError
from tilewright.runtime.core.artifact import DeviceKernelInfo, LaunchInfo
from tilewright.target import Target
from tilewright.te import compute, placeholder
from tilewright.te.program import create_prim_func
from tilewright.tir.index_map import IndexMap

LAUNCH = LaunchInfo("k", ("n", 2, 1), (32, 1, 1), (0, 1), 1024, 64, (2, 1, 1), True, (-3, 4))
DEVICE = DeviceKernelInfo("tw_k", (LAUNCH,), ("4*n", 16), (1,), ("8*n",), ("n",), "")
MAPS = {
    0: IndexMap.of(lambda k, n: (n // 16, k, n % 16), 2),
    3: IndexMap.of(lambda k, n: (n // 16, k // 4, n % 16 * 4 + k % 4), 2),
}
KERNELS = [
    CompiledKernel(b"", {}),
    CompiledKernel(b"code", MAPS, ((0, 2), (1, 2)), (64, 128)),
    CompiledKernel(b"\0\xff" * 9, {}, (), (8,), DEVICE),
    CompiledKernel(b"code", {}, failed_template="a template that failed"),
    CompiledKernel(b"", {}, refused='the device has no "double"\n'),
]


def _plain(kernel: CompiledKernel) -> object:
    maps = {number: (len(found.inputs), found.encode()) for number, found in kernel.packing.items()}
    return kernel.code, maps, kernel.in_place, kernel.scratch, kernel.device, kernel.refused, kernel.failed_template


@pytest.mark.parametrize("kernel", KERNELS)
def test_round_trip(kernel: CompiledKernel) -> None:
    again = CompiledKernel.from_bytes(kernel.to_bytes())
    assert _plain(again) == _plain(kernel)
    assert again.to_bytes() == kernel.to_bytes()


@pytest.mark.parametrize("kernel", KERNELS)
def test_bytes_cut_short_are_damaged_or_shorter_code(kernel: CompiledKernel) -> None:
    data = kernel.to_bytes()
    start = len(data) - len(kernel.code)
    for end in range(start):
        with pytest.raises(DamagedKernelError):
            CompiledKernel.from_bytes(data[:end])


_ODD = (
    None,
    -1,
    1 << 70,
    0.5,
    "",
    "x",
    [],
    [[]],
    {},
    True,
    [1],
    [[0, 1, [[5, "whole", 0]]]],
    [[0, 1, [[0, "inner", 0]]]],
)


def test_tables_with_other_values_are_damaged_or_kernels() -> None:
    """Every value of the table in turn is replaced: the result is refused, or reads back as what was written."""
    rng = random.Random(3)
    refused = 0
    for _ in range(600):
        data = rng.choice(KERNELS[1:]).to_bytes()
        size = int.from_bytes(data[8:16], "little")
        table = json.loads(data[16 : 16 + size])
        spot: object = table
        while True:
            assert isinstance(spot, (dict, list))
            key = rng.choice(list(spot) if isinstance(spot, dict) else range(len(spot)))  # type: ignore[arg-type]
            inner = spot[key]  # type: ignore[index]
            if isinstance(inner, (dict, list)) and inner and rng.random() < 0.7:
                spot = inner
                continue
            spot[key] = rng.choice(_ODD)  # type: ignore[index]
            break
        text = json.dumps(table).encode()
        try:
            found = CompiledKernel.from_bytes(data[:8] + len(text).to_bytes(8, "little") + text)
        except DamagedKernelError:
            refused += 1
        else:
            assert _plain(CompiledKernel.from_bytes(found.to_bytes())) == _plain(found)
    assert refused > 300


class _Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.mark}",)


def test_pickles_in_the_cache_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries as an attacker would write them, with right checksums: they are dropped, and the kernel is built."""
    store = ObjectCache(tmp_path / "objects", 10**9)
    monkeypatch.setattr(kernel_module, "shared_cache", lambda: store)
    a = placeholder((8,), "float32", "a")
    kernel = make_kernel(create_prim_func([a, compute((8,), lambda i: a[i] * 2.0, "b")]), "double")
    expected = compile_kernel(kernel, Target("native"))
    [path] = (tmp_path / "objects").rglob("*.o")
    key = path.parent.name + path.stem
    evil = pickle.dumps(_Evil(tmp_path / "mark"))
    for payload in (evil, len(evil).to_bytes(8, "little") + evil, b"TWKERN02" + len(evil).to_bytes(8, "little") + evil):
        store.store(key, payload)
        assert compile_kernel(kernel, Target("native")) == expected
        assert store.load(key) == expected.to_bytes()
    assert not (tmp_path / "mark").exists()
