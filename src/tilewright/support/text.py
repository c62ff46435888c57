"""Text for people: tables, numbers with units, indentation."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under a header, separated by two spaces; a column of numbers is set to the right."""
    widths = [len(name) for name in header]
    for row in rows:
        for column, cell in enumerate(row):
            widths[column] = max(widths[column], len(cell))
    numeric = [bool(rows) and all(_looks_numeric(row[column]) for row in rows) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ]
        return "  ".join(parts).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def _looks_numeric(cell: str) -> bool:
    return cell == "-" or cell.strip().lstrip("+-")[:1].isdigit()


def human_bytes(count: float) -> str:
    """1536 -> '1.50 KiB'."""
    if abs(count) < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if abs(count) < 1024 or unit == "TiB":
            break
    return f"{count:.2f} {unit}"


def human_count(count: float) -> str:
    """11689512 -> '11.69 M'; below a thousand the number itself."""
    if abs(count) < 1000:
        return f"{count:.3g}"
    for unit in ("k", "M", "G", "T", "P"):
        count /= 1000
        if abs(count) < 1000 or unit == "P":
            break
    return f"{count:.2f} {unit}"


def human_rate(per_second: float, unit: str) -> str:
    """(3.2e10, 'FLOP/s') -> '32.00 GFLOP/s'."""
    if abs(per_second) < 1000:
        return f"{per_second:.3g} {unit}"
    return f"{human_count(per_second)}{unit}"


def human_seconds(seconds: float) -> str:
    """0.00123 -> '1.23 ms'; more than two minutes as '2 min 5 s'."""
    if seconds >= 120:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    if seconds >= 1e-6:
        return f"{seconds * 1e6:.2f} us"
    return f"{seconds * 1e9:.0f} ns"


def indent(text: str, spaces: int = 4) -> str:
    """Every non-empty line of `text` moved right."""
    pad = " " * spaces
    return "\n".join(pad + line if line else line for line in text.split("\n"))


def plural(count: int, word: str) -> str:
    """(1, 'input') -> '1 input'; (2, 'input') -> '2 inputs'."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def kind_of(value: object) -> str:
    """The type of a value with its article: `an int`, `a list`."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def shorten(text: str, width: int) -> str:
    """`text` cut to `width` characters, with `...` in place of what was cut."""
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."
