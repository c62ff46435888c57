"""Functions that bring their own reverse rule.

    f                (x, ...) -> value
    f_forward        (x, ...) -> (value, saved)
    f_backward       (saved, cotangent of value) -> (a cotangent for each parameter of f that is a float, ...)

    module = IRModule([main, *custom_vjp(f, f_forward, f_backward)])

Wherever `f` is differentiated, `f_forward` takes its place and `f_backward` is the way back. The functions are
functions of the module, called by name.
"""

from __future__ import annotations

from tilewright.graph.ir.expr import Function
from tilewright.support.errors import UserError

NOTE = "custom_vjp"


def custom_vjp(function: Function, forward: Function, backward: Function) -> tuple[Function, Function, Function]:
    """The three functions, the first of which knows the others; all go into the module."""
    for item in (function, forward, backward):
        if not item.name:
            raise UserError("the functions of a custom gradient need names", hint="Function('name', params, body)")
    if len(forward.params) != len(function.params):
        raise UserError(
            f"{forward.name} takes {len(forward.params)} parameters, {function.name} takes {len(function.params)}"
        )
    if len(backward.params) != 2:
        raise UserError(f"{backward.name} takes what was saved and a cotangent, not {len(backward.params)} parameters")
    noted = function.replace(notes={**function.notes, NOTE: (forward.name, backward.name)})
    return noted, forward, backward


def custom_names(function: Function) -> tuple[str, str] | None:
    """The names of the functions that are the gradient of one, if it brings its own."""
    found = function.notes.get(NOTE)
    return (str(found[0]), str(found[1])) if isinstance(found, tuple) and len(found) == 2 else None
