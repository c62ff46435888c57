"""The open tensor processor, as a kind of target."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tilewright.accel.config import AccelConfig
from tilewright.accel.instructions import check_formats
from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import Option, TargetKind


def _configuration(text: str) -> str:
    """A configuration in a target: `default`, its numbers, or a file that has them."""
    is_file = text.endswith(".json") or Path(text).is_file()
    config = AccelConfig.read(text) if is_file else AccelConfig.from_text(text)
    check_formats(config)
    return config.to_text()


KIND: Final = TargetKind(
    "accel",
    "the open tensor processor",
    (Option("config", "arch", False, "configuration: default, numbers such as block_in:32, or a JSON file"),),
    is_cpu=False,
    arch="default",
    defaults={
        "vector_bits": 128,
        "vector_registers": 1,
        "cores": 1,
        "l1_bytes": 0,
        "l2_bytes": 0,
        "l3_bytes": 0,
        "max_threads": 1,
        "warp_size": 1,
        "shared_bytes": 0,
    },
    capabilities=Capabilities(expanded_mathematics=None, block_layers=True, counted_cycles=True),
    features_of=lambda arch, cpu, features: frozenset({"accel"}),
    arch_of=_configuration,
)
