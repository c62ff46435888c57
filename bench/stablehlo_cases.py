"""The cases of the StableHLO benchmark: public functions of JAX on arguments that they take, and forms of `jax.lax`.

A function of `jax.numpy` and its kin is tried on a list of argument templates; each that JAX itself traces and exports
is a sample. Functions whose arguments need more than arrays have samples of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import tilewright as tw
from bench import stablehlo_models
from tilewright.frontend import from_jax
from tilewright.graph.interpreter import evaluate
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError

RELATIVE, ABSOLUTE = 2e-4, 2e-5
"""How far results may be from JAX's: absolutely, of the largest finite element of a result."""
LEAST = 0.1
"""What the largest element counts as where all are smaller: differences of rounded numbers."""
_MODULES = {
    "numpy": jnp,
    "numpy.linalg": jnp.linalg,
    "numpy.fft": jnp.fft,
    "lax": lax,
    "nn": jax.nn,
    "scipy.special": jax.scipy.special,
}
_SIGNLESS = frozenset({"numpy.linalg.svd", "numpy.linalg.eigh", "lax.linalg.svd"})
"""Functions whose vectors may point either way: only magnitudes are compared."""
_LEFT_OUT = frozenset(
    # What asks about types and shapes, makes no arrays of its own, or holds anything.
    "numpy.empty numpy.empty_like lax.empty numpy.save numpy.load numpy.printoptions numpy.set_printoptions "
    "numpy.shape numpy.ndim numpy.size numpy.result_type numpy.can_cast numpy.iscomplexobj numpy.isrealobj "
    "numpy.isscalar "
    "numpy.promote_types numpy.iterable numpy.issubdtype numpy.from_dlpack numpy.frombuffer numpy.fromfile "
    "numpy.fromfunction numpy.apply_along_axis numpy.apply_over_axes numpy.vectorize numpy.get_printoptions "
    "lax.dtype lax.shape_as_value lax.asarray lax.stop_gradient lax.create_token lax.after_all "
    "lax.full_like_dispatch numpy.array_repr numpy.array_str lax.rng_uniform "
    "lax.psum lax.pmean lax.pmax lax.pmin lax.axis_index lax.axis_size lax.all_gather lax.ppermute lax.pshuffle "
    "lax.pswapaxes lax.all_to_all lax.pcast lax.pvary lax.psum_scatter lax.pbroadcast".split()
)
_NOT_AS_WRITTEN = frozenset({"nn.celu"})
"""Functions that XLA does not compute as written on truth values: 0 times NaN is 0 to it where the 0 was one."""
Run = Callable[[IRModule, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Outcome:
    """What became of the samples of a function."""

    name: str
    verdict: str
    """passed (all of them), refused (one was, with a reason), failed (one gave something else, or broke)."""
    passed: int
    total: int
    reason: str = ""


@dataclass(frozen=True)
class Sample:
    """A function of arrays, and arguments."""

    call: Callable[..., Any]
    args: tuple[Any, ...]


def _numbers(seed: int, shape: tuple[int, ...], kind: str = "f") -> Any:
    random = np.random.default_rng(seed)
    if kind == "i":
        return jnp.asarray(random.integers(-5, 9, shape), jnp.int32)
    if kind == "u":
        return jnp.asarray(random.integers(0, 4, shape), jnp.uint32)
    if kind == "b":
        return jnp.asarray(random.integers(0, 2, shape), bool)
    if kind == "p":
        return jnp.asarray(random.uniform(0.1, 0.9, shape), jnp.float32)
    if kind == "s":
        base = random.normal(size=shape)
        return jnp.asarray(base @ np.swapaxes(base, -1, -2) + 3 * np.eye(shape[-1]), jnp.float32)
    return jnp.asarray(random.normal(size=shape) * 2, jnp.float32)


def templates() -> list[tuple[Any, ...]]:
    """Arguments that functions are tried on."""
    f, g, h = (_numbers(seed, (3, 4)) for seed in (1, 2, 3))
    i, j = (_numbers(seed, (3, 4), "i") for seed in (4, 5))
    p, q = (_numbers(seed, (3, 4), "p") for seed in (6, 7))
    b, c = (_numbers(seed, (3, 4), "b") for seed in (8, 9))
    u, v = (_numbers(seed, (3, 4), "u") for seed in (10, 11))
    return [
        (f,),
        (p,),
        (i,),
        (b,),
        (f, g),
        (p, q),
        (i, j),
        (u, v),
        (b, c),
        (f, g, h),
        (p, q, p * 0.5),
        (b, f, g),
        (f[0], g[0]),
        (i[0] % 4, f[0]),
        (f[0], i[0] % 4),
        (_numbers(12, (4, 4), "s"),),
        (_numbers(12, (4, 4), "s"), _numbers(13, (4, 2))),
        (_numbers(14, (2, 3, 4)),),
        (f[0],),
    ]


def functions() -> dict[str, Callable[[], list[Sample]]]:
    """Everything that is run: name to what makes its samples."""
    found: dict[str, Callable[[], list[Sample]]] = {}
    for prefix, module in _MODULES.items():
        for name in sorted(vars(module)):
            value = getattr(module, name)
            full = f"{prefix}.{name}"
            if name.startswith("_") or full in _LEFT_OUT or not callable(value) or inspect.isclass(value):
                continue
            found[full] = lambda value=value, full=full: list(_tried(full, value))
    for name, sample in special().items():
        found[name] = lambda sample=sample: [sample]
    return found


def _tried(name: str, function: Callable[..., Any]) -> Iterator[Sample]:
    for args in templates():
        if name in _NOT_AS_WRITTEN and args[0].dtype == bool:
            continue
        try:
            leaves = jax.tree.leaves(jax.eval_shape(_flat(function), *args))
            if not leaves:
                continue
            jax.export.export(jax.jit(_flat(function)), platforms=["cpu"])(*args)
        except Exception:
            continue
        yield Sample(function, args)


def _flat(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A function whose results are a list of arrays of real numbers: complex ones as their two parts."""

    def flat(*args: Any) -> list[Any]:
        results: list[Any] = []
        for leaf in jax.tree.leaves(function(*args)):
            value = jnp.asarray(leaf)
            if jnp.issubdtype(value.dtype, jnp.complexfloating):
                results += [jnp.real(value), jnp.imag(value)]
            else:
                results.append(value)
        return results

    return flat


def run_function(name: str, run: Run) -> Outcome:
    """The outcome of a function by its name: all samples in one program, or one by one where something is amiss."""
    samples = functions()[name]()
    if len(samples) > 1 and _pass_together(name, samples, run):
        return Outcome(name, "passed", len(samples), len(samples))
    passed, verdict, reason = 0, "passed", ""
    for sample in samples:
        try:
            _run_sample(name, sample, run)
            passed += 1
        except UserError as error:
            if verdict == "passed":
                verdict, reason = "refused", str(error).replace("\n", " ")
        except Exception as error:
            verdict, reason = "failed", f"{type(error).__name__}: {str(error)[:300]}"
    return Outcome(name, verdict if samples else "none", passed, len(samples), reason)


def _pass_together(name: str, samples: Sequence[Sample], run: Run) -> bool:
    """Whether one program of all samples, each with inputs of its own, gives what JAX gives."""

    def together(*every: tuple[Any, ...]) -> list[Any]:
        return [_flat(sample.call)(*args) for sample, args in zip(samples, every, strict=True)]

    try:
        _run_sample(name, Sample(together, tuple(sample.args for sample in samples)), run)
    except Exception:  # each sample then says itself what is wrong with it
        return False
    return True


def _run_sample(name: str, sample: Sample, run: Run) -> None:
    call = _flat(sample.call)
    module = from_jax(call, *sample.args)
    found = run(module, [np.asarray(item) for item in jax.tree.leaves(sample.args)])
    try:
        _compare_all(name, jax.jit(call)(*sample.args), found)
    except AssertionError:
        # Compiled, JAX drops infinities and NaN that it has operation by operation.
        _compare_all(name, call(*sample.args), found)


def _compare_all(name: str, expected: Sequence[Any], found: Sequence[Any]) -> None:
    assert len(expected) == len(found), f"{len(found)} results, not {len(expected)}"
    for wanted, item in zip(expected, found, strict=True):
        compare(np.asarray(wanted), np.asarray(item), name in _SIGNLESS)


def compare(wanted: Any, found: Any, signless: bool = False) -> None:
    """Raise an error where a result is not what JAX gives."""
    tolerance = RELATIVE
    if wanted.dtype.name == "bfloat16":
        # The interpreter gives the bits.
        bits = found.view(wanted.dtype) if found.dtype == np.uint16 else found
        wanted, found, tolerance = wanted.astype(np.float32), bits.astype(np.float32), 1e-2
    assert wanted.shape == found.shape, f"shape {found.shape}, not {wanted.shape}"
    assert wanted.dtype == found.dtype, f"type {found.dtype}, not {wanted.dtype}"
    if not np.issubdtype(wanted.dtype, np.floating):
        np.testing.assert_array_equal(found, wanted)
        return
    if signless:
        wanted, found = np.abs(wanted), np.abs(found)
    finite = np.abs(wanted[np.isfinite(wanted)])
    scale = float(finite.max()) if finite.size else 1.0
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=ABSOLUTE * max(scale, LEAST))


def run_compiled(module: IRModule, inputs: Sequence[Any]) -> Sequence[Any]:
    """Through `tw.compile`."""
    found = tw.compile(module, threads=1)(*inputs)
    return found if isinstance(found, tuple) else (found,)


def run_interpreted(module: IRModule, inputs: Sequence[Any]) -> Sequence[Any]:
    """Through the graph interpreter."""
    found = evaluate(module, *inputs)
    return found if isinstance(found, tuple) else (found,)


def special() -> dict[str, Sample]:
    """Forms of `jax.lax` whose arguments need more than arrays."""
    f, g = _numbers(1, (4, 6)), _numbers(2, (4, 6))
    t = _numbers(3, (2, 5, 6, 4))
    i = jnp.asarray([3, 0, 2, 1], jnp.int32)
    made: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
    _add_indexing(made, f, g, i)
    _add_windows(made, t, f)
    _add_control(made, f)
    _add_products(made)
    _add_random(made)
    _add_orders(made, f, g, i)
    made.update(stablehlo_models.forms())
    return {f"form.{name}": Sample(*pair) for name, pair in made.items()}


_Forms = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def _add_indexing(made: _Forms, f: Any, g: Any, i: Any) -> None:
    made["x[i]"] = (lambda x, n: x[n], (f, i))
    made["x[:, i]"] = (lambda x, n: x[:, n], (f, i))
    made["x[i, j]"] = (lambda x, n: x[n, n + 1], (f, i))
    made["x[i, :, None]"] = (lambda x, n: x[n, :, None], (f, i))
    made["x[-1]"] = (lambda x: x[-1], (f,))
    made["x[::-2]"] = (lambda x: x[::-2, 1:5:3], (f,))
    made["x.at.set"] = (lambda x, n: x.at[n[:2]].set(7.0), (f, i))
    made["x.at.add"] = (lambda x, n: x.at[n % 2].add(x), (f, i))
    made["x.at.mul"] = (lambda x, n: x.at[:, n].multiply(2.0), (f, i))
    made["x.at.max"] = (lambda x, n: x.at[n, n].max(0.5), (f, i))
    made["x.at.min"] = (lambda x, n: x.at[n, n].min(0.5), (f, i))
    made["x.at.apply"] = (lambda x, n: x.at[n[:2], 1].apply(jnp.sin), (f, i))
    made["x.at.get fill"] = (lambda x, n: x.at[n + 2].get(mode="fill", fill_value=-1), (f, i))
    made["x.at.set drop"] = (lambda x, n: x.at[n + 2].set(1.0, mode="drop"), (f, i))
    made["take_along_axis"] = (lambda x, n: jnp.take_along_axis(x, n[:, None], 1), (f, i))
    made["put_along_axis"] = (lambda x, n: jnp.put_along_axis(x, n[:, None], 9.0, 1, inplace=False), (f, i))
    made["dynamic_slice"] = (lambda x, n: lax.dynamic_slice(x, (n[0], n[1]), (2, 3)), (f, i))
    made["dynamic_slice outside"] = (lambda x, n: lax.dynamic_slice(x, (n[0] * 9, n[1] - 9), (2, 3)), (f, i))
    made["dynamic_update_slice"] = (
        lambda x, y, n: lax.dynamic_update_slice(x, y[:2, :3], (n[0], n[2])),
        (f, g, i),
    )
    made["dynamic_index_in_dim"] = (lambda x, n: lax.dynamic_index_in_dim(x, n[1], 1), (f, i))
    made["gather windows"] = (
        lambda x, n: lax.gather(
            x,
            n[:, None],
            lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(1,)),
            slice_sizes=(2, 3),
        ),
        (f, i),
    )
    made["vmap of index"] = (lambda x, n: jax.vmap(lambda row, at: row[at])(x, n), (f, i))
    made["vmap of dynamic_slice"] = (
        lambda x, n: jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (2,)))(x, n),
        (f, i),
    )
    made["vmap of update"] = (lambda x, n: jax.vmap(lambda row, at: row.at[at].add(5.0))(x, n), (f, i))
    made["select_n"] = (lambda x, y: lax.select_n((x > 0).astype(jnp.int32) * 2, x, y, x + y), (f, g))
    made["pad"] = (lambda x: lax.pad(x, 1.5, ((1, 2, 1), (-1, 0, 2))), (f,))
    made["pad negative"] = (lambda x: lax.pad(x, 0.0, ((-1, -2, 0), (3, -4, 0))), (f,))
    made["rev"] = (lambda x: lax.rev(x, (0, 1)), (f,))
    made["reshape"] = (lambda x: lax.reshape(x, (3, 8), (1, 0)), (f,))
    made["concatenate"] = (lambda x, y: lax.concatenate([x, y, x], 1), (f, g))
    made["bitcast"] = (lambda x: lax.bitcast_convert_type(x, jnp.uint8), (f,))
    made["bitcast back"] = (lambda x: lax.bitcast_convert_type(x.reshape(6, 4).astype(jnp.uint8), jnp.int32), (f,))
    made["reduce_precision"] = (lambda x: lax.reduce_precision(x, 5, 4), (f,))
    made["convert"] = (lambda x: [x.astype(kind) for kind in (jnp.int8, jnp.uint8, jnp.bool_, jnp.float16)], (f * 90,))


def _add_windows(made: _Forms, t: Any, f: Any) -> None:
    for name, start, operator in (("add", 0.0, lax.add), ("max", -jnp.inf, lax.max), ("mul", 1.0, lax.mul)):
        made[f"reduce_window {name}"] = (
            lambda x, start=start, operator=operator: lax.reduce_window(
                x, start, operator, (1, 2, 3, 1), (1, 2, 1, 1), "SAME"
            ),
            (t,),
        )
        made[f"reduce_window {name} dilated"] = (
            lambda x, start=start, operator=operator: lax.reduce_window(
                x, start, operator, (2, 3), (1, 2), ((1, 0), (2, 1)), base_dilation=(1, 2), window_dilation=(2, 1)
            ),
            (f,),
        )
    made["reduce_window long"] = (lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 5), (1, 1), "VALID"), (f,))
    made["reduce_window of pairs"] = (
        lambda x: lax.reduce_window(
            (x, x * 2),
            (0.0, 1.0),
            lambda p, q: (p[0] + q[0], p[1] * q[1]),
            (2, 2),
            (1, 1),
            "VALID",
        ),
        (f,),
    )
    made["max pool gradient"] = (
        jax.grad(lambda x: jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") ** 2)),
        (t,),
    )
    made["avg pool gradient"] = (
        jax.grad(lambda x: jnp.sum(lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "SAME") ** 2)),
        (t,),
    )
    for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
        made[name] = (lambda x, name=name: getattr(lax, name)(x, axis=1), (f,))
        made[f"{name} reverse"] = (lambda x, name=name: getattr(lax, name)(x, axis=0, reverse=True), (f,))
    made["associative_scan"] = (lambda x: lax.associative_scan(jnp.multiply, x, axis=1), (f,))
    made["argmax"] = (lambda x: (lax.argmax(x, 1, jnp.int32), lax.argmin(x, 0, jnp.int32)), (f,))
    made["argmax of NaN"] = (lambda x: jnp.argmax(jnp.where(x > 1, jnp.nan, x), 1), (f,))
    made["reduce region"] = (lambda x: lax.reduce(x, 1.0, lambda a, b: a * b + a + b, (1,)), (f,))
    made["reduce xor"] = (lambda x: lax.reduce((x * 9).astype(jnp.int32), 0, lax.bitwise_xor, (0, 1)), (f,))
    made["reduce pairs"] = (
        lambda x: lax.reduce((x, -x), (0.0, 0.0), lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])), (0,)),
        (f,),
    )


def _add_control(made: _Forms, f: Any) -> None:
    made["cond"] = (lambda x: lax.cond(x[0, 0] > 0, lambda v: v + 1, lambda v: v * 2, x), (f,))
    made["switch"] = (
        lambda x: lax.switch(x[0, 0].astype(jnp.int32), [lambda v: v, lambda v: v * 2, lambda v: v - 1], x),
        (f,),
    )
    made["while_loop"] = (lambda x: lax.while_loop(lambda v: jnp.sum(v) < 1000, lambda v: v * 2 + 1, x), (f,))
    made["fori_loop"] = (lambda x: lax.fori_loop(0, 10, lambda at, v: v + at, x), (f,))
    made["fori_loop to data"] = (
        lambda x: lax.fori_loop(0, (jnp.abs(x[0, 0]) * 3).astype(jnp.int32), lambda at, v: v + at, x),
        (f,),
    )
    made["scan"] = (lambda x: lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(6), x), (f,))
    made["scan reverse"] = (lambda x: lax.scan(lambda c, row: (c + row, c), jnp.zeros(6), x, reverse=True), (f,))
    long = _numbers(9, (100, 6))
    made["scan long"] = (lambda x: lax.scan(lambda c, row: (c * 0.5 + row, jnp.tanh(c)), jnp.zeros(6), x), (long,))
    made["scan long reverse"] = (
        lambda x: lax.scan(lambda c, row: (c * 0.5 + row, c), jnp.zeros(6), x, reverse=True),
        (long,),
    )
    made["map"] = (lambda x: lax.map(lambda row: jnp.sum(row) * row, x), (f,))
    made["map long"] = (lambda x: lax.map(lambda row: jnp.sum(row) * row, x), (long,))
    made["nested scan"] = (
        lambda x: lax.scan(
            lambda c, row: (lax.fori_loop(0, 3, lambda at, v: v + row * at, c), jnp.max(c)), jnp.zeros(6), x
        ),
        (long,),
    )
    made["complex carry"] = (
        lambda x: jnp.abs(lax.fori_loop(0, 5, lambda at, v: v * (1 + 0.5j), x.astype(jnp.complex64))),
        (f,),
    )
    made["grad of scan"] = (jax.grad(lambda x: jnp.sum(lax.scan(lambda c, r: (jnp.sin(c + r), c), x[0], x)[1])), (f,))


def _add_products(made: _Forms) -> None:
    for text in ("ij,jk->ik", "bij,bjk->bik", "bqhd,bkhd->bhqk", "ij,kj->ik", "abc,cad->bd", "i,j->ij", "ii->i"):
        shapes = {"i": 3, "j": 4, "k": 5, "b": 2, "q": 3, "h": 2, "d": 4, "a": 3, "c": 4}
        sides = text.split("->")[0].split(",")
        args = tuple(_numbers(at, tuple(shapes[letter] for letter in side)) for at, side in enumerate(sides))
        made[f"einsum {text}"] = (lambda *values, text=text: jnp.einsum(text, *values), args)
    made["dot int8"] = (
        lambda x, y: lax.dot_general(
            x.astype(jnp.int8), y.astype(jnp.int8), (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32
        ),
        (_numbers(1, (3, 4), "i"), _numbers(2, (4, 5), "i")),
    )
    x, w = _numbers(1, (2, 7, 8, 4)), _numbers(2, (3, 3, 4, 6))
    layout = ("NHWC", "HWIO", "NHWC")
    cases: dict[str, dict[str, Any]] = {
        "same": {"padding": "SAME"},
        "strided": {"window_strides": (2, 1)},
        "padded": {"padding": ((1, 2), (0, 3))},
        "cut": {"padding": ((-1, 2), (0, -1))},
        "transposed": {"lhs_dilation": (2, 2), "padding": ((1, 1), (2, 1))},
        "spread": {"lhs_dilation": (3, 1), "window_strides": (2, 1), "padding": ((0, 0), (1, 0))},
        "dilated": {"rhs_dilation": (2, 1)},
    }
    for name, options in cases.items():
        given = {"window_strides": (1, 1), "padding": "VALID", **options}
        made[f"conv {name}"] = (
            lambda x, w, given=given: lax.conv_general_dilated(x, w, dimension_numbers=layout, **given),
            (x, w),
        )
    made["conv groups"] = (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=2, dimension_numbers=layout),
        (x, _numbers(3, (3, 3, 2, 6))),
    )
    made["conv batch groups"] = (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", batch_group_count=2, dimension_numbers=layout),
        (x, w),
    )
    made["conv depthwise"] = (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=4, dimension_numbers=layout),
        (x, _numbers(3, (3, 3, 1, 4))),
    )
    made["conv NCHW"] = (
        lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
        (_numbers(1, (2, 3, 6, 6)), _numbers(2, (5, 3, 3, 3))),
    )
    made["conv odd layout"] = (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("HWNC", "OHWI", "CNHW")),
        (_numbers(1, (6, 6, 2, 3)), _numbers(2, (5, 3, 3, 3))),
    )
    made["conv 1d"] = (
        lambda x, w: lax.conv_general_dilated(x, w, (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")),
        (_numbers(1, (2, 9, 3)), _numbers(2, (3, 3, 4))),
    )
    made["conv 3d"] = (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 2, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")),
        (_numbers(1, (1, 4, 5, 6, 2)), _numbers(2, (2, 3, 3, 2, 3))),
    )
    made["conv gradients"] = (
        jax.grad(
            lambda x, w: jnp.sum(lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=layout) ** 2), (0, 1)
        ),
        (x, w),
    )
    made["conv transpose"] = (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), (x, w))


def _add_random(made: _Forms) -> None:
    seed = jnp.asarray(3, jnp.int32)
    for name in ("threefry2x32", "rbg", "unsafe_rbg"):
        made[f"random {name}"] = (
            lambda n, name=name: (
                jax.random.uniform(jax.random.key(n, impl=name), (5, 3)),
                jax.random.bits(jax.random.key(n, impl=name), (6,), jnp.uint16),
            ),
            (seed,),
        )
    for name, args in {
        "normal": ((4,),),
        "randint": ((4,), 0, 10),
        "bernoulli": (0.3, (8,)),
        "permutation": (9,),
        "gumbel": ((4,),),
        "exponential": ((4,),),
        "laplace": ((4,),),
        "truncated_normal": (-1.0, 1.0, (4,)),
        "cauchy": ((4,),),
    }.items():
        made[f"random.{name}"] = (
            lambda n, name=name, args=args: getattr(jax.random, name)(jax.random.key(n), *args),
            (seed,),
        )
    made["random.categorical"] = (
        lambda n, x: jax.random.categorical(jax.random.key(n), x),
        (seed, _numbers(1, (3, 5))),
    )
    made["random.split"] = (lambda n: jax.random.key_data(jax.random.split(jax.random.key(n), 3)), (seed,))


def _add_orders(made: _Forms, f: Any, g: Any, i: Any) -> None:
    odd = f.at[0, 1].set(jnp.nan).at[1, 2].set(-0.0).at[1, 3].set(0.0)
    made["sort with NaN"] = (lambda x: lax.sort(x, dimension=0), (odd,))
    made["sort descending"] = (lambda x: jnp.sort(x, descending=True), (odd,))
    made["argsort"] = (lambda x: jnp.argsort(x, axis=0), (odd,))
    made["sort two keys"] = (lambda x, y: lax.sort((jnp.round(x), y, x * 2), num_keys=2), (f, g))
    made["lexsort"] = (lambda x, y: jnp.lexsort((x, jnp.round(y))), (f[0], g[0]))
    made["sort complex"] = (lambda x, y: jnp.sort(lax.complex(jnp.round(x), y)), (f, g))
    made["top_k"] = (lambda x: lax.top_k(x, 3), (odd,))
    made["approx_max_k"] = (lambda x: lax.approx_max_k(x, 2), (f,))
    made["searchsorted"] = (lambda x, y: jnp.searchsorted(jnp.sort(x), y), (f[0], g[0]))
    made["segment_sum"] = (lambda x, n: jax.ops.segment_sum(x, n % 2, 3), (f, i))
    made["bincount"] = (lambda n: jnp.bincount(n, length=5), (i,))
    made["one_hot"] = (lambda n: jax.nn.one_hot(n, 5), (i,))
    made["unique"] = (lambda n: jnp.unique(n % 2, size=3), (i,))
    made["nonzero"] = (lambda x: jnp.nonzero(x > 0, size=10), (f,))
    made["vmap of sort"] = (jax.vmap(jnp.sort), (f,))
    made["jvp"] = (lambda x, y: jax.jvp(jnp.tanh, (x,), (y,)), (f, g))
    made["hessian"] = (lambda x: jax.hessian(lambda v: jnp.sum(jnp.sin(v) * v[0]))(x), (f[0],))
    made["layer_norm gradient"] = (
        jax.grad(lambda x: jnp.sum(jax.nn.standardize(x) ** 3)),
        (f,),
    )
    made["attention"] = (lambda x: jax.nn.dot_product_attention(x, x, x, is_causal=True), (_numbers(4, (2, 5, 2, 4)),))
