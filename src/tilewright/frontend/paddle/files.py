"""Which files a PaddlePaddle model consists of: a program, and its parameters in one file or in many."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tilewright.frontend.core.scopes import Lazy
from tilewright.frontend.paddle.model import PaddleModel
from tilewright.frontend.paddle.parameters import read_combined, read_separate
from tilewright.frontend.paddle.pir_reader import is_pir, read_pir
from tilewright.frontend.paddle.program_reader import read_program
from tilewright.support.errors import UserError

PARAMETERS = ".pdiparams"
_PROGRAMS = (".json", ".pdmodel")
_OLD_PROGRAM, _OLD_PARAMETERS = "__model__", ("__params__", "params")

Parameters = Callable[[Sequence[str]], dict[str, Lazy]]
"""Gives the parameters of the names that a program has."""


def program_path(path: Path) -> Path:
    """The file of the program, where a folder or the file of parameters may be named."""
    if path.is_dir():
        names = sorted(item.name for item in path.iterdir())
        chosen = [name for name in names if name == _OLD_PROGRAM or name.endswith(".pdmodel")]
        chosen += [name for name in names if name.endswith(".json") and (path / name).with_suffix(PARAMETERS).exists()]
        if len(chosen) != 1:
            raise UserError(
                f"the folder {path} has {len(chosen)} programs of PaddlePaddle",
                hint=f"name the file: {', '.join(chosen)}" if chosen else "a program is a file .json or .pdmodel",
            )
        return path / chosen[0]
    if path.suffix == PARAMETERS:
        for suffix in _PROGRAMS:
            if path.with_suffix(suffix).exists():
                return path.with_suffix(suffix)
        raise UserError(
            f"{path} has the parameters of a PaddlePaddle model, and no program is beside it",
            hint=f"put {path.with_suffix('.json').name} or {path.with_suffix('.pdmodel').name} beside it",
        )
    return path


def _combined(program: Path) -> Path | None:
    """The file of all parameters, if there is one."""
    choices = [program.with_suffix(PARAMETERS)]
    if program.name == _OLD_PROGRAM:
        choices = [program.parent / name for name in _OLD_PARAMETERS]
    return next((choice for choice in choices if choice.is_file()), None)


def read_model(source: object) -> PaddleModel:
    """A model by the path of its folder or of one of its files, or by the bytes of a program without parameters."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _read(bytes(source), "the bytes", _no_parameters)
    if not isinstance(source, (str, os.PathLike)):
        raise UserError(f"a PaddlePaddle model is a path or bytes, not {type(source).__name__}")
    path = Path(source)
    if not path.exists():
        raise UserError(f"there is no file {path}", hint="check the path of the model")
    program = program_path(path)
    combined = _combined(program)

    def parameters(names: Sequence[str]) -> dict[str, Lazy]:
        if not names:
            return {}
        if combined is not None:
            return read_combined(combined.read_bytes(), names, str(combined))
        if program.name == _OLD_PROGRAM:
            return read_separate(program.parent, names)
        raise UserError(
            f"the parameters of {program} are not there",
            hint=f"put the file {program.with_suffix(PARAMETERS).name} beside it",
        )

    return _read(program.read_bytes(), str(program), parameters)


def _read(content: bytes, source: str, parameters: Parameters) -> PaddleModel:
    read = read_pir if is_pir(content) else read_program
    return read(content, source, parameters)


def _no_parameters(names: Sequence[str]) -> dict[str, Lazy]:
    if names:
        raise UserError(
            f"the program has {len(names)} parameters, which are in another file",
            hint="give the path of the model, with its parameters beside it",
        )
    return {}
