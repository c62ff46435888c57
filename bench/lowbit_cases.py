"""The kernels of `bench.gpu_lowbit`: products of few bits, their operands, and what torch has beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.graph.ops.packed import pack_codes

Array = np.ndarray[Any, np.dtype[Any]]
Peers = Mapping[str, Callable[[], object]]
GROUP = 128
ROWS = 64
"""Rows at either end of a result that are compared with the reference."""


@dataclass(frozen=True)
class Case:
    """A product: an operator on operands whose rows come first, all others being constant."""

    name: str
    operator: str
    operands: Callable[[], list[Array]]
    operations: int
    """Multiplications and additions."""
    attributes: Mapping[str, object] = field(default_factory=dict)
    is_streamed: bool = False
    """Whether the constants are read from memory once, and little else happens."""
    tolerance: float = 0.0
    needs: str = ""
    """What the target must have: a property of `Target`."""
    peers: Callable[[list[Array]], Peers] = lambda operands: {}
    by_rows: tuple[int, ...] = (0,)
    """The operands whose first axis counts rows of the result."""
    rows: int = 0
    """Rows of a product with packed codes."""


def _random(*shape: int) -> np.random.Generator:
    return np.random.default_rng(sum(shape))


def _bytes(*shape: int) -> Array:
    return _random(*shape).integers(-128, 128, shape).astype(np.int8)


def _words(*shape: int) -> Array:
    return _random(*shape).integers(-(2**31), 2**31, shape).astype(np.int32)


def _planes(*shape: int) -> Array:
    return _random(*shape).integers(0, 256, shape).astype(np.uint8)


def _torch() -> Any:
    import torch

    return torch


def _int_peers(columns: Callable[[Array], Array]) -> Callable[[list[Array]], Peers]:
    """`torch._int_mm`, which takes more than 16 rows, with the second operand by columns."""

    def peers(operands: list[Array]) -> Peers:
        torch = _torch()
        x = torch.from_numpy(operands[0]).cuda()
        w = torch.from_numpy(np.ascontiguousarray(columns(operands[1]))).cuda().t()
        if len(x) <= 16:
            half, factor = x.half(), w.half()
            return {"float16 matmul": lambda: half @ factor}
        return {"_int_mm": lambda: torch._int_mm(x, w)}

    return peers


def _float8_peers(operands: list[Array]) -> Peers:
    """`torch._scaled_mm`, in whose products one operand at least is of the type e4m3."""
    if operands[0].dtype != ml_dtypes.float8_e4m3fn:
        return {}
    torch = _torch()
    kind = torch.float8_e4m3fn
    x, w = (torch.from_numpy(item.view(np.uint8)).cuda() for item in operands)
    columns, one = w.t().contiguous().view(kind).t(), torch.ones((), device="cuda")
    rows = x.view(kind)
    return {"_scaled_mm": lambda: torch._scaled_mm(rows, columns, one, one, out_dtype=torch.float16)}


def _packed_operands(rows: int, depth: int, columns: int, bits: int) -> list[Array]:
    random = _random(rows, depth, columns, bits)
    codes = random.integers(0, 1 << bits, (depth, columns)).astype(np.uint8)
    scale = random.uniform(0.5, 1.5, (depth // GROUP, columns)) / (depth**0.5 * (1 << bits))
    x = random.standard_normal((rows, depth), np.float32).astype(np.float16)
    return [x, pack_codes(codes, bits, 0), scale.astype(np.float16), np.full((1, 1), 1 << (bits - 1), np.uint8)]


def _packed_peers(bits: int) -> Callable[[list[Array]], Peers]:
    """The product of halves, and torch's own product with packed weights, as quick whatever these are."""

    def peers(operands: list[Array]) -> Peers:
        torch = _torch()
        x = torch.from_numpy(operands[0]).cuda()
        depth, columns = x.shape[1], operands[1].shape[1]
        full = torch.randn(depth, columns, device="cuda", dtype=torch.float16)
        calls: dict[str, Callable[[], object]] = {"float16 matmul": lambda: x @ full}
        if bits == 4:
            rows = x.bfloat16()
            data = torch.randint(0, 256, (columns, depth // 2), device="cuda", dtype=torch.uint8)
            scale = torch.ones(depth // GROUP, columns, 2, device="cuda", dtype=torch.bfloat16)
            packed = torch.ops.aten._convert_weight_to_int4pack(data, 8)
            calls["_weight_int4pack_mm"] = lambda: torch.ops.aten._weight_int4pack_mm(rows, packed, GROUP, scale)
        return calls

    return peers


def _product(kind: str, rows: int, depth: int, columns: int) -> Case:
    """A product of bytes by words (`dot4`), or of bytes or 8-bit floats by tensor cores."""
    name, work = f"{kind} {rows}x{depth}x{columns}", 2 * rows * depth * columns
    if kind == "dot4":
        peers = _int_peers(lambda words: words.view(np.int8))
        operands = lambda: [_bytes(rows, depth), _words(columns, depth // 4)]  # noqa: E731
        return Case(name, "qnn.word_matmul", operands, work, is_streamed=rows <= 4, peers=peers)
    if kind == "int8":
        operands = lambda: [_bytes(rows, depth), _bytes(depth, columns)]  # noqa: E731
        return Case(name, "qnn.matmul", operands, work, peers=_int_peers(lambda weight: weight.T))
    dtype = {"float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}[kind]
    shapes = ((rows, depth), (depth, columns))
    operands = lambda: [_random(*shape).standard_normal(shape, np.float32).astype(dtype) for shape in shapes]  # noqa: E731
    # Tensor cores keep 14 bits or so of the sums of 8-bit floats on the way.
    return Case(name, "qnn.matmul", operands, work, tolerance=1e-2, needs="has_float8_products", peers=_float8_peers)


def _scaled_operands(rows: int, depth: int, columns: int) -> list[Array]:
    """8-bit floats, a scale for 128 neighbours of a row, and one for 128 x 128 elements of the weights."""
    random = _random(rows, depth, columns)
    a, b = (random.standard_normal((n, depth), np.float32).astype(ml_dtypes.float8_e4m3fn) for n in (rows, columns))
    shapes = ((rows, depth // GROUP), (columns // GROUP, depth // GROUP))
    return [a, b, *(random.uniform(0.5, 2, shape).astype(np.float32) for shape in shapes)]


def _scaled_peers(operands: list[Array]) -> Peers:
    """`torch._scaled_mm` with a scale for each row and column, and with one for each tensor."""
    torch = _torch()
    a, b = (torch.from_numpy(item.view(np.uint8)).cuda().view(torch.float8_e4m3fn) for item in operands[:2])
    rows, columns, one = (torch.ones(shape, device="cuda") for shape in ((len(a), 1), (1, len(b)), ()))
    halves = {"out_dtype": torch.bfloat16}
    return {
        "_scaled_mm by rows": lambda: torch._scaled_mm(a, b.t(), rows, columns, **halves),
        "_scaled_mm": lambda: torch._scaled_mm(a, b.t(), one, one, **halves),
    }


def _scaled(rows: int, depth: int, columns: int) -> Case:
    return Case(
        f"float8 blocks {rows}x{depth}x{columns}",
        "qnn.scaled_matmul",
        lambda: _scaled_operands(rows, depth, columns),
        2 * rows * depth * columns,
        # Sums of a block keep 14 bits or so; those of blocks are float32.
        tolerance=1e-2,
        needs="has_warp_group_products",
        peers=_scaled_peers,
        by_rows=(0, 2),
    )


def _packed(rows: int, depth: int, columns: int, bits: int) -> Case:
    return Case(
        f"{bits}-bit weights {rows}x{depth}x{columns}",
        "packed.matmul",
        lambda: _packed_operands(rows, depth, columns, bits),
        2 * rows * depth * columns,
        {"bits": bits, "group": GROUP},
        is_streamed=rows <= 4,
        tolerance=4e-3,
        peers=_packed_peers(bits),
        rows=rows,
    )


def _bitserial(weights: int, activations: int, rows: int, depth: int, columns: int) -> Case:
    signed = weights > 1
    return Case(
        f"W{weights}A{activations} {rows}x{depth}x{columns}",
        "nn.bitserial_dense",
        lambda: [_planes(rows, activations, depth // 8), _words(weights, depth // 32, columns)],
        2 * rows * depth * columns,
        {"mode": "and" if signed else "xor", "signed": signed},
    )


def _bitserial_conv(weights: int, activations: int, size: int, channels: int) -> Case:
    signed = weights > 1
    return Case(
        f"W{weights}A{activations} 3x3 {size}x{size}x{channels}",
        "nn.bitserial_conv2d",
        lambda: [_planes(1, size, size, activations, channels // 8), _words(3, 3, weights, channels // 32, channels)],
        2 * 9 * size * size * channels * channels,
        {"mode": "and" if signed else "xor", "signed": signed, "padding": (1, 1, 1, 1)},
    )


_PAIRS = ((1, 1), (1, 2), (2, 2))
CASES = (
    _product("dot4", 1, 4096, 4096),
    _product("dot4", 2048, 2048, 2048),
    _product("int8", 4096, 4096, 4096),
    _product("float8_e4m3fn", 4096, 4096, 4096),
    _product("float8_e5m2", 4096, 4096, 4096),
    *(_scaled(rows, 4096, 4096) for rows in (64, 512, 4096)),
    *(
        _packed(1, depth, columns, bits)
        for bits in (4, 8)
        for depth, columns in ((4096, 4096), (4096, 14336), (14336, 4096), (8192, 28672))
    ),
    *(_packed(rows, 4096, 4096, 4) for rows in (4, 16, 32, 64, 128, 1024)),
    *(_bitserial(*pair, 2048, 2048, 2048) for pair in _PAIRS),
    *(_bitserial_conv(*pair, size, channels) for pair in _PAIRS for size, channels in ((56, 64), (14, 256))),
)
SMALL = (
    _product("dot4", 1, 64, 32),
    _product("dot4", 20, 64, 24),
    _product("int8", 20, 64, 24),
    _packed(1, 256, 32, 4),
    _packed(2, 128, 16, 8),
    _packed(20, 128, 32, 4),
    *(_bitserial(*pair, 12, 64, 20) for pair in _PAIRS),
    _bitserial_conv(1, 1, 6, 32),
)
"""The same in sizes that devices made of a CPU take: for whether they are right."""
