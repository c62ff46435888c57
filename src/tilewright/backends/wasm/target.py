"""WebAssembly, as a kind of target."""

from __future__ import annotations

from typing import Final

from tilewright.target.kinds import CPU_OPTIONS, TargetKind
from tilewright.target.resolve import effective_features

KIND: Final = TargetKind(
    "wasm",
    "WebAssembly for browsers and Node, as a package of JavaScript modules",
    CPU_OPTIONS,
    is_cpu=True,
    defaults={"cores": 4},
    triple="wasm32-unknown-unknown",
    features_of=effective_features,
    is_elsewhere=True,
)
"""Its loops are divided for the cores of a usual device; how many threads run them is decided in the page."""
