"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

import tilewright.backends
from tilewright.cli.input_ranges import draw_integers
from tilewright.options import PRECISIONS, CompileOptions
from tilewright.runtime.core.artifact import TensorInfo
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.core.shapes import evaluate, symbols_in
from tilewright.support.errors import UserError
from tilewright.target.kinds import kind_named

Array = npt.NDArray[np.generic]
Ranges = Mapping[str, range]
"""For inputs of whole numbers whose use says it, the values that they may have."""


FLAGS = {
    "threads": "--threads",
    "shapes": "--shape",
    "winograd": "--no-winograd",
    "infinities": "--infinities",
    "specialize": "--specialize",
    "likely": "--likely",
    "database": "--database",
    "precision": "--precision",
    "calibration": "--calibration",
    "cpus": "--cpus",
    "on_host": "--on-host",
    "unchecked": "--unchecked",
    "state": "--state",
}
"""The flag of each field of `CompileOptions`."""


def add_model(
    parser: argparse.ArgumentParser, what: str = "a model (`tilewright formats`)", threads: int | None = None
) -> None:
    """The positional model, the target, and the options of a compilation; `threads` is the default of --threads."""
    parser.add_argument("model", type=Path, metavar="MODEL", help=what)
    parser.add_argument(
        "--target",
        help="what to compile for: native (this machine, the default), a device (cuda, opencl, webgpu, vulkan, rocm, "
        "metal), a machine by its short name (aarch64, armv7, x86-64-v3, riscv64, windows-x86-64, macos-arm64, "
        "android-arm64, ...: docs/deployment.md), or for example 'llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1'",
    )
    parser.add_argument(
        FLAGS["cpus"],
        type=_names,
        default=(),
        metavar="NAME,NAME",
        help="processors that a library has code for, the least first: x86-64-v2,x86-64-v3,x86-64-v4, or "
        "armv8-a,armv8.2-a+dotprod+fp16; the last that a machine can run is what runs there",
    )
    parser.add_argument(
        FLAGS["threads"],
        type=positive_int,
        default=threads,
        metavar="N",
        help=f"threads to run on (default: {threads or 'every core'}); with 1, the code has no parallel loops at all",
    )
    parser.add_argument(
        FLAGS["on_host"],
        type=_names,
        default=(),
        metavar="KERNEL,KERNEL",
        help="kernels of a model for a device that the host computes (tw.place finds the best)",
    )
    add_shapes(parser)
    parser.add_argument(
        FLAGS["specialize"],
        action="append",
        default=[],
        metavar="SYMBOL=N,...",
        help="code of its own for these sizes of all symbolic dimensions (repeat for several)",
    )
    parser.add_argument(
        FLAGS["likely"],
        metavar="SYMBOL=N,...",
        help="sizes that symbolic dimensions have most of the time: algorithms are chosen for them (any size is right)",
    )
    parser.add_argument(
        FLAGS["state"],
        action="append",
        default=[],
        metavar="INPUT=OUTPUT",
        help="keep an input from call to call: this output is its next value (repeat for several)",
    )
    add_algorithms(parser)


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """Declare what fixes the shapes of inputs."""
    parser.add_argument(
        FLAGS["shapes"],
        action="append",
        default=[],
        metavar="INPUT=1,3,224,224",
        help="fix the shape of an input (repeat for several)",
    )


def add_algorithms(parser: argparse.ArgumentParser) -> None:
    """The options of a compilation that are the same for every model: what is computed how."""
    parser.add_argument(
        FLAGS["precision"],
        choices=PRECISIONS,
        default="float32",
        help="what float32 models are computed in (default: float32): tf32 (NVIDIA GPUs), float16 or bfloat16; int8, "
        "mixed or int4_weights quantise them",
    )
    parser.add_argument(
        FLAGS["calibration"],
        type=Path,
        metavar="DIR|FILE",
        help="examples of inputs that ranges of activations are taken from, for a precision of few bits: "
        "a .npz or .npy file, or a folder of these or of images",
    )
    parser.add_argument(
        FLAGS["database"],
        type=Path,
        metavar="FILE",
        help="database of measured schedules (default: the user's own, which `tilewright tune` makes)",
    )
    parser.add_argument(
        FLAGS["winograd"],
        dest="winograd",
        action="store_false",
        help="compute 3 x 3 convolutions directly: slower, and closer to the exact result",
    )
    parser.add_argument(
        FLAGS["infinities"],
        action="store_true",
        help="infinities and NaN reach only what is computed from them: no algorithms that spread them",
    )
    parser.add_argument(
        FLAGS["unchecked"], action="store_true", help="do not check indices and divisors when the model runs"
    )


def compile_target(given: argparse.Namespace) -> str:
    """The target that the flags of `add_model` say."""
    return given.target or "native"


def export_target(given: argparse.Namespace) -> str | Mapping[str, str]:
    """The same for what is written to `--output`: an output without a suffix is a folder, where a device has these."""
    target = compile_target(given)
    kind = (target.split() or [""])[0].partition(":")[0]
    host = kind_named(kind).folder_host if kind in tilewright.backends.SLICES else ""
    return {kind: target, "host": host} if host and given.output is not None and not given.output.suffix else target


def compile_options(given: argparse.Namespace) -> CompileOptions:
    """The options that the flags of `add_model` say."""
    return replace(
        algorithm_options(given),
        threads=given.threads,
        shapes=parse_shapes(given.shape),
        specialize=[parse_sizes(item.split(","), FLAGS["specialize"]) for item in given.specialize],
        likely=None if given.likely is None else parse_sizes(given.likely.split(","), FLAGS["likely"]),
        cpus=given.cpus,
        on_host=given.on_host,
        state=dict(_state_pair(item) for item in given.state) or None,
    )


def _names(text: str) -> tuple[str, ...]:
    """`"x86-64-v2,x86-64-v3"` -> `("x86-64-v2", "x86-64-v3")`."""
    return tuple(name.strip() for name in text.split(","))


def _state_pair(text: str) -> tuple[str, str]:
    name, equals, result = text.partition("=")
    if not equals or not name or not result:
        raise UserError(f"{FLAGS['state']} {text!r} is not of the form INPUT=OUTPUT")
    return name, result


def algorithm_options(given: argparse.Namespace) -> CompileOptions:
    """The options that the flags of `add_algorithms` say."""
    return CompileOptions(
        winograd=given.winograd,
        infinities=given.infinities,
        database=given.database,
        precision=given.precision,
        calibration=given.calibration,
        unchecked=given.unchecked,
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """What a library must prove before it is loaded."""
    parser.add_argument(
        "--require",
        choices=("sealed", "signed"),
        help="refuse a library without a checksum, or one that no trusted key has signed",
    )
    parser.add_argument(
        "--trust",
        action="append",
        type=Path,
        metavar="KEY.pub",
        help="a file of public keys whose signature counts (repeat for several)",
    )


def positive_int(text: str) -> int:
    """A whole number of at least 1, as an argument."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def natural_int(text: str) -> int:
    """A whole number of at least 0, as an argument."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def positive_number(text: str) -> float:
    """A number above 0 that is finite, as an argument."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def check_output(output: Path, model: Path, example: str, is_folder: bool = False) -> None:
    """Refuse a file that cannot be written, or is the model itself: said before the work and not after it."""
    if output.is_dir() and not is_folder:
        raise UserError(f"{output} is a folder", where="--output", hint=f"name a file: {output / example}")
    if not output.parent.is_dir():
        raise UserError(f"the folder {output.parent} does not exist", where="--output", hint="make it first")
    if not os.access(output.parent, os.W_OK):
        raise UserError(f"the folder {output.parent} cannot be written", where="--output")
    if output.exists() and model.exists() and output.samefile(model):
        raise UserError(f"{output} is the model itself", where="--output", hint="name another file")


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Where the inputs of a run come from."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="an input from a .npy file (repeat for several); FILE.npz alone holds an array for each input by name",
    )
    parser.add_argument(
        "--seed",
        type=natural_int,
        default=0,
        metavar="N",
        help="seed of random values for inputs not given (default: 0)",
    )
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="SYMBOL=N",
        help="a symbolic dimension of inputs not given (repeat for several; default: what given inputs say, else 1)",
    )


def parse_shapes(items: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """`["x=1,3,224,224"]` -> `{"x": (1, 3, 224, 224)}`; None when there are none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for item in items:
        name, separator, dims = item.rpartition("=")
        parts = dims.split(",") if dims else []
        if not separator or not name or not all(part.strip().isdecimal() for part in parts):
            raise UserError(f"'{item}' is not a shape", where="--shape", hint="write it as INPUT=1,3,224,224")
        _once(name, shapes, "--shape")
        shapes[name] = tuple(int(part) for part in parts)
    return shapes or None


def parse_sizes(items: Sequence[str], option: str = "--size") -> dict[str, int]:
    """`["batch=4"]` -> `{"batch": 4}`."""
    sizes: dict[str, int] = {}
    for item in items:
        name, separator, size = item.rpartition("=")
        if not separator or not name or not size.strip().isdecimal():
            raise UserError(f"'{item}' is not a size", where=option, hint="write it as SYMBOL=128")
        _once(name, sizes, option)
        sizes[name] = int(size)
    return sizes


def _once(name: str, given: Collection[str], option: str) -> None:
    if name in given:
        raise UserError(f"'{name}' is given twice", where=option)


def load_inputs(
    infos: Sequence[TensorInfo],
    files: Sequence[str],
    seed: int,
    sizes: Mapping[str, int] | None = None,
    ranges_of: Callable[[Mapping[str, tuple[int, ...]]], Ranges] = lambda shapes: {},
) -> dict[str, Array]:
    """Arrays for all inputs: from files where given, random values elsewhere, of the sizes that symbols have.

    `ranges_of` says, for the shapes of all inputs, which whole numbers suit those that have such.
    """
    values: dict[str, Array] = {}
    known = {info.name for info in infos}
    for item in files:
        name, path = _split_input(item, known)
        loaded = _load(path)
        if name is not None and not isinstance(loaded, dict):
            _once(name, values, "--input")
            values[name] = loaded
        elif name is None and isinstance(loaded, dict):
            values.update(loaded)
        else:
            raise UserError(
                f"'{item}' does not say which input it is",
                where="--input",
                hint="write NAME=FILE.npy, or FILE.npz with an array for each input by name",
            )
    unknown = values.keys() - known
    if unknown:
        raise UserError(
            f"the model has no input {', '.join(sorted(unknown))}",
            where="--input",
            hint=f"it has: {', '.join(sorted(known))}",
        )
    generator = np.random.default_rng(seed)
    symbols = _symbol_values(infos, values, dict(sizes or {}))
    shapes = {info.name: tuple(evaluate(extent, symbols) or 0 for extent in info.shape) for info in infos}
    counted = [info for info in infos if info.name not in values and _is_whole(info)]
    ranges = ranges_of(shapes) if counted else {}
    for info in infos:
        if info.name not in values:
            if info.value or info.dtype == "string":
                raise UserError(
                    f"the input '{info.name}' is {info.value or 'a tensor of texts'}, which has no random values",
                    where="--input",
                    hint="run the model from Python: tw.load(path) or tw.compile(path)",
                )
            made = replace(info, shape=shapes[info.name])
            values[info.name] = random_array(made, generator, ranges.get(info.name))
    return values


def _is_whole(info: TensorInfo) -> bool:
    """Whether an input has whole numbers."""
    return info.dtype.startswith(("int", "uint"))


def _symbol_values(infos: Sequence[TensorInfo], given: Mapping[str, Array], sizes: dict[str, int]) -> dict[str, int]:
    """Sizes of all symbols: as asked for, as given inputs have them, else 1."""
    names = dict.fromkeys(name for info in infos for extent in info.shape for name in symbols_in(extent))
    unknown = sizes.keys() - names.keys()
    if unknown:
        raise UserError(
            f"the model has no symbolic dimension {', '.join(sorted(unknown))}",
            where="--size",
            hint=f"it has: {', '.join(names) or 'none'}",
        )
    for info in infos:
        if info.name in given and len(info.shape) == given[info.name].ndim:
            for extent, size in zip(info.shape, given[info.name].shape, strict=True):
                if isinstance(extent, str) and extent.isidentifier():
                    sizes.setdefault(extent, size)
    return {**dict.fromkeys(names, 1), **sizes}


def random_array(info: TensorInfo, generator: np.random.Generator, allowed: range | None = None) -> Array:
    """A random array for an input: normal floats, fair bools, integers in a range that is known or small."""
    shape = info.static_shape
    dtype = storage_dtype(info.dtype)
    if info.dtype == "bool":
        return generator.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    if info.dtype == "bfloat16":
        # Kept as bits, which are the upper half of a float32's.
        return (generator.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(dtype)
    if _is_whole(info):
        return draw_integers(info.name, shape, dtype, allowed, generator)
    return generator.integers(0, 2, shape).astype(dtype)  # floats of 8 bits, as bits: zero and the least above it


def _split_input(item: str, known: Collection[str]) -> tuple[str | None, Path]:
    """The name and the file of `NAME=FILE`, or None and the file. Names and files may hold `=` themselves."""
    if Path(item).is_file():
        return None, Path(item)
    for name in sorted(known, key=len, reverse=True):
        if item.startswith(f"{name}="):
            return name, Path(item.removeprefix(f"{name}="))
    name, separator, path = item.partition("=")
    return (name, Path(path)) if separator else (None, Path(item))


def _load(path: Path) -> Array | dict[str, Array]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                return {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise UserError(f"there is no file {path}", where="--input") from None
    except Exception as error:
        # Of a damaged file numpy, zipfile, zlib and Python's tokenizer each complain in their own way.
        raise UserError(f"{path} is no .npy or .npz file: {error}", where="--input") from None
    result: Array = loaded
    return result
