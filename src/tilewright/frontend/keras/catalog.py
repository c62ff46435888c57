"""All layers and operations that are known: importing this file registers them."""

from tilewright.frontend.keras import (
    activations,
    attention,
    augmentation,
    cells,
    convolution,
    core_layers,
    histograms,
    merging,
    normalization,
    ops_elementwise,
    ops_image,
    ops_indexing,
    ops_linear,
    ops_reduce,
    ops_shape,
    pooling,
    preprocessing,
    recurrent,
    reshaping,
    spectra,
    tf_functions,
)
from tilewright.frontend.keras.registry import finish_built_in

__all__ = [
    "activations",
    "attention",
    "augmentation",
    "cells",
    "convolution",
    "core_layers",
    "histograms",
    "merging",
    "normalization",
    "ops_elementwise",
    "ops_image",
    "ops_indexing",
    "ops_linear",
    "ops_reduce",
    "ops_shape",
    "pooling",
    "preprocessing",
    "recurrent",
    "reshaping",
    "spectra",
    "tf_functions",
]

finish_built_in()
