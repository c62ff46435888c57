"""The on-chip memories of a simulated machine, and LOAD and STORE between them and DRAM, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from tilewright.accel.config import PARAMETER_WORDS, AccelConfig, Memory
from tilewright.accel.instructions import Load, Store
from tilewright.accel.lanes import Bytes, lane_type, pack, unpack, wrap
from tilewright.accel.products import operand_type
from tilewright.accel.rules import dram_rows, load_columns, load_rows


class OnChip:
    """The memories, unpacked: an array each, whose first axis is the element's index. They begin with zeros."""

    def __init__(self, config: AccelConfig) -> None:
        depth, lanes = config.depth, (config.batch, config.block_out)
        operand = operand_type(config)
        self._config = config
        self.uop = np.zeros(depth[Memory.UOP], np.uint32)
        self.inp: npt.NDArray[np.floating] = np.zeros((depth[Memory.INP], config.batch, config.block_in), operand)
        # Transposed, as products take it: input channel, output channel.
        self.wgt: npt.NDArray[np.floating] = np.zeros((depth[Memory.WGT], config.block_in, config.block_out), operand)
        self.acc = np.zeros((depth[Memory.ACC], *lanes), lane_type(config.acc_bits))
        self.out = np.zeros((depth[Memory.OUT], *lanes), lane_type(config.out_bits))
        self.par = np.zeros((depth[Memory.PAR], PARAMETER_WORDS, config.block_out), np.int32)
        self._arrays: dict[Memory, tuple[npt.NDArray[Any], int]] = {
            Memory.UOP: (self.uop, 32),
            Memory.INP: (self.inp, config.inp_bits),
            Memory.WGT: (self.wgt.transpose(0, 2, 1), config.wgt_bits),
            Memory.ACC: (self.acc, config.acc_bits),
            Memory.OUT: (self.out, config.out_bits),
            Memory.PAR: (self.par, 32),
        }

    def load(self, load: Load, dram: Bytes) -> None:
        """Execute a LOAD that is legal."""
        array, bits = self._arrays[load.memory]
        each = self._config.dma_elements[load.memory]
        rows, columns = load_rows(load), load_columns(load) * each
        target = array[load.sram : load.sram + rows * columns].reshape(rows, columns, *array.shape[1:])
        if rows * columns > load.y_size * load.x_size * each:
            target[...] = wrap(np.array(load.pad, np.int64), min(bits, 8))
        if load.y_size and load.x_size:
            lanes = unpack(_rectangle(load, dram, self._config), bits)
            values = lanes.view(np.uint32) if load.memory is Memory.UOP else lanes
            shape = load.y_size, load.x_size * each, *array.shape[1:]
            place = (
                slice(load.y_before, load.y_before + load.y_size),
                slice(load.x_before * each, (load.x_before + load.x_size) * each),
            )
            target[place] = values.reshape(shape)

    def store(self, store: Store, dram: Bytes) -> None:
        """Execute a STORE that is legal."""
        if not store.y_size or not store.x_size:
            return
        array, bits = self._arrays[store.memory]
        data = pack(array[store.sram : store.sram + store.y_size * store.x_size].reshape(store.y_size, -1), bits)
        rectangle = _rectangle(store, dram, self._config)
        if store.y_stride >= store.x_size:
            rectangle[...] = data
        else:
            # Rows overlap: the later one stays.
            for row, values in zip(rectangle, data, strict=True):
                row[...] = values


def _rectangle(transfer: Load | Store, dram: Bytes, config: AccelConfig) -> Bytes:
    """The bytes of DRAM that a LOAD or STORE touches, as rows."""
    first, rows, size, stride = dram_rows(transfer, config)
    return as_strided(dram[first:], (rows, size), (stride, 1))
