"""Makes the classifier of handwritten digits that `tilewright demo web` shows: `python -m bench.digits_model`.

scikit-learn's digits (8 x 8), enlarged to 16 x 16 and moved, turned and scaled at random, train a small network in
PyTorch; every fifth digit is kept for the test. Writes `src/tilewright/cli/web/digits.onnx`. Needs torch, scikit-learn
and onnx.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE = 16
OUTPUT = Path(__file__).resolve().parents[1] / "src" / "tilewright" / "cli" / "web" / "digits.onnx"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.digits_model", description=__doc__)
    parser.add_argument("--steps", type=int, default=1500, help="training steps (default: 1500)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the model goes")
    options = parser.parse_args(arguments)
    import torch
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.nn.functional.interpolate(
        torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], (SIZE, SIZE), mode="bilinear"
    )
    labels = torch.tensor(digits.target)
    is_test = torch.arange(len(labels)) % 5 == 0
    network = torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Flatten(), torch.nn.Linear(512, 10)),
    )
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for step in range(options.steps):
        picked = torch.randint(int((~is_test).sum()), (64,))
        batch = _moved(torch, images[~is_test][picked])
        loss = torch.nn.functional.cross_entropy(network(batch), labels[~is_test][picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.3f}", file=sys.stderr, flush=True)
    right = (network(images[is_test]).argmax(1) == labels[is_test]).float().mean().item()
    onnx.save(_as_onnx(network), options.output)
    print(f"{options.output.name}: {options.output.stat().st_size} bytes, {right:.1%} of the test digits are right")
    return 0


def _moved(torch: Any, batch: Any) -> Any:
    """Digits turned, scaled and moved a little, with strokes of other strength."""
    count = len(batch)
    angle, scale = (torch.rand(count) - 0.5) * 0.5, 1 + (torch.rand(count) - 0.5) * 0.5
    rows = torch.stack([torch.cos(angle), -torch.sin(angle)], 1) * scale[:, None]
    columns = torch.stack([torch.sin(angle), torch.cos(angle)], 1) * scale[:, None]
    moves = (torch.rand(count, 2, 1) - 0.5) * 0.4
    matrix = torch.cat([torch.stack([rows, columns], 1), moves], 2)
    grid = torch.nn.functional.affine_grid(matrix, batch.shape, align_corners=False)
    strength = 0.7 + 0.8 * torch.rand(count, 1, 1, 1)
    return (torch.nn.functional.grid_sample(batch, grid, align_corners=False) * strength).clamp(0, 1)


def _as_onnx(network: Any) -> onnx.ModelProto:
    first, second, last = network[0], network[3], network[7]
    weights = {"conv1": first, "conv2": second, "dense": last}
    constants = [
        numpy_helper.from_array(np.ascontiguousarray(getattr(layer, kind).detach().numpy()), f"{name}.{kind}")
        for name, layer in weights.items()
        for kind in ("weight", "bias")
    ]
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["a"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu1"),
        helper.make_node("MaxPool", ["b"], ["c"], "pool1", **window),
        helper.make_node("Conv", ["c", "conv2.weight", "conv2.bias"], ["d"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["d"], ["e"], "relu2"),
        helper.make_node("MaxPool", ["e"], ["f"], "pool2", **window),
        helper.make_node("Flatten", ["f"], ["g"], "flatten"),
        helper.make_node("Gemm", ["g", "dense.weight", "dense.bias"], ["h"], "dense", transB=1),
        helper.make_node("Softmax", ["h"], ["probabilities"], "softmax", axis=-1),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, SIZE, SIZE])
    result = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 10])
    graph = helper.make_graph(nodes, "digits", [image], [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    sys.exit(main())
