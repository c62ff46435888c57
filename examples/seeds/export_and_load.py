"""Unified library packaging: export compiled functions as one shared library, load it elsewhere, call by name."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright import te

n = te.var("n")
A = te.placeholder((n,), name="A")
B = te.compute((n,), lambda i: A[i] * 2 + 1, name="B")
s = te.create_schedule(B.op)
mod = tw.build(s, [A, B], target="native", name="npufunction0")

LOADER = """
import sys
import numpy as np
import tilewright as tw

lib = tw.load(sys.argv[1])
func = lib["npufunction0"]
a, b = np.arange(6, dtype=np.float32), np.empty(6, np.float32)
func(a, b)
print(b.tolist())
"""

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "mylib.so"
    mod.export_library(path)

    lib = tw.load(path)
    func = lib["npufunction0"]
    a, b = np.arange(6, dtype=np.float32), np.empty(6, np.float32)
    func(a, b)
    assert b.tolist() == [1, 3, 5, 7, 9, 11]

    # In a process of its own, as a deployed program would.
    result = subprocess.run(
        [sys.executable, "-c", LOADER, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.strip() == str(b.tolist())
    print(f"{path.name}: {path.stat().st_size} bytes, with a header: {path.with_suffix('.h').exists()}")
