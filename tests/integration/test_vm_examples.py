"""The examples of the virtual machine run, and agree with the graph interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import beam_search
import tree_lstm


def test_tree_lstm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tree_lstm.main()
    assert "25 words" in capsys.readouterr().out
    exe = tw.compile(tree_lstm.build(), threads=1)
    # All arithmetic of a node of the tree is one native call.
    assert len(exe.model.segments) == 1
    exe.export_library(tmp_path / "tree.so")
    tree = tree_lstm.random_tree(9, np.random.default_rng(0), tree_lstm.for_runtime)
    np.testing.assert_array_equal(tw.load(tmp_path / "tree.so")(tree), exe(tree))


def test_beam_search(capsys: pytest.CaptureFixture[str]) -> None:
    beam_search.main()
    assert capsys.readouterr().out.count("best of 4") == 3
    exe = tw.compile(beam_search.build(), threads=1)
    assert len(exe.model.segments) == 2
