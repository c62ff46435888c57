"""LiteRT, the runtime of TFLite models: what it gives for inputs by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import UserError

Array = npt.NDArray[Any]


class LiteRt:
    """A model in LiteRT with its inputs set: by XNNPACK and its own kernels, or by the reference kernels alone."""

    def __init__(self, path: Path, inputs: Mapping[str, Array], threads: int = 1, reference: bool = False) -> None:
        try:
            from ai_edge_litert.interpreter import Interpreter, OpResolverType  # type: ignore[import-not-found]
        except ImportError as error:
            raise UserError(
                "comparing with LiteRT needs the package 'ai-edge-litert', which is not installed",
                hint="pip install ai-edge-litert",
            ) from error
        resolver = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
        self._interpreter = Interpreter(
            model_path=str(path),
            num_threads=threads,
            experimental_op_resolver_type=resolver,
            experimental_preserve_all_tensors=reference,
        )
        places = self._places()
        missing = [name for name in inputs if name not in places]
        if missing:
            raise UserError(f"LiteRT knows no input '{missing[0]}' of the model", where=str(path))
        for name, value in inputs.items():
            self._interpreter.resize_tensor_input(places[name], np.shape(value))
        self._interpreter.allocate_tensors()
        self._interpreter.reset_all_variables()
        for name, value in inputs.items():
            self._interpreter.set_tensor(places[name], np.asarray(value))

    def _places(self) -> dict[str, int]:
        """The inputs by the names of the first signature, or of their tensors in files without."""
        keys = list(self._interpreter.get_signature_list())
        if not keys:
            return {item["name"]: item["index"] for item in self._interpreter.get_input_details()}
        details = self._interpreter.get_signature_runner(keys[0]).get_input_details()
        return {name: item["index"] for name, item in details.items()}

    def run(self) -> list[Array]:
        """The outputs of the model."""
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(item["index"]) for item in self._interpreter.get_output_details()]

    def layers(self) -> dict[str, Array]:
        """The values inside the model, by the names of their tensors, after a run of the reference kernels."""
        values: dict[str, Array] = {}
        for item in self._interpreter.get_tensor_details():
            try:
                values[item["name"]] = self._interpreter.get_tensor(item["index"])
            except ValueError:
                # Tensors without memory of their own: what control flow hands on.
                continue
        return values
