"""A model that the user names on the command line, with all its stages: for commands that want more than to run it."""

from __future__ import annotations

import argparse

from tilewright.cli.models import is_library
from tilewright.cli.options import compile_options, compile_target
from tilewright.compiler import Compilation
from tilewright.request import TargetLike
from tilewright.support.errors import UserError


def open_compilation(options: argparse.Namespace, target: TargetLike | None = None) -> Compilation:
    """The compilation of a model file, for the target of the flags if no other is given."""
    if is_library(options.model):
        raise UserError(
            f"{options.model} is a compiled library: this command needs the model it was made from",
            hint="`tilewright run` and `tilewright bench` take libraries too",
        )
    return Compilation(options.model, target or compile_target(options), options=compile_options(options))
