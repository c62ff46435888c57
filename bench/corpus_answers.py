"""Questions whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

Model = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]
Answer = Callable[[Mapping[str, Model], Mapping[str, Path]], tuple[str, str]]


class NotAsked(Exception):
    """A question cannot be asked on this machine; the text says what is missing."""


ANSWERS: dict[str, Answer] = {}
