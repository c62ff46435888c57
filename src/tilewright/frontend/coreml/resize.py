"""Operations of Core ML that resample images: resizing, cutting out boxes, reading at computed places."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.resampling import number, scaled_size, weighted_taps
from tilewright.frontend.core.sampling import gather_taps, linear_taps, sample_grid
from tilewright.frontend.coreml.operation import Operation, operation
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

_OPEN = {"DEFAULT": "asymmetric", "STRICT_ALIGN_CORNERS": "align_corners", "ALIGN_CORNERS": "align_corners",
         "UNALIGN_CORNERS": "half_pixel"}  # fmt: skip
"""What ONNX calls the modes, for sizes that only a run knows."""


def grid(mode: str, old: int, new: int) -> Array:
    """The places in an axis of an old size that the elements of a new one are read at."""
    steps = np.arange(new, dtype=np.float64)
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if new == 1:
            places = np.array([(old - 1) / 2 if mode == "ALIGN_CORNERS" else 0.0])
        else:
            places = steps * (old - 1) / (new - 1)
    elif mode == "DEFAULT":
        places = steps * old / new
    elif mode == "OFFSET_CORNERS":
        places = (steps + 0.5) * max(1, old - 1) / new
    elif mode == "UNALIGN_CORNERS":
        places = (steps + 0.5) * old / new - 0.5
    else:
        raise UserError(f"the sampling mode {mode!r} is not known")
    result: Array = np.clip(places, 0, old - 1)
    return result


def resized(op: Operation, x: GraphExpr, sizes: dict[int, Size], mode: str, linear: bool) -> GraphExpr:
    """Axes of an image in other sizes."""
    if all(isinstance(sizes_of(x)[axis], int) and isinstance(size, int) for axis, size in sizes.items()):
        for axis, size in sizes.items():
            assert isinstance(size, int)
            if size < 1:
                raise UserError(f"an image cannot be resized to {size}")
            places = grid(mode, size_at(x, axis), size)
            low = np.floor(places)
            if not linear:
                x = weighted_taps(op.builder, x, axis, low.astype(np.int64)[:, None], np.ones((size, 1)))
                continue
            taps = np.stack([low, np.minimum(low + 1, size_at(x, axis) - 1)], axis=1).astype(np.int64)
            x = weighted_taps(op.builder, x, axis, taps, np.stack([1 - (places - low), places - low], axis=1))
        return x
    if mode not in _OPEN:
        raise UnsupportedError(f"the sampling mode {mode} with sizes that only a run knows")
    target = [sizes.get(axis, size) for axis, size in enumerate(sizes_of(x))]
    options = {"mode": "linear" if linear else "nearest", "coordinate_transformation_mode": _OPEN[mode]}
    if not linear:
        options["nearest_mode"] = "floor"
    return op.onnx("Resize", x, None, None, op.builder.shape_tensor(target), **options)


def _scaled(op: Operation) -> dict[int, Size]:
    """The last two sizes times factors, rounded down."""
    x = op.value()
    sizes: dict[int, Size] = {}
    for axis, name in ((rank_of(x) - 2, "scale_factor_height"), (rank_of(x) - 1, "scale_factor_width")):
        old, factor = sizes_of(x)[axis], op.number(name, 1)
        scaled = math.floor(old * factor) if isinstance(old, int) else scaled_size(old, factor, "float32")
        if scaled is None:
            raise UnsupportedError(f"a scale of {factor} of a size that only a run knows")
        sizes[axis] = scaled
    return sizes


def _target(op: Operation) -> dict[int, Size]:
    rank = rank_of(op.value())
    return {rank - 2: op.integer("target_size_height", 1), rank - 1: op.integer("target_size_width", 1)}


@operation("upsample_nearest_neighbor")
def upsample_nearest_neighbor(op: Operation) -> GraphExpr:
    """The nearest pixel below, scaled."""
    return resized(op, op.value(), _scaled(op), "DEFAULT", linear=False)


@operation("resize_nearest_neighbor")
def resize_nearest_neighbor(op: Operation) -> GraphExpr:
    """The nearest pixel below, in a given size."""
    return resized(op, op.value(), _target(op), "DEFAULT", linear=False)


@operation("upsample_bilinear")
def upsample_bilinear(op: Operation) -> GraphExpr:
    """Between pixels, scaled."""
    aligned = op.flag("align_corners", True)
    half = op.flag("half_pixel_centers", not aligned)
    if aligned and half:
        raise UnsupportedError("upsample_bilinear with aligned corners and half pixel centers")
    mode = "STRICT_ALIGN_CORNERS" if aligned else "UNALIGN_CORNERS" if half else "DEFAULT"
    return resized(op, op.value(), _scaled(op), mode, linear=True)


@operation("resize_bilinear")
def resize_bilinear(op: Operation) -> GraphExpr:
    """Between pixels, in a given size."""
    return resized(op, op.value(), _target(op), op.text("sampling_mode", "DEFAULT"), linear=True)


@operation("resize")
def resize(op: Operation) -> GraphExpr:
    """The last dimensions in sizes that may be computed; 0 keeps a size."""
    x, count = op.value(), op.integer("resized_dims")
    sizes = op.sizes("shape")
    if sizes is None:
        raise UnsupportedError("a size that is computed from the data", hint="convert the model with a known size")
    rank = rank_of(x)
    if not 0 < count <= min(rank, len(sizes)):
        raise UserError(f"{count} dimensions of {rank} cannot be resized to a shape of {len(sizes)}")
    target = {rank - count + at: size for at, size in enumerate(sizes[len(sizes) - count :]) if size != 0}
    linear = op.text("interpolation_mode", "LINEAR") == "LINEAR"
    return resized(op, x, target, op.text("sampling_mode", "DEFAULT"), linear)


# Places that are data


@operation("resample")
def resample(op: Operation) -> GraphExpr:
    """Pixels at coordinates (across, down)."""
    x, mode = op.value(), op.text("padding_mode")
    aligned, kind = op.flag("align_corners"), op.text("coordinates_mode")
    paddings = {"constant": "zeros", "border": "border", "reflection": "reflection", "symmetric": "reflection"}
    if mode not in paddings:
        raise UserError(f"the padding mode {mode!r} of {op.kind} is not known")
    if mode == "constant" and op.number("padding_value", 0.0) != 0:
        # A border of another value is one of 0 around what is less by that value.
        border = op.builder.constant_like(op.number("padding_value"), x)
        given = {key: value for key, value in op.arguments.items() if key not in ("x", "padding_value")}
        inner = op.apply("resample", x=op.call("subtract", x, border), padding_value=0.0, **given)
        return op.call("add", inner, border)
    # Reflection at the middles of border pixels is what aligned corners mean, at their edges what others do.
    if mode in ("reflection", "symmetric"):
        wanted = mode == "reflection"
        if kind != "unnormalized" and aligned is not wanted:
            raise UnsupportedError(f"the padding mode {mode} with align_corners {aligned}")
        aligned = wanted
    places = op.builder.cast(op.value("coordinates"), FLOAT32)
    places = _normalized(op, places, kind, aligned)
    sampling = {"bilinear": "linear", "nearest": "nearest"}.get(op.text("sampling_mode"))
    if sampling is None:
        raise UserError(f"the sampling mode {op.text('sampling_mode')!r} of {op.kind} is not known")
    return sample_grid(op.builder, x, places, sampling, paddings[mode], aligned)


def _normalized(op: Operation, places: GraphExpr, kind: str, aligned: bool) -> GraphExpr:
    """Coordinates between -1 and 1."""
    b = op.builder
    if kind == "normalized_minus_one_to_one":
        return places
    if kind == "normalized_zero_to_one":
        return b.subtract(b.multiply(places, 2.0), 1.0)
    if kind != "unnormalized":
        raise UserError(f"the coordinates mode {kind!r} is not known")
    extents = [number(b, size) for size in reversed(sizes_of(op.value())[2:])]
    extent = b.concatenate([b.reshape(item, (1,)) for item in extents], 0)
    if aligned:
        last = b.call("maximum", b.subtract(extent, 1.0), b.constant(1.0, FLOAT32))
        return b.subtract(b.divide(b.multiply(places, 2.0), last), 1.0)
    return b.subtract(b.divide(b.add(b.multiply(places, 2.0), 1.0), extent), 1.0)


@operation("affine")
def affine(op: Operation) -> GraphExpr:
    """Pixels at coordinates that a matrix makes of those of the result."""
    b = op.builder
    rows, columns = op.integer("output_height"), op.integer("output_width")
    if not op.flag("align_corners") or op.text("coordinates_mode") != "normalized_minus_one_to_one":
        raise UnsupportedError("an affine transform of other coordinates than -1 to 1 between the middles of pixels")
    across, down = np.linspace(-1, 1, columns), np.linspace(-1, 1, rows)
    points = np.stack([np.tile(across, rows), np.repeat(down, columns), np.ones(rows * columns)])
    batch = sizes_of(op.value())[0]
    matrix = b.cast(op.value("transform_matrix"), FLOAT32)
    matrix = b.reshape(b.broadcast_to(matrix, (batch, 6)), (batch, 2, 3))
    places = b.call("matmul", matrix, b.constant(points.astype(np.float32), FLOAT32))
    places = b.reshape(b.transpose(places, (0, 2, 1)), (batch, rows, columns, 2))
    return op.apply(
        "resample",
        x=op.value(),
        coordinates=places,
        sampling_mode=op.text("sampling_mode"),
        padding_mode=op.text("padding_mode"),
        padding_value=op.number("padding_value", 0.0),
        coordinates_mode="normalized_minus_one_to_one",
        align_corners=True,
    )


@operation("crop_resize")
def crop_resize(op: Operation) -> GraphExpr:
    """Boxes of images, each resized.

    Boxes (count, 4) with the numbers of their images give (count, channels, ...); regions (count, 1, 5, 1, 1) name
    their image, and regions (count, 1, 4, 1, 1) are cut out of all.
    """
    b, batch = op.builder, sizes_of(op.value())[0]
    if op.has("boxes"):
        boxes = b.cast(op.value("boxes"), FLOAT32)
        count = sizes_of(boxes)[0]
        images = op.whole("box_indices") if op.has("box_indices") else b.arange(count)
        return _crops(op, boxes, images, (count,))
    region = b.cast(op.value("roi"), FLOAT32)
    count, width = sizes_of(region)[0], size_at(region, 2)
    flat = b.reshape(region, (count, width))
    if width == 5:
        images = b.reshape(b.cast(b.slice_axis(flat, 1, 0, 1), INT64), (count,))
        return _crops(op, b.slice_axis(flat, 1, 1, 5), images, (count, 1))
    if width != 4:
        raise UserError(f"regions of {width} numbers: 4 or 5 are needed")
    repeated = b.broadcast_to(b.expand_dims(flat, (1,)), (count, batch, 4))
    images = b.broadcast_to(b.arange(batch), (count, batch))
    total = product((count, batch))
    return _crops(op, b.reshape(repeated, (total, 4)), b.reshape(images, (total,)), (count, batch))


def _crops(op: Operation, boxes: GraphExpr, images: GraphExpr, outer: tuple[Size, ...]) -> GraphExpr:
    """The crops of boxes, one image each."""
    b, x = op.builder, op.value()
    batch, channels, *extent = sizes_of(x)
    count = sizes_of(boxes)[0]
    corners = _corners(op, boxes)
    targets = (op.integer("target_height", 1), op.integer("target_width", 1))
    mode = op.text("sampling_mode", "DEFAULT")
    axes, inside = [], None
    for axis, (first, last) in enumerate(corners):
        length = extent[axis]
        scale = op.number("spatial_scale", 1.0)
        if op.flag("normalized_coordinates", False):
            reach = b.subtract(number(b, length), 1.0)
            first, last = b.multiply(first, reach), b.multiply(last, reach)
        first, last = b.multiply(first, scale), b.multiply(last, scale)
        places = _box_places(op, first, last, targets[axis], mode)
        shape = (count, targets[axis], 1) if axis == 0 else (count, 1, targets[axis])
        places = b.reshape(places, shape)
        bound = b.subtract(number(b, length), 1.0)
        within = b.call("logical_and", b.compare("greater_equal", places, 0.0), b.call("less_equal", places, bound))
        inside = within if inside is None else b.call("logical_and", inside, within)
        clamped = b.call("minimum", b.call("maximum", places, b.constant(0.0, FLOAT32)), bound)
        axes.append(linear_taps(b, clamped, length, zeros=False))
    rows = b.reshape(b.transpose(x, (0, 2, 3, 1)), (product((batch, *extent)), channels))
    start = b.reshape(b.multiply(images, b.size(product(extent))), (count, 1, 1))
    result = gather_taps(b, rows, axes, extent, start)
    assert inside is not None
    outside = b.constant_like(op.number("pad_value", 0.0), result)
    result = b.call("where", b.expand_dims(inside, (3,)), result, outside) if op.has("pad_value") else result
    turned = b.transpose(result, (0, 3, 1, 2))
    return b.cast(b.reshape(turned, (*outer, channels, *targets)), dtype_of(x))


def _corners(op: Operation, boxes: GraphExpr) -> list[tuple[GraphExpr, GraphExpr]]:
    """First and last coordinate down and across, whatever the boxes say."""
    b, mode = op.builder, op.text("box_coordinate_mode", "CORNERS_HEIGHT_FIRST")
    columns = [b.slice_axis(boxes, 1, at, at + 1) for at in range(4)]
    pairs = [(columns[0], columns[2]), (columns[1], columns[3])]
    if mode.startswith("CENTER_SIZE"):
        halves = [(middle, b.multiply(size, 0.5)) for middle, size in pairs]
        pairs = [(b.subtract(middle, half), b.add(middle, half)) for middle, half in halves]
    elif not mode.startswith("CORNERS"):
        raise UserError(f"the mode {mode!r} of boxes is not known")
    return pairs if mode.endswith("HEIGHT_FIRST") else pairs[::-1]


def _box_places(op: Operation, first: GraphExpr, last: GraphExpr, count: int, mode: str) -> GraphExpr:
    """Where a box is read along one axis: as `grid` says it for a whole image of its size."""
    b = op.builder
    steps = b.constant(np.arange(count, dtype=np.float32)[None, :], FLOAT32)
    span = b.subtract(last, first)  # one less than the size of the box
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if count == 1:
            return b.add(first, b.multiply(span, 0.5)) if mode == "ALIGN_CORNERS" else first
        return b.add(first, b.call("multiply", span, b.divide(steps, float(count - 1))))
    size = b.add(span, 1.0)
    if mode == "DEFAULT":
        offset = b.call("multiply", size, b.divide(steps, float(count)))
    elif mode == "UNALIGN_CORNERS":
        offset = b.subtract(b.call("multiply", size, b.divide(b.add(steps, 0.5), float(count))), 0.5)
    elif mode == "OFFSET_CORNERS":
        reach = b.call("maximum", span, b.constant(1.0, FLOAT32))
        offset = b.call("multiply", reach, b.divide(b.add(steps, 0.5), float(count)))
    else:
        raise UserError(f"the sampling mode {mode!r} is not known")
    return b.call("minimum", b.call("add", first, offset), last)
