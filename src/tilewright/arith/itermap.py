"""Iterator maps: whether index expressions split and fuse loop variables without loss or overlap.

A map such as (i, j) -> (i*8 + j)//4, (i*8 + j)%4 is brought to a normal form: each index is a sum of `IterSplit`s, the
digits (source // lower_factor) % extent * scale of a source, which is a loop variable or a fusion of other digits.
When every digit of every source is used exactly once, different loop iterations give different indices (injective);
when each index also runs over all integers of its range, the map is a bijection onto a box and has an inverse.

    detect_iter_map([(i*8 + j)//4, (i*8 + j)%4], {i: [0, 6), j: [0, 8)})
        ->  [i*2 + j//4], [j % 4]           injective, ranges [0, 12), [0, 4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.iterform import IterMap, IterMark, IterSplit, IterSum, Size, collect_sources
from tilewright.arith.itermap_detect import IterMapDetector
from tilewright.ir import build
from tilewright.ir.expr import TRUE, ZERO, PrimExpr, Range, Var

__all__ = [
    "IterMap",
    "IterMark",
    "IterSplit",
    "IterSum",
    "Size",
    "detect_iter_map",
    "inverse",
    "is_bijective",
]


def detect_iter_map(
    exprs: Sequence[PrimExpr],
    domains: Mapping[Var, Range],
    predicate: PrimExpr = TRUE,
    analyzer: Analyzer | None = None,
) -> IterMap | None:
    """The normal form of a map of the iterations where the predicate holds, or None if it is not a split/fuse map.

    The analyzer, if given, knows about the other variables (symbolic extents).
    """
    analyzer = analyzer or Analyzer()
    with analyzer.scope():
        for var, value in domains.items():
            analyzer.bind(var, value)
        # Simplification may hide a fusion ((i*8 + j) % 3 becomes (i*2 + j) % 3) or bring one out: try both shapes.
        found = IterMapDetector(domains, analyzer, as_written=True).detect(exprs, predicate)
        if found is None or not found.bijective:
            other = IterMapDetector(domains, analyzer, as_written=False).detect(exprs, predicate)
            if other is not None and (found is None or other.bijective or (other.injective and not found.injective)):
                found = other
        if found is None or not found.injective:
            # Loops fused, then split at a number that shares factors with their extents: (i*64 + j)//112 and
            # (i*64 + j)%7 cut j at different places, but both cut the fusion cleanly.
            fused = IterMapDetector(domains, analyzer, as_written=True, fuse_chains=True).detect(exprs, predicate)
            if fused is not None and (found is None or fused.injective):
                found = fused
        return found


def is_bijective(
    exprs: Sequence[PrimExpr],
    domains: Mapping[Var, Range],
    predicate: PrimExpr = TRUE,
    analyzer: Analyzer | None = None,
    onto: Sequence[Range] | None = None,
) -> bool:
    """Whether a map is certainly one to one onto a box (the given one)."""
    analyzer = analyzer or Analyzer()
    found = detect_iter_map(exprs, domains, predicate, analyzer)
    ranges = None if found is None else found.ranges()
    if ranges is None:
        return False
    return onto is None or all(
        analyzer.prove_equal(got.min, wanted.min) and analyzer.prove_equal(got.extent, wanted.extent)
        for got, wanted in zip(ranges, onto, strict=True)
    )


def _digits_apart(found: IterMap) -> bool:
    """Whether a map tells iterations apart by digits each of which has a place of its own in its index."""
    for index in found.indices:
        place = 1
        for split in index.splits:
            if not isinstance(split.scale, int) or not isinstance(split.extent, int) or split.scale < place:
                return False
            if split.scale % place:
                return False
            place = split.scale * split.extent
    return found.injective


def inverse(found: IterMap, outputs: Sequence[PrimExpr], gaps: bool = False) -> dict[Var, PrimExpr] | None:
    """The loop variables as expressions of the indices (given as expressions), or None if the map has no inverse.

    With `gaps`, a map that leaves indices out has one too, where its digits do not overlap: right for the indices that
    the map gives, anything for the others.
    """
    if not (found.bijective or (gaps and _digits_apart(found))) or len(outputs) != len(found.indices):
        return None
    analyzer = Analyzer()
    values: dict[int, PrimExpr] = {}
    marks: dict[int, IterMark] = {}

    def scatter(splits: Sequence[IterSplit], total: PrimExpr) -> None:
        """Read the digits of a positional number and add them to the values of their sources."""
        for position, split in enumerate(splits):
            digit = build.floordiv(total, split.scale)
            if position + 1 < len(splits):
                digit = build.floormod(digit, split.extent)
            key = id(split.source)
            marks[key] = split.source
            values[key] = build.add(values.get(key, ZERO), build.mul(digit, split.lower_factor))

    for index, output in zip(found.indices, outputs, strict=True):
        scatter(index.splits, build.sub(output, index.base))
    result: dict[Var, PrimExpr] = {}
    done: set[int] = set()
    while len(done) < len(marks):
        inner: set[int] = set()
        for key, mark in marks.items():
            if key not in done:
                collect_sources(mark, inner)
        key = next(k for k in marks if k not in done and k not in inner)
        done.add(key)
        source = marks[key].source
        if isinstance(source, Var):
            result[source] = analyzer.simplify(build.add(values[key], found.domains[source].min))
        else:
            scatter(source.splits, values[key])
    for var, value in found.domains.items():
        result.setdefault(var, analyzer.simplify(value.min))
    return {var: result[var] for var in found.domains}
