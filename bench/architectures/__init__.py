"""Architectures of public packages with random weights, small: `ARCHITECTURES` lists them by name.

The tables name classes and functions of the packages; nothing of theirs is imported until a model is built.
"""

from __future__ import annotations

from bench.architectures.case import Architecture
from bench.architectures.convolutional import TIMM, TORCHVISION
from bench.architectures.language import LANGUAGE
from bench.architectures.perception import PERCEPTION

ARCHITECTURES: dict[str, Architecture] = {item.name: item for item in (*LANGUAGE, *PERCEPTION, *TIMM, *TORCHVISION)}
"""Every architecture by its name."""
