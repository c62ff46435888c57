"""Matrix instructions of NVIDIA GPUs, which the threads of a warp execute together on registers of all of them.

Each thread gives the addresses of its own registers, and of the row in shared memory that it points out. What one
thread gets depends on the registers of the others: a program with such calls is interpreted before it is lowered.
"""

from __future__ import annotations

from typing import Final, NoReturn

from tilewright.support.errors import UnsupportedError
from tilewright.tir.machine import define

WARP: Final = 32
"""Threads that execute an instruction together."""
PRODUCTS: Final = {
    ("float16", "float16"): "cuda.mma.f16",
    ("bfloat16", "bfloat16"): "cuda.mma.bf16",
    ("float32", "float32"): "cuda.mma.tf32",
    ("int8", "int8"): "cuda.mma.s8",
    ("uint8", "uint8"): "cuda.mma.u8",
    ("uint8", "int8"): "cuda.mma.u8s8",
    ("int8", "uint8"): "cuda.mma.s8u8",
    ("float8_e4m3fn", "float8_e4m3fn"): "cuda.mma.e4m3",
    ("float8_e5m2", "float8_e5m2"): "cuda.mma.e5m2",
    ("float8_e4m3fn", "float8_e5m2"): "cuda.mma.e4m3e5m2",
    ("float8_e5m2", "float8_e4m3fn"): "cuda.mma.e5m2e4m3",
}
"""The product of each pair of types: 16 rows by 8 columns, steps of 32 bytes."""


def _refuse(*arguments: object) -> NoReturn:
    raise UnsupportedError(
        "the threads of a warp compute this together, which the interpreter does not do",
        hint="interpret the scheduled program before it is lowered",
    )


def _first_generation(dtype: str) -> str:
    """The first generation of GPUs that multiplies fragments of a type."""
    return "sm_89" if dtype.startswith("float8") else "sm_75" if dtype in ("int8", "uint8") else "sm_80"


for _name, _doc in (
    ("cuda.ldmatrix.x4", "fills a register of each thread from each of four 8 x 16 byte matrices in shared memory"),
    ("cuda.ldmatrix.x4.trans", "the same for the transposed matrices of 8 x 8 elements of 16 bits"),
):
    define(_name, "", "int32", ("handle", "handle"), ("sm_75",), _refuse, _doc, pure=False)
ROUNDED: Final = ".rounded"
"""What the names of products end with whose float32 operands were rounded to tf32 before."""
for (_row, _), _name in (*PRODUCTS.items(), (("float32", "float32"), PRODUCTS["float32", "float32"] + ROUNDED)):
    define(
        _name,
        "",
        "int32",
        ("handle", "handle", "handle"),
        (_first_generation(_row),),
        _refuse,
        "adds the product of fragments of a 16-row and an 8-column operand to a fragment of sums",
        pure=False,
    )

CODE_PRODUCTS: Final = {4: "cuda.mma.f16.codes4", 8: "cuda.mma.f16.codes8"}
"""The product of 16 columns of packed codes of some bits with 8 rows of halves: 64 steps."""
for _name in CODE_PRODUCTS.values():
    define(
        _name,
        "",
        "int32",
        ("handle", "handle", "handle", "int32"),
        ("sm_80",),
        _refuse,
        "adds the product of packed codes, less a zero point, with fragments of rows to a fragment of sums",
        pure=False,
    )

GROUP: Final = 128
"""Threads of a warp group: four warps that multiply together."""
GROUP_PRODUCTS: Final = {types: name.replace(".mma.", ".wgmma.") for types, name in PRODUCTS.items()}
"""The product of a warp group: 64 rows by as many columns as its name ends with, 32 bytes of steps."""
IN_PANELS: Final = ("float16", "bfloat16")
"""Types whose operands may lie in panels: the first of rows, the second of columns."""
GROUP_PANELS: Final = (64, 128, 192, 256)
"""Columns of the instructions whose second operand lies in panels of 64 columns."""
PACKED: Final = ".packed"
"""What the names of products have in them whose second operand is not swizzled, but in pieces that lie in a row."""
GROUP_COLUMNS: Final = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Columns of the instructions whose second operand has a row of steps for each column."""

for (_row, _), _base in GROUP_PRODUCTS.items():
    for _name in (_base, f"{_base}.across") if _row in IN_PANELS else (_base,):
        _first = "in a panel of rows" if _name != _base else "in rows of steps"
        for _columns in GROUP_PANELS if _row in IN_PANELS else ():
            define(
                f"{_name}.panels.n{_columns}",
                "",
                "int32",
                ("handle", "handle", "handle", "int64"),
                ("sm_90a",),
                _refuse,
                "starts to add a product of swizzled tiles in shared memory: "
                f"the first {_first}, the second in panels so many bytes apart",
                pure=False,
            )
        for _columns in GROUP_COLUMNS:
            for _order, _second in (("", "in rows"), (PACKED, "in pieces of eight columns by 16 bytes of steps")):
                define(
                    f"{_name}{_order}.n{_columns}",
                    "",
                    "int32",
                    ("handle", "handle", "handle"),
                    ("sm_90a",),
                    _refuse,
                    f"starts to add a product of tiles in shared memory: the first {_first}, the second {_second}",
                    pure=False,
                )
for _columns in GROUP_COLUMNS:
    # They name the sums, which no compiler may then move over to their other side; sums of integers are of integers.
    for _name, _doc in (
        ("cuda.wgmma.fence", "orders uses of sums before products that are started"),
        ("cuda.wgmma.finish", "waits for all groups of products"),
    ):
        for _sums in ("", ".s32"):
            define(f"{_name}{_sums}.n{_columns}", "", "int32", ("handle",), ("sm_90a",), _refuse, _doc, pure=False)
for _name, _doc in (
    ("cuda.wgmma.commit", "makes a group of the products started"),
    ("cuda.wgmma.wait.1", "waits for all groups of products but the last"),
):
    define(_name, "", "int32", (), ("sm_90a",), _refuse, _doc, pure=False)
FENCE: Final = "cuda.fence.async"
"""What stands between writes of threads to shared memory and products of warp groups that read them."""
define(FENCE, "", "int32", (), ("sm_90",), _refuse, "lets instructions that read shared memory see writes", pure=False)

for _name, _arguments, _doc in (
    (
        "start",
        ("int32",),
        "starts a barrier (of an array in shared memory, by its number) that so many arrivals complete",
    ),
    ("wait", ("int32",), "waits until the phase of a barrier of this parity is complete"),
    ("arrive", (), "arrives at a barrier"),
    ("expect", ("int32",), "arrives at a barrier that bulk copies of so many bytes complete"),
    ("copied", (), "arrives at a barrier when all copies of this thread are there"),
):
    define(
        f"cuda.mbarrier.{_name}", "", "int32", ("handle", "int32", *_arguments), ("sm_90",), _refuse, _doc, pure=False
    )
BULK_COPY: Final = "cuda.bulk.copy"
"""A copy of bytes in a row from memory to shared memory, which a barrier (of an array, by its number) hears of."""
_places = ("handle", "handle", "int32", "handle", "int32")
define(BULK_COPY, "", "int32", _places, ("sm_90",), _refuse, "copies bytes in a row to shared memory", pure=False)
_doc = "lets all threads see barriers that were started"
define("cuda.mbarrier.started", "", "int32", (), ("sm_90",), _refuse, _doc, pure=False)
REGISTERS: Final = tuple(range(24, 248, 8))
"""Registers of a thread that a warp group may ask for."""
for _count in REGISTERS:
    for _name, _doc in (("less", "gives registers back"), ("more", "takes registers that others gave back")):
        define(f"cuda.registers.{_name}.{_count}", "", "int32", (), ("sm_90a",), _refuse, _doc, pure=False)


def reads_by_itself(name: str) -> bool:
    """Whether an instruction reads shared memory on a path of its own, so that writes before it need `FENCE`."""
    return any(name.startswith(f"{product}.") for product in GROUP_PRODUCTS.values())


HELD: Final = ".held."
"""What the names of products have in them whose rows are in registers: they are complete when the instruction is."""


def goes_on(name: str) -> bool:
    """Whether an instruction may read shared memory while threads are in the next iteration of a loop."""
    return reads_by_itself(name) and HELD not in name


__all__ = [
    "BULK_COPY",
    "CODE_PRODUCTS",
    "FENCE",
    "GROUP",
    "GROUP_COLUMNS",
    "GROUP_PANELS",
    "GROUP_PRODUCTS",
    "HELD",
    "IN_PANELS",
    "PACKED",
    "PRODUCTS",
    "REGISTERS",
    "ROUNDED",
    "WARP",
    "goes_on",
    "reads_by_itself",
]
