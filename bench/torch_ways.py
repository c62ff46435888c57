"""One architecture in a process of its own: through `from_torch`, `torch.compile` and an ONNX export.

    python -m bench.torch_ways Llama from_torch torch.compile onnx      # a line of JSON for each way

Sizes that differ between the architecture's two sets of inputs are left open, and both sets are compared with what
torch gives eagerly.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import tilewright as tw
from bench.architectures import ARCHITECTURES
from bench.architectures.case import Architecture, Inputs
from tilewright.frontend import from_torch
from tilewright.support.errors import UserError
from tilewright.torch_backend import FallbackWarning

RELATIVE = 1e-4
"""How far results may be from torch's, of the largest element of a result (or of 1, if that is smaller)."""
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Row:
    """What became of an architecture in one way."""

    architecture: str
    way: str
    verdict: str
    """right, refused, wrong, crashed; no export where torch itself cannot export the model."""
    reason: str = ""
    seconds: float = 0.0
    """From the model to its first results."""


class Wrong(Exception):
    """Results that are not torch's."""


class NotExported(Exception):
    """Torch itself cannot export the model."""


class Subject:
    """A model with its inputs and what torch makes of them."""

    def __init__(self, architecture: Architecture) -> None:
        self.model = architecture.build()
        self.inputs: list[Inputs] = [dict(architecture.inputs(s)) for s in (architecture.small, architecture.large)]
        self.expected = [self._eager(inputs) for inputs in self.inputs]
        self._program: Any = None

    def _eager(self, inputs: Inputs) -> list[torch.Tensor]:
        with torch.no_grad():
            return tensors_of(self.model(**_copied(inputs)))

    def program(self) -> Any:
        """The model as torch exports it, with what varies left open."""
        if self._program is None:
            try:
                with torch.no_grad():
                    self._program = torch.export.export(
                        self.model, (), _copied(self.inputs[0]), dynamic_shapes=self._open(), strict=False
                    )
            except Exception as error:  # whatever torch raises is its own refusal
                raise NotExported(f"{type(error).__name__}: {_line(error)}") from error
        return self._program

    def _open(self) -> Any:
        inputs = _copied(self.inputs[0])
        shapes = torch.export.ShapesCollection()
        for small, large in zip(tensors_of(inputs), tensors_of(self.inputs[1]), strict=True):
            pairs = enumerate(zip(small.shape, large.shape, strict=True))
            varying = {axis: torch.export.Dim.DYNAMIC for axis, (first, second) in pairs if first != second}
            if varying:
                shapes[small] = varying
        return shapes.dynamic_shapes(self.model, (), inputs)

    def compare(self, run: Callable[[Inputs], Any]) -> None:
        """Run both sets of inputs; raises `Wrong` where results are not torch's."""
        for place, (inputs, expected) in enumerate(zip(self.inputs, self.expected, strict=True)):
            with torch.no_grad():
                results = tensors_of(run(_copied(inputs)))
            if len(results) != len(expected):
                raise Wrong(f"{len(results)} results, torch has {len(expected)}")
            for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
                _compare(result, wanted, f"result {number} of the {('small', 'large')[place]} inputs")


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors in a structure, in torch's order; arrays become tensors."""
    found = [torch.from_numpy(item) if isinstance(item, np.ndarray) else item for item in pytree.tree_leaves(value)]
    return [item for item in found if isinstance(item, torch.Tensor)]


def _copied(inputs: Inputs) -> dict[str, Any]:
    """Inputs that a model may write to (a cache grows when it is used)."""
    copy: dict[str, Any] = pytree.tree_map(
        lambda item: item.clone() if isinstance(item, torch.Tensor) else item, inputs
    )
    return copy


def _compare(result: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    if result.shape != wanted.shape:
        raise Wrong(f"{what} is {tuple(result.shape)}, torch's {tuple(wanted.shape)}")
    if not wanted.numel():
        return
    first, second = result.double(), wanted.double()
    finite = second.isfinite()
    if not torch.equal(first[~finite].nan_to_num(), second[~finite].nan_to_num()):
        raise Wrong(f"{what} differs where torch's is not finite")
    if not finite.any():
        return
    scale = max(1.0, float(second[finite].abs().max()))
    difference = float((first[finite] - second[finite]).abs().max())
    if not difference <= RELATIVE * scale:
        raise Wrong(f"{what} differs by {difference:.3g} of {scale:.3g}")


def by_import(subject: Subject) -> str:
    """Through `from_torch`."""
    exe = tw.compile(from_torch(subject.program()), threads=1)
    subject.compare(lambda inputs: exe(*tensors_of(inputs)))
    return ""


def by_capture(subject: Subject) -> str:
    """Through `torch.compile`; says what torch ran itself."""
    torch._dynamo.reset()
    compiled = torch.compile(subject.model, backend="tilewright", dynamic=True, options={"threads": 1})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        subject.compare(lambda inputs: compiled(**inputs))
    fallbacks = [str(item.message) for item in caught if issubclass(item.category, FallbackWarning)]
    return f"partly eager: {fallbacks[0]}" if fallbacks else ""


def by_onnx(subject: Subject) -> str:
    """Through `torch.onnx.export`."""
    program = subject.program()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            torch.onnx.export(program, (), str(path), dynamo=True, verbose=False)
        except Exception as error:
            raise NotExported(f"{type(error).__name__}: {_line(error.__cause__ or error)}") from error
        exe = tw.compile(str(path), threads=1)
    subject.compare(lambda inputs: exe(*tensors_of(inputs)))
    return ""


WAYS: dict[str, Callable[[Subject], str]] = {"from_torch": by_import, "torch.compile": by_capture, "onnx": by_onnx}
"""Ways from a model to compiled code."""


def judge(subject: Subject, name: str, way: str) -> Row:
    """One way of one architecture."""
    started = time.monotonic()

    def row(verdict: str, reason: str) -> Row:
        return Row(name, way, verdict, " ".join(reason.split())[:_LONGEST_REASON], time.monotonic() - started)

    try:
        return row("right", WAYS[way](subject))
    except Wrong as error:
        return row("wrong", str(error))
    except NotExported as error:
        return row("no export", str(error))
    except UserError as error:
        return row("refused", str(error))
    except Exception as error:  # whatever else goes wrong is a crash of this way only
        cause = getattr(error, "inner_exception", None) or error  # torch wraps what a back end raises
        return row("crashed", f"{type(cause).__name__}: {_line(cause)}")


def _line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def main(arguments: Sequence[str]) -> int:
    """Print the rows of an architecture."""
    name, *ways = arguments
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    subject = Subject(ARCHITECTURES[name])
    for way in ways:
        print(json.dumps(asdict(judge(subject, name, way))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
