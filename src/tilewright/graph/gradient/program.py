"""The module that a gradient transform builds: new functions and data types beside those that are there."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.gradient.accumulate import DataCotangents
from tilewright.graph.ir.expr import Function
from tilewright.graph.ir.traverse import graph_functions
from tilewright.ir.function import BaseFunction, Constructor, IRModule, TypeDefinition
from tilewright.ir.types import Type


class Program:
    """The functions and types of a module, and what a transform adds to them."""

    def __init__(self, module: IRModule) -> None:
        self.module = module
        self.sources = graph_functions(module)
        self.types: dict[str, TypeDefinition] = dict(module.types)
        self.functions: dict[str, BaseFunction] = dict(module.functions)
        self._taken = set(self.functions) | set(self.types)
        self.data = DataCotangents(self.types, self.name_for)
        self._derived: dict[str, tuple[str, ...]] = {}
        self.waiting: list[Callable[[], None]] = []
        """Functions whose derivatives were asked for and are still to be built."""

    def name_for(self, wanted: str) -> str:
        """A name that nothing in the module has."""
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name

    def define(self, name: str, fields: list[tuple[str, tuple[Type, ...]]]) -> TypeDefinition:
        """A new data type with these constructors."""
        made = TypeDefinition(name, (), tuple(Constructor(part, kinds, name) for part, kinds in fields))
        self.types[name] = made
        return made

    def derived(self, name: str, build: Callable[[tuple[str, ...]], None], *roles: str) -> tuple[str, ...]:
        """The names of the functions derived from one, which are built once (`build` gets the names)."""
        if name not in self._derived:
            names = tuple(self.name_for(f"{role}_{name}") for role in roles)
            self._derived[name] = names
            self.waiting.append(lambda: build(names))
        return self._derived[name]

    def add(self, function: Function) -> None:
        """Add or replace a function."""
        self.functions[function.name] = function

    def finish(self, main: Function, **attributes: object) -> IRModule:
        """The module with its new entry, once everything that was asked for is built."""
        while self.waiting:
            self.waiting.pop()()
        functions = {**self.functions, **self.data.functions, main.name: main}
        return IRModule(functions, self.types.values(), {**self.module.attributes, **attributes})
