"""Random tensor programs and random schedules of them, as lines of Python.

A case is text: lines that make tensors and lines that schedule. So it prints as a script that anybody can run, and
shrinks by leaving lines out.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

Shape = tuple[int, ...]


@dataclass
class Stage:
    """A tensor of the program under construction."""

    name: str
    shape: Shape
    dtype: str


_DIMS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13)


class ProgramWriter:
    """Writes the lines of one random program."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lines: list[str] = []
        self.stages: list[Stage] = []
        self.inputs: list[Stage] = []
        self._count = 0

    def write(self) -> list[str]:
        """The lines of a program; the last one makes `func`."""
        random = self.random
        dtype = random.choice(["int32", "int32", "int32", "float32", "int8"])
        self.input(self.shape(), dtype)
        for _ in range(random.choice([1, 1, 2, 2, 3, 4])):
            source = random.choice(self.stages[-2:])
            random.choice(self.kinds(source))(source)
        if "te.sum" in self.lines[-1] and random.random() < 0.5:
            self.biased(self.stages[-1])
        outputs = [self.stages[-1]]
        if len(self.stages) > 2 and random.random() < 0.15 and self.stages[-2] not in self.inputs:
            outputs.insert(0, self.stages[-2])
        names = [stage.name for stage in (*self.inputs, *outputs)]
        self.lines.append(f"func = te.create_prim_func([{', '.join(dict.fromkeys(names))}])")
        return self.lines

    def kinds(self, source: Stage) -> list:
        """The stages that can follow one."""
        rank = len(source.shape)
        kinds = [self.elementwise, self.elementwise, self.join, self.broadcast, self.pad, self.stencil, self.gather]
        kinds += [self.reduce, self.window, self.reshape, self.strided, self.choose, self.view]
        if rank == 2:
            kinds += [self.transpose, self.matmul, self.matmul, self.scan_like]
        if rank == 3:
            kinds += [self.convolution, self.convolution]
        if source.dtype != "int8":
            kinds += [self.argmax]
        return kinds

    def shape(self) -> Shape:
        """A random small shape: primes, ones and, now and then, nothing at all."""
        rank = self.random.choice([1, 2, 2, 2, 3])
        dims = [self.random.choice(_DIMS if rank < 3 else _DIMS[:7]) for _ in range(rank)]
        if self.random.random() < 0.02:
            dims[0] = 0
        return tuple(dims)

    def fresh(self, prefix: str = "S") -> str:
        """A new name."""
        self._count += 1
        return f"{prefix}{self._count}"

    def input(self, shape: Shape, dtype: str, prefix: str = "A") -> Stage:
        """A placeholder."""
        name = self.fresh(prefix)
        self.lines.append(f"{name} = te.placeholder({shape}, {dtype!r}, name={name!r})")
        stage = Stage(name, shape, dtype)
        self.inputs.append(stage)
        if prefix == "A":
            self.stages.append(stage)
        return stage

    def compute(self, shape: Shape, arguments: str, body: str, dtype: str) -> None:
        """A te.compute line."""
        name = self.fresh()
        self.lines.append(f"{name} = te.compute({shape}, lambda {arguments}: {body}, name={name!r})")
        self.stages.append(Stage(name, shape, dtype))

    def axes(self, rank: int) -> list[str]:
        """Index names."""
        return ["i", "j", "h", "w", "u", "v"][:rank]

    def number(self, dtype: str) -> str:
        """A constant of a type."""
        value = self.random.choice([-3, -2, -1, 1, 2, 3])
        return f"te.const({value}, {dtype!r})"

    # ------------------------------------------------------------ stages

    def elementwise(self, source: Stage) -> None:
        axes = ", ".join(self.axes(len(source.shape)))
        read = f"{source.name}[{axes}]"
        one, other = self.number(source.dtype), self.number(source.dtype)
        body = self.random.choice(
            [
                f"{read} + {one}",
                f"{read} * {one} - {other}",
                f"te.maximum({read}, {one})",
                f"te.select({read} > {one}, {read}, {other})",
                f"te.minimum(te.maximum({read}, {self.number(source.dtype)}), te.const(5, {source.dtype!r}))",
            ]
        )
        self.compute(source.shape, axes, body, source.dtype)

    def join(self, source: Stage) -> None:
        same = [s for s in self.stages if s.shape == source.shape and s.dtype == source.dtype]
        other = self.random.choice(same)
        axes = ", ".join(self.axes(len(source.shape)))
        self.compute(source.shape, axes, f"{source.name}[{axes}] - {other.name}[{axes}] * 2", source.dtype)

    def biased(self, source: Stage) -> None:
        """An addend, of its own or an earlier stage's, as the epilogue of a sum has it."""
        axes = self.axes(len(source.shape))
        plain = ", ".join(axes)
        same = [s for s in self.stages[:-1] if s.shape == source.shape and s.dtype == source.dtype]
        if same and self.random.random() < 0.5:
            addend = f"{self.random.choice(same).name}[{plain}]"
        else:
            addend = f"{self.input(source.shape[-1:], source.dtype, 'B').name}[{axes[-1]}]"
        total = f"{addend} + {source.name}[{plain}]"
        body = self.random.choice([total, f"te.maximum({total}, {self.number(source.dtype)})", f"{total} - {addend}"])
        self.compute(source.shape, plain, body, source.dtype)

    def broadcast(self, source: Stage) -> None:
        if len(source.shape) > 2:
            return self.elementwise(source)
        extent = self.random.choice(_DIMS[:6])
        place = self.random.randrange(len(source.shape) + 1)
        shape = (*source.shape[:place], extent, *source.shape[place:])
        axes = self.axes(len(shape))
        kept = ", ".join(axis for n, axis in enumerate(axes) if n != place)
        bias = self.input((extent,), source.dtype, "B")
        self.compute(shape, ", ".join(axes), f"{source.name}[{kept}] + {bias.name}[{axes[place]}]", source.dtype)
        return None

    def pad(self, source: Stage) -> None:
        axes = self.axes(len(source.shape))
        low, high = self.random.randint(0, 2), self.random.randint(0, 2)
        place = self.random.randrange(len(axes))
        shape = list(source.shape)
        shape[place] += low + high
        axis = axes[place]
        moved = ", ".join(f"{axis} - {low}" if n == place else name for n, name in enumerate(axes))
        inside = f"te.all_of([{axis} >= {low}, {axis} < {source.shape[place] + low}])"
        body = f"te.select({inside}, {source.name}[{moved}], {self.number(source.dtype)})"
        self.compute(tuple(shape), ", ".join(axes), body, source.dtype)

    def stencil(self, source: Stage) -> None:
        place = self.random.randrange(len(source.shape))
        step = self.random.randint(1, 2)
        if source.shape[place] <= step:
            return self.elementwise(source)
        axes = self.axes(len(source.shape))
        shape = list(source.shape)
        shape[place] -= step
        moved = ", ".join(f"{name} + {step}" if n == place else name for n, name in enumerate(axes))
        plain = ", ".join(axes)
        self.compute(tuple(shape), plain, f"{source.name}[{plain}] + {source.name}[{moved}]", source.dtype)
        return None

    def strided(self, source: Stage) -> None:
        place = self.random.randrange(len(source.shape))
        if source.shape[place] < 3:
            return self.elementwise(source)
        axes = self.axes(len(source.shape))
        shape = list(source.shape)
        shape[place] = (shape[place] - 1) // 2
        moved = ", ".join(f"{name} * 2 + 1" if n == place else name for n, name in enumerate(axes))
        self.compute(tuple(shape), ", ".join(axes), f"{source.name}[{moved}] - 1", source.dtype)
        return None

    def gather(self, source: Stage) -> None:
        place = self.random.randrange(len(source.shape))
        if source.shape[place] == 0:
            return self.elementwise(source)
        extent = self.random.choice(_DIMS[:7])
        indices = self.input((extent,), "int32", f"I{source.shape[place]}_")
        shape = list(source.shape)
        shape[place] = extent
        axes = self.axes(len(shape))
        read = ", ".join(f"{indices.name}[{name}]" if n == place else name for n, name in enumerate(axes))
        self.compute(tuple(shape), ", ".join(axes), f"{source.name}[{read}] + 1", source.dtype)
        return None

    def choose(self, source: Stage) -> None:
        axes = self.axes(len(source.shape))
        plain = ", ".join(axes)
        axis = self.random.choice(axes)
        body = f"te.select(({axis} % 3).eq(1), {source.name}[{plain}], {self.number(source.dtype)})"
        self.compute(source.shape, plain, body, source.dtype)

    def reshape(self, source: Stage) -> None:
        axes = self.axes(len(source.shape))
        if len(axes) == 1:
            width = self.random.choice([2, 3])
            shape = ((source.shape[0] + width - 1) // width, width)
            inside = f"i * {width} + j < {source.shape[0]}"
            body = f"te.select({inside}, {source.name}[i * {width} + j], {self.number(source.dtype)})"
            self.compute(shape, "i, j", body, source.dtype)
            return
        width = source.shape[1]
        if width == 0:
            return
        rest = ", ".join(axes[2:])
        read = f"{source.name}[i // {width}, i % {width}{', ' + rest if rest else ''}]"
        shape = (source.shape[0] * width, *source.shape[2:])
        self.compute(shape, ", ".join(["i", *axes[2:]]), f"{read} + 1", source.dtype)

    def view(self, source: Stage) -> None:
        """Elements one to one: an axis backwards, a part of it, or taken apart (NCHW -> NCHWc)."""
        axes = self.axes(len(source.shape))
        place = self.random.randrange(len(axes))
        size, axis = source.shape[place], axes[place]
        shape, arguments, read = list(source.shape), list(axes), list(axes)
        kind = self.random.choice(["backwards", "part", "tiles"])
        if kind == "backwards":
            read[place] = f"{size - 1} - {axis}"
        elif kind == "part" and size > 2:
            shape[place], read[place] = size - 2, f"{axis} + 1"
        elif kind == "tiles" and size and size % 2 == 0:
            shape[place], read[place] = size // 2, f"{axis} * 2 + c"
            shape.append(2)
            arguments.append("c")
        body = f"{source.name}[{', '.join(read)}] + {self.number(source.dtype)}"
        self.compute(tuple(shape), ", ".join(arguments), body, source.dtype)

    def transpose(self, source: Stage) -> None:
        self.compute(source.shape[::-1], "i, j", f"{source.name}[j, i] + 1", source.dtype)

    def reduce(self, source: Stage) -> None:
        place = self.random.randrange(len(source.shape))
        if source.shape[place] == 0:
            return self.elementwise(source)
        k = self.fresh("k")
        self.lines.append(f"{k} = te.reduce_axis((0, {source.shape[place]}), name={k!r})")
        shape = (*source.shape[:place], *source.shape[place + 1 :])
        axes = self.axes(len(shape))
        read = ", ".join([*axes[:place], k, *axes[place:]])
        reducer = self.random.choice(["sum", "sum", "max", "min"])
        shape, arguments = (shape, ", ".join(axes)) if shape else ((1,), "i")
        self.compute(shape, arguments, f"te.{reducer}({source.name}[{read}], axis={k})", source.dtype)
        return None

    def argmax(self, source: Stage) -> None:
        if len(source.shape) != 2 or source.shape[1] == 0:
            return self.elementwise(source)
        k, name = self.fresh("k"), self.fresh()
        self.lines.append(f"{k} = te.reduce_axis((0, {source.shape[1]}), name={k!r})")
        pair = f"({k}.var, {source.name}[i, {k}])"
        self.lines.append(
            f"{name}, {name}v = te.compute_many(({source.shape[0]},), lambda i: te.argmax({pair}, axis={k}), "
            f"name={name!r})"
        )
        self.stages.append(Stage(name, (source.shape[0],), "int64"))
        return None

    def window(self, source: Stage) -> None:
        place = self.random.randrange(len(source.shape))
        size, step = self.random.randint(2, 3), self.random.randint(1, 2)
        if source.shape[place] < size:
            return self.elementwise(source)
        k = self.fresh("k")
        self.lines.append(f"{k} = te.reduce_axis((0, {size}), name={k!r})")
        shape = list(source.shape)
        shape[place] = (shape[place] - size) // step + 1
        axes = self.axes(len(shape))
        read = ", ".join(f"{name} * {step} + {k}" if n == place else name for n, name in enumerate(axes))
        reducer = self.random.choice(["sum", "max"])
        self.compute(tuple(shape), ", ".join(axes), f"te.{reducer}({source.name}[{read}], axis={k})", source.dtype)
        return None

    def matmul(self, source: Stage) -> None:
        if source.shape[1] == 0:
            return self.elementwise(source)
        columns = self.random.choice(_DIMS)
        other = self.input((source.shape[1], columns), source.dtype, "B")
        k = self.fresh("k")
        self.lines.append(f"{k} = te.reduce_axis((0, {source.shape[1]}), name={k!r})")
        body = f"te.sum({source.name}[i, {k}] * {other.name}[{k}, j], axis={k})"
        self.compute((source.shape[0], columns), "i, j", body, source.dtype)
        return None

    def scan_like(self, source: Stage) -> None:
        """Row sums taken away from the rows: a reduction and a broadcast of it."""
        self.reduce(Stage(source.name, source.shape, source.dtype))
        total = self.stages[-1]
        if total.shape == source.shape[:1]:
            body = f"{source.name}[i, j] - {total.name}[i]"
        elif total.shape == source.shape[1:]:
            body = f"{source.name}[i, j] - {total.name}[j]"
        else:
            return
        self.compute(source.shape, "i, j", body, source.dtype)

    def convolution(self, source: Stage) -> None:
        channels, height, width = source.shape
        size = self.random.choice([1, 2, 3])
        stride, dilation = self.random.choice([1, 1, 2]), self.random.choice([1, 1, 2])
        reach = (size - 1) * dilation + 1
        if channels == 0 or height < reach or width < reach:
            return self.elementwise(source)
        filters = self.random.choice([1, 2, 3, 4])
        weight = self.input((filters, channels, size, size), source.dtype, "B")
        names = [self.fresh("k") for _ in range(3)]
        for name, extent in zip(names, (channels, size, size), strict=True):
            self.lines.append(f"{name} = te.reduce_axis((0, {extent}), name={name!r})")
        c, r, q = names
        read = f"{source.name}[{c}, h * {stride} + {r} * {dilation}, w * {stride} + {q} * {dilation}]"
        body = f"te.sum({read} * {weight.name}[f, {c}, {r}, {q}], axis=[{c}, {r}, {q}])"
        shape = (filters, (height - reach) // stride + 1, (width - reach) // stride + 1)
        self.compute(shape, "f, h, w", body, source.dtype)
        return None


_WEIGHTS = {
    "split": 5, "fuse": 3, "reorder": 4, "tile": 1, "compute_at": 6, "reverse_compute_at": 4, "compute_inline": 2,
    "reverse_compute_inline": 2, "cache_read": 2, "cache_write": 2, "set_scope": 1, "decompose_reduction": 2,
    "rfactor": 3, "parallel": 2, "vectorize": 3, "unroll": 2, "transform_layout": 2, "add_unit_loop": 1, "blockize": 1,
    "bind": 2, "merge": 2, "partition": 2, "storage_align": 1, "reindex": 2, "pad_einsum": 1, "decompose_padding": 2,
    "software_pipeline": 2, "double_buffer": 2, "compute_at_location": 2, "zigzag": 2, "over_compute": 2,
    "start_at_addend": 2, "read_at": 3, "write_at": 3, "rolling_buffer": 4, "transform_block_layout": 2,
    "reorder_block_iter_var": 1, "fuse_reduction_epilogue": 4, "cache_index": 2,
    "reindex_cache_read": 2, "reindex_cache_write": 1,
}  # fmt: skip


def _block_map(random: Random, rank: int) -> str:
    """The text of a map of a block's iterators: permuted, one divided or two fused."""
    parts = [f"i{n}" for n in random.sample(range(rank), rank)]
    chosen = random.randrange(rank)
    how = random.randrange(3)
    if how == 0:
        factor = random.choice([2, 3, 4])
        parts[chosen : chosen + 1] = [f"{parts[chosen]} // {factor}", f"{parts[chosen]} % {factor}"]
    elif how == 1 and chosen + 1 < rank:
        parts[chosen : chosen + 2] = [f"{parts[chosen]} * {random.choice([2, 3, 4, 5, 8])} + {parts[chosen + 1]}"]
    return ", ".join(parts)


def random_step(random: Random, blocks: dict[str, int], loops: int) -> str:
    """A line that applies a random primitive; `blocks` are the blocks and how many loops each has, `loops` all."""
    kind = random.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))[0]
    name = random.choice(list(blocks))
    count = max(blocks[name], 1)

    def loop() -> str:
        return f"loops({name!r})[{random.randrange(count)}]"

    block = f"block({name!r})"
    factors = random.choice("[None, 2];[None, 3];[None, 4];[2, None];[None, 2, 2];[None, 5];[3, None]".split(";"))
    scope = random.choice(["local", "global", "cache"])
    if kind in ("compute_at", "reverse_compute_at"):
        other = random.choice(list(blocks))
        place = f"loops({other!r})[{random.randrange(max(blocks[other], 1))}]"
        units = ", preserve_unit_loops=True" if random.random() < 0.3 else ""
        where = f", index={random.choice([-2, -1, 0, 1, 2])}" if random.random() < 0.3 else ""
        return f"sch.{kind}({block}, {place}{units}{where})"
    if kind in ("compute_inline", "reverse_compute_inline", "start_at_addend"):
        return f"sch.{kind}({block})"
    if kind == "cache_write" and random.random() < 0.2:
        return f"sch.cache_write({block}, [0, 1], {scope!r})"
    if kind in ("reindex_cache_read", "reindex_cache_write"):
        order = random.sample(range(count), random.randint(1, count))
        text = ", ".join([f"i{n}" for n in order] if random.random() < 0.5 else [f"i{n} // 2, i{n} % 2" for n in order])
        return f"sch.{kind}({block}, {random.randrange(2)}, {scope!r}, {text!r})"
    if kind in ("read_at", "write_at"):
        return f"sch.{kind}({loop()}, {block}, {random.randrange(2)}, {scope!r})"
    if kind == "rolling_buffer":
        other = random.choice(list(blocks))
        return f"roll({name!r}, loops({other!r})[{random.randrange(max(blocks[other], 1))}])"
    if kind == "cache_index":
        return f"sch.cache_index({block}, {scope!r})"
    if kind == "fuse_reduction_epilogue":
        return f"finish({name!r})"
    if kind == "reorder_block_iter_var":
        return f"sch.reorder_block_iter_var({block}, {random.sample(range(count), count)})"
    if kind == "transform_block_layout":
        return f"sch.transform_block_layout({block}, {_block_map(random, count)!r})"
    if kind in ("cache_read", "cache_write", "set_scope"):
        return f"sch.{kind}({block}, {random.randrange(2)}, {scope!r})"
    if kind == "split":
        return f"sch.split({loop()}, {factors})"
    if kind == "fuse":
        start = random.randrange(count)
        return f"sch.fuse(*loops({name!r})[{start}:{start + random.randint(2, 3)}])"
    if kind == "reorder":
        order = random.sample(range(count), min(count, random.randint(2, 4)))
        return f"sch.reorder(*[loops({name!r})[n] for n in {order}])"
    if kind == "tile":
        return f"sch.tile(*loops({name!r})[:2], {random.randint(2, 4)}, {random.randint(2, 4)})"
    if kind == "decompose_reduction":
        return f"sch.decompose_reduction({block}, {loop()})"
    if kind == "rfactor":
        return f"sch.rfactor({loop()}, {random.randint(0, 1)})"
    if kind == "merge":
        other = random.choice(list(blocks))
        return f"sch.merge({loop()}, loops({other!r})[{random.randrange(max(blocks[other], 1))}])"
    if kind == "partition":
        points = sorted(random.sample(range(1, 9), random.randint(1, 2)))
        return f"sch.partition({loop()}, {points})"
    if kind == "storage_align":
        return (
            f"sch.storage_align({block}, 0, {random.randrange(2)}, {random.choice([4, 8, 3])}, {random.randrange(3)})"
        )
    if kind == "reindex":
        return f"sch.reindex({block}, {random.randrange(2)}, {random.choice(['read', 'write'])!r})"
    if kind == "pad_einsum":
        return f"sch.pad_einsum({block}, {[random.choice([1, 2, 4]) for _ in range(count)]})"
    if kind == "over_compute":
        return f"sch.over_compute({block}, {random.randrange(count)}, {random.choice([2, 4, 5])})"
    if kind == "decompose_padding":
        return f"sch.decompose_padding({block}, {loop()})"
    if kind == "software_pipeline":
        stages = random.choice([[0, 1], [0, 0, 1], [0, 1, 1], [0, 1, 2], [0, 2]])
        order = f", {random.sample(range(len(stages)), len(stages))}" if random.random() < 0.5 else ""
        return f"sch.software_pipeline({loop()}, {stages}{order})"
    if kind == "double_buffer":
        return f"sch.double_buffer({block})"
    if kind == "compute_at_location":
        return f"sch.compute_at_location({block}, {random.randrange(-2, 3)})"
    if kind == "bind":
        return f"sch.bind({loop()}, 'vthread')"
    if kind == "transform_layout":
        rank = random.randint(1, 3)
        maps = {
            1: ["lambda i: (i // 3, i % 3)", "lambda i: (i % 2, i // 2)"],
            2: ["lambda i, j: (j, i)", "lambda i, j: (j // 2, i, j % 2)", "lambda i, j: (i * 16 + j,)"],
            3: ["lambda i, j, k: (k, i, j)", "lambda i, j, k: (j // 4, i, j % 4, k)"],
        }
        return f"relayout({name!r}, {random.randrange(2)}, {random.choice(maps[rank])})"
    if kind in ("add_unit_loop",):
        return f"sch.add_unit_loop({random.choice([loop(), block])})"
    return f"sch.{kind}({loop()})"
