"""XML read with care: no entities, no external documents, bounded depth and size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn
from xml.parsers import expat

from tilewright.support.errors import UserError

_DEEPEST = 64
_MOST_ELEMENTS = 1 << 24


@dataclass(slots=True)
class Element:
    """An element with its attributes and those inside it."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def first(self, tag: str) -> Element | None:
        """The first element inside of a name."""
        return next((item for item in self.children if item.tag == tag), None)

    def all(self, tag: str) -> list[Element]:
        """All elements of a name in the first element of another name: `all("layers/layer")`."""
        outer, _, inner = tag.partition("/")
        holder = self.first(outer)
        return [] if holder is None else [item for item in holder.children if item.tag == inner]


def parse(content: bytes, where: str) -> Element:
    """The outermost element of a document."""
    root = Element("", {})
    stack = [root]
    count = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(stack) > _DEEPEST or count > _MOST_ELEMENTS:
            raise UserError("the document is too deep or too large", where=where)
        stack.append(Element(tag, attributes))
        stack[-2].children.append(stack[-1])

    def end(tag: str) -> None:
        stack.pop()

    def text(data: str) -> None:
        stack[-1].text += data

    def refuse(*arguments: Any) -> NoReturn:
        raise UserError("the document declares entities, which no model needs", where=where)

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.EntityDeclHandler = parser.ExternalEntityRefHandler = parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise UserError(
            f"this is no XML document, or it is damaged: {error}", where=where, hint="download or export it again"
        ) from error
    except (ValueError, UnicodeError) as error:
        raise UserError(f"this is no XML document that can be read: {error}", where=where) from error
    if not root.children:
        raise UserError("the document is empty", where=where)
    return root.children[0]
