"""The machine parameters of CPUs, by subject: numbers that were fitted by measuring, and what each of them decides.

A share is a part of a cache level. An idle factor says how much longer than evenly divided work may take. Values are in
`tables/`; nothing here has a default, so that a table is complete or refused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Core:
    """What one core does in a cycle, beside its vector width, registers and caches (those are the target's)."""

    fma_per_cycle: int
    """Fused multiply-adds of whole vectors that a core starts in a cycle."""
    fma_in_flight: int
    """Fused multiply-adds that a core starts before the first is done: smaller tiles take as long as one of so many."""
    add_in_flight: int
    """Vectors of partial sums that a reduction keeps: enough to hide the latency of an addition."""
    efficiency: float
    """The part of the arithmetic peak that register tiles reach."""
    l2_bytes_per_fma: float
    """Bytes that come from the second cache level in the time of a multiply-add."""
    memory_bytes_per_cycle: float
    """How fast one core reads weights that are in no near cache, while it computes."""
    cores_to_saturate: int
    """Cores that together read as fast as memory gives."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """How work is divided over cores; work is counted in elements."""

    least_work: int
    """Work below which waking other cores costs more than it gives."""
    most_idle: float
    """The idle factor up to which work is not divided further."""
    least_gain: float
    """How much smaller pieces must gain."""
    least_piece: int
    """Work that a piece has at least: taking one costs about a hundred cycles."""
    pieces_per_core: int
    """Pieces for each core, where they stay large: cores are not equally quick, and one that is done takes others'."""
    large_piece: int
    """Work that such a piece has at least."""
    tested_tiles: float
    """How much longer tiles take that are tested for a partial one each: the idle factor that whole ones are worth."""


@dataclass(frozen=True, slots=True)
class TileCosts:
    """What a register tile costs beside its multiply-adds; costs are in multiply-adds."""

    column_load: float
    """A vector of columns (weights) that streams from the second cache level; row values stay in the first."""
    column: float
    """Loading a vector of packed columns; a value of a row, which is spread over a vector, counts as one."""
    fetched_column: float
    """The same where the next panel is fetched into the same cache meanwhile."""
    partial_tile: float
    """What a loop with a partial last tile is worth against one without."""
    smaller_tiles: float
    """What smaller last tiles cost beside their work, as a factor: more code, and masked results."""
    near_share: float
    """L1 share that weights may take to count as staying there."""
    rows_for_copy: int
    """Rows that make up for copying the columns which they all meet."""
    most_unrolled: int
    """Multiply-adds of an unrolled body: longer ones only fill the instruction cache."""
    row_registers: int
    """Registers for values of rows, at most one for each, beside a tile and its column vectors: larger tiles spill."""
    biased_steps: int
    """Steps of a reduction, at most, whose sums begin at the bias: at the end of longer ones adding it is nothing."""


@dataclass(frozen=True, slots=True)
class Product:
    """How matrix products and convolutions are cut into tiles, panels and blocks."""

    few_rows: int
    """Rows below which reading weights is all the work."""
    many_rows: int
    """Rows from which on arithmetic hides that each weight comes from afar once in a run of the model."""
    narrow_line: int
    """Pixels of a line up to which lines share a tile with others."""
    tiles_per_core: int
    """Tiles that each core has at least."""
    tiles_shared_evenly: int
    """Tiles for each core from which on they are shared evenly enough."""
    little_idle: float
    """The idle factor, against the best sharing, that is tried first."""
    most_idle: float
    """The idle factor that is tried next."""
    least_vectors: int
    """Vectors of sums across a tile below which they wait for each other."""
    least_row_tiles: int
    """Tiles of rows that meet a panel of weights before the next one, at least."""
    rows_share: float
    """L2 share for the rows of a block and a panel of weights."""
    weights_share: float
    """L2 share that weights may take to count as staying there."""
    large_rows_share: float
    """L2 share from which on rows are so large that weights may take more."""
    most_weights_share: float
    """L2 share that weights may take then."""


@dataclass(frozen=True, slots=True)
class SplitK:
    """Sums that are cut into parts along the reduction."""

    operands_share: float
    """L2 share for the rows and a panel of weights, both of a part of the sum."""
    least_depth: int
    """Steps of a part: sums are read and written once for each part."""
    least_row_tiles: int
    """Tiles of rows that make use of a panel of weights; fewer wait for the weights anyway."""
    alias_bytes: int
    """Rows at a multiple of this from each other fall on the same places of the first cache level,"""
    most_aliased_rows: int
    """which has room for so many of them beside the weights."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Weights that meet few rows: several places of a panel are read in turn."""

    count: int
    """Streams that a core reads weights from memory by, at most: prefetchers of x86 end at a page."""
    least_bytes: int
    """What a stream reads of a panel at least: prefetchers take some lines to notice one."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Memory that is asked for ahead of its use."""

    operands_share: float
    """L2 share that the rows, the panel in use and the one being fetched may fill together."""
    results_share: float
    """L2 share from which on results are too large to stay there."""
    codes_ahead: int
    """Bytes between packed codes in use and those that are fetched; 1 where none need to be."""
    scales_ahead: int
    """The same of the scales of their groups."""
    weights_ahead: int
    """Bytes between weights in use and those fetched to the first cache level from the second; 1 is none."""


@dataclass(frozen=True, slots=True)
class Winograd:
    """When and how 3 x 3 convolutions are computed by Winograd's algorithm."""

    least_gain: float
    """How much better than the direct computation an estimate must be: it is no more precise than that itself."""
    weights_exponent: float
    """How much fewer cycles larger weights are worth: 2.25 times as many (tiles of 4 instead of 2) must save 15 %."""
    least_channels: int
    """Channels below which the transforms have nothing to be shared by."""
    group_share: float
    """L2 share that the transformed input of a group of tiles may fill, or the weights."""
    small_group_share: float
    """The same for groups that would otherwise have fewer tiles than hide the reading of weights from farther away."""
    few_tiles: int
    """How many tiles these are."""
    most_idle: float
    """The idle factor from which on cores share each group instead."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """Layouts and forms of convolutions."""

    most_filled: float
    """How much more than all pixels whole vectors of them may be, for a 1 x 1 convolution of planes as a product."""
    most_planar_taps: int
    """Taps of a depthwise convolution of planes: each is a load, which channels last have many of in one register."""
    most_joined_groups: int
    """Groups that may become one: as many times more multiplications, about what gathering costs."""
    phases_least_gain: float
    """How many fewer vector products the convolution of all phases of a transposed one must have, whose results are
    moved once more."""
    separable_results_share: float
    """L2 share that results between a depthwise and a 1 x 1 convolution take at least for both to be one kernel."""
    separable_weights_share: float
    """L2 share that the weights of such a kernel take at most."""
    separable_lines: int
    """Rows of results that such a kernel works on together, where windows of them are one tile."""
    expanded_share: float
    """L1 share that one vector of channels of such results may take, for the 1 x 1 convolution that comes first and
    the depthwise one to be one kernel."""
    expanded_strided_share: float
    """The same for a depthwise convolution with strides, of which reading is most of the work."""
    strip_share: float
    """L2 share that a panel of channels of such results may take: larger images are worked on in strips of lines."""
    least_copied_channels: int
    """Channels of an image from which on it is copied with a border: of fewer, tiles at the border test for it."""
    sums_share: float
    """L1 share that the sums of one panel of channels may take, where taps are streamed."""
    tap_weights_share: float
    """L1 share of the weights of a tap."""
    panels_most_idle: float
    """The idle factor of panels from which on cores divide the image instead."""


@dataclass(frozen=True, slots=True)
class Depthwise:
    """Depthwise convolutions."""

    most_unrolled_taps: int
    """Taps of a window that is unrolled."""
    most_lines: int
    """Lines of an image that are computed together."""
    reloaded: int
    """Elements of windows that may be loaded again for lack of registers."""
    most_empty: float
    """How much more than all pixels tiles may cover."""
    channels_share: float
    """L1 share for the channels of a tile. Those of neighbouring pixels are often a power of two apart and share few
    places of that level."""
    crowded_share: float
    """L1 share from which on they do not stay there."""
    image_share: float
    """L2 share that an image and its results may take to be read channels by channels."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention as one kernel."""

    scores_share: float
    """L1 share for the scores of a block of queries and their exponentials."""
    most_queries: int
    """Queries of a block."""


@dataclass(frozen=True, slots=True)
class DotProduct:
    """Products of bytes by dot-product instructions."""

    weights_share: float
    """L2 share that weights may take to count as staying there."""
    fetched_share: float
    """L2 share from which on the next panel of weights is fetched while one is used."""
    most_vectors: int
    """Vectors across a tile."""
    in_flight: int
    """Dot products that a core starts before the first is done."""
    load_time: float
    """What a load of a tile adds to its time, in dot products: little where both run side by side."""
    far_vector: float
    """Dot products that take as long as a vector of weights takes to come from the second cache level."""
    panel_share: float
    """L1 share up to which a panel of weights stays there while all rows pass."""
    image_share: float
    """L2 share of rows that pass once for each panel."""
    scattered_byte: float
    """Bytes from the second cache level that take as long as one of results that are written in pieces of rows."""
    scattered_share: float
    """L2 share up to which weights stay there where results in pieces of rows would cost more."""
    partial_tile: float
    """What a loop with a partial last tile of rows is worth against one without."""
    results_apart: float
    """What a tile is worth whose results are stored half as many at a time as those of another."""


@dataclass(frozen=True, slots=True)
class Amx:
    """Products by the matrix tiles of x86."""

    least_rows: int
    """Rows of tiles below which these are no faster than vectors."""
    least_step_bytes: int
    """The same for bytes of a step of the reduction."""
    weights_share: float
    """L2 share of weights that stay there."""
    sweep_share: float
    """L1 share from which on a block's operands drive each other out of it."""
    runs_per_core: int
    """Runs of blocks for each core, where they divide so."""
    most_idle: float
    """The idle factor that longer runs are worth."""


@dataclass(frozen=True, slots=True)
class Half:
    """Products of half precision."""

    winograd_least_gain: float
    """How much better than products of halves the estimate of Winograd's algorithm in float32 must be."""
    weights_share: float
    """L2 share that weights may take to count as staying there."""
    rows_share: float
    """L2 share for the rows of a block."""


@dataclass(frozen=True, slots=True)
class CpuParameters:
    """All parameters of a family of CPUs."""

    core: Core
    parallel: Parallel
    register_tile: TileCosts
    product: Product
    split_k: SplitK
    streams: Streams
    prefetch: Prefetch
    winograd: Winograd
    convolution: Convolution
    depthwise: Depthwise
    attention: Attention
    dot_product: DotProduct
    half: Half
    amx: Amx
