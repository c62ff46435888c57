"""Operators of backward passes, which graphs that `torch.compile` captures for training consist of."""

from __future__ import annotations

from tilewright.frontend.torch.gradients import attention, convolution, pooling

FAMILIES = (attention, convolution, pooling)
"""Every family of converters; importing them fills the table."""
