"""Graphs of TensorFlow 1 for `bench.frontend_tensorflow`: frozen, as text, with a checkpoint, with frames."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Made = tuple[bytes | Path, Mapping[str, Any], Sequence[Any]]
Make = Callable[[Any], Made]


def _frozen(tf: Any, build: Callable[[Any], Sequence[Any]], inputs: Mapping[str, Any], text: bool = False) -> Made:
    """A graph with its variables as constants; control flow is that of frames and switches."""
    old = tf.compat.v1
    graph = old.Graph()
    was_new = old.control_flow_v2_enabled()
    old.disable_control_flow_v2()
    try:
        with graph.as_default(), old.Session(graph=graph) as session:
            old.set_random_seed(0)
            outputs = build(tf)
            session.run(old.global_variables_initializer())
            expected = session.run(outputs, {f"{name}:0": value for name, value in inputs.items()})
            names = [item.op.name for item in outputs]
            frozen = old.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), names)
    finally:
        if was_new:
            old.enable_control_flow_v2()
    content = str(frozen).encode() if text else frozen.SerializeToString()
    return content, inputs, expected


def _with_checkpoint(tf: Any, build: Callable[[Any], Sequence[Any]], inputs: Mapping[str, Any], version: int) -> Made:
    """A meta graph beside a checkpoint, with variables in parts."""
    old = tf.compat.v1
    folder = Path(tempfile.mkdtemp(prefix="tilewright-tensorflow-"))
    graph = old.Graph()
    with graph.as_default(), old.Session(graph=graph) as session:
        old.set_random_seed(0)
        outputs = build(tf)
        session.run(old.global_variables_initializer())
        expected = session.run(outputs, {f"{name}:0": value for name, value in inputs.items()})
        old.train.Saver(write_version=version).save(session, str(folder / "model.ckpt"))
    return folder / "model.ckpt.meta", inputs, expected


def _branches(tf: Any) -> Sequence[Any]:
    old = tf.compat.v1
    x = old.placeholder(tf.float32, [None], "x")
    total = tf.reduce_sum(x)
    inner = lambda: old.cond(total > -5, lambda: x - 1, lambda: x + 100)  # noqa: E731
    both = old.cond(total > 0, lambda: (x * 2, tf.constant(1.0)), lambda: (inner(), tf.reduce_max(x)))
    return [tf.identity(both[0] + 1, "first"), tf.identity(both[1], "second")]


def _nested(tf: Any) -> Sequence[Any]:
    old = tf.compat.v1
    x = old.placeholder(tf.float32, [None], "x")

    def body(i: Any, a: Any) -> Any:
        a = old.cond(tf.equal(i % 2, 0), lambda: a * 1.5, lambda: a + 1)
        _, b = old.while_loop(lambda j, b: j < i, lambda j, b: (j + 1, b + x), [0, a])
        return i + 1, b

    i, a = old.while_loop(lambda i, a: tf.logical_and(i < 10, tf.reduce_sum(a) < 200.0), body, [0, x])
    return [tf.identity(a, "a"), tf.identity(i, "i")]


def _recurrent(tf: Any, steps: int | None = None) -> Sequence[Any]:
    old = tf.compat.v1
    x = old.placeholder(tf.float32, [None, steps, 4], "x")
    rows = tf.transpose(x, [1, 0, 2])
    count = tf.shape(rows)[0]
    given = old.TensorArray(tf.float32, size=count).unstack(rows)
    weight = old.get_variable("weight", [9, 5])

    def body(t: Any, state: Any, out: Any) -> Any:
        state = tf.tanh(tf.matmul(tf.concat([given.read(t), state], 1), weight))
        return t + 1, state, out.write(t, state)

    start = [0, tf.zeros([tf.shape(x)[0], 5]), old.TensorArray(tf.float32, size=count)]
    _, state, out = old.while_loop(lambda t, state, out: t < count, body, start)
    return [tf.identity(out.stack(), "rows"), tf.identity(state, "state")]


def _network(tf: Any) -> Sequence[Any]:
    old = tf.compat.v1
    x = old.placeholder(tf.float32, [None, 8, 8, 3], "x")
    kernel = old.get_variable("kernel", [3, 3, 3, 4])
    parts = old.get_variable("parts", [6, 4], partitioner=old.fixed_size_partitioner(2))
    value = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), old.get_variable("bias", [4])))
    keep = old.placeholder_with_default(1.0, [], "keep")
    mean = tf.reduce_mean(value, [1, 2]) * keep
    return [tf.identity(tf.nn.softmax(tf.matmul(mean, tf.convert_to_tensor(parts), transpose_b=True)), "chances")]


def graphs() -> dict[str, Make]:
    """The graphs by name."""
    random = np.random.default_rng(0)
    image = {"x": random.standard_normal((2, 8, 8, 3)).astype(np.float32)}
    sequence = {"x": random.standard_normal((2, 5, 4)).astype(np.float32)}
    long = {"x": random.standard_normal((2, 100, 4)).astype(np.float32)}
    found: dict[str, Make] = {
        "frozen": lambda tf: _frozen(tf, _network, image),
        "text": lambda tf: _frozen(tf, _network, image, text=True),
        "checkpoint": lambda tf: _with_checkpoint(tf, _network, image, 2),
        "old checkpoint": lambda tf: _with_checkpoint(tf, _network, image, 1),
        "TensorArray of open length": lambda tf: _frozen(tf, _recurrent, sequence),
        "TensorArray spelled out": lambda tf: _frozen(tf, lambda tf: _recurrent(tf, 5), sequence),
        "TensorArray of 100 steps": lambda tf: _frozen(tf, lambda tf: _recurrent(tf, 100), long),
    }
    for values in ([1.0, 2.0], [-1.0, -2.0], [-1.0, -22.0]):
        data = {"x": np.array(values, np.float32)}
        found[f"branches {values}"] = lambda tf, data=data: _frozen(tf, _branches, data)  # type: ignore[misc]
        found[f"nested loops {values}"] = lambda tf, data=data: _frozen(tf, _nested, data)  # type: ignore[misc]
    return found
