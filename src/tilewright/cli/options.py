"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.dtypes import storage_dtype
from tilewright.support.errors import UserError

Array = npt.NDArray[np.generic]
_INTEGER_INPUTS_BELOW = 8
"""Random integer inputs stay below this: they are often indices into something."""


def add_model(parser: argparse.ArgumentParser, what: str = "an ONNX model") -> None:
    """The positional model and the options that decide how it is compiled."""
    parser.add_argument("model", type=Path, help=what)
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,224,224",
        help="fix the shape of an input (repeat for several)",
    )
    parser.add_argument("--target", default="native", help="what to compile for (default: native, this machine)")
    parser.add_argument("--threads", type=int, help="threads to run on (default: every core)")


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Where the inputs of a run come from."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="an input from a .npy file (repeat), or one .npz file with an array for each input",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of random values for inputs not given (default: 0)")


def parse_shapes(items: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """`["x=1,3,224,224"]` -> `{"x": (1, 3, 224, 224)}`; None when there are none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for item in items:
        name, separator, dims = item.rpartition("=")
        parts = dims.split(",") if dims else []
        if not separator or not name or not all(part.strip().isdecimal() for part in parts):
            raise UserError(f"'{item}' is not a shape", where="--shape", hint="write it as INPUT=1,3,224,224")
        shapes[name] = tuple(int(part) for part in parts)
    return shapes or None


def load_inputs(infos: Sequence[TensorInfo], files: Sequence[str], seed: int) -> dict[str, Array]:
    """Arrays for all inputs: from files where given, random values elsewhere."""
    values: dict[str, Array] = {}
    known = {info.name for info in infos}
    for item in files:
        name, separator, path = item.rpartition("=")
        loaded = _load(Path(path))
        if isinstance(loaded, dict):
            values.update(loaded)
        elif separator:
            values[name] = loaded
        else:
            raise UserError(f"'{item}' does not say which input it is", where="--input", hint="write NAME=FILE.npy")
    unknown = values.keys() - known
    if unknown:
        raise UserError(
            f"the model has no input {', '.join(sorted(unknown))}",
            where="--input",
            hint=f"it has: {', '.join(sorted(known))}",
        )
    generator = np.random.default_rng(seed)
    for info in infos:
        if info.name not in values:
            values[info.name] = random_array(info, generator)
    return values


def random_array(info: TensorInfo, generator: np.random.Generator) -> Array:
    """A random array for an input: normal floats, small non-negative integers, fair bools."""
    shape = info.static_shape
    dtype = storage_dtype(info.dtype)
    if info.dtype == "bool":
        return generator.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    return generator.integers(0, _INTEGER_INPUTS_BELOW, shape).astype(dtype)


def _load(path: Path) -> Array | dict[str, Array]:
    try:
        loaded = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}", where="--input") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no .npy or .npz file: {error}", where="--input") from None
    if isinstance(loaded, np.lib.npyio.NpzFile):
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    result: Array = loaded
    return result
