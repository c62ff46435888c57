"""Darknet's two files: sections of options in a text, and the numbers of all layers one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import UserError

_OLD_HEADER, _NEW_HEADER = 16, 20
"""Bytes before the numbers: three versions, and how many images were seen in 4 or in 8 bytes."""


@dataclass(frozen=True)
class Section:
    """A layer as the text has it; `where` names it in messages."""

    kind: str
    options: dict[str, str]
    where: str

    def text(self, key: str, default: str) -> str:
        """An option that is a word."""
        return self.options.get(key, default)

    def whole(self, key: str, default: int) -> int:
        """An option that is a whole number."""
        value = self.options.get(key)
        try:
            return default if value is None else int(float(value))
        except (ValueError, OverflowError) as error:
            raise UserError(f"{key}={value} is no whole number", where=self.where) from error

    def wholes(self, key: str) -> list[int]:
        """An option that is a list of whole numbers."""
        try:
            return [int(part) for part in self.options.get(key, "").split(",") if part.strip()]
        except ValueError as error:
            raise UserError(f"{key}={self.options.get(key)} is no list of whole numbers", where=self.where) from error

    def number(self, key: str, default: float) -> float:
        """An option that is a number."""
        value = self.options.get(key)
        try:
            return default if value is None else float(value)
        except ValueError as error:
            raise UserError(f"{key}={value} is no number", where=self.where) from error


def read_sections(text: str, source: str) -> list[Section]:
    """The sections of a .cfg text, the first of which is the network itself."""
    sections: list[Section] = []
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].partition(";")[0].strip()
        if content.startswith("[") and content.endswith("]"):
            kind = content[1:-1].strip()
            sections.append(Section(kind, {}, f"{source}: layer {len(sections) - 1} [{kind}], line {number}"))
        elif content:
            key, separator, value = content.partition("=")
            if not separator or not sections:
                raise UserError(f"'{content[:60]}' is no option", where=f"{source}, line {number}")
            sections[-1].options[key.strip()] = value.strip()
    if not sections or sections[0].kind not in ("net", "network"):
        raise UserError(f"{source} is no Darknet model: its first section is not [net]")
    return sections


class Numbers:
    """The numbers of a .weights file, in the order in which layers take them."""

    def __init__(self, content: bytes, source: str) -> None:
        self.source = source
        if len(content) < _OLD_HEADER:
            raise UserError(f"{source} is no file of Darknet weights: it has {len(content)} bytes")
        major, minor = np.frombuffer(content[:8], "<i4")
        is_new = int(major) * 10 + int(minor) >= 2 and major < 1000 and minor < 1000
        data = content[_NEW_HEADER if is_new else _OLD_HEADER :]
        self.values: npt.NDArray[Any] = np.frombuffer(data[: len(data) // 4 * 4], "<f4")
        self.at = 0

    def take(self, shape: Sequence[int], where: str) -> npt.NDArray[Any]:
        """The next numbers, in a shape."""
        count = math.prod(shape)
        if count > len(self.values) - self.at:
            raise UserError(
                f"{self.source} ends before the weights of a layer: {count} numbers are wanted, "
                f"{len(self.values) - self.at} are left",
                where=where,
                hint="is it the file of this .cfg?",
            )
        self.at += count
        return self.values[self.at - count : self.at].reshape(shape)

    def finish(self) -> None:
        """Refuse what no layer took: the files do not belong together."""
        if self.at != len(self.values):
            raise UserError(
                f"{self.source} has {len(self.values) - self.at} numbers more than the layers take",
                hint="is it the file of this .cfg?",
            )


def pair_of(path: Path) -> tuple[Path, Path]:
    """The .cfg and the .weights file of a model, of which one is named: the other has the same name beside it."""
    if path.suffix == ".weights":
        return path.with_suffix(".cfg"), path
    return path, path.with_suffix(".weights")
