"""The host function that gives keys of random numbers where a model has no seed: no two calls give the same."""

from __future__ import annotations

import secrets

import numpy as np

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.values import Attributes


@register("random.key")
def key(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Two words of 32 bits, from the system's own source."""
    return [np.frombuffer(secrets.token_bytes(8), np.uint32).copy()]
