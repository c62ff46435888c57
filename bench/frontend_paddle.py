"""The suite of PaddlePaddle in `bench.frontends`: operators, layers and models, saved in both formats of programs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.frontend_case import Case, LeftOut, Result, Trial
from bench.paddle_cases import single_operators
from bench.paddle_layers import layers
from tilewright.cli import own_runtimes

_FOLDER = tempfile.TemporaryDirectory(prefix="tilewright-paddle-")


def save(paddle: Any, function: Any, inputs: Sequence[Any], stem: Path, old: bool, open_batch: bool = False) -> None:
    """Write a function or a layer as an inference model; `old` is the format of PaddlePaddle 2."""

    layer = _wrapped(paddle, function, len(inputs))
    layer.eval()
    specs = [
        paddle.static.InputSpec(
            [None if open_batch and at == 0 else size for at, size in enumerate(value.shape)],
            str(value.dtype),
            f"x{place}",
        )
        for place, value in enumerate(inputs)
    ]
    if old:
        with paddle.pir_utils.OldIrGuard():
            paddle.jit.save(layer, str(stem), input_spec=specs)
    else:
        paddle.jit.save(paddle.jit.to_static(layer, full_graph=True, input_spec=specs), str(stem))


def _wrapped(paddle: Any, function: Any, count: int) -> Any:
    """A layer of so many inputs, which Paddle wants to be named."""

    class Layer(paddle.nn.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = function

    class One(Layer):
        def forward(self, a: Any) -> Any:
            return self.inner(a)

    class Two(Layer):
        def forward(self, a: Any, b: Any) -> Any:
            return self.inner(a, b)

    class Three(Layer):
        def forward(self, a: Any, b: Any, c: Any) -> Any:
            return self.inner(a, b, c)

    class Four(Layer):
        def forward(self, a: Any, b: Any, c: Any, d: Any) -> Any:
            return self.inner(a, b, c, d)

    return (One, Two, Three, Four)[count - 1]()


@dataclass(frozen=True)
class SavedTrial:
    """A function or a layer, saved in one of the formats when it is run."""

    name: str
    function: Any
    inputs: list[Any]
    stem: Path
    old: bool

    def run(self) -> Result:
        """What became of it; left out where PaddlePaddle cannot save it: some functions have no old form any more."""
        import paddle

        try:
            save(paddle, self.function, self.inputs, self.stem, self.old)
        except Exception as error:  # PaddlePaddle's own errors have no common class
            # The lines before the last one are the places in the sources that it went through.
            reason = str(error).strip().rpartition("\n")[2].strip()
            return LeftOut(self.name, f"{type(error).__name__}: {reason[:200]}").run()
        # Both formats go through the same converters: one of them is compiled.
        return Case(self.name, self._made, 1e-4, reference=self.old).run()

    def _made(self) -> tuple[Path, Mapping[str, Any], Sequence[Any]]:
        program = self.stem.with_suffix(".pdmodel" if self.old else ".json")
        return program, {f"x{place}": value for place, value in enumerate(self.inputs)}, run(program, self.inputs)


def cases() -> Iterator[Trial]:
    """Every operator and layer in both formats."""
    import paddle

    listed = [*single_operators(paddle), *layers(paddle)]
    for old in (False, True):
        for number, (name, function, inputs) in enumerate(listed):
            stem = Path(_FOLDER.name) / f"case{number}{'_old' if old else ''}"
            yield SavedTrial(f"{name}{' (old format)' if old else ''}", function, inputs, stem, old)


def run(program: Path, inputs: Sequence[Any]) -> list[Any]:
    """What PaddlePaddle's own predictor gives."""
    return own_runtimes.paddle(program, {f"x{at}": value for at, value in enumerate(inputs)}).outputs
