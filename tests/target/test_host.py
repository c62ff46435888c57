"""Host detection: caches, cores and quotas as the kernel presents them, on made-up kernel files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.support.processors import usable_cpus
from tilewright.target import detect_host
from tilewright.target.host import (
    cache_sizes,
    cgroup_cpu_limit,
    count_physical_cores,
    cpu_description,
    kernel_arm_features,
    usable_cores,
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_host_is_detected_once() -> None:
    assert detect_host() is detect_host()
    assert 1 <= detect_host().cores <= len(usable_cpus())
    assert detect_host().cpu
    assert detect_host().arch in detect_host().triple.replace("arm64", "aarch64")


def test_caches_count_data_and_unified_levels(tmp_path: Path) -> None:
    for index, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("3", "Unified", "32M")]
    ):
        for name, text in (("level", level), ("type", kind), ("size", size)):
            write(tmp_path / f"index{index}" / name, text + "\n")
    assert cache_sizes(tmp_path) == {1: 48 << 10, 2: 2 << 20, 3: 32 << 20}


def test_hidden_caches_give_nothing(tmp_path: Path) -> None:
    assert cache_sizes(tmp_path / "missing") == {}
    write(tmp_path / "index0" / "level", "1\n")
    write(tmp_path / "index0" / "type", "Data\n")
    write(tmp_path / "index0" / "size", "unknown\n")
    assert cache_sizes(tmp_path) == {}


def test_hyperthreads_count_once_and_hidden_topology_counts_each(tmp_path: Path) -> None:
    for cpu, siblings in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")):
        write(tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list", siblings + "\n")
    assert count_physical_cores(range(4), tmp_path) == 2
    assert count_physical_cores([0, 1], tmp_path) == 2
    assert count_physical_cores([0, 2], tmp_path) == 1
    assert count_physical_cores(range(4), tmp_path / "missing") == 4


def test_quota_of_control_groups_version_2(tmp_path: Path) -> None:
    write(tmp_path / "cpu.max", "max 100000\n")
    write(tmp_path / "box" / "cpu.max", "150000 100000\n")
    write(tmp_path / "box" / "job" / "cpu.max", "400000 100000\n")
    assert cgroup_cpu_limit(tmp_path, "0::/box/job\n") == 1.5
    assert cgroup_cpu_limit(tmp_path, "0::/\n") is None
    assert cgroup_cpu_limit(tmp_path, "") is None


def test_quota_of_control_groups_version_1(tmp_path: Path) -> None:
    write(tmp_path / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us", "50000\n")
    write(tmp_path / "cpu,cpuacct" / "job" / "cpu.cfs_period_us", "100000\n")
    write(tmp_path / "cpu,cpuacct" / "cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cpu,cpuacct" / "cpu.cfs_period_us", "100000\n")
    assert cgroup_cpu_limit(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job\n") == 0.5
    assert cgroup_cpu_limit(tmp_path, "3:cpu,cpuacct:/\n") is None


def test_there_is_always_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.target.host.cgroup_cpu_limit", lambda root, membership: 0.25)
    assert usable_cores(range(4)) == 1


def test_cpuinfo_texts() -> None:
    arm = "processor : 0\nFeatures\t: fp asimd atomics fphp asimdhp asimddp\nCPU part : 0xd0c\n"
    assert kernel_arm_features(arm) == ["neon", "dotprod", "fullfp16", "lse"]
    assert kernel_arm_features("") == []
    assert cpu_description(arm) == ""
    assert cpu_description("model name\t: Some  Processor 9000\n") == "Some Processor 9000"
