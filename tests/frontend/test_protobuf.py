"""Schemas of protobuf messages in the compact notation: read, written, in text, damaged."""

from __future__ import annotations

import pytest

from tilewright.frontend.core.protobuf import Schema
from tilewright.frontend.sample import Sample
from tilewright.support.errors import CompilerBug, UserError

SCHEMA = Schema("""
enum Method MAX=0 AVE=1
enum Other MAX=2 MIN=0    # labels of two enumerations may be the same

message Value
  1 numbers float*
  2 text string

message Layer
  1 name string
  2 method Method = AVE
  3 options map string Value
  4 size uint32 = 7
  5 inside Layer*
  6 other Other
""")


def example() -> bytes:
    layer = SCHEMA.message("Layer")(name="a", inside=[SCHEMA.message("Layer")(name="b", size=300)])
    layer.options["x"].numbers.extend([1, 2.5])
    return bytes(layer.SerializeToString())


def test_messages_are_read_as_they_were_written() -> None:
    layer = SCHEMA.read("Layer", example(), "here")
    assert layer.name == "a" and layer.inside[0].size == 300
    assert list(layer.options["x"].numbers) == [1, 2.5]


def test_defaults_and_presence() -> None:
    layer = SCHEMA.read("Layer", b"", "here")
    assert (layer.method, layer.size) == (1, 7) and not layer.HasField("method")
    assert SCHEMA.read("Layer", b"\x10\x00", "here").HasField("method")


def test_repeated_numbers_packed_or_not() -> None:
    packed, single = b"\x0a\x04\0\0\x80?", b"\x0d\0\0\x80?"
    assert list(SCHEMA.read("Value", packed + single, "here").numbers) == [1, 1]


def test_labels_and_fields_that_the_schema_has_not() -> None:
    layer = SCHEMA.read_text("Layer", 'name: "a" method: MAX other: MAX unknown { deep: 3 } inside { size: 2 }', "here")
    assert (layer.method, layer.other, layer.inside[0].size) == (0, 2, 2)
    assert SCHEMA.read("Layer", b"\x10\x09\xf8\x07\x01", "here").method == 9


@pytest.mark.parametrize("content", [b"\x0a\xff\xff", b"\x0a\x02\xff\xfe", b"\x0b", b"\x2a\x05\x0a\x09a"])
def test_damaged_messages(content: bytes) -> None:
    with pytest.raises(UserError, match=r"no message of the kind Layer(.|\n)*net\.bin"):
        SCHEMA.read("Layer", content, "net.bin")


def test_nesting_without_an_end() -> None:
    content = b""
    for _ in range(200):
        content = b"\x2a" + _varint(len(content)) + content
    with pytest.raises(UserError):
        SCHEMA.read("Layer", content, "net.bin")


def test_texts_that_are_none_name_the_line() -> None:
    with pytest.raises(UserError, match="2:1"):
        SCHEMA.read_text("Layer", 'name: "a"\n}', "net.prototxt")
    with pytest.raises(UserError):
        SCHEMA.read_text("Layer", "inside {" * 5000, "net.prototxt")


def test_a_schema_of_ours_is_checked() -> None:
    with pytest.raises(CompilerBug, match="a schema has the line"):
        Schema("message A\n  name string").message("A")


def test_samples_show_the_fields_inside() -> None:
    sample = Sample(example())
    assert sample.fields == {1: 2, 3: 2, 5: 2}
    assert sample.nested_fields(5) == {1: 2, 4: 0}
    assert sample.nested_fields(3, 2) == {1: 2}
    assert sample.nested_fields(5, 5) == sample.nested_fields(9) == {}


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])
