"""What the threads of a warp do with rows of fragments, and scalar functions that NVIDIA GPUs have as one instruction.

The sums that a product of fragments leaves (`warp_instructions.py`) have four threads to a row; schedules may deal out
rows otherwise. The threads of a row, neighbours in a warp, combine a value of each: all of them have the result.
"""

from __future__ import annotations

from typing import Final, NoReturn

import numpy as np

from tilewright.support.errors import UnsupportedError
from tilewright.tir.machine import define
from tilewright.tir.warp_instructions import GROUP_PANELS, GROUP_PRODUCTS, HELD, PRODUCTS

ROW_MAX: Final = {parts: f"cuda.row.max.{parts}" for parts in (2, 4, 8, 16, 32)}
"""The greatest of the values that the threads of a row have, by their number."""
ROW_SUM: Final = {parts: f"cuda.row.sum.{parts}" for parts in (2, 4, 8, 16, 32)}
ROUND_PAIR: Final = {"float16": "cuda.pair.f16", "bfloat16": "cuda.pair.bf16"}
"""Two neighbouring float32 of a thread to a register of two elements of 16 bits, by type."""
FIRST_PRODUCTS: Final = {kind: f"{PRODUCTS[kind, kind]}.first" for kind in ("float16", "bfloat16", "float32")}
"""Products of fragments that begin sums, by type."""
HELD_COLUMNS: Final = (32, 64, 96, 128, 192, 256)
"""Columns of products of warp groups whose rows' operand is in registers."""
POWER_OF_TWO: Final = "cuda.exp2"
"""2^x of a float32, within two units of the last place; subnormal results are zeros."""


def held_product(dtype: str, turned: bool, columns: int, steps: int, fresh: bool = False) -> str:
    """The product of a warp group whose rows' operand is in registers, by columns and steps.

    The other operand is in shared memory: rows of 64 steps for each column, or panels of 64 columns. It is added to
    sums, or (`fresh`) takes their place.
    """
    order = f"{'turned' if turned else 'panels'}{'.fresh' if fresh else ''}"
    return f"{GROUP_PRODUCTS[dtype, dtype]}{HELD}{order}.n{columns}.k{steps}"


STARTED: Final = ".started"
"""What the names of products end with that are not waited for."""
_MOST_LEFT: Final = 4
"""Products that may be under way when others are waited for."""


def started_product(product: str) -> str:
    """The same product, not waited for: a group of products of its own."""
    return f"{product}{STARTED}"


def is_fresh(product: str) -> bool:
    """Whether sums begin with a product."""
    return ".fresh." in product


def wait_for_product(product: str, left: int, names_rows: bool) -> str:
    """The wait for a started product and those before it, while so many that were started later may go on.

    It is given the sums, and where they are to be written again the rows.
    """
    columns, steps = product.removesuffix(STARTED).split(".")[-2:]
    return f"cuda.wgmma{HELD}wait.{left}.{columns}{f'.{steps}' if names_rows else ''}"


def _refuse(*arguments: object) -> NoReturn:
    raise UnsupportedError(
        "the threads of a row compute this together, which the interpreter does not do",
        hint="interpret the scheduled program before it is lowered",
    )


def _power_of_two(x: float) -> np.float32:
    with np.errstate(all="ignore"):
        power = np.float32(np.exp2(np.float32(x)))
    return np.float32(0) if power < np.finfo(np.float32).tiny else power


for _names, _what in ((ROW_MAX, "greatest"), (ROW_SUM, "sum")):
    for _name in _names.values():
        _doc = f"the {_what} of the values that the threads of a row have"
        define(_name, "", "int32", ("handle", "handle"), ("sm_80",), _refuse, _doc, pure=False)
for _name in ROUND_PAIR.values():
    define(_name, "", "int32", ("handle", "handle"), ("sm_80",), _refuse, "rounds two neighbouring values", pure=False)
_HANDLES: Final = ("handle", "handle", "handle")
for _name in FIRST_PRODUCTS.values():
    define(_name, "", "int32", _HANDLES, ("sm_80",), _refuse, "makes sums of the product of two fragments", pure=False)
_HELD_STEPS: Final = (32, 64, 96, 128)
"""Steps of products with panels of columns."""


def _define_held(name: str, arguments: tuple[str, ...], doc: str) -> None:
    define(name, "", "int32", arguments, ("sm_90a",), _refuse, f"{doc}, and waits for it", pure=False)
    define(started_product(name), "", "int32", arguments, ("sm_90a",), _refuse, f"starts what {doc}", pure=False)


for _kind in ROUND_PAIR:
    for _columns in HELD_COLUMNS:
        _doc = "adds a product of rows in registers with swizzled rows of steps in shared memory"
        for _fresh in (False, True):
            _define_held(held_product(_kind, True, _columns, 64, _fresh), _HANDLES, _doc)
    for _columns in GROUP_PANELS:
        for _steps in _HELD_STEPS:
            _doc = "adds a product of rows in registers with panels of columns, which lie so many bytes apart"
            _define_held(held_product(_kind, False, _columns, _steps), (*_HANDLES, "int64"), _doc)
for _left in range(_MOST_LEFT + 1):
    for _columns in HELD_COLUMNS:
        _name = f"cuda.wgmma{HELD}wait.{_left}.n{_columns}"
        _doc = "waits for products with rows in registers"
        define(_name, "", "int32", _HANDLES[:1], ("sm_90a",), _refuse, _doc, pure=False)
        for _steps in _HELD_STEPS:
            define(f"{_name}.k{_steps}", "", "int32", _HANDLES[:2], ("sm_90a",), _refuse, _doc, pure=False)
define(POWER_OF_TWO, "", "float32", ("float32",), ("sm_75",), _power_of_two, "2^x, subnormal results are zeros")

__all__ = [
    "FIRST_PRODUCTS",
    "HELD_COLUMNS",
    "POWER_OF_TWO",
    "ROUND_PAIR",
    "ROW_MAX",
    "ROW_SUM",
    "STARTED",
    "held_product",
    "is_fresh",
    "started_product",
    "wait_for_product",
]
