"""Writes the importer's tables of the TFLite schema (`frontend/tflite/schema.py`) from the one that LiteRT publishes.

python -m bench.tflite_schema            # needs ai-edge-litert; prints what differs, with --write writes it
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import tilewright.frontend.tflite.schema as ours

_KINDS = {
    "Int8": "b", "Uint8": "B", "Int16": "h", "Uint16": "H", "Int32": "i", "Uint32": "I", "Int64": "q", "Uint64": "Q",
    "Float32": "f", "Float64": "d", "Bool": "?",
}  # fmt: skip
_CORE = (
    "Model OperatorCode SubGraph Tensor QuantizationParameters BlockwiseQuantization SparsityParameters "
    "DimensionMetadata Int32Vector Uint16Vector Uint8Vector Operator Buffer SignatureDef TensorMap Metadata"
).split()
"""The tables of the format itself, in the order in which they are written."""
_METHOD = re.compile(r"    def (\w+)\(self(?:, j)?\):\n(.*?)(?=\n    # |\ndef |\Z)", re.S)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower().replace("2_d", "2d").replace("3_d", "3d")


def _field(text: str) -> tuple[str, str]:
    """The kind and the default of a field from the code that reads it."""
    number = re.search(r"number_types\.(\w+)Flags, (a \+|o)", text.replace("UOffsetTFlags.py_type", ""))
    table = re.search(r"obj = (\w+)\(\)", text)
    if "_tab.Vector(" in text:
        inner = _KINDS[number[1]] if number and number[2] == "a +" else "s" if "String(" in text else ""
        return f"[{inner or (table[1] if table else '')}]", ""
    if "String(" in text:
        return "s", ""
    if "Union(" in text:
        return "union", ""
    if table:
        return table[1], ""
    assert number is not None, text
    default = re.findall(r"return (.*)", text)[-1].strip()
    return _KINDS[number[1]], {"0": "", "0.0": "", "False": "", "True": "1"}.get(default, default)


def tables(schema: ModuleType) -> dict[str, str]:
    """The fields of every table, in order."""
    parts = re.split(r"\nclass (\w+)\(object\):", inspect.getsource(schema))
    found: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        fields: dict[int, str] = {}
        for method, text in _METHOD.findall(body):
            offset = re.search(r"self\._tab\.Offset\((\d+)\)", text)
            if offset is None or method.endswith(("AsNumpy", "Length", "IsNone")):
                continue
            kind, default = _field(text)
            fields[(int(offset[1]) - 4) // 2] = f"{_snake(method)}:{kind}" + (f"={default}" if default else "")
        if fields:
            found[name] = " ".join(fields.get(slot, "_") for slot in range(max(fields) + 1))
    return found


def _ordered(enumeration: Any) -> list[str]:
    items = {value: name for name, value in vars(enumeration).items() if not name.startswith("_")}
    return [items[value] for value in sorted(items)]


def published() -> dict[str, Any]:
    """What the module should hold."""
    from ai_edge_litert import schema_py_generated as schema  # type: ignore[import-not-found]

    options, more = _ordered(schema.BuiltinOptions), _ordered(schema.BuiltinOptions2)
    fields = tables(schema)
    return {
        "TABLES": {name: fields[name] for name in (*_CORE, *options, *more) if name in fields},
        "OPTIONS": options,
        "OPTIONS_2": more,
        "OPERATORS": _ordered(schema.BuiltinOperator),
        "TYPES": [name.lower() for name in _ordered(schema.TensorType)],
        "ACTIVATIONS": _ordered(schema.ActivationFunctionType),
    }


def differences() -> list[str]:
    """What the module lacks, or has otherwise."""
    found: list[str] = []
    for name, wanted in published().items():
        present = getattr(ours, name)
        if isinstance(wanted, dict):
            found += [f"{key}: {wanted.get(key)!r}" for key in wanted if present.get(key) != wanted[key]]
        elif list(present) != wanted:
            found.append(f"{name}: {' '.join(item for item in wanted if item not in present)}")
    return found


def _literal(text: str, indent: str) -> list[str]:
    parts = textwrap.wrap(text, 112 - len(indent), break_long_words=False, break_on_hyphens=False)
    return [f'{indent}"{part}{" " if part is not parts[-1] else ""}"' for part in parts]


def write(path: Path) -> None:
    """Put the published tables into the module, whose texts stay."""
    text = path.read_text()
    for name, wanted in published().items():
        if isinstance(wanted, dict):
            lines = ["TABLES: dict[str, str] = {"]
            for key, fields in wanted.items():
                lines += [f'    "{key}": (', *_literal(fields, "        "), "    ),"]
            text = re.sub(
                r"TABLES: dict\[str, str\] = \{.*?\n\}", lambda _, new=[*lines, "}"]: "\n".join(new), text, flags=re.S
            )
        else:
            lines = [f"{name} = (", *_literal(" ".join(wanted), "    "), ").split()"]
            text = re.sub(
                rf"{name} = \(.*?\)\.split\(\)", lambda _, new=lines: "\n".join(new), text, count=1, flags=re.S
            )
    path.write_text(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.tflite_schema", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the module (then run ruff format)")
    found = differences()
    if parser.parse_args(arguments).write:
        write(Path(inspect.getfile(ours)))
        return 0
    print("\n".join(found) or "the tables are those that LiteRT publishes")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
