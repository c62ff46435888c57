"""Machine parameters: which table a processor gets, what is derived for others, and every message about a bad table."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tilewright.support import settings
from tilewright.support.errors import CompilerBug, UserError
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters, gpu_parameters, parameters_fingerprint
from tilewright.target.machine.parameters import forget_tables, shipped_table, user_table_path
from tilewright.target.machine.tables import Fit, Processors, Table, all_values, read_table, shipped_tables, write_table

AVX512 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512")
HASWELL = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell")
NEOVERSE = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
RISCV = Target("llvm -mtriple=riscv64-linux-gnu -mcpu=spacemit-x60")


@pytest.mark.parametrize(
    ("target", "family"),
    [
        (AVX512, "x86_64-avx512"),
        (Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"), "x86_64-avx512"),
        (AVX512.without("avx512f"), "x86_64-avx2"),
        (HASWELL, "x86_64-avx2"),
        (NEOVERSE, "aarch64-neoverse"),
        (Target("llvm -mtriple=x86_64-linux-gnu -mcpu=nehalem"), None),
        (Target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a53"), None),
        (RISCV, None),
        (Target("cuda -arch=sm_90a"), "cuda-hopper"),
        (Target("cuda -arch=sm_80"), None),
        (Target("webgpu"), None),
        (Target("webgpu -mattr=+software"), "gpu-software"),
        (Target("rocm -arch=gfx942"), None),
    ],
)
def test_each_processor_has_one_family_or_none(target: Target, family: str | None) -> None:
    table = shipped_table(target)
    assert (table and table.family) == family
    assert sum(item.processors.include(target) for item in shipped_tables().values()) <= 1


def test_every_shipped_table_is_complete_and_says_how_it_was_fitted() -> None:
    assert shipped_tables()
    for table in shipped_tables().values():
        assert table.like is None or table.like in shipped_tables()
        assert table.like is not None or all_values(table) == table.values
        for fit in table.fits.values():
            assert fit.by.startswith(("python -m bench.", "tilewright calibrate")) and fit.on and fit.when


def test_processors_that_no_table_knows_have_values_from_their_own_numbers() -> None:
    reference = cpu_parameters(AVX512)
    derived = cpu_parameters(RISCV)
    assert RISCV.lanes(32) == 4 and RISCV.l3_bytes == 0
    assert derived.parallel.least_work == reference.parallel.least_work // 4, "a quarter of the lanes"
    assert derived.core.memory_bytes_per_cycle == reference.core.memory_bytes_per_cycle / 2, "no third cache level"
    assert (derived.core.fma_per_cycle, derived.core.fma_in_flight) == (1, 4), "a small core"
    large = cpu_parameters(RISCV.replace(l2_bytes=1 << 21))
    assert (large.core.fma_per_cycle, large.core.fma_in_flight) == (2, 8)


def test_gpus_of_nvidia_that_no_table_knows_have_values_of_their_generation() -> None:
    hopper = gpu_parameters(Target("cuda -arch=sm_90a"))
    ada, next_year = gpu_parameters(Target("cuda -arch=sm_89")), gpu_parameters(Target("cuda -arch=sm_130a"))
    assert ada.warp_tile.products(2) == hopper.warp_tile.products(2) / 2
    assert ada.warp_tile.product == hopper.warp_tile.product * 2
    assert ada.multiprocessor.resident_threads == next_year.multiprocessor.resident_threads == 1536
    assert gpu_parameters(Target("cuda -arch=sm_80")) == hopper, "as many a cycle"
    assert gpu_parameters(Target("cuda -arch=sm_60")) == hopper, "nothing is known"
    assert gpu_parameters(Target("webgpu")) == gpu_parameters(Target("rocm -arch=gfx942")) == hopper


def test_cpus_have_no_parameters_of_gpus() -> None:
    with pytest.raises(CompilerBug, match="no parameters of a GPU"):
        gpu_parameters(NEOVERSE)
    with pytest.raises(CompilerBug, match="no parameters of a CPU"):
        cpu_parameters(Target("cuda"))


def _table(target: Target, **values: int | float) -> Table:
    fit = Fit("tilewright calibrate", "a test", "2026-11-16")
    place = Processors("cpu", target.arch, (target.cpu,))
    return Table("mine", "measured", place, {"parallel": values}, {"parallel": fit})


def test_the_users_table_comes_before_the_shipped_one(tmp_path: Path) -> None:
    write_table(_table(NEOVERSE, least_work=5000), user_table_path(NEOVERSE, tmp_path))
    shipped, shipped_avx512 = cpu_parameters(NEOVERSE), cpu_parameters(AVX512)
    with settings.MACHINES.override(tmp_path):
        mine = cpu_parameters(NEOVERSE)
        assert cpu_parameters(AVX512) == shipped_avx512, "another processor"
        assert mine.parallel == replace(shipped.parallel, least_work=5000)
        assert replace(mine, parallel=shipped.parallel) == shipped
        assert parameters_fingerprint(AVX512) != parameters_fingerprint(NEOVERSE)
        changed = parameters_fingerprint(NEOVERSE)
    assert changed != parameters_fingerprint(NEOVERSE)


def test_a_table_that_is_written_reads_back(tmp_path: Path) -> None:
    table = _table(NEOVERSE, least_work=5000, most_idle=1.5)
    path = tmp_path / "new" / "table.json"
    write_table(table, path)
    assert read_table(path, "") == table
    assert asdict(read_table(path, "").fits["parallel"])["on"] == "a test"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 7}, "has version 7, but this Tilewright reads version 1"),
        ({"parameters": {"parallel": {}}}, "is damaged .*KeyError: 'values'"),
        ({"parameters": 3}, "is damaged"),
        ({"processors": {"device": "cpu", "colour": "red"}}, "is damaged .*colour"),
        ({"values": {"least_work": 0}}, "'least_work' is 0, not a positive number"),
        ({"values": {"least_work": "many"}}, "'least_work' is 'many', not a positive number"),
        ({"values": {"least_work": True}}, "'least_work' is True, not a positive number"),
        ({"values": {"most_idle": float("inf")}}, "'most_idle' is inf"),
        ({"values": {"least_work": 2.5}}, "'parallel.least_work' must be a whole number, not 2.5"),
        ({"values": {"colour": 2}}, "the parameter of 'parallel' 'colour' is unknown"),
    ],
)
def test_bad_tables_of_users_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    data = _table(NEOVERSE, least_work=5000).to_json()
    if "values" in change:
        data["parameters"]["parallel"]["values"] = change["values"]
    else:
        data.update(change)
    user_table_path(NEOVERSE, tmp_path).write_text(json.dumps(data))
    with settings.MACHINES.override(tmp_path), pytest.raises(UserError, match=message) as raised:
        cpu_parameters(NEOVERSE)
    assert "calibrate --reset" in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def test_a_file_that_is_no_table(tmp_path: Path) -> None:
    path = user_table_path(NEOVERSE, tmp_path)
    path.write_text("{")
    with settings.MACHINES.override(tmp_path), pytest.raises(UserError, match="is damaged"):
        cpu_parameters(NEOVERSE)
    path.unlink()
    forget_tables()
    path.mkdir()
    with settings.MACHINES.override(tmp_path), pytest.raises(UserError, match="cannot be read: Is a directory"):
        cpu_parameters(NEOVERSE)
