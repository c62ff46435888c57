"""The libraries that examples and tests of the bindings open: `python bindings/models.py FOLDER [NAME ...]`.

    digits      any number of images of 7 x 5 points to the probabilities of ten digits, and the likeliest one
    rows        rows of a table by their numbers; the numbers are checked while it runs
    join        two arrays of n and m rows to one of n + m, the first scaled by n numbers
    loop        a program of the virtual machine, which only Python runs
    device      one image, with kernels that run on a device (OpenCL)
    device_open the same for any number of images, which only Python runs on devices
    functions   compiled functions, no model

Without names it writes all, and `damaged/`: libraries that no loader may take.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import te
from tilewright.runtime.core.module import Module

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
OPENCL = "opencl -arch=generic -max-threads=256 -shared-bytes=32768"
"""A device that is named need not be here to export for it."""

_FONT = """
.###. ..#.. .###. .###. ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# #...# ..##. #.... .#... ....# #...# #...#
#..## ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ..##. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# .#... #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .##..
"""


def glyphs() -> np.ndarray:
    """The ten digits as images of 0 and 1."""
    rows = [line.split() for line in _FONT.split("\n") if line]
    return np.array([[[mark == "#" for mark in row[digit]] for row in rows] for digit in range(10)], np.float32)


def _model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, tuple[int, Sequence[int | str]]],
    weights: Mapping[str, np.ndarray] | None = None,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    serialized: bytes = model.SerializeToString()
    return serialized


def _digits(batch: int | str) -> bytes:
    """A linear classifier whose weights are the digits themselves: one for a point that is set, minus one for a gap."""
    signs = 2 * glyphs().reshape(10, -1) - 1
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weights", "bias"], ["scores"], transB=1),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["scores"], ["digit"], axis=1, keepdims=0),
    ]
    # As many points agree with a digit as the sum says, whatever the number of points that it sets.
    bias = -np.maximum(signs, 0).sum(axis=1)
    return _model(
        nodes,
        {"image": (FLOAT, [batch, 7, 5])},
        {"probabilities": (FLOAT, [batch, 10]), "digit": (INT64, [batch])},
        {"weights": signs, "bias": bias},
    )


def digits() -> Module | tw.Executable:
    """Any number of images."""
    return tw.compile(_digits("batch"))


def rows() -> Module | tw.Executable:
    """Rows of a table: float32[5, 4] and int64[3] to float32[3, 4]."""
    node = helper.make_node("Gather", ["table", "ids"], ["rows"], name="lookup")
    inputs = {"table": (FLOAT, [5, 4]), "ids": (INT64, [3])}
    return tw.compile(_model([node], inputs, {"rows": (FLOAT, [3, 4])}))


def join() -> Module | tw.Executable:
    """Two arrays one behind the other, the first with its rows scaled."""
    nodes = [
        helper.make_node("Unsqueeze", ["scale", "axes"], ["column"]),
        helper.make_node("Mul", ["left", "column"], ["scaled"]),
        helper.make_node("Concat", ["scaled", "right"], ["joined"], axis=0),
    ]
    inputs = {"left": (FLOAT, ["n", 2]), "scale": (FLOAT, ["n"]), "right": (FLOAT, ["m", 2])}
    return tw.compile(_model(nodes, inputs, {"joined": (FLOAT, ["rows", 2])}, {"axes": np.array([1])}))


def loop() -> Module | tw.Executable:
    """Places of elements that are not zero: how many there are, the data decides."""
    node = helper.make_node("NonZero", ["x"], ["places"])
    return tw.compile(_model([node], {"x": (FLOAT, [6])}, {"places": (INT64, [1, "count"])}))


def device() -> Module | tw.Executable:
    """The digit of one image, on a device of OpenCL."""
    return tw.compile(_digits(1), target=OPENCL)


def device_open() -> Module | tw.Executable:
    """The same with a size that a call decides."""
    return tw.compile(_digits("batch"), target=OPENCL)


def functions() -> Module | tw.Executable:
    """One function."""
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="b")
    return tw.build(te.create_schedule(b.op), [a, b], name="twice")


def write_damaged(folder: Path) -> None:
    """Libraries with something lost, changed or added, and files that are none."""
    whole = (folder / "digits.so").read_bytes()
    places = folder / "damaged"
    places.mkdir(exist_ok=True)
    # Pages that are missing end a process that maps them: the file must be refused before.
    cuts = [
        0,
        3,
        63,
        64,
        200,
        4096,
        len(whole) // 2,
        len(whole) - 4096,
        len(whole) - 13,
        len(whole) - 5,
        len(whole) - 1,
    ]
    damaged = {f"cut_{size}": whole[:size] for size in cuts}
    for at in (4, 16, 18, 32, 40, 54, 58, len(whole) // 3, len(whole) // 2, len(whole) - 2):
        damaged[f"bit_{at}"] = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
    damaged["text"] = b"this is not a library\n" * 100
    damaged["longer"] = whole + b"more"
    # Sizes that only make sense where numbers wrap around.
    damaged["sections_far"] = whole[:40] + (2**64 - 64).to_bytes(8, "little") + whole[48:-12]
    for name, content in damaged.items():
        (places / f"{name}.so").write_bytes(content)


MODELS: dict[str, Callable[[], Module | tw.Executable]] = {
    made.__name__: made for made in (digits, rows, join, loop, device, device_open, functions)
}


def main(arguments: Sequence[str]) -> None:
    """Export the libraries that are named, or all."""
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments[1:] or MODELS:
        MODELS[name]().export_library(folder / f"{name}.so")
    if not arguments[1:]:
        write_damaged(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
