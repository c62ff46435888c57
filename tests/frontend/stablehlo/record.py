"""Records the fixtures of the StableHLO tests with JAX: programs as text and as bytecode, inputs and what JAX gives.

    python -m tests.frontend.stablehlo.record       # where jax is installed; writes the folder fixtures

Programs are `<name>.mlir` and `<name>.mlirbc` (of some, the generic form too: `<name>.generic.mlir`); all arrays are in
answers.npz, as `<name>/in0`, `<name>/out0` and so on.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

FOLDER = Path(__file__).parent / "fixtures"
GENERIC = ("control", "windows", "places", "orders")
NHWC = ("NHWC", "HWIO", "NHWC")


def _numbers(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def _mlp(x):
    first, second = _numbers(1, 6, 8), _numbers(2, 8, 3)
    return jax.nn.softmax(jax.nn.relu(x @ first + 0.5) @ second), jax.nn.gelu(x, approximate=False)


def _convolutions(x, w):
    return (
        lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=NHWC),
        lax.conv_general_dilated(x, w[:, :, :2], (1, 1), "VALID", feature_group_count=2, dimension_numbers=NHWC),
        lax.conv_general_dilated(x, w, (1, 1), ((1, 2), (-1, 0)), batch_group_count=2, dimension_numbers=NHWC),
        lax.conv_general_dilated(
            x, w, (1, 1), ((1, 1), (2, 1)), lhs_dilation=(2, 1), rhs_dilation=(1, 2), dimension_numbers=NHWC
        ),
        lax.conv_transpose(x, w, (2, 2), "SAME"),
    )


def _places(x, i):
    return (
        x[i],
        x[:, i, None],
        x.at[i].add(1.0),
        x.at[i, i].set(9.0),
        x.at[i + 2].get(mode="fill", fill_value=-1),
        lax.dynamic_slice(x, (i[0] * 9, i[1]), (2, 3)),
        lax.dynamic_update_slice(x, x[:1, :2] * 0 + 5, (i[0], i[1])),
        jax.vmap(lambda row, at: row[at])(x, i),
        jax.vmap(lambda row, at: row.at[at].max(0.5))(x, i),
    )


def _orders(x, y):
    return (
        lax.sort((jnp.round(x), y), num_keys=2),
        jnp.argsort(jnp.where(x > 1, jnp.nan, x), axis=0),
        lax.top_k(x, 2),
        jnp.argmax(jnp.where(x > 1, jnp.nan, x), 1),
        jnp.argmin(x, 0),
    )


def _windows(x):
    image = x.reshape(1, 4, 6, 1)
    pooled = lax.reduce_window(image, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
    return (
        pooled,
        lax.reduce_window(x, 0.0, lax.add, (2, 3), (1, 2), ((1, 0), (2, 1)), base_dilation=(1, 2)),
        lax.reduce_window(x, 0.0, lax.add, (1, 5), (1, 1), "VALID"),
        lax.reduce_window((x, x), (0.0, 1.0), lambda p, q: (p[0] + q[0], p[1] * q[1]), (2, 2), (1, 1), "VALID"),
        jnp.cumsum(x, 1),
        lax.cummax(x, axis=0, reverse=True),
        jax.grad(lambda v: jnp.sum(lax.reduce_window(v, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID") ** 2))(x),
        lax.reduce(x, 1.0, lambda a, b: a * b + a + b, (1,)),
    )


def _control(x):
    return (
        lax.cond(x[0, 0] > 0, lambda v: v + 1, lambda v: v * 2, x),
        lax.switch(x[0, 0].astype(jnp.int32), [lambda v: v, lambda v: v * 2, lambda v: v - 1], x),
        lax.while_loop(lambda v: jnp.sum(v) < 1000, lambda v: v * 2 + 1, x),
        lax.fori_loop(0, (jnp.abs(x[0, 0]) * 9).astype(jnp.int32), lambda at, v: v + at, x),
        lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(6), x, reverse=True),
    )


def _long_scan(x):
    weight = _numbers(3, 6, 6) * 0.3
    return lax.scan(lambda c, row: (jnp.tanh(c @ weight + row), c), jnp.zeros(6), x)


def _complex(x, y):
    z = lax.complex(x, y)
    results = [
        jnp.fft.fft2(z),
        jnp.fft.rfft(x).conj(),
        z * z / (z + 1),
        jnp.exp(z),
        jnp.log(z),
        jnp.sqrt(z),
        jnp.tanh(z),
    ]
    parts = [part for item in results for part in (jnp.real(item), jnp.imag(item))]
    return (*parts, jnp.fft.irfft(jnp.fft.rfft(x)), jnp.abs(z), jnp.angle(z))


def _random(n):
    return (
        jax.random.normal(jax.random.key(n), (3, 5)),
        jax.random.bits(jax.random.key(n, impl="rbg"), (7,)),
        jax.random.permutation(jax.random.key(n), 6),
    )


def _algebra(a, right):
    lower = jnp.linalg.cholesky(a)
    return (
        lower,
        jax.scipy.linalg.solve_triangular(lower, right, lower=True),
        jnp.linalg.solve(a, right),
        jnp.linalg.qr(right),
        jnp.linalg.det(a),
        jnp.linalg.eigh(a)[0],
        jnp.linalg.svd(right, compute_uv=False),
    )


def _bits(i, x):
    u = i.astype(jnp.uint32)
    return (
        lax.population_count(i),
        lax.clz(u),
        i << 31,
        lax.shift_right_logical(i, jnp.full_like(i, 33)),
        lax.shift_right_arithmetic(i, jnp.full_like(i, 40)),
        i * 2147483647,
        lax.div(i, i - 3),
        lax.rem(i, i - 3),
        lax.bitcast_convert_type(x, jnp.uint8),
        lax.reduce_precision(x, 5, 4),
        lax.round(x * 2, lax.RoundingMethod.AWAY_FROM_ZERO),
        lax.cbrt(x),
        (x * 200).astype(jnp.int8),
        x.astype(jnp.bfloat16).astype(jnp.float32),
    )


def _open(x):
    return x.reshape(-1).sum(), jnp.concatenate([x, x]), jax.nn.softmax(x, 0), jnp.arange(x.shape[0] * 2), x[:, ::2]


def cases():
    """Programs with their arguments."""
    x, y = _numbers(5, 4, 6), _numbers(6, 4, 6)
    i = jnp.asarray([3, 0, 2, 1], jnp.int32)
    base = np.random.default_rng(8).normal(size=(4, 4))
    symmetric = jnp.asarray(base @ base.T + 3 * np.eye(4), jnp.float32)
    return {
        "mlp": (_mlp, (x,)),
        "convolutions": (_convolutions, (_numbers(7, 2, 5, 6, 4), _numbers(8, 3, 3, 4, 6))),
        "places": (_places, (x, i)),
        "orders": (_orders, (x, y)),
        "windows": (_windows, (x,)),
        "control": (_control, (x,)),
        "long_scan": (_long_scan, (_numbers(9, 100, 6),)),
        "complex": (_complex, (x, y)),
        "random": (_random, (jnp.asarray(3, jnp.int32),)),
        "algebra": (_algebra, (symmetric, _numbers(9, 4, 3))),
        "bits": (_bits, (i * 11 - 7, x)),
        "open": (_open, (x,)),
    }


def main():
    """Write all fixtures."""
    FOLDER.mkdir(exist_ok=True)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")  # the folders of this machine
    arrays = {}
    for name, (function, args) in cases().items():
        shapes = args
        if name == "open":
            shapes = [jax.ShapeDtypeStruct(export.symbolic_shape("b, 6"), jnp.float32)]
        program = export.export(jax.jit(function), platforms=["cpu"])(*shapes)
        text = program.mlir_module()
        (FOLDER / f"{name}.mlir").write_text(text)
        (FOLDER / f"{name}.mlirbc").write_bytes(bytes(program.mlir_module_serialized))
        if name in GENERIC:
            (FOLDER / f"{name}.generic.mlir").write_text(_generic(text))
        arrays.update({f"{name}/in{at}": np.asarray(item) for at, item in enumerate(args)})
        results = jax.tree.leaves(jax.jit(function)(*args))
        arrays.update({f"{name}/out{at}": np.asarray(item) for at, item in enumerate(results)})
    np.savez_compressed(FOLDER / "answers.npz", **arrays)


def _generic(text):
    with mlir.make_ir_context():
        return ir.Module.parse(text).operation.get_asm(print_generic_op_form=True)


if __name__ == "__main__":
    main()
