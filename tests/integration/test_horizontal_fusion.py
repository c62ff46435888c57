"""Small independent kernels in one launch: on a device they compute what they do in launches of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.on_device import require_nvrtc, require_opencl
from tests.graph.generate import shape_of
from tests.graph.helpers import function, inputs_for, op, var
from tests.runtime.test_state import assert_runs_as_interpreted
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import GraphExpr, Tuple, constant
from tilewright.graph.ir.infer import fill_type, infer_types
from tilewright.ir.dtype import FLOAT16, FLOAT32
from tilewright.ir.function import IRModule
from tilewright.lower import horizontal
from tilewright.lower.kernel import _cache_key
from tilewright.runtime.core.artifact import Artifact
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.target import Target
from tilewright.tune.task import extract_tasks

SHAPES = ((7,), (300,), (33, 65), (4, 9, 10), (2050,), ())


def module_of(params: Sequence[GraphExpr], results: Sequence[GraphExpr]) -> IRModule:
    return infer_types(IRModule([function(list(params), Tuple(tuple(results)))]))


def small_kernels(seed: int) -> IRModule:
    """A random graph of elementwise operators, sums with barriers, casts and transposes, many of them independent."""
    rng = np.random.default_rng(seed)
    params = [var(f"x{number}", *SHAPES[number % len(SHAPES)]) for number in range(12)]
    for param in params:
        param.type = param.annotation
    pool: list[GraphExpr] = list(params)

    def typed(name: str, *args: GraphExpr, **attributes: object) -> GraphExpr:
        return fill_type(op(name, *args, **attributes))

    for _ in range(24):
        x = pool[rng.integers(len(pool))]
        shape = shape_of(x)
        kind = rng.integers(6)
        if kind == 0 and shape:
            pool.append(typed("sum", x, axes=(int(rng.integers(len(shape))),), keepdims=False))
        elif kind == 1 and len(shape) > 1:
            pool.append(typed("transpose", x, axes=tuple(reversed(range(len(shape))))))
        elif kind == 2:
            pool.append(typed("cast", typed("cast", x, dtype=FLOAT16), dtype=FLOAT32))
        elif kind == 3:
            pool.append(typed("multiply", typed("tanh", x), constant(float(rng.integers(1, 5)), "float32")))
        elif kind == 4 and shape:
            pool.append(typed("nn.softmax", x, axis=len(shape) - 1))
        else:
            positive = typed("greater", x, constant(0.0, "float32"))
            pool.append(typed("add", typed("cast", positive, dtype=FLOAT32), x))
    results = [item for item in pool if item not in params][-16:]
    return module_of(params, list({id(item): item for item in results}.values()))


def launches(artifact: Artifact) -> int:
    """How many launches a run has."""
    assert artifact.device is not None and artifact.model is not None
    infos = {info.symbol: info for info in artifact.device.kernels}
    return sum(len(infos[artifact.model.kernels[step.kernel].symbol].launches) for step in artifact.model.steps)


# In the last one, kernels of two kinds with barriers had shared a launch: PoCL writes outside of memory then.
@pytest.mark.parametrize("seed", [0, 29])
def test_random_kernels_share_launches(seed: int) -> None:
    require_opencl()
    module = small_kernels(seed)
    compilation = Compilation(module, "opencl")
    assert any(kernel.parts for kernel in compilation.kernels)
    kernels = sum(len(kernel.parts) or 1 for kernel in compilation.kernels)
    assert launches(compilation.artifact()) < kernels
    inputs = inputs_for(module["main"], seed)
    for got, want in zip(compilation.executable()(*inputs), evaluate(module, *inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_threads_of_shared_launches_meet_at_barriers() -> None:
    require_opencl()
    params = [var(f"x{number}", 3, 1000) for number in range(6)] + [var("y", 5, 1000), var("z", 900)]
    axes = [(1,)] * 7 + [(0,)]
    module = module_of(params, [op("sum", x, axes=own, keepdims=False) for x, own in zip(params, axes, strict=True)])
    compilation = Compilation(module, "opencl")
    (kernel,) = compilation.kernels
    text = compilation.source(kernel)
    assert "switch (tw_use)" in text and "barrier(" in text
    inputs = inputs_for(module["main"], 2)
    for got, given, own in zip(compilation.executable()(*inputs), inputs, axes, strict=True):
        np.testing.assert_allclose(got, given.sum(own), rtol=1e-4, atol=1e-4)


def updates() -> IRModule:
    """Several parameters with momentum, one of which is read by what another one is updated by."""
    params: list[GraphExpr] = []
    results: list[GraphExpr] = []
    shapes = [(300,), (300,), (12, 40), (12, 40), (5,)]
    rate = var("rate")
    for number, shape in enumerate(shapes):
        p, v, g = (var(f"{letter}{number}", *shape) for letter in "pvg")
        speed = op("add", op("multiply", v, constant(0.9, "float32")), g)
        if number == 1:
            # The old value of the first parameter: it must not be written before.
            speed = op("add", speed, params[0])
        results += [op("subtract", p, op("multiply", speed, rate)), speed]
        params += [p, v, g]
    return module_of([*params, rate], results)


def test_state_is_written_in_place() -> None:
    require_opencl()
    module = updates()
    state = {f"{letter}{number}": 2 * number + place for number in range(5) for place, letter in enumerate("pv")}
    compilation = Compilation(module, "opencl", state=state)
    assert any(len(kernel.parts) > 2 for kernel in compilation.kernels)
    info = compilation.artifact().model
    assert info is not None and all(item.in_place for item in info.state)
    assert_runs_as_interpreted(module, state, "opencl")


def test_profiles_and_listings_show_every_node() -> None:
    require_opencl()
    x, y = var("x", 40), var("y", 50)
    module = module_of([x, y], [op("exp", x, span="first"), op("exp", y, span="second")])
    compilation = Compilation(module, "opencl")
    (kernel,) = compilation.kernels
    assert len(kernel.parts) == 2 and len(kernel.alone) == 2
    assert compilation.lowered.nodes_by_symbol()[kernel.symbol] == ("first", "second")
    profile = compilation.executable().profile(*inputs_for(module["main"], 0)).text()
    assert "first" in profile and "second" in profile
    assert "switch" not in compilation.source(kernel) and "tw_block" in compilation.source(kernel)
    assert [func.name for func in map(compilation.scheduled, kernel.alone)] == [part.symbol for part in kernel.parts]
    with pytest.raises(UserError, match=r"is 2 kernels that share launches.*"):
        compilation.scheduled(kernel)
    assert not extract_tasks(compilation.lowered)


def test_tuned_choices_of_each_kernel_are_part_of_the_name_in_the_cache() -> None:
    x, y = var("x", 40), var("y", 50)
    (kernel,) = Compilation(module_of([x, y], [op("exp", x), op("exp", y)]), "opencl").kernels
    tuned = replace(kernel, parts=(replace(kernel.parts[0], answers={"threads": 32}), kernel.parts[1]))
    target = Target("opencl")
    assert _cache_key(kernel, target, True) != _cache_key(tuned, target, True)


def test_equal_kernels_are_one_piece_of_code_for_cuda() -> None:
    require_nvrtc()
    params = [var(f"x{number}", 768) for number in range(30)]
    module = module_of(params, [op("exp", param) for param in params])
    compilation = Compilation(module, "cuda -arch=sm_90")
    (kernel,) = compilation.kernels
    text = compilation.source(kernel)
    assert text.count("expf(") == 1 and text.count("case ") == 29
    artifact = compilation.artifact()
    assert launches(artifact) == 1
    assert artifact.device is not None and len(artifact.device.kernels[0].launches[0].args) == 60


def test_launches_have_no_more_buffers_than_the_target_takes() -> None:
    require_opencl()
    params = [var(f"x{number}", 20) for number in range(150)]
    module = module_of(params, [op("exp", param) for param in params])
    compilation = Compilation(module, "opencl")
    artifact = compilation.artifact()
    assert artifact.device is not None
    assert max(len(launch.args) for info in artifact.device.kernels for launch in info.launches) <= 120
    assert launches(artifact) == 3
    inputs = inputs_for(module["main"], 1)
    for got, given in zip(compilation.executable()(*inputs), inputs, strict=True):
        np.testing.assert_allclose(got, np.exp(given), rtol=1e-5)


def test_the_host_computes_what_the_device_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    require_opencl()

    def refuse(*args: object) -> None:
        raise UnsupportedError("no sums today")

    monkeypatch.setattr(horizontal, "device_kernels", refuse)
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    x, y = var("x", 4, 6), var("y", 5, 9)
    module = module_of([x, y], [op("sum", x, axes=(1,), keepdims=False), op("nn.softmax", y, axis=1)])
    compilation = Compilation(module, "opencl")
    artifact = compilation.artifact()
    assert artifact.device is not None and "no sums today" in artifact.device.kernels[0].on_host
    inputs = inputs_for(module["main"], 5)
    for got, want in zip(compilation.executable()(*inputs), evaluate(module, *inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_processors_share_no_launches() -> None:
    x, y = var("x", 40), var("y", 50)
    module = module_of([x, y], [op("exp", x), op("exp", y)])
    for target in ("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake", "vulkan", "webgpu"):
        assert all(not kernel.parts for kernel in Compilation(module, target).kernels)
