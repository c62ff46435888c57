"""Matrix instructions as functions of CUDA C++: inline PTX on registers that are given by address."""

from __future__ import annotations

from typing import Final

_HEAD: Final = "static __device__ __forceinline__ void"
_MMA: Final = {
    "cuda.mma.f16": ("m16n8k16", "f32.f16.f16.f32", "f"),
    "cuda.mma.bf16": ("m16n8k16", "f32.bf16.bf16.f32", "f"),
    "cuda.mma.tf32": ("m16n8k8", "f32.tf32.tf32.f32", "f"),
    "cuda.mma.tf32.rounded": ("m16n8k8", "f32.tf32.tf32.f32", "f"),
    "cuda.mma.s8": ("m16n8k32", "s32.s8.s8.s32", "r"),
    "cuda.mma.u8": ("m16n8k32", "s32.u8.u8.s32", "r"),
    "cuda.mma.u8s8": ("m16n8k32", "s32.u8.s8.s32", "r"),
    "cuda.mma.s8u8": ("m16n8k32", "s32.s8.u8.s32", "r"),
    "cuda.mma.e4m3": ("m16n8k32", "f32.e4m3.e4m3.f32", "f"),
    "cuda.mma.e5m2": ("m16n8k32", "f32.e5m2.e5m2.f32", "f"),
    "cuda.mma.e4m3e5m2": ("m16n8k32", "f32.e4m3.e5m2.f32", "f"),
    "cuda.mma.e5m2e4m3": ("m16n8k32", "f32.e5m2.e4m3.f32", "f"),
}


_CODES: Final = {"cuda.mma.f16.codes4": 4, "cuda.mma.f16.codes8": 8}
"""Bits of the codes that products unpack."""
_ACROSS: Final = ("f16", "bf16")
"""Types whose operands of warp groups may lie across."""
_FIRST: Final = ".first"
"""What the names of products end with that make sums instead of adding to them."""


def function_name(instruction: str) -> str:
    """The name of the function of an instruction."""
    return f"tw_{instruction.removeprefix('cuda.').replace('.', '_')}"


def instruction_text(instruction: str) -> str | None:
    """The function of an instruction; None if CUDA has none of that name."""
    if instruction.removesuffix(_FIRST) in _MMA:
        return _mma(instruction)
    if instruction.startswith("cuda.ldmatrix.x4"):
        return _load_matrices(instruction)
    if instruction == "cuda.fence.async":
        order = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
        return f"{_HEAD} {function_name(instruction)}() {{ {order} }}"
    if instruction.startswith("cuda.wgmma."):
        return _group(instruction)
    if instruction.startswith("cuda.mbarrier."):
        return _barrier(instruction)
    if instruction.startswith("cuda.bulk."):
        return _bulk(instruction)
    if instruction.startswith("cuda.registers."):
        _, _, way, count = instruction.split(".")
        order = f"setmaxnreg.{'dec' if way == 'less' else 'inc'}.sync.aligned.u32 {count};"
        return f'{_HEAD} {function_name(instruction)}() {{ asm volatile("{order}" ::: "memory"); }}'
    if instruction in _CODES:
        return _codes(instruction)
    return None


_BARRIERS: Final = {
    "start": ("int count", "mbarrier.init.shared::cta.b64 [at], %2;", ', "r"(count)'),
    "wait": (
        "int parity",
        (
            ".reg .pred p;\\nagain: mbarrier.try_wait.parity.shared::cta.b64 p, [at], %2;\\n"
            "@p bra done;\\nbra again;\\ndone:"
        ),
        ', "r"(parity)',
    ),
    "arrive": ("", "mbarrier.arrive.shared::cta.b64 _, [at];", ""),
    "expect": ("int bytes", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [at], %2;", ', "r"(bytes)'),
    "copied": ("", "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [at];", ""),
}
"""What each instruction on a barrier in shared memory is given beside the place of the barrier, and its text."""


def _barrier(instruction: str) -> str:
    """Barriers in shared memory, whose phases take turns.

    The address is made in the text: compilers would make two registers of it, one of each thread, and the threads of a
    warp then wait one after another.
    """
    name, kind = function_name(instruction), instruction.rpartition(".")[2]
    if kind == "started":
        return f'{_HEAD} {name}() {{ asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }}'
    parameter, order, operand = _BARRIERS[kind]
    return (
        f"{_HEAD} {name}(void* barriers, int number{', ' + parameter if parameter else ''}) {{\n"
        f'  asm volatile("{{\\n.reg .u32 at;\\nmad.lo.u32 at, %1, 8, %0;\\n{order}\\n}}"\n'
        f'    :: "r"((unsigned int)__cvta_generic_to_shared(barriers)), "r"(number){operand} : "memory");\n'
        "}"
    )


def _bulk(instruction: str) -> str:
    """Copies of many bytes by one thread."""
    order = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [at];"
    return (
        f"{_HEAD} {function_name(instruction)}(void* to, const void* from, int bytes, void* barriers, int number) {{\n"
        f'  asm volatile("{{\\n.reg .u32 at;\\nmad.lo.u32 at, %4, 8, %3;\\n{order}\\n}}"\n'
        '    :: "r"((unsigned int)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes),\n'
        '    "r"((unsigned int)__cvta_generic_to_shared(barriers)), "r"(number) : "memory");\n'
        "}"
    )


def _group(instruction: str) -> str:
    """Products of a warp group, which run on while the threads go on."""
    _, _, kind, *rest = instruction.split(".")
    order = {
        "fence": "wgmma.fence.sync.aligned",
        "finish": "wgmma.wait_group.sync.aligned 0",
        "commit": "wgmma.commit_group.sync.aligned",
        "wait": f"wgmma.wait_group.sync.aligned {rest[0] if rest else ''}",
    }.get(kind)
    name = function_name(instruction)
    if kind in ("commit", "wait"):
        return f'{_HEAD} {name}() {{ asm volatile("{order};" ::: "memory"); }}'
    columns = int(rest[-1].removeprefix("n"))
    across, panels, packed = ("across" in rest, "panels" in rest, "packed" in rest)
    count = columns // 2
    shape, types, register = _MMA.get(f"cuda.mma.{kind}", ("", "", "r" if rest[0] == "s32" else "f"))
    element, zero = ("float", "0x80000000") if register == "f" else ("int", "0")
    places = ", ".join(f"%{n}" for n in range(count))
    sums = ", ".join(f'"+{register}"(d[{n}])' for n in range(count))
    if kind == "fence":
        return f'{_HEAD} {name}({element}* d) {{ asm volatile("{order};" : {sums} :: "memory"); }}'
    if kind == "finish":
        # A zero that changes nothing is added to each sum. Where sums are rounded to halves at once, the compiler
        # (CUDA 13.0, 13.4) reads them before products are done: it waits for each of these, or gives wrong results.
        return (
            f"{_HEAD} {name}({element}* d) {{\n"
            f'  asm volatile("{order};" : {sums} :: "memory");\n'
            f"  {element} zero;\n"
            f'  asm volatile("mov.b32 %0, {zero};" : "={register}"(zero));\n'
            f"  for (int i = 0; i < {count}; ++i) d[i] += zero;\n"
            "}"
        )
    # Tiles of shared memory by descriptors: address, distance of panels, distance of eight rows, swizzled by 128 bytes.
    # Packed operands are not swizzled: eight rows of 16 bytes in a row, 128 bytes from the next steps.
    address = "(((unsigned long long)(at & 0x3ffff)) >> 4) | (64ull << 32)"
    descriptor = f"{address} | (1ull << 62)"
    distance = "((unsigned long long)(panel >> 4) << 16)" if panels else "(1ull << 16)"
    second = f"{address} | (8ull << 16)" if packed else f"{descriptor} | {distance}"
    # Signs of the operands (integers have their own), and which of them lie across (16 bits have the choice).
    flags = "p" if register == "r" else f"p, 1, 1, {int(across)}, {int(panels)}" if kind in _ACROSS else "p, 1, 1"
    return (
        f"{_HEAD} {name}({element}* d, const void* a, const void* b{', long long panel' if panels else ''}) {{\n"
        f"  unsigned int at = (unsigned int)__cvta_generic_to_shared(a);\n"
        f"  const unsigned long long x = {descriptor} | (1ull << 16);\n"
        f"  at = (unsigned int)__cvta_generic_to_shared(b);\n"
        f"  const unsigned long long y = {second};\n"
        '  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; '
        f"wgmma.mma_async.sync.aligned.m64n{columns}{shape.removeprefix('m16n8')}.{types.rpartition('.')[0]} "
        f'{{{places}}}, %{count}, %{count + 1}, {flags};}}"\n'
        f'    : {sums} : "l"(x), "l"(y));\n'
        "}"
    )


def _load_matrices(instruction: str) -> str:
    shape = "m8n8.x4.trans" if instruction.endswith(".trans") else "m8n8.x4"
    return (
        f"{_HEAD} {function_name(instruction)}(void* to, const void* from) {{\n"
        "  unsigned int* r = (unsigned int*)to;\n"
        f'  asm volatile("ldmatrix.sync.aligned.{shape}.shared.b16 {{%0, %1, %2, %3}}, [%4];"\n'
        '    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])\n'
        '    : "r"((unsigned int)__cvta_generic_to_shared(from)) : "memory");\n'
        "}"
    )


def _mma(instruction: str) -> str:
    base = instruction.removesuffix(_FIRST)
    shape, types, kind = _MMA[base]
    element = "float" if kind == "f" else "int"
    # Sums that begin here have a register of zero in their place.
    sums, mode, zero = (
        ("%0, %1, %2, %3", "+", "") if base == instruction else (", ".join(["%10"] * 4), "=", ', "f"(0.f)')
    )
    if base == "cuda.mma.tf32":
        # Rounded to nearest: the instruction itself would cut the low bits off.
        convert = (
            "  unsigned int x[4], y[2];\n"
            '  for (int i = 0; i < 4; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x[i]) : "f"(((const float*)a)[i]));\n'
            '  for (int i = 0; i < 2; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y[i]) : "f"(((const float*)b)[i]));\n'
        )
    else:
        convert = "  const unsigned int *x = (const unsigned int*)a, *y = (const unsigned int*)b;\n"
    head = f"{_HEAD} {function_name(instruction)}({element}* c, const void* a, const void* b) {{\n{convert}"
    if kind == "r":
        head += _quarters(types)
    return (
        f"{head}"
        f'  asm volatile("mma.sync.aligned.{shape}.row.col.{types} '
        f'{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{{sums}}};"\n'
        f'    : "{mode}{kind}"(c[0]), "{mode}{kind}"(c[1]), "{mode}{kind}"(c[2]), "{mode}{kind}"(c[3])\n'
        f'    : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]){zero});\n'
        f"{'#endif' + chr(10) if kind == 'r' else ''}"
        "}"
    )


def _quarters(types: str) -> str:
    """The product of bytes on sm_75, whose instruction has half the rows and half the steps: fragments agree."""
    lines = ["#if __CUDA_ARCH__ < 800"]
    for row, step in ((0, 0), (0, 1), (1, 0), (1, 1)):
        places = f'"+r"(c[{2 * row}]), "+r"(c[{2 * row + 1}])'
        order = f"mma.sync.aligned.m8n8k16.row.col.{types} {{%0, %1}}, {{%2}}, {{%3}}, {{%0, %1}};"
        lines.append(f'  asm volatile("{order}" : {places} : "r"(x[{row + 2 * step}]), "r"(y[{step}]));')
    return "\n".join([*lines, "#else", ""])


def _codes(instruction: str) -> str:
    """Products with packed codes, whose halves are made without a conversion: among the low bits of 1024 a code makes
    that number larger by itself, and by sixteen times itself four bits higher.

    A thread has four words of two columns. Neighbouring codes lie in the two halves of a word, as neighbouring rows do:
    the steps of both operands are in the order of codes' places, and none is moved.
    """
    bits = _CODES[instruction]
    half = 'asm("{0} %0, %1, %2;" : "=r"({1}) : "r"({2}), "r"({3}));'
    lines = [
        f"{_HEAD} {function_name(instruction)}(float* c, const void* words, const void* rows, int zero) {{",
        "  const unsigned int *w = (const unsigned int*)words, *x = (const unsigned int*)rows;",
        "  const unsigned int low = 0x64006400u + (unsigned int)zero * 0x10001u;",
    ]
    if bits == 4:
        lines.append("  const unsigned int high = 0xd400d400u + (unsigned int)zero * 0x100010u;")
    lines += [
        "  #pragma unroll",
        f"  for (int part = 0; part < {32 // bits}; ++part) {{",
        "    const int eight = part / 2, odd = part % 2;",
        "    unsigned int a[4];",
        f"    const unsigned int* b = x + eight * 4 + odd{' * 2' if bits == 4 else ''};",
        "    #pragma unroll",
        "    for (int row = 0; row < 2; ++row) {",
    ]
    if bits == 4:
        lines += [
            "      const unsigned int word = w[row * 4 + eight] >> (odd * 8);",
            "      const unsigned int one = (word & 0x000f000fu) | 0x64006400u;",
            "      const unsigned int two = (word & 0x00f000f0u) | 0x64006400u;",
            "      " + half.format("sub.f16x2", "a[row]", "one", "low"),
            '      asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(a[row + 2]) : "r"(two), "r"(0x2c002c00u), "r"(high));',
        ]
    else:
        lines += [
            "      const unsigned int* two = w + row * 4 + eight * 2;",
            "      const unsigned int order = odd ? 0x4341u : 0x4240u;",
            "      const unsigned int one = __byte_perm(two[0], 0x64646464u, order);",
            "      const unsigned int other = __byte_perm(two[1], 0x64646464u, order);",
            "      " + half.format("sub.f16x2", "a[row]", "one", "low"),
            "      " + half.format("sub.f16x2", "a[row + 2]", "other", "low"),
        ]
    lines += [
        "    }",
        '    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "',
        '      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"',
        '      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])',
        f'      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[{1 if bits == 4 else 2}]));',
        "  }",
        "}",
    ]
    return "\n".join(lines)
