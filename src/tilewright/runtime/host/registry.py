"""The registry of host functions: name -> function(values, attributes) -> values.

    @register("non_zero")
    def non_zero(values: list[HostValue], attributes: Mapping[str, HostAttribute]) -> list[HostValue]:
        '''The places of elements other than zero.'''
        return [np.stack(np.nonzero(values[0])).astype(np.int64)]

A value is a tensor (a numpy array of its storage type: bfloat16 as uint16 bits, text as an object array of str),
a tuple, a sequence (a Python list, or `Rows`: `values.sequence` reads both), or an optional (None when it is empty,
else the value itself). Inputs are borrowed: a function never writes to them, and it may answer with an input or a view
of one. Attributes are plain data, as an exported library carries them; a data type is its name. An input left out by
the model is None.

The graph operator of the same name runs the same function as its reference, so interpreter and compiled code agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy.typing as npt

from tilewright.runtime.host.rows import Rows
from tilewright.support.errors import CompilerBug, UserError

HostValue: TypeAlias = "npt.NDArray[Any] | tuple[HostValue, ...] | list[HostValue] | Rows | None"
"""A tensor, a tuple, a sequence, or an empty optional."""

HostAttribute: TypeAlias = "bool | int | float | str | bytes | tuple[HostAttribute, ...] | None"
"""Plain data: what the bytecode of a model can carry."""

HostFunction: TypeAlias = Callable[[list[HostValue], Mapping[str, HostAttribute]], list[HostValue]]
"""Inputs and attributes in, the list of all results out."""

_REGISTRY: dict[str, HostFunction] = {}
F = TypeVar("F", bound=HostFunction)


def register(*names: str) -> Callable[[F], F]:
    """Register a function under one or several names."""

    def decorate(function: F) -> F:
        for name in names:
            if name in _REGISTRY:
                raise CompilerBug(f"the host function {name} is registered twice")
            _REGISTRY[name] = function
        return function

    return decorate


def host_function(name: str) -> HostFunction:
    """The function of a name; a UserError if this runtime has none (the model was compiled by a newer one)."""
    function = _REGISTRY.get(name)
    if function is None:
        raise UserError(
            f"this runtime has no host function {name!r}, which the model needs",
            hint="upgrade: pip install --upgrade tilewright",
        )
    return function


def names() -> tuple[str, ...]:
    """The names of all host functions."""
    return tuple(_REGISTRY)
