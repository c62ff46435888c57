"""Model in, deployable module out: import, compile, then set inputs, run and get outputs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

import tilewright as tw
from tilewright import runtime


def small_network() -> onnx.ModelProto:
    """Convolution, relu, average over the image, fully connected; the weights are inputs of the model."""
    shapes = {"data": (1, 3, 16, 16), "conv_weight": (8, 3, 3, 3), "fc_weight": (8, 10), "fc_bias": (10,)}
    nodes = [
        helper.make_node("Conv", ["data", "conv_weight"], ["conv"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Relu", ["conv"], ["relu"], name="relu"),
        helper.make_node("GlobalAveragePool", ["relu"], ["pool"], name="pool"),
        helper.make_node("Flatten", ["pool"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "fc_weight", "fc_bias"], ["scores"], name="fc"),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info("scores", TensorProto.FLOAT, (1, 10))
    graph = helper.make_graph(nodes, "small_network", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


rng = np.random.default_rng(0)
data_array = rng.random((1, 3, 16, 16), dtype=np.float32)
params = {
    "conv_weight": rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
    "fc_weight": rng.standard_normal((8, 10)).astype(np.float32),
    "fc_bias": rng.standard_normal((10,)).astype(np.float32),
}

graph = tw.frontend.from_onnx(small_network())
lib = tw.compile(graph, target="native")

module = runtime.create(lib, runtime.cpu(0))
module.set_input(**params)
module.run(data=data_array)
out_shape = (1, 10)
output = runtime.empty(out_shape)
module.get_output(0, output)

# The same in numpy.
padded = np.pad(data_array, ((0, 0), (0, 0), (1, 1), (1, 1)))
windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
image = np.maximum(np.einsum("nchwij,ocij->nohw", windows, params["conv_weight"]), 0)
wanted = image.mean(axis=(2, 3)) @ params["fc_weight"] + params["fc_bias"]
np.testing.assert_allclose(output.numpy(), wanted, rtol=1e-4, atol=1e-5)
print("prediction:", int(wanted.argmax()))
