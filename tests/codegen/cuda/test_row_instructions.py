"""Instructions on rows of fragments: every one has text that compiles; minima and rounding do on old GPUs as well."""

from __future__ import annotations

import pytest

from tests.codegen.on_device import require_nvrtc
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.backends.cuda.dialect import CudaDialect
from tilewright.backends.cuda.instructions import function_name
from tilewright.codegen.c.helpers import Helpers
from tilewright.ir.dtype import FLOAT32
from tilewright.tir.machine import find_instruction, table
from tilewright.tir.row_instructions import (
    FIRST_PRODUCTS,
    HELD_COLUMNS,
    POWER_OF_TWO,
    ROUND_PAIR,
    ROW_MAX,
    ROW_SUM,
    held_product,
)

SMALL = [*FIRST_PRODUCTS.values(), *ROUND_PAIR.values(), *ROW_MAX.values(), *ROW_SUM.values()]
HELD = [held_product("float16", True, columns, 64, fresh) for columns in HELD_COLUMNS[:2] for fresh in (False, True)]
HELD += [held_product("bfloat16", False, *sizes) for sizes in ((64, 96), (128, 32))]


def kernel(name: str, number: int) -> str:
    """A kernel that calls an instruction with registers of its own, and writes what it left in them."""
    text = CudaDialect().instruction_helper(name)
    assert text is not None and text[0] == function_name(name)
    if name == POWER_OF_TWO:
        call = f"d[0] = {text[0]}(d[0]);"
    elif name in ROUND_PAIR.values():
        call = f"{text[0]}((unsigned short*)a, d);"
    elif len(find_instruction(name).arguments) == 2:
        call = f"{text[0]}(d, d + 1);"
    else:
        more = ", 0" if len(find_instruction(name).arguments) == 4 else ""
        call = f"{text[0]}(d, a, {'memory' if '.held.' in name else 'a + 32'}{more});"
    return (
        f"{text[1]}\n"
        f'extern "C" __global__ void k{number}(float* out, const unsigned int* given) {{\n'
        "  __shared__ __align__(1024) unsigned short memory[64 * 128]; memory[threadIdx.x] = given[0];\n"
        "  float d[128]; unsigned int a[64];\n"
        "  for (int i = 0; i < 128; ++i) d[i] = given[i];\n"
        "  for (int i = 0; i < 64; ++i) a[i] = given[i];\n"
        f"  __syncthreads(); {call}\n"
        "  for (int i = 0; i < 128; ++i) out[i] = d[i] + a[i % 64];\n}\n"
    )


def test_every_instruction_has_text() -> None:
    names = [name for name in table if ".row." in name or ".pair." in name or ".held." in name or name == POWER_OF_TWO]
    assert len(names) > len(SMALL) and all(CudaDialect().instruction_helper(name) for name in names)


@pytest.mark.parametrize(("arch", "names"), [("sm_80", [*SMALL, POWER_OF_TWO]), ("sm_90a", HELD)])
def test_text_compiles(arch: str, names: list[str]) -> None:
    require_nvrtc()
    assert compile_cuda("".join(kernel(name, number) for number, name in enumerate(names)), arch)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
def test_extremes_and_bfloat16(arch: str) -> None:
    """One instruction where there is one, the same meaning before."""
    require_nvrtc()
    helpers = Helpers(CudaDialect())
    largest, bits = helpers.extreme(FLOAT32, lesser=False), helpers.bfloat16_bits()
    body = f"x[0] = {largest}(x[0], x[1]); y[0] = {bits}(x[2]);"
    head = 'extern "C" __global__ void k(float* x, unsigned short* y)'
    assert compile_cuda(f"{helpers.text()}\n{head} {{ {body} }}", arch)
