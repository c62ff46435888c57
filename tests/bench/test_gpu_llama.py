"""The Llama-like stack of `bench.gpu` computes what torch does, small, with its caches as state."""

from __future__ import annotations

import pytest

from tests.requirements import need
from tilewright.support.errors import UserError

CONFIG = {"layers": 1, "width": 64, "heads": 4, "shared": 2, "inner": 96, "capacity": 32, "prompt": 8}


@pytest.mark.parametrize("target", ["native", "opencl"])
def test_a_small_stack_decodes_as_torch_does(target) -> None:
    need("torch")
    if target != "native":
        need(target)
    import torch

    from bench import gpu_llama

    config = gpu_llama.Config(**CONFIG)
    name = "llama_decode"
    module, (states, places) = gpu_llama.stack(name, config), gpu_llama.inputs(name, config)
    exe = gpu_llama.compiled(module, (states, places), target, "float32", threads=1)
    assert all(item.in_place for item in exe.model.state) and len(exe.state) == 2 * config.layers
    for step in range(2):
        at = places - step
        with torch.no_grad():
            expected = module(states, at)
        torch.testing.assert_close(exe(states, at), expected, rtol=1e-4, atol=1e-4)
    for key, value in exe.state.items():
        torch.testing.assert_close(torch.from_numpy(value), module.get_buffer(key.replace("_", ".")))


def test_a_small_stack_takes_a_prompt_as_torch_does() -> None:
    need("torch")
    import torch

    from bench import gpu_llama

    config = gpu_llama.Config(**CONFIG)
    module, given = gpu_llama.stack("llama_prefill", config), gpu_llama.inputs("llama_prefill", config)
    exe = gpu_llama.compiled(module, given, "native", "float32", threads=1)
    with torch.no_grad():
        expected = module(*given)
    torch.testing.assert_close(exe(*given), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(exe.state["layers_0_keys"]), module.layers[0].keys)


def test_peers_compute_the_same() -> None:
    need("torch")
    import torch

    from bench import gpu_llama

    config = gpu_llama.Config(**CONFIG)
    forms = gpu_llama.variants("llama_decode", config, lambda value: value)
    with torch.no_grad():
        first, second = (module(*given) for module, given in forms.values())
    torch.testing.assert_close(first, second)


def test_stacks_are_named_beside_models() -> None:
    need("torch")
    from bench import gpu, gpu_ahead, gpu_parts

    assert gpu._models("llama_decode,resnet18") == ["resnet18", "llama_decode"]
    with pytest.raises(UserError, match="unknown model 'llama'"):
        gpu._models("llama")
    wanted = {(1, "fp16", "llama_decode"): ["compile"], (1, "fp16", "resnet18"): []}
    assert {item.model for item in gpu_ahead.programs(wanted)} == {"resnet18"}
    rows = [{"batch": 1, "precision": "fp16", "model": name, "wall_us": {}} for name in ("llama_decode", "resnet18")]
    assert [row["model"] for row in gpu_parts.together(rows[:1], rows[1])] == ["resnet18", "llama_decode"]
