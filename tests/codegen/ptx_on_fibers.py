"""PTX in CUDA C++ as calls of functions of the host (shims/ptx.h): each `asm` statement becomes one, or several."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_NOTHING = (
    r"griddepcontrol\.|setmaxnreg\.|fence\.|wgmma\.fence|\.reg |setp\.ne\.b32|mad\.lo\.u32 at|@p bra|bra again|done:"
)
_AT = "{0}, {1}"
"""A barrier: the first of them, and its number. Its address is made of both."""
_CALLS = {
    r"cvt\.rn\.f16\.f32 %0, %1": "{0} = half_bits({1})",
    r"cvt\.rn\.f16\.f64 %0, %1": "{0} = half_bits({1})",
    r"cvt\.f32\.f16 %0, %1": "{0} = half_value({1})",
    r"cvt\.rn\.bf16\.f32 %0, %1": "{0} = brain_bits({1})",
    r"cvt\.rn\.f16x2\.f32 %0, %1, %2": "{0} = pair_of(half_bits({2}), half_bits({1}))",
    r"cvt\.rn\.bf16x2\.f32 %0, %1, %2": "{0} = pair_of(brain_bits({2}), brain_bits({1}))",
    r"cvt\.rn\.f16x2\.(e4m3|e5m2)x2 %0, %1": r"{0} = halves_of_codes(\1, {1})",
    r"cvt\.rn\.satfinite\.(e4m3|e5m2)x2\.f32 %0, %1, %2": r"{0} = byte_codes(\1, {2}, {1})",
    r"cvt\.rna\.tf32\.f32 %0, %1": "{0} = tf32_bits({1})",
    r"ex2\.approx\.ftz\.f32 %0, %1": "{0} = __builtin_exp2f({1})",
    r"rcp\.approx\.ftz\.f32 %0, %1": "{0} = 1.0f / ({1})",
    r"(max|min)\.NaN\.f32 %0, %1, %2": r"{0} = \1_nan({1}, {2})",
    r"add\.f32 %0, %1, %2": "{0} = ({1}) + ({2})",
    r"sub\.f16x2 %0, %1, %2": "{0} = pair_sum({1}, {2}, -1.0f)",
    r"fma\.rn\.f16x2 %0, %1, %2, %3": "{0} = pair_fma({1}, {2}, {3})",
    r"dp4a\.s32\.s32 %0, %1, %2, %3": "{0} = dot4({1}, {2}, {3})",
    r"mov\.u32 %0, %1": "{0} = {1}",
    r"mov\.b32 %0, 0x80000000": "{0} = -0.0f",
    r"mov\.b32 %0, 0": "{0} = 0",
    r"mapa\.shared::cluster\.u32 %0, %1, %2": "{0} = ({1} & 0xffffff) | ({2}) << 24",
    r"ld\.shared::cluster\.\w+ %0, \[%1\]": "load_shared({1}, &({0}), 1)",
    r"ld\.shared::cluster\.v2\.\w+ \{%0.*?\}, \[%2\]": "load_shared({2}, &({0}), 2)",
    r"ld\.shared::cluster\.v4\.\w+ \{%0.*?\}, \[%4\]": "load_shared({4}, &({0}), 4)",
    r"barrier\.cluster\.arrive\.aligned": "meet_cluster()",
    r"barrier\.cluster\.wait\.aligned": "",
    r"cp\.async\.c[ag]\.shared\.global \[%0\], \[%1\], (\d+), %2": r"copy_later({0}, (const void*)({1}), \1, {2})",
    r"cp\.async\.commit_group": "commit_later(COPIES)",
    r"cp\.async\.wait_group (\d+)": r"wait_later(COPIES, \1)",
    r"wgmma\.commit_group\.sync\.aligned": "commit_later(PRODUCTS)",
    r"wgmma\.wait_group\.sync\.aligned (\d+)": r"wait_for_products(\1)",
    r"mbarrier\.init\.shared::cta\.b64 \[at\], %2": f"start_barrier({_AT}, {{2}})",
    r"mbarrier\.arrive\.shared::cta\.b64 _, \[at\]": f"arrive({_AT})",
    r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[at\], %2": f"expect_bytes({_AT}, {{2}})",
    r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes \[%0\], \[%1\], %2, \[at\]": (
        "copy_bulk({0}, (const void*)({1}), {2}, {3}, {4})"
    ),
    r"cp\.async\.mbarrier\.arrive\.noinc\.shared::cta\.b64 \[at\]": f"arrive_with_copies({_AT})",
    r"again: mbarrier\.try_wait\.parity\.shared::cta\.b64 p, \[at\], %2": f"wait_barrier({_AT}, {{2}})",
    r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 .*\[%4\]": "load_matrices({4}, &({0}), false)",
    r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16 .*\[%4\]": "load_matrices({4}, &({0}), true)",
}
_REGISTERS = r"\{((?:%\d+(?:, )?)+)\}"
_WARP = r"mma\.sync\.aligned\.m16n8k\d+\.row\.col\.\w+\.(\w+)\.(\w+)\.\w+ " + ", ".join([_REGISTERS] * 4)
_GROUP = rf"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k\d+\.\w+\.(\w+)\.(\w+) {_REGISTERS}, (.*?), %(\d+), ([pq])(.*)"


def host_text(text: str) -> str:
    """CUDA C++ without PTX."""
    parts, end = [], 0
    for start, stop, order, operands in _statements(text):
        parts += [text[end:start], "{ ", *(f"{call}; " for call in _calls(order, operands) if call), "}"]
        end = stop
    return "".join([*parts, text[end:]])


def _statements(text: str) -> Iterator[tuple[int, int, str, list[str]]]:
    """Where `asm` statements begin and end, their text, and their operands."""
    for found in re.finditer(r"\basm(?: volatile)?\(", text):
        place, depth, string = found.end(), 1, False
        while depth:
            letter = text[place]
            if letter == '"':
                string = not string
            elif not string:
                depth += (letter == "(") - (letter == ")")
            place += 1
        body = text[found.end() : place - 1]
        literals = re.match(r'\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', body)
        assert literals is not None, body
        order = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals[1])).replace("\\n", "\n")
        yield found.start(), place + text[place:].index(";") + 1, order, list(_operands(body[literals.end() :]))


def _operands(text: str) -> Iterator[str]:
    """The expressions in parentheses behind constraints; clobbers have none."""
    for found in re.finditer(r'"[=+]?[a-z]"\(', text):
        depth, place = 1, found.end()
        while depth:
            depth += (text[place] == "(") - (text[place] == ")")
            place += 1
        yield text[found.end() : place - 1]


def _calls(order: str, operands: list[str]) -> Iterator[str]:
    for line in re.split(r"[;\n]", order.strip().strip("{}")):
        item = line.strip().strip("{}" if "{%" not in line else "").strip()
        if item and not re.match(_NOTHING, item):
            yield _call(item, operands)


def _call(line: str, operands: list[str]) -> str:
    """An instruction as an expression of C++."""
    for pattern, call in _CALLS.items():
        found = re.fullmatch(pattern, line)
        if found:
            return found.expand(call).format(*operands)
    for pattern, make in ((_WARP, _warp_product), (_GROUP, _group_product)):
        found = re.fullmatch(pattern, line)
        if found:
            return make(found, lambda number: f"({operands[int(number)]})")
    # No error where the text is for GPUs of before.
    return f'static_assert(false, "the emulator does not know the instruction {line}")'


_Operand = Callable[[str], str]


def _numbers(registers: str) -> list[str]:
    return re.findall(r"%(\d+)", registers)


def _warp_product(found: re.Match[str], operand: _Operand) -> str:
    kinds = f"{found[1]}, {found[2]}, {'int' if found[1] in ('s8', 'u8') else 'float'}"
    adds = "true" if found[6] == found[3] else "false"
    values = [operand(number) for number in (*_numbers(found[4]), *_numbers(found[5]))]
    return f"multiply<{kinds}>(&{operand(_numbers(found[3])[0])}, {adds}, {', '.join(values)})"


def _group_product(found: re.Match[str], operand: _Operand) -> str:
    columns, first, second, sums, rows, tile, predicate, rest = found.groups()
    # Signs of both operands come first, where there are any; then which of those in shared memory lie across.
    across = [item.strip() for item in rest.split(",") if item.strip()][2:]
    place, flags = f"&{operand(_numbers(sums)[0])}", {"p": "true", "q": "false"}
    if rows.startswith("{"):
        held = ", ".join(operand(number) for number in _numbers(rows))
        last = across[-1] if across else "0"
        return (
            f"multiply_held<{first}, {second}>({place}, {columns}, {held}, {operand(tile)}, {last}, {flags[predicate]})"
        )
    kinds = f"{first}, {second}, {'int' if first in ('s8', 'u8') else 'float'}"
    ways = ", ".join(across or ["0", "0"])
    return f"multiply_later<{kinds}>({place}, {columns}, {operand(rows[1:])}, {operand(tile)}, {ways})"
