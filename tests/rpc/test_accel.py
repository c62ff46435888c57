"""Models for the tensor processor on a server, as on every device: sent, run and timed there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tilewright as tw
from tests.graph.fixed_layers import RandomLayers
from tilewright import rpc
from tilewright.graph.ir.expr import Function, Tuple, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.rpc.background import serve_in_background
from tilewright.rpc.server import Server, ServerOptions

HOST, TOKEN = "127.0.0.1", "a token of some length"
CONFIG = "accel -config=block_in:8,block_out:8,inp_bytes:8192,wgt_bytes:16384,acc_bytes:16384,out_bytes:4096"


@pytest.fixture(scope="module")
def remote() -> Iterator[rpc.RemoteSession]:
    options = ServerOptions(port=0, token=TOKEN, tls=True, request_seconds=60)
    with (
        serve_in_background(Server(options)) as server,
        rpc.connect(HOST, server.port, token=TOKEN, tls=True) as session,
    ):
        yield session


@pytest.fixture(scope="module")
def model() -> IRModule:
    """Two layers of the processor, and a branch of the host."""
    x = Var("x", tensor_type((1, 16, 8, 8), "int8"))
    make = RandomLayers(7)
    layer = make.layer(x, 16, 16, (3, 3), padding=(1, 1, 1, 1))
    layer = make.layer(layer, 8, 16, (1, 1), strides=(2, 2))
    other = call("tanh", call("cast", x, dtype=FLOAT32))
    return infer_types(IRModule([Function("main", (x,), Tuple((layer, other)))]))


def test_a_model_runs_on_the_processor_of_a_server(remote: rpc.RemoteSession, model: IRModule) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (1, 16, 8, 8)).astype(np.int8)
    exe = tw.compile(model, target={"accel": CONFIG, "host": "native"})
    assert any(not kernel.on_host for kernel in exe.artifact.device.kernels)
    there = remote.send(exe)
    assert isinstance(there, rpc.RemoteExecutable)
    expected = tw.compile(model)(x)
    for _ in range(2):
        for got, want in zip(there.run({"x": x}), expected, strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
    assert there.time_evaluator(number=1, repeat=2)({"x": x}).mean > 0


def test_two_configurations_in_one_session(remote: rpc.RemoteSession, model: IRModule) -> None:
    """The processor of a session becomes another one where a model is for another."""
    x = np.random.default_rng(1).integers(-128, 128, (1, 16, 8, 8)).astype(np.int8)
    expected = tw.compile(model)(x)
    there = [remote.send(tw.compile(model, target=target)) for target in (CONFIG, "accel")]
    for number in (0, 1, 0):
        for got, want in zip(there[number].run({"x": x}), expected, strict=True):
            np.testing.assert_array_equal(got.numpy(), want)


def test_inputs_that_do_not_fit_are_errors_of_the_client(remote: rpc.RemoteSession, model: IRModule) -> None:
    there = remote.send(tw.compile(model, target=CONFIG))
    with pytest.raises(rpc.RemoteError, match="the input 'x'"):
        there.run({"x": np.zeros((1, 16, 8, 9), np.int8)})
    x = np.zeros((1, 16, 8, 8), np.int8)
    assert len(there.run({"x": x})) == 2
