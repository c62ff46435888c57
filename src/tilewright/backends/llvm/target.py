"""CPUs through LLVM, as a kind of target."""

from __future__ import annotations

from typing import Final

from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import CPU_OPTIONS, TargetKind
from tilewright.target.platforms import PLATFORMS
from tilewright.target.resolve import effective_features

KIND: Final = TargetKind(
    "llvm",
    "machine code for a CPU, through LLVM",
    CPU_OPTIONS,
    is_cpu=True,
    capabilities=Capabilities(processor_levels=True),
    features_of=effective_features,
    aliases={name: platform.options for name, platform in PLATFORMS.items()},
)
