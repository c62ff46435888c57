"""Floor 4: the high-level, typed, functional IR of models: operators, inference, interpreter, graph passes.

Programs that build graphs or declare operators import `tilewright.graph.expr` and `tilewright.graph.op`: the modules of
`graph/ir` under their public names. Whatever of the package is loaded, its operators are known: they register
themselves here.
"""

import sys

import tilewright.graph.ops  # noqa: F401
from tilewright.graph.ir import expr, op

sys.modules[f"{__name__}.expr"] = expr
sys.modules[f"{__name__}.op"] = op
