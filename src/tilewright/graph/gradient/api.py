"""`grad`, `value_and_grad`, `vjp` and `jvp`: programs to programs."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.gradient.accumulate import Cotangent, Parts
from tilewright.graph.gradient.constants import ENTRY, entry_of, lift_constants, parameters_of
from tilewright.graph.gradient.control import bound
from tilewright.graph.gradient.expressions import item, number
from tilewright.graph.gradient.first_order import first_order, reachable
from tilewright.graph.gradient.forward import Forward
from tilewright.graph.gradient.inlining import inline_functions
from tilewright.graph.gradient.program import Program
from tilewright.graph.gradient.regions import carries_floats
from tilewright.graph.gradient.reverse import Reverse
from tilewright.graph.ir.expr import Function, GraphExpr, Var, tuple_of
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.unify import show_type
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import UserError

Wrt = str | int | Sequence[str | int] | None
"""Inputs by name or place, or constants by name; None stands for all inputs that are floats."""


def grad(program: IRModule | Function, wrt: Wrt = None, *, entry: str = ENTRY, has_aux: bool = False) -> IRModule:
    """The program that gives the gradients of a scalar output: one tensor, or a tuple if `wrt` names several.

    The result takes the inputs of the program (and the constants that `wrt` names, as further ones). With `has_aux`
    the first output is differentiated, and the others come behind the gradients.
    """
    return _scalar_gradient(program, wrt, entry, has_aux, with_value=False)


def value_and_grad(
    program: IRModule | Function, wrt: Wrt = None, *, entry: str = ENTRY, has_aux: bool = False
) -> IRModule:
    """The program that gives a scalar output, and its gradients behind it (then what else there is, with `has_aux`)."""
    return _scalar_gradient(program, wrt, entry, has_aux, with_value=True)


def vjp(program: IRModule | Function, wrt: Wrt = None, *, entry: str = ENTRY) -> IRModule:
    """The program (inputs..., a cotangent for each float output...) -> (outputs..., gradients...)."""
    module, function, chosen = _prepared(program, wrt, entry)
    work = Program(module)
    outputs = _items(function.body.type)
    cotangents = [
        Var(_unused("cotangent" if len(outputs) == 1 else f"cotangent_{place}", function), kind)
        if carries_floats(kind, work.types)
        else None
        for place, kind in enumerate(outputs)
    ]
    reverse = Reverse(work, function, chosen)
    value = reverse.forward(reverse.regions.body)
    given: Cotangent | None = Parts(tuple(cotangents)) if isinstance(function.body.type, TupleType) else cotangents[0]
    if given is None:
        raise UserError("the program gives no floats: there is nothing to differentiate")
    gradients = _gradients(work, reverse, given, chosen)
    results = [*_values(value), *gradients]
    params = (*function.params, *(var for var in cotangents if var is not None))
    names = (*_output_names(module, len(outputs)), *(f"gradient_{var.name}" for var in chosen))
    return _finished(work, reverse, entry, params, results, names)


def jvp(program: IRModule | Function, wrt: Wrt = None, *, entry: str = ENTRY) -> IRModule:
    """The program (inputs..., a tangent for each chosen input...) -> (outputs..., a tangent for each float output...)."""
    module, function, chosen = _prepared(program, wrt, entry)
    work = Program(module)
    tangents = {id(var): Var(_unused(f"tangent_{var.name}", function), var.type) for var in chosen}
    forward = Forward(work, function, tangents)
    value, tangent = forward.run()
    outputs = _items(function.body.type)
    moving = [place for place, kind in enumerate(outputs) if carries_floats(kind, work.types)]
    if not moving:
        raise UserError("the program gives no floats: there is nothing to differentiate")
    whole = work.data.whole(tangent, value)
    parts = _values(whole)
    results = [*_values(value), *(parts[place] for place in moving)]
    names = _output_names(module, len(outputs))
    names = (*names, *(f"tangent_{names[place]}" for place in moving))
    params = (*function.params, *tangents.values())
    return _finished(work, forward, entry, params, results, names)


def _scalar_gradient(program: IRModule | Function, wrt: Wrt, entry: str, has_aux: bool, with_value: bool) -> IRModule:
    module, function, chosen = _prepared(program, wrt, entry)
    outputs = _items(function.body.type)
    if has_aux != (len(outputs) > 1):
        problem = "gives one output: there is nothing beside it" if has_aux else f"gives {len(outputs)} outputs"
        raise UserError(
            f"the program {problem}",
            hint="has_aux says whether outputs follow the one that is differentiated; vjp takes any number of outputs",
        )
    loss = outputs[0]
    if not isinstance(loss, TensorType) or not loss.dtype.is_float or (loss.shape or ()) != () or loss.shape is None:
        raise UserError(
            f"gradients are those of a float scalar, the program gives {show_type(loss)}",
            hint="sum or average the output, or use vjp",
        )
    work = Program(module)
    reverse = Reverse(work, function, chosen)
    value = reverse.forward(reverse.regions.body)
    one: GraphExpr = number(1, loss.dtype)
    given: Cotangent = Parts((one, *[None] * (len(outputs) - 1))) if has_aux else one
    gradients = _gradients(work, reverse, given, chosen)
    values = _values(value)
    results = [*(values[:1] if with_value else []), *gradients, *values[1:]]
    names = _output_names(module, len(outputs))
    titles = (*(names[:1] if with_value else ()), *(f"gradient_{var.name}" for var in chosen), *names[1:])
    return _finished(work, reverse, entry, function.params, results, titles)


def _prepared(program: IRModule | Function, wrt: Wrt, entry: str) -> tuple[IRModule, Function, list[Var]]:
    """The program in first-order form with its constants of `wrt` as inputs, and the inputs that are differentiated."""
    module = program if isinstance(program, IRModule) else IRModule({entry: program}, ())
    function = entry_of(module, entry)
    named = [wrt] if isinstance(wrt, (str, int)) else None if wrt is None else list(wrt)
    inputs = {var.name for var in function.params}
    constants = [name for name in named or () if isinstance(name, str) and name not in inputs]
    if constants:
        known = parameters_of(infer_types(module), entry)
        for name in constants:
            if name not in known:
                listed = ", ".join([*inputs, *known][:12])
                raise UserError(f"the program has no input and no constant named {name!r}", hint=f"it has: {listed}")
        module, _ = lift_constants(module, constants, entry)
    module = first_order(module, entry)
    function = entry_of(module, entry)
    return module, function, _chosen(function, named, module)


def _chosen(function: Function, named: list[str | int] | None, module: IRModule) -> list[Var]:
    if named is None:
        chosen = [var for var in function.params if carries_floats(var.type, module.types)]
        if not chosen:
            raise UserError("no input of the program is of a floating-point type: there is nothing to differentiate")
        return chosen
    by_name = {var.name: var for var in function.params}
    chosen = []
    for name in named:
        if isinstance(name, int) and not -len(function.params) <= name < len(function.params):
            raise UserError(f"there is no input {name}", hint=f"the program has {len(function.params)} inputs")
        var = function.params[name] if isinstance(name, int) else by_name[name]
        if not carries_floats(var.type, module.types):
            raise UserError(
                f"the input {var.name} is {show_type(var.type) if var.type else 'untyped'}: only floats have gradients",
                hint="leave it out of wrt, or cast the input of the program",
            )
        chosen.append(var)
    return chosen


def _gradients(work: Program, reverse: Reverse, given: Cotangent, chosen: Sequence[Var]) -> list[GraphExpr]:
    left = reverse.backward(reverse.regions.body, given)
    totals = [work.data.combine(left[id(var)], var.type) if id(var) in left else None for var in chosen]
    return [work.data.whole(total, var) for total, var in zip(totals, chosen, strict=True)]


def _finished(
    work: Program,
    transform: Reverse | Forward,
    entry: str,
    params: Sequence[Var],
    results: Sequence[GraphExpr],
    names: Sequence[str],
) -> IRModule:
    region = transform.regions.body
    body = bound(region.bindings, bound(region.late, tuple_of(results)))
    built = work.finish(Function(entry, tuple(params), body), output_names=tuple(names))
    return infer_types(inline_functions(infer_types(reachable(built, entry))))


def _items(kind: Type | None) -> list[Type]:
    assert kind is not None
    return list(kind.items) if isinstance(kind, TupleType) else [kind]


def _values(value: GraphExpr) -> list[GraphExpr]:
    kind = value.type
    return [item(value, place) for place in range(len(kind.items))] if isinstance(kind, TupleType) else [value]


def _output_names(module: IRModule, count: int) -> tuple[str, ...]:
    known = module.attributes.get("output_names")
    if isinstance(known, tuple) and len(known) == count:
        return tuple(str(name) for name in known)
    return ("output",) if count == 1 else tuple(f"output_{place}" for place in range(count))


def _unused(name: str, function: Function) -> str:
    taken = {var.name for var in function.params}
    while name in taken:
        name += "_"
    return name
