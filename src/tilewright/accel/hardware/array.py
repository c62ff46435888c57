"""The arithmetic of the compute unit: the array of multipliers, and the lanes of ALU."""

from __future__ import annotations

from typing import Any

from tilewright.accel.config import AccelConfig
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.instructions import AluOp, Lanewise


def lanes(value: Any, bits: int) -> list[Any]:
    """The signed lanes of a tensor, the first in the lowest bits."""
    return [value[at : at + bits].as_signed() for at in range(0, len(value), bits)]


class Array:
    """Products of an input and a weight tensor, in two cycles: all products, then their sums."""

    def __init__(self, config: AccelConfig) -> None:
        self.inputs = hdl.Signal(config.batch * config.block_in * config.inp_bits)
        self.weights = hdl.Signal(config.block_out * config.block_in * config.wgt_bits)
        self.sums = hdl.Signal(config.batch * config.block_out * config.acc_bits)
        self.module = hdl.Module()
        m = self.module
        inputs, weights = lanes(self.inputs, config.inp_bits), lanes(self.weights, config.wgt_bits)
        sums = []
        for row in range(config.batch):
            for channel in range(config.block_out):
                products = []
                for k in range(config.block_in):
                    product = hdl.Signal(
                        hdl.signed(config.inp_bits + config.wgt_bits), name=f"p{row}_{channel}_{k}", reset_less=True
                    )
                    m.d.sync += product.eq(inputs[row * config.block_in + k] * weights[channel * config.block_in + k])
                    products.append(product)
                total = hdl.Signal(hdl.signed(config.acc_bits), name=f"sum{row}_{channel}", reset_less=True)
                m.d.sync += total.eq(_tree(products))
                sums.append(total)
        m.d.comb += self.sums.eq(hdl.Cat(*sums))


def _tree(terms: list[Any]) -> Any:
    """The sum of terms, in a tree of adders."""
    while len(terms) > 1:
        pairs = [terms[at] + terms[at + 1] for at in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[len(terms) & ~1 :]
    return terms[0]


class Lanes:
    """What ALU does to an accumulator tensor, in one cycle."""

    def __init__(self, config: AccelConfig) -> None:
        width = config.batch * config.block_out * config.acc_bits
        self.op = hdl.Signal(4)
        self.left = hdl.Signal(width)
        self.right = hdl.Signal(width)
        self.result = hdl.Signal(width)
        self.module = hdl.Module()
        m, bits = self.module, config.acc_bits
        signals = Lanewise(hdl.Mux, lambda value: value[: bits.bit_length() - 1])
        results = []
        for number, (a, b) in enumerate(zip(lanes(self.left, bits), lanes(self.right, bits), strict=True)):
            result = hdl.Signal(hdl.signed(bits), name=f"lane{number}")
            with m.Switch(self.op):
                for op in AluOp:
                    with m.Case(int(op)):
                        m.d.comb += result.eq(op.meaning(signals, a, b))
            results.append(result)
        m.d.comb += self.result.eq(hdl.Cat(*results))
