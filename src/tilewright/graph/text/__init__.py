"""The text form of the graph IR: `to_text` prints valid Python, `parse_text` reads it back to the same IR."""

from tilewright.graph.ir.infer import infer_types
from tilewright.graph.text.parser import parse_text
from tilewright.graph.text.printer import GraphText, is_graph, to_text
from tilewright.ir.codec import Codec, register_codec


def parse_beside(text: str, source: str, value: object) -> object:
    """Read a text that takes the place of a graph: `const[i]` are the constants of that graph; typed."""
    return infer_types(parse_text(text, source, to_text(value).constants))


register_codec(Codec("graph", ".graph.py", is_graph, to_text, parse_text, parse_beside))

__all__ = ["GraphText", "parse_beside", "parse_text", "to_text"]
