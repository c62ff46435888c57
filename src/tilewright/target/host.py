"""What this machine is: processor name and features, caches, and the cores this process may really use.

Everything is read once, on first use: asking LLVM costs the import of llvmlite. No single source is enough:
LLVM leaves out features on some ARM machines (the kernel names them), the kernel hides caches in some virtual
machines (the processor table knows them), and in a container the visible cores are not the usable ones (the
affinity mask and the control group say).
"""

from __future__ import annotations

import ctypes
import functools
import math
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tilewright.support.processors import usable_cpus
from tilewright.target.llvm_cpus import CPU_MODELS, GENERIC_MODELS, CpuModel, arch_of_triple

# Names the Linux kernel gives to ARM features, and LLVM's names for the same.
_KERNEL_ARM_FEATURES = {
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdhp": "fullfp16",
    "atomics": "lse",
    "bf16": "bf16",
    "i8mm": "i8mm",
    "sve": "sve",
    "sve2": "sve2",
}


@dataclass(frozen=True, slots=True)
class HostCpu:
    """The processor of this machine as this process may use it. Cache sizes are in bytes, 0 where there is none."""

    triple: str
    cpu: str
    features: str
    description: str
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int

    @property
    def arch(self) -> str | None:
        """The canonical architecture name, as in the processor table."""
        return arch_of_triple(self.triple)


@functools.cache
def detect_host() -> HostCpu:
    """Detect this machine's processor, once per process."""
    from llvmlite import binding

    triple = binding.get_process_triple()
    cpu = binding.get_host_cpu_name()
    flags = dict(binding.get_host_cpu_features())
    if not tiles_permitted():
        flags.update((name, False) for name in flags if name.startswith("amx-"))
    arch = arch_of_triple(triple)
    cpuinfo = _read_text(Path("/proc/cpuinfo"))
    if arch == "aarch64":
        for name in kernel_arm_features(cpuinfo):
            flags.setdefault(name, True)
    model = CPU_MODELS.get(cpu) or GENERIC_MODELS.get(arch or "") or CpuModel(arch or "unknown", 128, 16)
    usable = usable_cpus()
    caches = cache_sizes(Path(f"/sys/devices/system/cpu/cpu{min(usable, default=0)}/cache"))
    return HostCpu(
        triple=triple,
        cpu=cpu,
        features=",".join(sorted(f"{'+' if on else '-'}{name}" for name, on in flags.items())),
        description=cpu_description(cpuinfo) or platform.processor() or cpu,
        cores=usable_cores(usable),
        l1_bytes=caches.get(1, model.l1_bytes),
        l2_bytes=caches.get(2, model.l2_bytes),
        l3_bytes=caches.get(3, 0 if caches else model.l3_bytes),
    )


def tiles_permitted() -> bool:
    """Whether the Linux kernel lets processes use the matrix tiles of x86 (it must save them between processes)."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    arch_prctl, get_supported, tile_data = 158, 0x1021, 18
    supported = ctypes.c_uint64(0)
    failed = ctypes.CDLL(None).syscall(arch_prctl, get_supported, ctypes.byref(supported))
    return failed == 0 and bool(supported.value >> tile_data & 1)


def usable_cores(cpus: Iterable[int]) -> int:
    """How many physical cores `cpus` are, no more than the control group's processor quota allows."""
    cores = count_physical_cores(cpus, Path("/sys/devices/system/cpu"))
    quota = cgroup_cpu_limit(Path("/sys/fs/cgroup"), _read_text(Path("/proc/self/cgroup")))
    if quota is not None:
        cores = min(cores, math.ceil(quota))
    return max(cores, 1)


def count_physical_cores(cpus: Iterable[int], root: Path) -> int:
    """Logical processors that share a core count once; those whose topology is hidden count each."""
    cores = set()
    for cpu in cpus:
        siblings = _read_text(root / f"cpu{cpu}" / "topology" / "thread_siblings_list").strip()
        cores.add(siblings or f"cpu{cpu}")
    return len(cores)


def cgroup_cpu_limit(root: Path, membership: str) -> float | None:
    """The tightest processor quota (in processors) over this process's control groups, or None if unlimited.

    `membership` is the text of /proc/self/cgroup; version 2 (`cpu.max`) and version 1 (`cpu.cfs_quota_us`) are read.
    """
    limits: list[float] = []
    for line in membership.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            for folder in _up_to_root(root, path):
                limits += _quota_version_2(folder)
        elif "cpu" in controllers.split(","):
            for base in (root / "cpu", root / controllers):
                for folder in _up_to_root(base, path):
                    limits += _quota_version_1(folder)
    return min(limits, default=None)


def _up_to_root(base: Path, path: str) -> list[Path]:
    """A group's folder and all its parents: each of them may set a limit."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quota_version_2(folder: Path) -> list[float]:
    words = _read_text(folder / "cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
        return [int(words[0]) / int(words[1])]
    return []


def _quota_version_1(folder: Path) -> list[float]:
    quota = _read_text(folder / "cpu.cfs_quota_us").strip()
    period = _read_text(folder / "cpu.cfs_period_us").strip()
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return [int(quota) / int(period)]
    return []


def cache_sizes(folder: Path) -> dict[int, int]:
    """Bytes of the data (or unified) cache at each level, from a processor's folder in /sys. Empty if hidden."""
    sizes: dict[int, int] = {}
    if not folder.is_dir():
        return sizes
    for index in sorted(folder.glob("index*")):
        level = _read_text(index / "level").strip()
        size = _parse_size(_read_text(index / "size").strip())
        if _read_text(index / "type").strip() in ("Data", "Unified") and level.isdigit() and size:
            sizes[int(level)] = size
    return sizes


def _parse_size(text: str) -> int:
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * scale if digits.isdigit() else 0


def kernel_arm_features(cpuinfo: str) -> list[str]:
    """LLVM's names of the ARM features that /proc/cpuinfo lists."""
    for line in cpuinfo.splitlines():
        if line.startswith("Features"):
            present = line.partition(":")[2].split()
            return [llvm for kernel, llvm in _KERNEL_ARM_FEATURES.items() if kernel in present]
    return []


def cpu_description(cpuinfo: str) -> str:
    """The marketing name of the processor in /proc/cpuinfo, or an empty text (ARM kernels do not give one)."""
    for line in cpuinfo.splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return ""


def _read_text(path: Path) -> str:
    """The text of a file of the kernel; empty if it is not there or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
