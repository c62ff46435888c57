"""Likely sizes: what the symbols of a model are most of the time, where its file or its user says so.

A model of likely sizes runs at every size. Graph passes that decide for speed alone decide for the likely ones: which
algorithm pays depends on how large an image is.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.ir.dimensions import Size, normal, symbols_of
from tilewright.ir.expr import IntImm
from tilewright.ir.function import IRModule
from tilewright.ir.visit import substitute

_ATTRIBUTE = "likely_sizes"
"""The attribute of a module that holds them, as pairs of a symbol's name and a size."""


def with_likely_sizes(module: IRModule, sizes: Mapping[str, int]) -> IRModule:
    """The module with likely sizes of some of its symbols, by their names, beside those that it has."""
    if not sizes:
        return module
    return module.with_attributes(**{_ATTRIBUTE: tuple({**likely_sizes(module), **sizes}.items())})


def likely_sizes(module: IRModule) -> dict[str, int]:
    """The likely sizes of a module's symbols, by their names."""
    pairs = module.attributes.get(_ATTRIBUTE, ())
    assert isinstance(pairs, tuple)
    return dict(pairs)


def likely_size(size: Size, likely: Mapping[str, int]) -> int | None:
    """A size as a number, where the likely sizes of its symbols are known, and None otherwise."""
    if isinstance(size, int):
        return size
    symbols = symbols_of(size)
    if not all(symbol.name in likely for symbol in symbols):
        return None
    found = normal(substitute(size, {symbol: IntImm(likely[symbol.name]) for symbol in symbols}))
    return found if isinstance(found, int) else None
