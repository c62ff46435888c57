"""A small convolutional network learns to read digits: built of graph operators, trained, exported and compiled.

Run it with `python examples/train_digits.py`; it needs scikit-learn, whose 1,797 images of 8 x 8 pixels it learns from.
It takes about a minute, and ends at 98.5% of the images that it has not seen, or more.
"""

from __future__ import annotations

import sys

import numpy as np

import tilewright as tw
from tilewright.graph.expr import Function, GraphExpr, Var, constant
from tilewright.graph.op import call
from tilewright.ir.types import tensor_type
from tilewright.support.span import Span

try:
    from sklearn.datasets import load_digits
except ImportError:
    print("this example needs scikit-learn: pip install scikit-learn")
    sys.exit(0)

BATCH = 64


def weight(name: str, *shape: int, value: float = 0.0) -> GraphExpr:
    """A weight: a constant with a name. Its first value is drawn below."""
    made = constant(np.full(shape, value, np.float32))
    made.span = Span(name)
    return made


def layer(x: GraphExpr, name: str, inputs: int, outputs: int) -> GraphExpr:
    """A convolution, a batch normalisation and a ReLU."""
    value = call("nn.conv2d", x, weight(f"{name}.weight", outputs, inputs, 3, 3), padding=(1, 1, 1, 1))
    scale, variance = (weight(f"{name}.{part}", outputs, value=1.0) for part in ("scale", "variance"))
    bias, mean = (weight(f"{name}.{part}", outputs) for part in ("bias", "mean"))
    return call("nn.relu", call("nn.batch_norm", value, scale, bias, mean, variance, epsilon=1e-5, axis=1))


def network() -> tw.IRModule:
    x = Var("image", tensor_type((BATCH, 1, 8, 8), "float32"))
    value = layer(layer(x, "first", 1, 24), "second", 24, 48)
    value = call("nn.max_pool2d", value, kernel=(2, 2), strides=(2, 2))
    value = call("mean", layer(value, "third", 48, 64), axes=(2, 3), keepdims=False)
    result = call("add", call("matmul", value, weight("dense.weight", 64, 10)), weight("dense.bias", 10))
    return tw.IRModule([Function("main", (x,), result)], attributes={"output_names": ("digit",)})


def main() -> None:
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    # The test set is whole batches, so that every image of it counts.
    tested, learned = order[: 7 * BATCH], order[7 * BATCH :]

    epochs = 12
    steps = epochs * (len(learned) // BATCH)
    optimizer = tw.train.AdamW(tw.train.OneCycle(4e-3, steps), weight_decay=0.05)
    step = tw.train.Step(network(), tw.train.CrossEntropy(label_smoothing=0.05), optimizer, average=0.97)
    step.assign(tw.train.initialize(step.parameters(), seed=0))
    validation = (images[tested], digits.target[tested])
    history = tw.train.fit(
        step, (images[learned], digits.target[learned]), epochs=epochs, validation=validation, seed=0
    )
    for epoch in history:
        print(f"epoch {epoch.number + 1}: loss {epoch.training['loss']:.3f}, test {epoch.validation['accuracy']:.2%}")

    exe = tw.compile(step.module())
    found = np.concatenate([exe(images[tested[at : at + BATCH]]) for at in range(0, len(tested), BATCH)])
    accuracy = float((found.argmax(axis=1) == digits.target[tested]).mean())
    print(f"compiled model: {accuracy:.2%} of {len(tested)} images that it has not seen")
    assert accuracy >= 0.985


if __name__ == "__main__":
    main()
