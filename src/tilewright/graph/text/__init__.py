"""The text form of the graph IR: `to_text` prints valid Python, `parse_text` reads it back to the same IR."""

from tilewright.graph.text.parser import parse_text
from tilewright.graph.text.printer import GraphText, is_graph, to_text
from tilewright.ir.codec import Codec, register_codec

register_codec(Codec("graph", ".graph.py", is_graph, to_text, parse_text))

__all__ = ["GraphText", "parse_text", "to_text"]
