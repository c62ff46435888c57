"""The names under which programs outside the package import the graph IR."""

from __future__ import annotations

import importlib


def test_nodes_and_operators_have_public_modules() -> None:
    for name in ("expr", "op"):
        public = importlib.import_module(f"tilewright.graph.{name}")
        assert public is importlib.import_module(f"tilewright.graph.ir.{name}")
        assert getattr(importlib.import_module("tilewright.graph"), name) is public
