"""Steps of training: against torch, and against themselves in other forms."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, random, var
from tests.requirements import need, need_module
from tests.train.models import batch, normalised, perceptron, weight
from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError
from tilewright.train import SGD, AdamW, Step, WarmUp
from tilewright.train.model import trainable_model


def make(**options) -> Step:
    return Step(perceptron(), "cross_entropy", options.pop("optimizer", SGD(0.1, momentum=0.9)), threads=1, **options)


def torch_perceptron(module=None):
    torch = need_module("torch")
    values = {name: item.data for name, item in _weights(perceptron() if module is None else module).items()}
    net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3))
    with torch.no_grad():
        for part, (kernel, bias) in zip((net[0], net[2]), (("a", "b"), ("c", "d")), strict=True):
            part.weight.copy_(torch.tensor(values[kernel].T))
            part.bias.copy_(torch.tensor(values[bias]))
    return torch, net


def _weights(module):
    from tilewright.graph.gradient.constants import parameters_of

    return parameters_of(module)


def assert_same_weights(step: Step, net) -> None:
    found = step.parameters()
    for kernel, bias, part in (("a", "b", net[0]), ("c", "d", net[2])):
        np.testing.assert_allclose(found[kernel], part.weight.detach().numpy().T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[bias], part.bias.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_losses_and_weights_as_torch_has_them() -> None:
    step = make(clip_norm=0.5)
    torch, net = torch_perceptron()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for number in range(20):
        x, y = batch(number)
        loss = torch.nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        result = step(x, y)
        assert result.loss == pytest.approx(loss.item(), rel=1e-5)
        assert result.gradient_norm == pytest.approx(norm.item(), rel=1e-4)
    assert_same_weights(step, net)
    assert step.steps == step.calls == 20
    assert all(item.in_place for item in step.executable.model.state)


def test_clipped_values_and_averages_as_torch_has_them() -> None:
    step = make(clip_value=0.01, average=0.8, optimizer=SGD(1.0))
    torch, net = torch_perceptron()
    averages = [p.detach().clone() for p in net.parameters()]
    for number in range(5):
        x, y = batch(number)
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(y)).backward()
        torch.nn.utils.clip_grad_value_(net.parameters(), 0.01)
        with torch.no_grad():
            for p, average in zip(net.parameters(), averages, strict=True):
                p -= p.grad
                average.mul_(0.8).add_(0.2 * p)
        step(x, y)
    assert_same_weights(step, net)
    found = step.parameters(average=True)
    np.testing.assert_allclose(found["a"], averages[0].numpy().T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["d"], averages[3].numpy(), rtol=1e-4, atol=1e-5)


def test_accumulated_gradients_are_those_of_a_large_batch() -> None:
    large = Step(perceptron(16), "cross_entropy", SGD(0.1, momentum=0.9), threads=1)
    small = make(accumulate=2)
    for number in range(4):
        x, y = batch(number, 16)
        large(x, y)
        before = small.parameters()
        small(x[:8], y[:8])
        np.testing.assert_array_equal(small.parameters()["a"], before["a"])
        small(x[8:], y[8:])
    assert small.steps == large.steps == 4 and small.calls == 8
    for name, value in large.parameters().items():
        np.testing.assert_allclose(small.parameters()[name], value, rtol=1e-4, atol=1e-6)


def test_batches_of_any_size() -> None:
    step = Step(perceptron(Symbol("n")), "cross_entropy", SGD(0.1), threads=1)
    torch, net = torch_perceptron()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, count in enumerate((8, 3, 5)):
        x, y = batch(number, count)
        loss = torch.nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert step(x, y).loss == pytest.approx(loss.item(), rel=1e-5)
    assert_same_weights(step, net)


def test_batch_normalisation_takes_statistics_of_the_batch() -> None:
    torch = need_module("torch")
    F = torch.nn.functional
    weights = {name: torch.tensor(item.data) for name, item in _weights(normalised()).items()}
    trained = [weights[name].requires_grad_() for name in ("conv.weight", "norm.scale", "norm.bias", "dense.weight")]

    def forward(x, training):
        running = weights["norm.mean"], weights["norm.var"]
        value = F.conv2d(x, weights["conv.weight"])
        value = F.batch_norm(value, *running, weights["norm.scale"], weights["norm.bias"], training, 0.1, 1e-5)
        return F.relu(value).mean((2, 3)) @ weights["dense.weight"]

    step = Step(normalised(), "cross_entropy", SGD(0.1), threads=1)
    assert step.program.buffers == ("norm.mean", "norm.var")
    optimizer = torch.optim.SGD(trained, 0.1)
    for number in range(5):
        x, y = random(number, 4, 1, 6, 6), np.array([0, 1, 2, 0])
        loss = F.cross_entropy(forward(torch.tensor(x), True), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert step(x, y).loss == pytest.approx(loss.item(), rel=1e-5)
    for name, value in {**step.parameters(), **step.buffers()}.items():
        np.testing.assert_allclose(value, weights[name].detach().numpy(), rtol=1e-4, atol=1e-5)
    expected = forward(torch.tensor(x), False).detach()
    np.testing.assert_allclose(tw.compile(step.module(), threads=1)(x), expected.numpy(), rtol=1e-4, atol=1e-5)
    assert step.evaluate(x, y).loss == pytest.approx(F.cross_entropy(expected, torch.tensor(y)).item(), rel=1e-5)
    kept = Step(normalised(), "cross_entropy", SGD(0.1), batch_norm=None, threads=1)
    kept(x, y)
    assert not kept.program.buffers


def test_training_gets_somewhere_and_the_module_has_it() -> None:
    step = make(optimizer=AdamW(WarmUp(0.02, 10)), trainable=lambda name: name != "d")
    before = step.parameters()
    x, y = batch(0)
    first = step(x, y)
    for _ in range(60):
        last = step(x, y)
    assert last.loss < 0.2 * first.loss and last.accuracy == 1.0
    assert "d" not in step.parameters() and not np.array_equal(before["a"], step.parameters()["a"])
    measured = step.evaluate(x, y)
    assert measured.loss <= last.loss + 1e-3 and step.evaluate(x=x, target=y) == measured
    found = tw.compile(step.module(), threads=1)(x)
    assert (found.argmax(axis=1) == y).all()
    assert float(measured) == measured.loss and "a step" not in repr(step) and "parameters" in repr(step)
    with pytest.raises(AttributeError, match="there is no metric 'speed'"):
        _ = measured.speed


def test_half_precision_scales_the_loss_and_leaves_out_steps_that_overflow() -> None:
    step = make(precision="float16", optimizer=SGD(0.05))
    plain = make(optimizer=SGD(0.05))
    for number in range(3):
        x, y = batch(number)
        result = step(x, y)
        assert result.finite and result.loss == pytest.approx(plain(x, y).loss, rel=2e-2)
    before, scale = step.parameters(), step.loss_scale
    result = step(np.full_like(x, 6e4), y)
    assert not result.finite and step.steps == 3 and step.calls == 4 and step.loss_scale == scale / 2
    for name, value in step.parameters().items():
        np.testing.assert_array_equal(value, before[name])
    assert step(x, y).finite and plain.loss_scale == 1.0


def test_on_a_device() -> None:
    need("opencl")
    here, there = make(), make(target="opencl")
    for number in range(3):
        x, y = batch(number)
        assert there(x, y).loss == pytest.approx(here(x, y).loss, rel=1e-5)
    for name, value in here.parameters().items():
        np.testing.assert_allclose(there.parameters()[name], value, rtol=1e-4, atol=1e-6)


def test_a_module_of_torch_in_training_mode_drops_and_counts() -> None:
    torch = need_module("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 12), torch.nn.BatchNorm1d(12), torch.nn.Dropout(0.5), torch.nn.Linear(12, 3)
    )
    example = (torch.zeros(8, 6),)
    training = tw.frontend.from_torch(net.train(), example, seed="input", return_changes=True)
    inference = tw.frontend.from_torch(net.eval(), example)
    steps = [Step(training, "cross_entropy", SGD(0.1), seed=seed, inference=inference, threads=1) for seed in (0, 0, 1)]
    x, y = batch(0)
    losses = [[step(x, y).loss for _ in range(3)] for step in steps]
    assert losses[0] == losses[1] != losses[2]
    running = steps[0].buffers()
    assert running["1_running_mean"].any() and running["1_num_batches_tracked"] == 3
    assert not np.array_equal(tw.compile(steps[0].module(), threads=1)(x), tw.compile(inference, threads=1)(x))
    assert np.isfinite(steps[0].evaluate(x, y).loss)
    alone = Step(training, "cross_entropy", SGD(0.1), threads=1)
    with pytest.raises(UserError, match="the model is in training mode"):
        alone.evaluate(x, y)


def test_all_uses_of_a_weight_of_torch_are_trained() -> None:
    """What follows from weights alone (a recurrent layer's first step, a part of a weight) is no constant."""
    torch = need_module("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = torch.nn.LSTM(3, 4, batch_first=True)
            self.weight = torch.nn.Parameter(torch.tensor(random(0, 6, 4)))

        def forward(self, x):
            scores = self.recurrent(x)[0][:, -1] @ (2 * self.weight[:3]).T
            return scores + self.weight[3:].sum(1)

    torch.manual_seed(0)
    net, x, y = Net(), torch.tensor(random(1, 2, 3, 3)), torch.tensor([0, 2])
    step = Step(tw.frontend.from_torch(net.eval(), (x,)), "cross_entropy", SGD(1.0), threads=1)
    before = step.parameters()
    assert set(before) == {name for name, _ in net.named_parameters()}
    step(x.numpy(), y.numpy())
    after = step.parameters()
    torch.nn.functional.cross_entropy(net.train()(x), y).backward()
    for name, parameter in net.named_parameters():
        np.testing.assert_allclose(before[name] - after[name], parameter.grad.numpy(), rtol=1e-3, atol=1e-6)


def test_a_model_may_give_its_loss_itself() -> None:
    x = var("x", 4, 3)
    value = op("matmul", x, weight("w", 0, 3, 2))
    module = infer_types(
        IRModule([function([x], op("mean", op("multiply", value, value), axes=(0, 1), keepdims=False))])
    )
    step = Step(module, None, SGD(0.1), threads=1)
    data = random(1, 4, 3)
    losses = [step(data).loss for _ in range(5)]
    assert losses == sorted(losses, reverse=True)


def test_wrong_calls_and_options_are_refused() -> None:
    step = make()
    x, y = batch(0)
    for call, message in (
        (lambda: step(x), "the input 'target' is missing"),
        (lambda: step(x, y, y), "a step takes 2 arrays"),
        (lambda: step(x, x=x), "the input 'x' is given twice"),
        (lambda: step(x, label=y), "the input 'label' is none of x, target"),
        (lambda: step(x, y + 7), "out of range"),
        (lambda: step.parameters(average=True), "keeps no average"),
        (lambda: step.assign({"e": x}), "the model has no parameter 'e'"),
        (lambda: make(optimizer="sgd"), "the optimizer is an object of tilewright.train"),
        (lambda: make(trainable=["e"]), "the model has no weight 'e' to train"),
        (lambda: make(trainable=[]), "there is nothing to train"),
        (lambda: make(clip_norm=0), "clip_norm is a positive number"),
        (lambda: make(clip_value=float("nan")), "clip_value is a positive number"),
        (lambda: make(accumulate=0), "accumulate is a whole number"),
        (lambda: make(average=1.0), "average is the share"),
        (lambda: make(loss_scale=0.0), "loss_scale is a positive number"),
        (lambda: make(seed=-1), "the seed is a whole number"),
        (lambda: make(output=1), "the model has no output 1"),
        (lambda: Step(perceptron(), None, SGD(0.1)), "without a loss, the model's output must be one"),
        (lambda: Step(3, "mse", SGD(0.1)), "a model is a module of a frontend or the path of a file"),
    ):
        with pytest.raises(UserError, match=message):
            call()
    before = step.parameters()
    with pytest.raises(UserError):
        step(x, y + 7)
    for name, value in step.parameters().items():
        np.testing.assert_array_equal(value, before[name])


def test_one_weight_in_two_forms_is_refused() -> None:
    x = var("x", 4, 3)
    first, second = weight("w", 0, 3, 3), weight("w", 0, 3, 3)
    module = infer_types(IRModule([function([x], op("matmul", op("matmul", x, first), second))]))
    with pytest.raises(UserError, match="the weight 'w' is in the model in two forms"):
        Step(module, "mse", SGD(0.1))


def test_memory_of_a_step_against_its_bound() -> None:
    plan = make().memory_plan()
    assert plan.lower_bound <= plan.workspace_bytes <= 1.3 * plan.lower_bound


def test_masks_and_buffers_of_torch_are_no_weights() -> None:
    torch = need_module("torch")

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.joint = torch.nn.Linear(8, 24)
            self.register_buffer("places", torch.randn(5, 8))

        def forward(self, x):
            parts = self.joint(x + self.places).unflatten(-1, (3, 2, 4)).unbind(2)
            q, k, v = (part.transpose(1, 2) for part in parts)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    module = tw.frontend.from_torch(Masked().eval(), (torch.randn(2, 5, 8),))
    model = trainable_model(module, ArithmeticBuilder(), None)
    assert sorted(value.shape for _, value in model.parameters.values()) == [(24,), (24, 8)]
    chosen = trainable_model(module, ArithmeticBuilder(), ["places"])
    assert list(chosen.parameters) == ["places"]
