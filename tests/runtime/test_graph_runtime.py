"""The stateful interface: create, set_input, run, get_output."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime import mini
from tilewright import runtime
from tilewright.backends.llvm import deploy
from tilewright.support.errors import UserError


@pytest.fixture
def module() -> runtime.GraphModule:
    return runtime.create(deploy.executable(mini.model_artifact()), runtime.cpu(0))


def test_set_run_get(module: runtime.GraphModule) -> None:
    x = mini.sample_input()
    want, twice = mini.expected(x)
    module.set_input("data/x", x)
    module.run()
    np.testing.assert_allclose(module.get_output(0).numpy(), want, rtol=1e-5, atol=1e-6)
    out = runtime.empty((16, 4))
    assert module.get_output(1, out) is out
    np.testing.assert_allclose(out.numpy(), twice, rtol=1e-5, atol=1e-6)
    plain = np.zeros((16, 4), np.float32)
    module.get_output(1, out=plain)
    np.testing.assert_array_equal(plain, out.numpy())
    assert (module.get_num_inputs(), module.get_num_outputs()) == (1, 2)
    np.testing.assert_array_equal(module.get_input(0).numpy(), x)


def test_it_says_what_it_is(module: runtime.GraphModule) -> None:
    assert repr(module).endswith("on cpu(0), inputs set: none)")
    module.set_input(0, mini.sample_input())
    assert repr(module).startswith("GraphModule(Executable(mini: ")
    assert repr(module).endswith("inputs set: data/x)")


def test_inputs_by_index_keyword_and_run(module: runtime.GraphModule) -> None:
    x = mini.sample_input(2)
    module.set_input(0, x.tolist())
    module.run()
    first = module.get_output(0).numpy()
    module.set_input(**{"data/x": x})
    module.run(**{"data/x": mini.sample_input(3)})
    assert not np.array_equal(first, module.get_output(0).numpy())


def test_set_input_copies(module: runtime.GraphModule) -> None:
    x = mini.sample_input()
    module.set_input(0, x)
    x[:] = 0
    module.run()
    assert module.get_output(0).numpy().any()


def test_complaints(module: runtime.GraphModule) -> None:
    with pytest.raises(UserError, match="has not run yet"):
        module.get_output(0)
    with pytest.raises(UserError, match="no output number 5"):
        module.get_output(5)
    with pytest.raises(UserError, match="no input 'x'"):
        module.set_input("x", 1)
    with pytest.raises(UserError, match="no input number 3"):
        module.set_input(3, 1)
    with pytest.raises(UserError, match="was not set"):
        module.get_input(0)
    with pytest.raises(UserError, match="the input 'data/x' is missing"):
        module.run()
    module.run(**{"data/x": mini.sample_input()})
    with pytest.raises(UserError, match="must be an NDArray or a writable numpy array"):
        module.get_output(0, out=[1])
    with pytest.raises(UserError, match="takes an executable"):
        runtime.create("model.so")  # type: ignore[arg-type]
    assert runtime.create(module).executable is module.executable
