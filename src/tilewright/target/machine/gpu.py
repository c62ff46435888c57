"""The machine parameters of GPUs: what a multiprocessor has, and the costs by which tiles of products are ranked.

Costs are in cycles of a multiprocessor. Values are in `tables/`; nothing here has a default.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What a multiprocessor has beside what the target says."""

    registers: int
    """Registers of 32 bits."""
    resident_threads: int
    """Threads that it holds at a time."""
    partitions: int
    """Parts that work on warps of their own."""
    fma_per_cycle: int
    """Multiply-adds of float32 that it finishes in a cycle."""
    block_shared_bytes: int
    """Shared memory that a block costs beside what it asks for."""
    cluster_group: int
    """Multiprocessors of a group: the blocks of a cluster are in one."""


@dataclass(frozen=True, slots=True)
class ThreadTile:
    """Products by the arithmetic of threads."""

    l2_bytes_per_cycle: float
    """Bytes that a multiprocessor gets from the second-level cache in a cycle."""
    operand_reads: float
    """Reading a value of an operand from shared memory, in multiply-adds."""
    step_reads: float
    """What a step of a thread costs beside its multiply-adds and reads, in multiply-adds."""
    hiding_warps: float
    """Warps of a multiprocessor that hide each other's latencies."""
    hiding_exponent: float
    """How much fewer warps lose."""
    partition_efficiency: float
    """The part of a partition's peak that one warp reaches."""
    copy: float
    """A warp's copy instruction and its addresses."""
    partial_sum: float
    """One partial sum, written and read again."""
    step: float
    """A step beside its products: the barrier, and the first values from shared memory."""
    start: float
    """A kernel beside its steps."""
    turn: float
    """Until a block that follows another one has its first operands."""
    cluster_meeting: float
    """The blocks of a cluster meet, twice."""
    remote_sum: float
    """How much longer a sum takes from the shared memory of another block than from a block's own."""
    alone: float
    """How much longer products take where one block after the other has a multiprocessor to itself."""
    result: float
    """A result of a block, when its sums are done: what follows the product, and writing it."""
    transposed: float
    """The part of their time that products and copies take where the tile of rows is transposed on its way."""


@dataclass(frozen=True, slots=True)
class WarpTile:
    """Products of warps on tensor cores."""

    products_8_bit: float
    """Multiply-adds of bytes that a multiprocessor finishes in a cycle,"""
    products_16_bit: float
    """of half precision,"""
    products_32_bit: float
    """of tf32."""
    l2_bytes_per_cycle: float
    """Bytes that a multiprocessor gets from the second-level cache in a cycle."""
    shared_bytes_per_cycle: float
    """Bytes that fragments get from shared memory in a cycle."""
    copy_latency: float
    """From the start of a copy to its data."""
    fragments: float
    """One warp for its fragments."""
    product: float
    """One warp for each product of 16 x 8."""
    step: float
    """A step beside its work: waiting, the barrier, addresses."""
    odd_stages: float
    """More of a step whose place in shared memory is not found by a mask."""
    start: float
    """A block beside its steps: starting, the first copies, writing results."""
    result: float
    """A thread for each result: what follows the product, and where the result goes."""
    cluster_meeting: float
    """The blocks of a cluster meet, twice."""
    remote_sum: float
    """How much longer it takes to write a sum for other blocks and to read it there than in a block's own memory."""
    overlap: float
    """How well the parts of a step overlap; infinity: perfectly."""

    def products(self, itemsize: int) -> float:
        """Multiply-adds of elements of so many bytes that a multiprocessor finishes in a cycle."""
        return {1: self.products_8_bit, 2: self.products_16_bit, 4: self.products_32_bit}[itemsize]


@dataclass(frozen=True, slots=True)
class GroupTile:
    """Products of warp groups on tensor cores."""

    products_8_bit: float
    """Multiply-adds of bytes that a multiprocessor finishes in a cycle,"""
    products_16_bit: float
    """of half precision,"""
    products_32_bit: float
    """of tf32."""
    l2_bytes_per_cycle: float
    """Bytes that a multiprocessor gets from the second-level cache in a cycle."""
    shared_bytes_per_cycle: float
    """Bytes that products get from shared memory in a cycle."""
    results_per_cycle: float
    """Results that a block writes in a cycle,"""
    ragged_results_8_bit: float
    """of products of bytes so many times fewer where tiles of columns do not divide them."""
    copy_latency: float
    """From the start of a copy to its data,"""
    copy_latency_8_bit: float
    """and of bytes, whose steps are more of the reduction."""
    step: float
    """A step beside its work: waiting, the barrier, addresses."""
    start: float
    """A block beside its steps: starting, the first copies."""
    second_kernel: float
    """The kernel that adds up parts, beside its work."""
    added_bytes_per_cycle: float
    """Bytes of parts that a multiprocessor adds up in a cycle."""
    residual_bytes_per_cycle: float
    """A cycle is lost for so many bytes of what an epilogue reads where registers have no room for all of it."""
    overlap: float
    """How well copies and products overlap; infinity: perfectly."""
    specialized_l2_bytes_per_cycle: float
    """Where a warp group of its own copies: bytes that a multiprocessor gets in a cycle,"""
    specialized_shared_bytes_per_cycle: float
    """bytes that shared memory takes and gives in a cycle,"""
    specialized_results_per_cycle: float
    """results that a block writes in a cycle,"""
    specialized_start: float
    """and a block beside its steps,"""
    specialized_overlap: float
    """of which so many pass while a block that has several tiles begins with the next;"""
    specialized_ragged: float
    """how many times longer steps take where tiles of columns do not divide them."""

    def products(self, itemsize: int) -> float:
        """Multiply-adds of elements of so many bytes that a multiprocessor finishes in a cycle."""
        return {1: self.products_8_bit, 2: self.products_16_bit, 4: self.products_32_bit}[itemsize]

    def latency(self, itemsize: int) -> float:
        """From the start of a copy of elements of so many bytes to its data."""
        return self.copy_latency_8_bit if itemsize == 1 else self.copy_latency


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention as one kernel."""

    most_tiled_size: int
    """Sizes of a head up to which results stay in registers, where keys come in tiles."""
    least_queries: int
    """Queries below which a tile of them would be mostly empty."""
    most_keys: int
    """Keys up to which threads have scores in registers, where keys do not come in tiles."""
    many_keys: int
    """Keys from which on a block has many tiles of them,"""
    narrow_values: int
    """and elements of a value up to which a thread has more rows then."""
    overlapped_keys: int
    """Keys that a query sees from which on a warp group copies, and products with values go on during the softmax."""
    two_tile_values: int
    """Elements of a value up to which a warp has registers for two tiles of queries."""
    many_queries: int
    """Queries for each multiprocessor from which on keys come in tiles."""
    row_scores: int
    """Scores of whole rows that a thread has in registers."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """Forms of convolutions."""

    phase_channels: int
    """Channels from which on tiles are filled by one phase of a transposed convolution; half precision has larger
    tiles, for all phases."""
    padded_channels: int
    """Channels of an image from which on the last, smaller group of them matters little."""


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Stages whose elements are computed one by one, and what divides its results over threads as they do."""

    block_threads: int
    """Threads of a block where nothing else decides: a few warps that hide each other's latencies."""
    least_threads: int
    """Threads of a block where there are not enough for all multiprocessors."""


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products in tiles."""

    least_side: int
    """Rows and columns from which on tiles pay,"""
    least_depth: int
    """and steps."""
    rounded_operand: int
    """Multiplications from which on a kernel that rounds an operand to 8 bits pays."""


@dataclass(frozen=True, slots=True)
class VectorProduct:
    """Constant matrices times a few vectors."""

    least_depth: int
    """Steps of a sum from which on a warp shares them."""
    most_vectors: int
    """Vectors that weights are multiplied with; more are rows of a matrix product."""
    thread_weights: int
    """Weights of a result that a thread has, where there are warps enough to share them."""
    thread_bytes: int
    """Weights of all its results that a thread has on their way."""
    kept_bytes: int
    """Weights of a result that a thread can have in registers."""
    most_warps: int
    """Warps that share the sum of a result."""
    busy_warps: int
    """Warps of a multiprocessor that are enough, if each thread has its part of several results on its way."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Recurrent layers."""

    few_steps: int
    """Steps from which on layers with few weights are one kernel: starting many would take longer than their work;"""
    few_weights: int
    """so many weights of a gate are few."""
    thread_weights: int
    """Weights that a thread has in registers: few warps have them all, so that sums need no barrier."""
    most_sequences: int
    """Sequences whose sums a thread makes at once: those of all gates and the weights are in registers."""
    most_warps: int
    """Warps that share an element of the state."""
    most_elements: int
    """Elements of the state of a block."""
    least_sequences: int
    """Sequences from which on tensor cores compute the products."""
    fragment_warps: int
    """Warps of a block there, as far as registers hold its weights;"""
    most_fragment_warps: int
    """so many are the most."""
    fragment_registers: int
    """Registers of a thread that weights have there."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """Reductions with loops of their own."""

    few_steps: int
    """Steps below which one thread does them all."""
    many_steps: int
    """Steps from which on several blocks share those of one result, where results are few;"""
    part_steps: int
    """such a block has at least so many."""
    memory_bound: int
    """Elements from which on the bandwidth of memory decides."""
    most_sharing: int
    """Threads of a block that share steps."""
    unrolled: int
    """Steps that are written out, at most."""
    most_window: int
    """Steps of a depthwise convolution up to which a thread holds its whole window."""


@dataclass(frozen=True, slots=True)
class Rows:
    """All stages of a row in one kernel: softmax, normalization."""

    short: int
    """Elements of a row up to which one thread does the whole row."""
    long: int
    """Elements of a row from which on several blocks share it, where rows are few: not one kernel then."""
    register_elements: int
    """Elements of a row that a thread keeps in registers."""
    unrolled: int
    """Steps of a thread along a row that are written out: as many loads are on their way at once."""
    block_threads: int
    """Threads of a block of several rows."""


@dataclass(frozen=True, slots=True)
class GpuParameters:
    """All parameters of a family of GPUs."""

    multiprocessor: Multiprocessor
    thread_tile: ThreadTile
    warp_tile: WarpTile
    group_tile: GroupTile
    attention: Attention
    convolution: Convolution
    elementwise: Elementwise
    product: Product
    vector_product: VectorProduct
    recurrence: Recurrence
    reduction: Reduction
    rows: Rows
