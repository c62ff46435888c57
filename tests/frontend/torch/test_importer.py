"""From exported programs to modules: names, constants, sizes that vary, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.requirements import need_module
from tilewright.frontend import from_torch
from tilewright.frontend.torch.capture import import_graph
from tilewright.frontend.torch.registry import converted_operators, find_converter
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call
from tilewright.ir.visit import find_all
from tilewright.support.errors import UnsupportedError, UserError

torch = need_module("torch")
nn = torch.nn


class Small(nn.Module):
    """A linear layer in a submodule."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x, scale):
        """Named inputs."""
        return {"sum": self.inner(x) * scale + self.shift, "x": x}


def test_exported_programs_and_modules_give_the_same():
    model, inputs = Small().eval(), (torch.randn(2, 4), torch.tensor(2.0))
    for imported in (from_torch(model, inputs), from_torch(torch.export.export(model, inputs))):
        main = imported["main"]
        assert [param.name for param in main.params] == ["x", "scale"]
        assert len(imported.attributes["output_names"]) == 2
        found = evaluate(imported, *(item.numpy() for item in inputs))
        np.testing.assert_allclose(found[0], model(*inputs)["sum"].detach().numpy(), rtol=1e-5)


def test_nodes_are_named_by_their_modules():
    imported = from_torch(Small().eval(), {"x": torch.randn(2, 4), "scale": torch.tensor(2.0)})
    spans = {str(item.span) for item in find_all(imported["main"].body, Call) if item.span is not None}
    assert "inner.0/linear" in spans


def test_sizes_that_vary():
    class Model(nn.Module):
        def forward(self, x, y):
            rows = x.reshape(x.shape[0], -1)
            return torch.cat([rows, y], 0)[1:].softmax(-1), x.mean(0)

    batch = torch.export.Dim("batch", min=2)
    shapes = {"x": {0: batch}, "y": {0: batch}}
    imported = from_torch(Model(), (torch.randn(3, 2, 4), torch.randn(3, 8)), dynamic_shapes=shapes)
    assert "batch" in repr(imported["main"].params[0].type)
    exe = tw.compile(imported, threads=1)
    for size in (2, 5):
        inputs = torch.randn(size, 2, 4), torch.randn(size, 8)
        for found, wanted in zip(exe(*inputs), Model()(*inputs), strict=True):
            torch.testing.assert_close(found, wanted)


def test_no_elements(check):
    check(lambda x, y: (torch.cat([x, y]), x.sum(0), x.amax(1), x @ y.T), torch.randn(0, 3), torch.randn(2, 3))


def test_writes_in_place_are_made_functional(check):
    def model(x):
        y = x.clone()
        y[0] += 1
        y.view(-1)[3:5] = 7
        return y.mul_(2)

    check(model, torch.randn(3, 4))


def test_a_module_needs_inputs():
    with pytest.raises(UserError, match="example inputs"):
        from_torch(nn.ReLU())


def test_only_modules_and_programs():
    with pytest.raises(UserError, match="ExportedProgram is needed, not a builtin_function"):
        from_torch(torch.relu, (torch.randn(2),))


def test_a_program_takes_no_inputs():
    program = torch.export.export(nn.ReLU(), (torch.randn(2),))
    with pytest.raises(UserError, match="has its inputs already"):
        from_torch(program, (torch.randn(2),))


REFUSED = {
    "random numbers": (lambda x: torch.rand_like(x), "draw no random numbers"),
    "training": (lambda x: nn.functional.dropout(x, 0.5, training=True), "model.eval"),
    "a complex output": (lambda x: torch.view_as_complex(x), "the output '.*' is complex"),
    "an operator of complex numbers": (lambda x: torch.view_as_complex(x).acosh().real, "acosh.* of complex numbers"),
    "a complex power": (lambda x: (torch.view_as_complex(x) ** 0.5).real, "to the power of 0.5"),
    "data in Python": (lambda x: x if torch.equal(x, x) else -x, "torch cannot export the module"),
    "a write to the input": (lambda x: x.add_(1), "changes its input 'inputs_0' in place"),
    "a sparse layout": (lambda x: torch.zeros(2, layout=torch.sparse_coo), "layout torch.sparse_coo"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why_and_where(name, wrap):
    function, text = REFUSED[name]
    with pytest.raises(UnsupportedError, match=text):
        from_torch(wrap(function), (torch.randn(3, 2),))


def test_changed_buffers_are_refused():
    with pytest.raises(UnsupportedError, match=r"changes its buffer '.*running|updates its statistics"):
        from_torch(nn.BatchNorm1d(3), (torch.randn(4, 3),))


def test_unknown_operators_are_named(wrap):
    with pytest.raises(UnsupportedError, match=r"aten\.linalg_eig\.default is not supported"):
        from_torch(wrap(lambda x: torch.linalg.eig(x)[0].real), (torch.randn(3, 3),))


def test_converters_are_named_after_operators():
    assert len(converted_operators()) > 400
    for name in converted_operators():
        packet = name.split("::")[-1].split(".")[0]
        if "::" in name and not name.startswith("prims::"):
            continue  # an operator of another package
        namespace = torch.ops.prims if name.startswith("prims::") else torch.ops.aten
        assert hasattr(namespace, packet), f"torch has no operator {name}"
    assert find_converter("aten::max.dim") is not find_converter("aten::max")


def test_batch_norm_keeps_its_statistics_as_on_gpus():
    def norm(x, weight, bias, mean, variance):
        return torch.ops.aten._native_batch_norm_legit_no_training(x, weight, bias, mean, variance, 0.1, 1e-5)

    from torch.fx.experimental.proxy_tensor import make_fx

    # Traced without a device, torch gives the shapes of its GPU kernels: on CPUs the last two results are empty.
    inputs = [torch.empty(sizes, device="meta") for sizes in ((2, 8, 4, 4), (8,), (8,), (8,), (8,))]
    graph = make_fx(norm, tracing_mode="fake")(*inputs)
    module = import_graph(graph, inputs, {}, may_draw=False).module
    assert module is not None
    arrays = [np.random.default_rng(0).random(tuple(item.shape), np.float32) + 0.5 for item in inputs]
    made = evaluate(module, *arrays)
    expected = norm(*map(torch.from_numpy, arrays))[0]
    np.testing.assert_allclose(made[0], expected.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(made[1], arrays[3])
    np.testing.assert_allclose(made[2], 1 / np.sqrt(arrays[4] + 1e-5), rtol=1e-6)
