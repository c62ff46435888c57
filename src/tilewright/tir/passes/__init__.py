"""Lowering passes: one pass a file, each a function from `PrimFunc` to `PrimFunc`; `tir/pipeline.py` orders them."""
