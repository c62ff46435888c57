"""The primitives of a schedule as methods: the eager, traced transformations of one loop program.

Each method checks its arguments and its legality, changes the program at once, and records an instruction. The
methods are thin: the transformations are in the files of their families.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir.expr import PrimExpr
from tilewright.support.errors import UserError
from tilewright.tir.annotations import Annotation
from tilewright.tir.index_map import IndexMap, MapLike
from tilewright.tir.schedule import (
    addend,
    cache,
    compute_location,
    inline,
    iterators,
    layout,
    loop_kinds,
    loops,
    padded_layout,
    pipelining,
    ranges,
    reduction,
    reindexing,
    sampling,
    storage,
    symbols,
    tensorize,
)
from tilewright.tir.schedule import padding as padding_of
from tilewright.tir.schedule.access_methods import AccessMethods
from tilewright.tir.schedule.block_methods import BlockMethods
from tilewright.tir.schedule.data_methods import DataMethods
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle, SampledInt
from tilewright.tir.schedule.trace import Value
from tilewright.tir.stmt import For
from tilewright.tir.tensor_intrin import TensorIntrin, find_intrinsic


class Primitives(AccessMethods, BlockMethods, DataMethods):
    """A program and the primitives that change it."""

    # Loops

    def split(self, loop: LoopHandle, factors: Sequence[int | PrimExpr | str | None]) -> list[LoopHandle]:
        """Split a loop in nested loops of the given extents, outermost first; one factor may be None.

        for i in 100: B(i)  ->  for i_0 in 7: for i_1 in 16: B(i_0 * 16 + i_1) if i_0 * 16 + i_1 < 100

        A factor may be an expression of the function's symbols, or its text: split(i, [None, "n // 4"]).
        """
        node = self._loop(loop, "split")
        if len(factors) == 0 or list(factors).count(None) > 1:
            self._state.fail(f"split: {list(factors)} are not factors", node, "give integers; at most one may be None")
        plain: list[int | PrimExpr | None] = []
        recorded: list[object] = []
        for factor in factors:
            if isinstance(factor, (PrimExpr, str)):
                plain.append(symbols.expression(self._state, factor, node, "split"))
                recorded.append(factor if isinstance(factor, str) else symbols.text(self._state, factor, node, "split"))
                continue
            if factor is not None and (isinstance(factor, bool) or not isinstance(factor, int) or factor < 1):
                self._state.fail(f"split: {factor!r} is not a factor", node, "factors are positive integers or None")
            plain.append(None if factor is None else int(factor))
            recorded.append(factor)
        result = [LoopHandle(var) for var in loops.split(self._state, node, plain)]
        self._record("split", [loop], {"factors": recorded}, result)
        return result

    def fuse(self, *nest: LoopHandle) -> LoopHandle:
        """Make one loop of directly nested ones.

        for i in 4: for j in 8: B(i, j)  ->  for i_j in 32: B(i_j // 8, i_j % 8)

        Parallel loops make a parallel one.
        """
        nodes = self._loops(nest, "fuse")
        result = LoopHandle(loops.fuse(self._state, nodes))
        self._record("fuse", list(nest), {}, [result])
        return result

    def _loops(self, handles: Sequence[LoopHandle], what: str) -> list[For]:
        if not handles:
            raise UserError(f"{what} needs loops")
        return [self._loop(handle, what) for handle in handles]

    def reorder(self, *order: LoopHandle) -> None:
        """Put loops of one nest in the given order; they share the places they have now.

        for i: for j: for k: B  ->  reorder(k, i)  ->  for k: for j: for i: B
        """
        loops.reorder(self._state, self._loops(order, "reorder"))
        self._record("reorder", list(order))

    def add_unit_loop(self, target: LoopHandle | BlockHandle) -> LoopHandle:
        """Put a loop of one iteration around a loop or a block."""
        result = LoopHandle(loops.add_unit_loop(self._state, self._target(target, "add_unit_loop")))
        self._record("add_unit_loop", [target], {}, [result])
        return result

    def merge(self, first: LoopHandle, second: LoopHandle) -> LoopHandle:
        """Run the bodies of two neighbouring loops of the same range in one loop."""
        nodes = self._loops([first, second], "merge")
        result = LoopHandle(ranges.merge(self._state, nodes[0], nodes[1]))
        self._record("merge", [first, second], {}, [result])
        return result

    def partition(self, loop: LoopHandle, points: Sequence[int]) -> list[LoopHandle]:
        """Divide a loop's range at points: one loop for each part, in order."""
        plain = [int(point) for point in points]
        result = [LoopHandle(var) for var in ranges.partition(self._state, self._loop(loop, "partition"), plain)]
        self._record("partition", [loop], {"points": list(points)}, result)
        return result

    # How loops run

    def parallel(self, loop: LoopHandle) -> None:
        """Run the iterations of a loop on several threads."""
        loop_kinds.parallel(self._state, self._loop(loop, "parallel"))
        self._record("parallel", [loop])

    def vectorize(self, loop: LoopHandle) -> None:
        """Run the iterations of a loop as the lanes of vectors."""
        loop_kinds.vectorize(self._state, self._loop(loop, "vectorize"))
        self._record("vectorize", [loop])

    def unroll(self, loop: LoopHandle) -> None:
        """Repeat the body of a loop for each of its iterations."""
        loop_kinds.unroll(self._state, self._loop(loop, "unroll"))
        self._record("unroll", [loop])

    def zigzag(self, loop: LoopHandle) -> None:
        """Run a loop backwards in every second iteration of the loop around it: caches keep what comes first next."""
        loop_kinds.zigzag(self._state, self._loop(loop, "zigzag"))
        self._record("zigzag", [loop])

    def bind(self, loop: LoopHandle, thread: str) -> None:
        """Run the iterations of a loop along a hardware axis: `blockIdx.x`, `threadIdx.x`, ..., or `vthread`."""
        loop_kinds.bind(self._state, self._loop(loop, "bind"), thread)
        self._record("bind", [loop], {"thread": thread})

    def annotate(self, target: LoopHandle | BlockHandle, key: str | Annotation[Any], value: Value) -> None:
        """Attach a note to a loop or a block."""
        self._trace.encode(value)
        name = str(key)
        loop_kinds.annotate(self._state, self._target(target, "annotate"), name, value)
        self._record("annotate", [target], {"key": name, "value": value})

    def unannotate(self, target: LoopHandle | BlockHandle, key: str | Annotation[Any]) -> None:
        """Remove a note from a loop or a block."""
        loop_kinds.unannotate(self._state, self._target(target, "unannotate"), str(key))
        self._record("unannotate", [target], {"key": str(key)})

    # Where blocks are computed

    def compute_at(
        self, block: BlockHandle, loop: LoopHandle, preserve_unit_loops: bool = False, index: int | None = None
    ) -> None:
        """Compute a producer inside a loop of its consumers: each iteration what is read there.

        `index` is its place among the loop's statements: -1 the last possible, -2 the first.
        """
        node, place = self._block(block, "compute_at"), self._loop(loop, "compute_at")
        compute_location.compute_at(self._state, node, place, preserve_unit_loops, index)
        self._record("compute_at", [block, loop], _with_index({"preserve_unit_loops": preserve_unit_loops}, index))

    def reverse_compute_at(
        self, block: BlockHandle, loop: LoopHandle, preserve_unit_loops: bool = False, index: int | None = None
    ) -> None:
        """Run a consumer inside a loop of its producers: each iteration what can be computed from its results.

        `index` is its place among the loop's statements: -1 the last possible, -2 the first.
        """
        node, place = self._block(block, "reverse_compute_at"), self._loop(loop, "reverse_compute_at")
        compute_location.reverse_compute_at(self._state, node, place, preserve_unit_loops, index)
        self._record(
            "reverse_compute_at", [block, loop], _with_index({"preserve_unit_loops": preserve_unit_loops}, index)
        )

    def compute_inline(self, block: BlockHandle) -> None:
        """Put a block's expression in the place of each read of its result; the block goes away."""
        inline.compute_inline(self._state, self._block(block, "compute_inline"))
        self._record("compute_inline", [block])

    def reverse_compute_inline(self, block: BlockHandle) -> None:
        """Put an elementwise consumer's computation into its producer; the consumer goes away."""
        inline.reverse_compute_inline(self._state, self._block(block, "reverse_compute_inline"))
        self._record("reverse_compute_inline", [block])

    # Memory

    def cache_read(
        self, block: BlockHandle, buffer: int | str, scope: str, consumers: Sequence[BlockHandle] = ()
    ) -> BlockHandle:
        """Copy a buffer that a block reads (and `consumers` read) to another scope first; gives the copying block."""
        node = self._block(block, "cache_read")
        readers = [self._block(handle, "cache_read") for handle in consumers]
        result = BlockHandle(cache.cache_read(self._state, node, buffer, scope, readers))
        attributes: dict[str, object] = {"buffer": buffer, "scope": scope}
        if consumers:
            attributes["consumers"] = list(consumers)
        self._record("cache_read", [block], attributes, [result])
        return result

    def cache_write(self, block: BlockHandle, buffer: int | str | Sequence[int | str], scope: str) -> BlockHandle:
        """Let a block write to another scope and copy the result out afterwards; gives the copying block.

        Several buffers (a list of them) are copied out by one block.
        """
        node = self._block(block, "cache_write")
        chosen = [buffer] if isinstance(buffer, (int, str)) else list(buffer)
        if not chosen:
            self._state.fail("cache_write: no buffer is given", node)
        result = BlockHandle(cache.cache_write(self._state, node, chosen, scope))
        self._record("cache_write", [block], {"buffer": buffer, "scope": scope}, [result])
        return result

    def set_scope(self, block: BlockHandle, buffer: int | str, scope: str) -> None:
        """Move an intermediate buffer that a block writes to another scope."""
        cache.set_scope(self._state, self._block(block, "set_scope"), buffer, scope)
        self._record("set_scope", [block], {"buffer": buffer, "scope": scope})

    def transform_layout(
        self,
        block: BlockHandle,
        buffer: int | str,
        index_map: MapLike,
        pad_value: int | float | None = None,
    ) -> None:
        """Store the elements of a buffer that a block reads or writes in another arrangement; see `layout.py`.

        `index_map` is a function of the old indices, `lambda k, n: (n // 16, k, n % 16)`. With a `pad_value`, whoever
        writes the buffer also fills what the new arrangement has and the old one had not.

        B[i] = f(i)  ->  B[n0, n1] = f(n0 * 4 + n1) if n0 * 4 + n1 < 14 else pad_value     for lambda i: (i // 4, i % 4)
        """
        node = self._block(block, "transform_layout")
        chosen = cache.pick_buffer(self._state, node, (*node.reads, *node.writes), buffer, "transform_layout")
        arrangement = IndexMap.given(index_map, chosen.ndim)
        text = arrangement.to_text()
        attributes: dict[str, object] = {"buffer": buffer, "index_map": text}
        if pad_value is None:
            layout.transform_layout(self._state, node, chosen, arrangement)
        else:
            padded_layout.transform_layout(self._state, node, chosen, arrangement, pad_value)
            attributes["pad_value"] = pad_value
        self._record("transform_layout", [block], attributes)

    def storage_align(self, block: BlockHandle, buffer: int | str, axis: int, factor: int, offset: int = 0) -> None:
        """Space out an intermediate buffer: the stride of an axis becomes `offset` more than a multiple of `factor`."""
        storage.storage_align(self._state, self._block(block, "storage_align"), buffer, axis, factor, offset)
        attributes: dict[str, object] = {"buffer": buffer, "axis": axis, "factor": factor, "offset": offset}
        self._record("storage_align", [block], attributes)

    def storage_swizzle(self, block: BlockHandle, buffer: int | str) -> None:
        """Store an intermediate buffer of shared memory so that neighbouring rows begin in different banks."""
        storage.storage_swizzle(self._state, self._block(block, "storage_swizzle"), buffer)
        self._record("storage_swizzle", [block], {"buffer": buffer})

    def reindex(self, block: BlockHandle, buffer: int | str, mode: str = "read") -> BlockHandle:
        """Give a block an operand whose indices are the block's own iterators; gives the copying block."""
        result = BlockHandle(reindexing.reindex(self._state, self._block(block, "reindex"), buffer, mode))
        self._record("reindex", [block], {"buffer": buffer, "mode": mode}, [result])
        return result

    def pad_einsum(self, block: BlockHandle, padding: Sequence[int]) -> list[BlockHandle]:
        """Make the extents of a product's iterators multiples of numbers; gives the padding blocks."""
        names = padding_of.pad_einsum(self._state, self._block(block, "pad_einsum"), [int(n) for n in padding])
        result = [BlockHandle(name) for name in names]
        self._record("pad_einsum", [block], {"padding": list(padding)}, result)
        return result

    def fuse_iterators(self, block: BlockHandle, groups: Sequence[Sequence[int]]) -> list[LoopHandle]:
        """Make one iterator (and loop) of each group of a block's iterators; gives the new loops."""
        variables = iterators.fuse_iterators(self._state, self._block(block, "fuse_iterators"), groups)
        result = [LoopHandle(var) for var in variables]
        self._record("fuse_iterators", [block], {"groups": [list(group) for group in groups]}, result)
        return result

    def over_compute(self, block: BlockHandle, axis: int, factor: int) -> None:
        """Let a block run past the end of an iterator, to a multiple of `factor`: tiles of it then need no guard."""
        padding_of.over_compute(self._state, self._block(block, "over_compute"), int(axis), int(factor))
        self._record("over_compute", [block], {"axis": int(axis), "factor": int(factor)})

    def decompose_padding(self, block: BlockHandle, loop: LoopHandle) -> BlockHandle:
        """Fill with the padding value before a loop, and let the block write the rest; gives the filling block."""
        node, place = self._block(block, "decompose_padding"), self._loop(loop, "decompose_padding")
        result = BlockHandle(padding_of.decompose_padding(self._state, node, place))
        self._record("decompose_padding", [block, loop], {}, [result])
        return result

    # Latency

    def software_pipeline(self, loop: LoopHandle, stages: Sequence[int], order: Sequence[int] | None = None) -> None:
        """Overlap the iterations of a loop: statement n of its body runs `stages[n]` iterations late, `order[n]`-th.

        for i: { load(i); use(i) }  ->  load(0); for i: { load(i + 1); use(i) }                   stages = [0, 1]
        for i: { load(i); use(i) }  ->  load(0); for i: { use(i); load(i + 1) }   and order = [1, 0]
        """
        node = self._loop(loop, "software_pipeline")
        plain = [int(stage) for stage in stages]
        places = None if order is None else [int(place) for place in order]
        pipelining.software_pipeline(self._state, node, plain, places)
        attributes: dict[str, object] = {"stages": list(stages)}
        if order is not None:
            attributes["order"] = list(order)
        self._record("software_pipeline", [loop], attributes)

    def double_buffer(self, block: BlockHandle) -> None:
        """Fill a staged buffer one iteration ahead: of the loop that its consumers share with it."""
        pipelining.double_buffer(self._state, self._block(block, "double_buffer"))
        self._record("double_buffer", [block])

    # Reductions

    def decompose_reduction(self, block: BlockHandle, loop: LoopHandle) -> BlockHandle:
        """Initialise a reduction in a block of its own before a loop; gives the init block."""
        node, place = self._block(block, "decompose_reduction"), self._loop(loop, "decompose_reduction")
        result = BlockHandle(reduction.decompose_reduction(self._state, node, place))
        self._record("decompose_reduction", [block, loop], {}, [result])
        return result

    def start_at_addend(self, block: BlockHandle) -> None:
        """Begin the sums of a reduction at what its consumer adds to them, instead of at zero.

        C[i] = 0, C[i] += A[i, k];  D[i] = C[i] + b[i]  ->  C[i] = b[i], C[i] += A[i, k];  D[i] = C[i]
        """
        addend.start_at_addend(self._state, self._block(block, "start_at_addend"))
        self._record("start_at_addend", [block])

    def skip_neutral(self, block: BlockHandle) -> None:
        """Do nothing where a reduction would combine what changes nothing; its init is in a block of its own.

        C[i] += A[i, k] if p else 0  ->  C[i] += A[i, k]  where p
        """
        reduction.skip_neutral(self._state, self._block(block, "skip_neutral"))
        self._record("skip_neutral", [block])

    def rfactor(self, loop: LoopHandle, factor_axis: int = 0) -> BlockHandle:
        """Keep a partial result for each iteration of a reduction loop; gives the block that makes them."""
        result = BlockHandle(reduction.rfactor(self._state, self._loop(loop, "rfactor"), factor_axis))
        self._record("rfactor", [loop], {"factor_axis": factor_axis}, [result])
        return result

    # Tiles as units

    def blockize(self, loop: LoopHandle) -> BlockHandle:
        """Make one block of a loop nest around one block: a tile that moves, and is tensorized, as a whole."""
        result = BlockHandle(tensorize.blockize(self._state, self._loop(loop, "blockize")))
        self._record("blockize", [loop], {}, [result])
        return result

    def tensorize(self, target: LoopHandle | BlockHandle, intrinsic: TensorIntrin | str) -> BlockHandle:
        """Let a declared intrinsic (or the one of a name) compute a loop nest or a block; gives the block."""
        chosen = chosen_intrinsic(intrinsic, "tensorize")
        node = self._target(target, "tensorize")
        result = BlockHandle(tensorize.tensorize(self._state, node, chosen))
        self._record("tensorize", [target], {"intrinsic": chosen.name}, [result])
        return result

    # Sampling

    def sample_perfect_tile(
        self, loop: LoopHandle, n: int, max_innermost: int = 16, decision: Sequence[int] | None = None
    ) -> list[SampledInt]:
        """`n` random factors of a loop's extent, the last at most `max_innermost`: arguments for split."""
        node = self._loop(loop, "sample_perfect_tile")
        if n < 1:
            self._state.fail(f"sample_perfect_tile: {n} parts", node)
        if decision is None:
            factors = sampling.perfect_tile(self._state, node, n, max_innermost, self._random)
        else:
            factors = sampling.check_perfect_tile(self._state, node, n, decision)
        result = [SampledInt(factor) for factor in factors]
        attributes: dict[str, object] = {"n": n, "max_innermost": max_innermost}
        self._record("sample_perfect_tile", [loop], attributes, result, [int(factor) for factor in factors])
        return result

    def sample_compute_location(self, block: BlockHandle, decision: int | None = None) -> SampledInt:
        """A place where a producer can be computed, for `compute_at_location`.

        -2: inlined; -1: where it is; n: the n-th loop around its first consumer. The decision is that number.
        """
        node = self._block(block, "sample_compute_location")
        locations = sampling.compute_locations(self._state, node)
        if decision is None:
            decision = self._random.choice(locations)
        elif decision not in locations:
            self._state.fail(f"sample_compute_location: block {block.name} cannot be computed at {decision}", node)
        result = SampledInt(decision)
        self._record("sample_compute_location", [block], {}, [result], decision)
        return result

    def compute_at_location(self, block: BlockHandle, location: int) -> None:
        """Compute a producer at a sampled location (see `sample_compute_location`)."""
        node = self._block(block, "compute_at_location")
        sampling.move(self._state, node, int(location))
        self._record("compute_at_location", [block], {"location": location})

    def sample_categorical(
        self, candidates: Sequence[int], probs: Sequence[float], decision: int | None = None
    ) -> SampledInt:
        """One of the candidates, drawn with the given probabilities. The decision is its place."""
        if decision is None:
            decision = sampling.categorical(self._state, len(candidates), probs, self._random)
        elif not 0 <= decision < len(candidates):
            self._state.fail(f"sample_categorical: the decision {decision} is not one of {len(candidates)} candidates")
        result = SampledInt(candidates[decision])
        attributes: dict[str, object] = {"candidates": list(candidates), "probs": list(probs)}
        self._record("sample_categorical", [], attributes, [result], decision)
        return result


def _with_index(attributes: dict[str, object], index: int | None) -> dict[str, object]:
    """The attributes of a move; a place that was not asked for is not recorded."""
    return attributes if index is None else {**attributes, "index": index}


def chosen_intrinsic(given: TensorIntrin | str, what: str) -> TensorIntrin:
    """A declared intrinsic, or the one of a name."""
    chosen = find_intrinsic(given) if isinstance(given, str) else given
    if not isinstance(chosen, TensorIntrin):
        raise UserError(f"{what}: {given!r} is not a tensor intrinsic", hint="declare one with te.decl_tensor_intrin")
    return chosen
