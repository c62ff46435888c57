"""Small accelerators that differ in everything, for tests: their memories are loaded whole in a moment."""

from __future__ import annotations

from tilewright.accel.config import AccelConfig


def small(
    batch: int,
    blocks: tuple[int, int],
    bits: tuple[int, int, int, int],
    bus: int,
    depths: tuple[int, ...],
    **others: int,
) -> AccelConfig:
    """A configuration by depths of memories (UOP, INP, WGT, ACC, OUT, PAR); bits of inp, wgt, acc and out."""
    block_in, block_out = blocks
    inp, wgt, acc, out = bits
    uops, inps, wgts, accs, outs, pars = depths
    return AccelConfig(
        batch=batch,
        block_in=block_in,
        block_out=block_out,
        inp_bits=inp,
        wgt_bits=wgt,
        acc_bits=acc,
        out_bits=out,
        uop_bytes=uops * 4,
        inp_bytes=inps * batch * block_in * inp // 8,
        wgt_bytes=wgts * block_out * block_in * wgt // 8,
        acc_bytes=accs * batch * block_out * acc // 8,
        out_bytes=outs * batch * block_out * out // 8,
        par_entries=pars,
        bus_bytes=bus,
        **others,
    )


CONFIGS: dict[str, AccelConfig] = {
    "usual": small(1, (16, 16), (8, 8, 32, 8), 8, (64, 32, 16, 32, 32, 8), memory_latency=64),
    "batch2": small(2, (8, 8), (8, 8, 32, 8), 16, (32, 16, 16, 64, 16, 4), memory_latency=5, token_queue=3),
    "batch4": small(4, (4, 4), (8, 8, 32, 8), 16, (128, 64, 32, 16, 64, 2), memory_latency=1, command_queue=4),
    "narrow": small(1, (32, 32), (4, 2, 16, 4), 16, (64, 16, 8, 32, 32, 4), memory_latency=17, command_queue=3),
    "wide_out": small(1, (16, 32), (8, 8, 32, 8), 16, (32, 64, 8, 16, 8, 4), memory_latency=128, token_queue=2),
    "wide_in": small(1, (32, 16), (2, 8, 32, 2), 4, (16, 16, 4, 64, 32, 8), memory_latency=3),
    "mixed": small(2, (16, 8), (4, 4, 16, 8), 8, (64, 32, 16, 32, 16, 16), memory_latency=32, command_queue=2),
    "tiny": small(1, (4, 4), (8, 8, 32, 8), 4, (8, 2, 2, 4, 2, 2), memory_latency=1, token_queue=1, command_queue=2),
    "small": small(1, (4, 4), (8, 8, 32, 8), 4, (64, 32, 16, 32, 64, 4), memory_latency=16, command_queue=8),
    "fast_bus": small(1, (32, 32), (8, 8, 32, 8), 32, (128, 32, 8, 32, 32, 4), memory_latency=200, token_queue=1),
    "deep": small(1, (4, 8), (8, 4, 16, 8), 4, (32, 256, 16, 128, 128, 4), memory_latency=64),
}
"""At least eight, by name: batches, blocks, widths, buses, latencies and queues."""
