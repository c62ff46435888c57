"""The runtime for C and Tilewright's own in Python, in one process: each load gives the library that was asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import tilewright as tw
from bench.page_models import save_image_model
from tests.bindings.c_runtime import RuntimeForC
from tests.bindings.languages import LANGUAGES, make
from tests.requirements import need

need("make", *LANGUAGES["c"].needs)


def test_loads_of_both_do_not_meet(tmp_path: Path) -> None:
    make("c", "all", tmp_path, tmp_path)
    c_runtime = RuntimeForC(tmp_path / "libtilewright.so")
    image = save_image_model(tmp_path / "model.onnx")
    model = tw.compile(tmp_path / "model.onnx", threads=1)
    expected = model(image)
    for number in range(6):
        # Both load from descriptors, which have the same numbers in turn.
        for runtime in ("c", "python"):
            library = tmp_path / f"{runtime}{number}.so"
            model.export_library(library)
            if runtime == "c":
                result = np.zeros_like(expected)
                c_runtime.run(library, [image], [result])
            else:
                result = tw.load(library)(image)
            np.testing.assert_array_equal(result, expected)
