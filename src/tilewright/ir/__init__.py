"""Floor 2: the shared core of every IR: data types, nodes, scalar expressions, types, functions, modules."""

import tilewright.ir.build  # noqa: F401  (gives expressions their operators, whichever file is imported first)
