"""Functions of C that add dot products of runs of bytes to sums: by MVE, by the DSP extension, and plain.

    tw_run_dots_1x4(sums, row, distance, columns, depth):  sums[j] += row[0] * columns[j * depth] + ...

Rows are `distance` bytes apart, columns lie one after the other. The versions compute the same bits. `-DTW_PLAIN` asks
for the plain one on any processor.
"""

from __future__ import annotations

import re

from tilewright.tir.machine import RUN_DOTS

_MOST_VECTOR_SUMS = 4
"""Sums of products are in registers of even numbers, of which there are few beside the addresses."""


def run_dots_text(name: str) -> str | None:
    """The text of such a function by its name; None for any other name."""
    found = re.fullmatch(rf"{RUN_DOTS}_(\d+)x(\d+)", name)
    if found is None:
        return None
    rows, columns = map(int, found.groups())
    head = (
        f"static inline void {name}(int32_t* sums, const int8_t* row, int32_t distance, const int8_t* columns, "
        "int32_t depth) {"
    )
    lines: list[str] = []
    if rows * columns <= _MOST_VECTOR_SUMS:
        lines += [
            "#if defined(__ARM_FEATURE_MVE) && !defined(TW_PLAIN)",
            head,
            *_sums(rows, columns),
            *_operands(rows, columns),
        ]
        lines += [*_vectors(rows, columns), "}"]
        lines += ["#elif defined(__ARM_FEATURE_SIMD32) && !defined(TW_PLAIN)"]
    else:
        lines += ["#if defined(__ARM_FEATURE_SIMD32) && !defined(TW_PLAIN)"]
    lines += [head, *_sums(rows, columns), *_words(rows, columns), "}", "#else", head, *_plain(rows, columns), "}"]
    return "\n".join([*lines, "#endif"])


def _sums(rows: int, columns: int) -> list[str]:
    """Sums in variables of their own."""
    held = [f"  int32_t {_sum(r, j)} = sums[{r * columns + j}];" for r in range(rows) for j in range(columns)]
    return [*held, "  (void)distance;"]


def _operands(rows: int, columns: int) -> list[str]:
    """Addresses in variables of their own."""
    return [
        *(f"  const int8_t* a{r} = row{f' + {r} * distance' if r else ''};" for r in range(rows)),
        *(f"  const int8_t* b{j} = columns{f' + {j} * depth' if j else ''};" for j in range(columns)),
    ]


def _sum(row: int, column: int) -> str:
    return f"s{row}{column}"


def _results(rows: int, columns: int) -> list[str]:
    return [f"  sums[{r * columns + j}] = {_sum(r, j)};" for r in range(rows) for j in range(columns)]


def _vectors(rows: int, columns: int) -> list[str]:
    """A loop over vectors of 16 bytes whose last one is as short as the run asks for."""
    steps = ["dlstp.8 lr, %[depth]", "1:"]
    steps += [f"vldrb.8 q{r}, [%[a{r}]], #16" for r in range(rows)]
    for j in range(columns):
        steps.append(f"vldrb.8 q{rows + j}, [%[b{j}]], #16")
        steps += [f"vmladava.s8 %[{_sum(r, j)}], q{r}, q{rows + j}" for r in range(rows)]
    steps.append("letp lr, 1b")
    sums = [f'[{_sum(r, j)}] "+Te"({_sum(r, j)})' for r in range(rows) for j in range(columns)]
    addresses = [f'[{name}] "+r"({name})' for name in _addresses(rows, columns)]
    clobbers = ", ".join(f'"q{number}"' for number in range(rows + columns))
    return [
        "  __asm__ volatile(",
        *(f'      "{step}\\n"' for step in steps),
        f"      : {', '.join([*sums, *addresses])}",
        '      : [depth] "r"(depth)',
        f'      : {clobbers}, "lr", "memory");',
        *_results(rows, columns),
    ]


def _addresses(rows: int, columns: int) -> list[str]:
    return [*(f"a{r}" for r in range(rows)), *(f"b{j}" for j in range(columns))]


def _words(rows: int, columns: int) -> list[str]:
    """A loop over words of four bytes, two products of 16 bits an instruction; then the bytes that are left.

    Lengths are constants where the function is called: operands are found from two addresses.
    """
    held = [f"a{r}" for r in range(rows)] if rows <= columns else [f"b{j}" for j in range(columns)]
    declared = ", ".join(f"{name}_{half}" for name in [*held, "c"] for half in ("even", "odd"))
    tail = [
        f"    {_sum(r, j)} += row[{r} * distance + k] * columns[{j} * depth + k];"
        for r in range(rows)
        for j in range(columns)
    ]
    return [
        f"  int32_t {declared};",
        "  for (int32_t count = depth >> 3; count; --count) {",
        *_step(rows, columns, 0),
        *_step(rows, columns, 4),
        "    row += 8;",
        "    columns += 8;",
        "  }",
        "  if (depth & 4) {",
        *_step(rows, columns, 0),
        "    row += 4;",
        "    columns += 4;",
        "  }",
        "  for (int32_t k = 0; k < (depth & 3); ++k) {",
        *tail,
        "  }",
        *_results(rows, columns),
    ]


def _step(rows: int, columns: int, offset: int) -> list[str]:
    """The products of a word of each row with one of each column. Those that are fewer stay in registers."""
    row_words = [(f"a{r}", f"row + {r} * distance + {offset}") for r in range(rows)]
    column_words = [(f"b{j}", f"columns + {j} * depth + {offset}") for j in range(columns)]
    by_rows = rows <= columns
    held, passing = (row_words, column_words) if by_rows else (column_words, row_words)
    lines = [line for name, place in held for line in _word(name, place)]
    for n, (_, place) in enumerate(passing):
        lines += _word("c", place)
        for m, (name, _) in enumerate(held):
            total = _sum(m, n) if by_rows else _sum(n, m)
            lines += [
                f'    __asm__("smlad %0, %1, %2, %0" : "+r"({total}) : "r"({name}_{half}), "r"(c_{half}));'
                for half in ("even", "odd")
            ]
    return lines


def _word(name: str, place: str) -> list[str]:
    """Four bytes as two pairs of 16 bits. In one piece: compilers would load all words first, and lack registers."""
    operands = f'"=&r"({name}_even), "=r"({name}_odd) : "m"(*(const tw_loose_word*)({place}))'
    return [f'    __asm__("ldr %0, %2\\n sxtb16 %1, %0, ror #8\\n sxtb16 %0, %0" : {operands});']


def _plain(rows: int, columns: int) -> list[str]:
    """A loop over bytes. Sums wrap around."""
    step = [f"    const int32_t a{r} = row[{r} * distance + k];" for r in range(rows)]
    for j in range(columns):
        step.append(f"    const int32_t b{j} = columns[{j} * depth + k];")
        step += [f"    {_sum(r, j)} += (uint32_t)(a{r} * b{j});" for r in range(rows)]
    sums = [
        line.replace("  int32_t ", "  uint32_t ").replace("= sums", "= (uint32_t)sums") for line in _sums(rows, columns)
    ]
    results = [line.replace("= s", "= (int32_t)s") for line in _results(rows, columns)]
    return [*sums, "  for (int32_t k = 0; k < depth; ++k) {", *step, "  }", *results]
