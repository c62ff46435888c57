"""Functions of any level, global names, and the module that holds them together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from tilewright.ir.codec import codec_for, to_text
from tilewright.ir.node import Node, node
from tilewright.ir.types import Type, TypeVariable
from tilewright.support.errors import UserError
from tilewright.support.span import Span

_SHOWN = 8
"""Names of functions that a module's representation lists."""


class BaseFunction(Node):
    """A function of any IR level. Concrete kinds: graph functions, `PrimFunc`, `ExternFunc`.

    It adds no slots of its own, so that a graph function can be an expression as well.
    """

    __slots__ = ()
    side_data: ClassVar[tuple[str, ...]] = ("span",)
    structural_ignored: ClassVar[tuple[str, ...]] = ("name",)
    span: Span | None
    name: str

    def __str__(self) -> str:
        """Its text, where the printer of its level is loaded; else the nodes."""
        codec = codec_for(self)
        return codec.print(self) if codec is not None else Node.__repr__(self)


@node()
class ExternFunc(BaseFunction):
    """A function that exists only as a symbol in some library."""

    structural_ignored: ClassVar[tuple[str, ...]] = ()
    _slots: ClassVar[tuple[str, ...]] = ("span",)
    name: str

    def _post_init(self) -> None:
        self.span: Span | None = None

    def copy_side_data(self, other: Node) -> None:
        """Keep the span on rebuilt functions."""
        if isinstance(other, ExternFunc):
            other.span = self.span


@node()
class Constructor(Node):
    """A constructor of an algebraic data type: unique by identity within its definition."""

    name: str
    fields_types: tuple[Type, ...]
    type_name: str


@node()
class TypeDefinition(Node):
    """An algebraic data type: its name, type parameters and constructors."""

    name: str
    type_parameters: tuple[TypeVariable, ...]
    constructors: tuple[Constructor, ...]

    def constructor(self, name: str) -> Constructor:
        """The constructor of a name."""
        for item in self.constructors:
            if item.name == name:
                return item
        raise UserError(f"type {self.name} has no constructor {name}")


class IRModule:
    """A set of named functions of mixed kinds and of type definitions.

    `IRModule([f, g])` or `IRModule({"f": f})`; `module["f"]`; `module.with_function(f)` gives a new module:
    modules are values, passes never change one in place. `attributes` carries notes of the whole (the entry's name,
    the source model).
    """

    __slots__ = ("attributes", "functions", "types")

    def __init__(
        self,
        functions: Iterable[BaseFunction] | Mapping[str, BaseFunction] = (),
        types: Iterable[TypeDefinition] = (),
        attributes: Mapping[str, object] | None = None,
    ) -> None:
        self.functions: dict[str, BaseFunction] = {}
        items = functions.items() if isinstance(functions, Mapping) else ((f.name, f) for f in functions)
        for name, function in items:
            if name in self.functions:
                raise UserError(f"two functions named {name} in one module")
            self.functions[name] = function
        self.types: dict[str, TypeDefinition] = {definition.name: definition for definition in types}
        self.attributes: dict[str, object] = dict(attributes or {})

    def __getitem__(self, name: str) -> BaseFunction:
        if name not in self.functions:
            known = ", ".join(self.functions) or "none"
            raise UserError(f"the module has no function {name!r}", hint=f"it has: {known}")
        return self.functions[name]

    def __contains__(self, name: object) -> bool:
        return name in self.functions

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    def __str__(self) -> str:
        """The text of all functions."""
        codec = codec_for(self)
        if codec is not None:
            return codec.print(self)
        return "\n\n".join(f"# function {name}\n{to_text(item)}" for name, item in self.functions.items())

    def __repr__(self) -> str:
        """The functions' names; `print(module)` shows their text."""
        names = list(self.functions)
        more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"IRModule({', '.join(names[:_SHOWN])}{more})"

    def with_functions(self, functions: Mapping[str, BaseFunction]) -> IRModule:
        """This module with exactly these functions."""
        return IRModule(functions, self.types.values(), self.attributes)

    def with_function(self, function: BaseFunction) -> IRModule:
        """This module with a function added or replaced."""
        return self.with_functions({**self.functions, function.name: function})

    def with_attributes(self, **attributes: object) -> IRModule:
        """This module with attributes added or replaced."""
        return IRModule(self.functions, self.types.values(), {**self.attributes, **attributes})
