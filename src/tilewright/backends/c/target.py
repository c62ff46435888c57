"""CPUs through C source, as a kind of target."""

from __future__ import annotations

from typing import Final

from tilewright.target.kinds import CPU_OPTIONS, TargetKind

# No features: C has no word for the instructions that features stand for. The compiler knows the processor.
KIND: Final = TargetKind("c", "C source for a CPU, through the system's C compiler", CPU_OPTIONS, is_cpu=True)
