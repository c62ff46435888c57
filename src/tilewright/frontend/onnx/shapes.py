"""Shapes of the model's inputs: what the model says, completed and checked by what the user says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontend.onnx.model import ValueInfo
from tilewright.support.errors import UserError


def input_shapes(
    source: str, inputs: Sequence[ValueInfo], shapes: Mapping[str, Sequence[int]]
) -> list[tuple[int, ...]]:
    """A constant shape for every input.

    A dimension that has a name in the model takes the same size wherever that name occurs, so giving the shape of one
    input may be enough for others.
    """
    names = {info.name for info in inputs}
    for name in shapes:
        if name not in names:
            raise UserError(
                f"shapes names '{name}', which is no input of the model",
                where=source,
                hint=f"its inputs are {', '.join(sorted(names)) or 'none'}",
            )
    symbols: dict[str, tuple[int, str]] = {}
    for info in inputs:
        if info.name in shapes:
            _bind(source, info, _checked(source, info, shapes[info.name]), symbols)
    found: list[tuple[int, ...]] = []
    open_dims: list[str] = []
    example: dict[str, str] = {}
    for info in inputs:
        if info.name in shapes:
            found.append(_checked(source, info, shapes[info.name]))
            continue
        if info.dims is None:
            open_dims.append(f"'{info.name}' (of unknown rank)")
            example[info.name] = "(1, ...)"
            continue
        dims = [symbols[dim][0] if isinstance(dim, str) and dim in symbols else dim for dim in info.dims]
        unknown = [
            f"{index}" if dim is None else f"{index} ({dim})"
            for index, dim in enumerate(dims)
            if not isinstance(dim, int)
        ]
        if unknown:
            open_dims.append(f"'{info.name}' (dimension {', '.join(unknown)})")
            inner = ", ".join(str(dim) if isinstance(dim, int) else "1" for dim in dims)
            example[info.name] = f"({inner},)" if len(dims) == 1 else f"({inner})"
        found.append(tuple(dim for dim in dims if isinstance(dim, int)))
    if open_dims:
        text = ", ".join(f'"{name}": {shape}' for name, shape in example.items())
        raise UserError(
            f"the model leaves dimensions of its inputs open: {', '.join(open_dims)}",
            where=source,
            hint=f"say what they are, e.g. shapes={{{text}}}",
        )
    return found


def _checked(source: str, info: ValueInfo, shape: Sequence[int]) -> tuple[int, ...]:
    where = f"{source}, shapes[{info.name!r}]"
    try:
        given = tuple(int(dim) for dim in shape)
    except (TypeError, ValueError) as error:
        raise UserError(f"{shape!r} is not a shape", where=where, hint="a tuple of whole numbers") from error
    if any(dim < 0 for dim in given):
        raise UserError(f"{given} has a negative dimension", where=where)
    if info.dims is None:
        return given
    if len(given) != len(info.dims):
        raise UserError(f"the input has {len(info.dims)} dimensions, {given} has {len(given)}", where=where)
    for index, (wanted, dim) in enumerate(zip(info.dims, given, strict=True)):
        if isinstance(wanted, int) and wanted not in (0, dim):
            raise UserError(
                f"the model fixes dimension {index} of '{info.name}' at {wanted}, not {dim}",
                where=where,
                hint="shapes can fill in open dimensions only; export the model again for another size",
            )
    return given


def _bind(source: str, info: ValueInfo, shape: tuple[int, ...], symbols: dict[str, tuple[int, str]]) -> None:
    for name, dim in zip(info.dims or (), shape, strict=False):
        if isinstance(name, str):
            known = symbols.setdefault(name, (dim, info.name))
            if known[0] != dim:
                raise UserError(
                    f"the dimension '{name}' is {known[0]} in '{known[1]}' but {dim} in '{info.name}'", where=source
                )
