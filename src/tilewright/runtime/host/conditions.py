"""Host functions that look at a value to decide how a run goes on, and those that end it."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.values import Attributes, scalar, tensor, text
from tilewright.support.errors import UserError


@register("host.require")
def require(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The condition, which must hold."""
    if not scalar(values[0], "a condition"):
        raise UserError(text(attributes, "message"))
    return [values[0]]


@register("host.rank")
def rank(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """How many dimensions a tensor has."""
    return [np.array(tensor(values[0]).ndim, np.int64)]


@register("host.fail")
def fail(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The end of a run that takes a side of the model that could not be compiled."""
    raise UserError(text(attributes, "message"))
