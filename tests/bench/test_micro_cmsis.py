"""The layers that `bench.micro_cmsis` gives to another library are those of the model."""

from __future__ import annotations

import pytest

from bench.micro_cmsis import layers_of, main, program
from bench.micro_models import MODELS, ds_cnn, tiny


@pytest.mark.parametrize("name", [*MODELS, "tiny"])
def test_layers_hold_all_multiplications(name: str) -> None:
    model = tiny() if name == "tiny" else MODELS[name]()
    assert sum(layer.products for layer in layers_of(model)) == model.products


def test_program_calls_each_layer_with_its_geometry() -> None:
    layers = layers_of(ds_cnn())
    assert [layer.is_depthwise for layer in layers] == [False, *[True, False] * 4, False]
    assert layers[0].label == "convolution 10 x 4 / 2, 1 to 64, 25 x 5"
    text = program(layers)
    assert text.count("arm_convolve_wrapper_s8(\n") == 5
    assert text.count("arm_depthwise_conv_wrapper_s8(\n") == 4
    assert text.count("arm_fully_connected_wrapper_s8(\n") == 1
    assert "stride = {2, 2}, padding = {1, 4}" in text, "width first"
    assert "input = {1, 49, 10, 1}, filter = {64, 10, 4, 1}" in text


def test_wrong_checkout_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--against", "nowhere"])
    assert "no checkout of CMSIS-NN" in capsys.readouterr().err
