"""What the stages of an attention read: the mask of its scores, and its three operands."""

from __future__ import annotations

from tilewright.ir.visit import find_all
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.stmt import Block

Stages = dict[str, Block]
"""The blocks of an attention by name."""


def mask_of(stages: Stages) -> BufferLoad | None:
    """How the scores of an attention read its mask, in terms of their iterators."""
    products = stages["attention_products"].writes[0].buffer
    reads = find_all(stages["attention_scores"].body, BufferLoad)
    return next((load for load in reads if load.buffer is not products), None)


def operands_of(stages: Stages) -> tuple[Buffer, Buffer, Buffer]:
    """The queries, keys and values of an attention, which may be the same."""
    turned = stages["attention_keys"].writes[0].buffer
    loads = find_all(stages["attention_products"].body, BufferLoad)
    sums = stages["attention_products"].writes[0].buffer
    query = next(load.buffer for load in loads if load.buffer is not turned and load.buffer is not sums)
    key, value = (stages[f"attention_{name}"].reads[0].buffer for name in ("keys", "values"))
    return query, key, value
