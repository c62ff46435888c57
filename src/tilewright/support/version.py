"""The version of Tilewright and of the formats it writes."""

from __future__ import annotations

VERSION = "0.1.0"

# Raised when an older runtime could not run what a newer compiler writes.
FORMAT_VERSION = 4
