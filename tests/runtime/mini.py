"""A mini model in hand-written LLVM IR: what the compiler would emit for relu(x @ w + b), and twice that."""

from __future__ import annotations

from functools import cache

import numpy as np

from tilewright.backends.llvm import toolchain
from tilewright.backends.llvm.cache import compile_cached
from tilewright.runtime.core.artifact import (
    ArgKind,
    ArgRef,
    Artifact,
    ConstantInfo,
    FunctionInfo,
    KernelInfo,
    ModelInfo,
    ParamInfo,
    Step,
    TensorInfo,
)

ROWS, DEPTH, COLUMNS = 16, 8, 4

KERNELS = """
declare i32 @tw_parallel(ptr, ptr, i64)
declare float @llvm.maxnum.f32(float, float)

; Rows [begin, end) of x[16, 8] @ w[8, 4] + b[4]; the closure is {x, w, b, out}.
define internal i32 @dense.rows(ptr %closure, i64 %begin, i64 %end) {
entry:
  %x = load ptr, ptr %closure
  %pw = getelementptr ptr, ptr %closure, i64 1
  %w = load ptr, ptr %pw
  %pb = getelementptr ptr, ptr %closure, i64 2
  %b = load ptr, ptr %pb
  %po = getelementptr ptr, ptr %closure, i64 3
  %out = load ptr, ptr %po
  br label %row
row:
  %i = phi i64 [ %begin, %entry ], [ %i.next, %row.end ]
  br label %column
column:
  %j = phi i64 [ 0, %row ], [ %j.next, %column.end ]
  %bias.at = getelementptr float, ptr %b, i64 %j
  %bias = load float, ptr %bias.at
  br label %depth
depth:
  %k = phi i64 [ 0, %column ], [ %k.next, %depth ]
  %sum = phi float [ %bias, %column ], [ %sum.next, %depth ]
  %x.row = mul i64 %i, 8
  %x.index = add i64 %x.row, %k
  %x.at = getelementptr float, ptr %x, i64 %x.index
  %x.value = load float, ptr %x.at
  %w.row = mul i64 %k, 4
  %w.index = add i64 %w.row, %j
  %w.at = getelementptr float, ptr %w, i64 %w.index
  %w.value = load float, ptr %w.at
  %product = fmul float %x.value, %w.value
  %sum.next = fadd float %sum, %product
  %k.next = add i64 %k, 1
  %k.more = icmp slt i64 %k.next, 8
  br i1 %k.more, label %depth, label %column.end
column.end:
  %relu = call float @llvm.maxnum.f32(float %sum.next, float 0.0)
  %out.row = mul i64 %i, 4
  %out.index = add i64 %out.row, %j
  %out.at = getelementptr float, ptr %out, i64 %out.index
  store float %relu, ptr %out.at
  %j.next = add i64 %j, 1
  %j.more = icmp slt i64 %j.next, 4
  br i1 %j.more, label %column, label %row.end
row.end:
  %i.next = add i64 %i, 1
  %i.more = icmp slt i64 %i.next, %end
  br i1 %i.more, label %row, label %done
done:
  ret i32 0
}

define i32 @mini_dense(ptr %x, ptr %w, ptr %b, ptr %out) {
  %closure = alloca [4 x ptr]
  store ptr %x, ptr %closure
  %pw = getelementptr ptr, ptr %closure, i64 1
  store ptr %w, ptr %pw
  %pb = getelementptr ptr, ptr %closure, i64 2
  store ptr %b, ptr %pb
  %po = getelementptr ptr, ptr %closure, i64 3
  store ptr %out, ptr %po
  %code = call i32 @tw_parallel(ptr @dense.rows, ptr %closure, i64 16)
  ret i32 %code
}

define i32 @mini_dense__packed(ptr %slots) {
  %x = load ptr, ptr %slots
  %p1 = getelementptr i64, ptr %slots, i64 1
  %w = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %slots, i64 2
  %b = load ptr, ptr %p2
  %p3 = getelementptr i64, ptr %slots, i64 3
  %out = load ptr, ptr %p3
  %code = call i32 @mini_dense(ptr %x, ptr %w, ptr %b, ptr %out)
  ret i32 %code
}

; out[i] = in[i] * factor over n elements; a negative factor fails its check.
define i32 @scale(ptr %in, ptr %out, float %factor, i64 %n) {
entry:
  %bad = fcmp olt float %factor, 0.0
  br i1 %bad, label %fail, label %check
fail:
  ret i32 1
check:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ 0, %check ], [ %i.next, %loop ]
  %from = getelementptr float, ptr %in, i64 %i
  %value = load float, ptr %from
  %scaled = fmul float %value, %factor
  %to = getelementptr float, ptr %out, i64 %i
  store float %scaled, ptr %to
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}

define i32 @scale__packed(ptr %slots) {
  %in = load ptr, ptr %slots
  %p1 = getelementptr i64, ptr %slots, i64 1
  %out = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %slots, i64 2
  %factor = load float, ptr %p2
  %p3 = getelementptr i64, ptr %slots, i64 3
  %n = load i64, ptr %p3
  %code = call i32 @scale(ptr %in, ptr %out, float %factor, i64 %n)
  ret i32 %code
}

define i32 @mini_double(ptr %in, ptr %out) {
  %code = call i32 @scale(ptr %in, ptr %out, float 2.0, i64 64)
  ret i32 %code
}

define i32 @mini_double__packed(ptr %slots) {
  %in = load ptr, ptr %slots
  %p1 = getelementptr i64, ptr %slots, i64 1
  %out = load ptr, ptr %p1
  %code = call i32 @mini_double(ptr %in, ptr %out)
  ret i32 %code
}
"""

ENTRY = """
declare i32 @mini_dense(ptr, ptr, ptr, ptr)
declare i32 @mini_double(ptr, ptr)
declare i32 @scale(ptr, ptr, float, i64)

; hidden = dense(x) in the workspace; outputs are hidden (copied) and 2 * hidden.
define i32 @mini_entry(ptr %inputs, ptr %outputs, ptr %workspace, ptr %constants) {
entry:
  %x = load ptr, ptr %inputs
  %b = getelementptr i8, ptr %constants, i64 128
  %code = call i32 @mini_dense(ptr %x, ptr %constants, ptr %b, ptr %workspace)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %fail, label %go
fail:
  ret i32 %code
go:
  %y0 = load ptr, ptr %outputs
  %p1 = getelementptr ptr, ptr %outputs, i64 1
  %y1 = load ptr, ptr %p1
  %c1 = call i32 @scale(ptr %workspace, ptr %y0, float 1.0, i64 64)
  %c2 = call i32 @mini_double(ptr %workspace, ptr %y1)
  %c = or i32 %c1, %c2
  ret i32 %c
}
"""

RISCV_FEATURES = "+m,+a,+f,+d,+c"


@cache
def weights() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    w = random.standard_normal((DEPTH, COLUMNS)).astype(np.float32)
    return w, random.standard_normal(COLUMNS).astype(np.float32)


def sample_input(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, DEPTH)).astype(np.float32)


def expected(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w, b = weights()
    hidden = np.maximum(x @ w + b, 0)
    return hidden, 2 * hidden


def model_artifact(triple: str | None = None, threads: int | None = 2) -> Artifact:
    triple = triple or toolchain.host_triple()
    features = RISCV_FEATURES if triple.startswith("riscv64") else ""
    w, b = weights()
    blob = np.zeros(192, np.uint8)
    blob[:128] = w.view(np.uint8).reshape(-1)
    blob[128:144] = b.view(np.uint8)
    model = ModelInfo(
        name="mini",
        inputs=(TensorInfo("data/x", (ROWS, DEPTH), "float32"),),
        outputs=(TensorInfo("logits", (ROWS, COLUMNS), "float32"), TensorInfo("doubled", (ROWS, COLUMNS), "float32")),
        workspace_bytes=ROWS * COLUMNS * 4,
        constants=(ConstantInfo("w", (DEPTH, COLUMNS), "float32", 0), ConstantInfo("b", (COLUMNS,), "float32", 128)),
        kernels=(
            KernelInfo("mini_dense", ("fc", "relu"), 2 * ROWS * DEPTH * COLUMNS, 1024, "dense+relu"),
            KernelInfo("mini_double", ("twice <b>",), 64, 512, "multiply"),
        ),
        steps=(
            Step(
                0,
                (
                    ArgRef(ArgKind.INPUT, 0),
                    ArgRef(ArgKind.CONSTANT),
                    ArgRef(ArgKind.CONSTANT, offset=128),
                    ArgRef(ArgKind.WORKSPACE),
                ),
            ),
            Step(1, (ArgRef(ArgKind.WORKSPACE), ArgRef(ArgKind.OUTPUT, 1))),
        ),
        threads=threads,
    )
    objects = [compile_cached(text, triple=triple, features=features) for text in (KERNELS, ENTRY)]
    return Artifact(triple, "", features, objects, blob, model)


def functions_artifact(triple: str | None = None) -> Artifact:
    triple = triple or toolchain.host_triple()
    features = RISCV_FEATURES if triple.startswith("riscv64") else ""
    functions = [
        FunctionInfo(
            "scale",
            (
                ParamInfo("source", "float32", ("n",)),
                ParamInfo("result", "float32", ("n",), is_output=True),
                ParamInfo("factor", "float32"),
            ),
        ),
        FunctionInfo(
            "mini_double",
            (ParamInfo("source", "float32", (16, 4)), ParamInfo("result", "float32", (16, 4), is_output=True)),
        ),
    ]
    objects = [compile_cached(KERNELS, triple=triple, features=features)]
    return Artifact(triple, "", features, objects, functions=functions)
