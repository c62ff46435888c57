"""The host function that ends a run whose data is not what the model asserts it to be."""

from __future__ import annotations

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.values import Attributes, scalar, text
from tilewright.support.errors import UserError


@register("host.require")
def require(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The condition, which must hold."""
    if not scalar(values[0], "a condition"):
        raise UserError(text(attributes, "message"))
    return [values[0]]
