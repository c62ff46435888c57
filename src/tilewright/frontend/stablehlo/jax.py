"""The import of JAX functions, through `jax.export`: `from_jax`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.frontend.stablehlo.calls import TARGETS
from tilewright.frontend.stablehlo.importer import import_program, read_program
from tilewright.ir.function import IRModule
from tilewright.support.errors import MissingDependencyError, UnsupportedError, UserError
from tilewright.support.text import kind_of


def load_jax() -> Any:
    """The jax package, or an error that says how to get it."""
    try:
        import jax
        import jax.export
    except ImportError:
        raise MissingDependencyError.for_extra("jax", "jax", "importing JAX functions") from None
    return jax


def from_jax(function: Callable[..., Any] | Any, *examples: Any, **named: Any) -> IRModule:
    """Import a JAX function with example arguments, or a `jax.export.Exported` without.

    Examples are arrays, structures of arrays (which become inputs one by one, named by their place: `params['w']`), or
    `jax.ShapeDtypeStruct`; sizes of `jax.export.symbolic_shape` vary, and are symbols of the module of the same names.
    What the function closes over (weights) becomes constants.
    """
    jax = load_jax()
    if isinstance(function, jax.export.Exported):
        if examples or named:
            raise UserError("an exported function has its arguments already", hint="from_jax(exported)")
        return _from_exported(function)
    if not callable(function):
        raise UserError(f"a function is needed, not {kind_of(function)}")
    if not examples and not named:
        raise UserError("a function is imported with example arguments", hint="from_jax(f, jnp.zeros((1, 3)))")
    traced = function if hasattr(function, "trace") and hasattr(function, "lower") else jax.jit(function)
    positional, keywords = jax.tree.map(lambda leaf: _shape_of(jax, leaf), (examples, named))
    allowed = [jax.export.DisabledSafetyCheck.custom_call(name) for name in TARGETS]
    try:
        exported = jax.export.export(traced, platforms=["cpu"], disabled_checks=allowed)(*positional, **keywords)
    except (TypeError, ValueError, NotImplementedError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(
            f"jax cannot export the function: {type(error).__name__}: {reason}",
            hint="jax.export.export(jax.jit(f))(*examples) says more",
        ) from error
    return _from_exported(exported)


def _shape_of(jax: Any, leaf: Any) -> Any:
    """The shape and type of an example."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    value = leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else jax.numpy.asarray(leaf)
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _from_exported(exported: Any) -> IRModule:
    # Inputs that the function does not use are no inputs of the program: they stay inputs of the module.
    names: dict[tuple[int, int], str] = {}
    order = list(exported.module_kept_var_idx)
    for place, number in enumerate(order):
        for axis, size in enumerate(exported.in_avals[number].shape):
            if not isinstance(size, int):
                names[place, axis] = str(size)
    unused = {
        number: (tuple(kind.shape), str(kind.dtype))
        for number, kind in enumerate(exported.in_avals)
        if number not in order
    }
    return import_program(read_program(exported.mlir_module_serialized), names, unused)
