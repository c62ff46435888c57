"""Training: `tw.train.Step` (a compiled step), `tw.train.fit` (epochs), optimizers, schedules, losses, initialisers."""

from tilewright.train.fit import Epoch, fit
from tilewright.train.initializers import (
    initialize,
    kaiming_normal,
    kaiming_uniform,
    normal,
    xavier_normal,
    xavier_uniform,
)
from tilewright.train.lora import LoRA
from tilewright.train.losses import L1, MSE, NLL, BCEWithLogits, CrossEntropy, Loss
from tilewright.train.optimizers import LAMB, SGD, Adam, AdamW, Optimizer
from tilewright.train.parallel import Group, ParallelStep
from tilewright.train.quantized import QuantizationAware
from tilewright.train.schedules import Constant, Cosine, OneCycle, StepDecay, WarmUp
from tilewright.train.step import MemoryReport, Result, Step

__all__ = [
    "L1",
    "LAMB",
    "MSE",
    "NLL",
    "SGD",
    "Adam",
    "AdamW",
    "BCEWithLogits",
    "Constant",
    "Cosine",
    "CrossEntropy",
    "Epoch",
    "Group",
    "LoRA",
    "Loss",
    "MemoryReport",
    "OneCycle",
    "Optimizer",
    "ParallelStep",
    "QuantizationAware",
    "Result",
    "Step",
    "StepDecay",
    "WarmUp",
    "fit",
    "initialize",
    "kaiming_normal",
    "kaiming_uniform",
    "normal",
    "xavier_normal",
    "xavier_uniform",
]
