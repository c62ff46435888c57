"""The devices that programs run on, by kind of target."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tilewright.backends import slices
from tilewright.runtime.device.program import Device
from tilewright.support.errors import UnsupportedError, UserError


@dataclass(frozen=True, slots=True)
class Driver:
    """What finds the devices of a kind."""

    find: Callable[[int], Device]
    """The device of a number; a `UserError` where there is none."""


def device_kinds() -> tuple[str, ...]:
    """The kinds of target that are devices."""
    return slices.names("driver")


_chosen: ContextVar[Mapping[str, int]] = ContextVar("tilewright_devices", default=MappingProxyType({}))
_NUMBERED: Final = re.compile(r"\s*([a-z]+):(\d+)(?=\s|$)")


def find_device(kind: str) -> Device:
    """The device of a kind here: the first, or the one that was chosen."""
    known = device_kinds()
    if kind not in known:
        raise UnsupportedError(f"this runtime has no devices of the kind '{kind}'", hint=f"it has {', '.join(known)}")
    index = _chosen.get().get(kind, 0)
    device = slices.load(kind, "driver", Driver).find(index)
    device.index = index
    return device


@contextmanager
def choosing(kind: str, index: int) -> Iterator[None]:
    """While the body runs, `find_device` finds this device of a kind."""
    token = _chosen.set({**_chosen.get(), kind: index})
    try:
        yield
    finally:
        _chosen.reset(token)


def split_index(text: str) -> tuple[str, int]:
    """A target's text without a device's number, and the number: "cuda:1 -arch=sm_90" is "cuda -arch=sm_90" and 1."""
    found = _NUMBERED.match(text)
    if found is None:
        return text, 0
    known = device_kinds()
    if found[1] not in known:
        raise UserError(f"'{found[1]}' is no kind of device, so none has a number", hint=f"one of {', '.join(known)}")
    return found[1] + text[found.end() :], int(found[2])
