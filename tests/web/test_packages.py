"""Models as packages for JavaScript: right in Node on every level, typed, checked; bad files and inputs are errors."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from bench.page_models import save_image_model, save_text_model
from bench.web_runner import FLAGS, NodeHost, engine_levels, run_packaged
from tests.requirements import need, need_module, need_tool
from tilewright.backends.wasm import elements, package
from tilewright.backends.wasm.binary import read_imports
from tilewright.backends.wasm.link import find_wasm_linker
from tilewright.cli.main import main
from tilewright.compiler import Compilation
from tilewright.support.errors import CompilerBug, MissingDependencyError, UserError
from tilewright.target.target import Target

need("node", "wasm-ld")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("web")
    image = save_image_model(path / "image.onnx")
    np.save(path / "image.npy", image)
    save_text_model(path / "text.onnx")
    for name in ("image", "text"):
        Compilation(path / f"{name}.onnx", target="wasm").export_library(path / name)
    return path


@pytest.fixture(scope="module")
def host() -> Iterator[NodeHost]:
    node = NodeHost()
    yield node
    node.close()


def test_every_level_gives_what_native_code_gives(folder: Path, host: NodeHost) -> None:
    image = np.load(folder / "image.npy")
    expected = tw.compile(folder / "image.onnx")(image)
    assert engine_levels() in (tuple(package.LEVELS), ("simd", "plain"))
    for level in engine_levels():
        run = host.run(folder / "image", {"input": image}, level=level, threads=1)
        assert run.level == level
        np.testing.assert_allclose(run.outputs["logits"], expected, rtol=1e-4, atol=1e-5)


def test_what_users_in_javascript_rely_on(folder: Path) -> None:
    script = Path(__file__).with_name("api.mjs")
    command = [need_tool("node"), *FLAGS, str(script), str(folder / "image"), str(folder / "text")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "all is as it should be"


def operators() -> onnx.ModelProto:
    """One model with many operators: mathematics, small types, integers, a layer that is a loop."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((8, 3, 3, 3), np.float32),
        "lw": random.standard_normal((1, 32, 12), np.float32),
        "lr": random.standard_normal((1, 32, 8), np.float32),
        "m": random.integers(-9, 9, (12, 5), np.int8),
        "scale": np.float32(0.1),
        "zero": np.uint8(100),
        "seven": np.int64(7),
        "gain": np.ones(12, np.float32),
    }
    nodes = [
        *(
            helper.make_node(name, ["x"], [name])
            for name in ("Erf", "Sinh", "Tanh", "Atan", "Exp", "Softplus", "Floor")
        ),
        helper.make_node("Gelu", ["x"], ["Gelu"], approximate="tanh"),
        helper.make_node("Softmax", ["x"], ["Softmax"], axis=-1),
        helper.make_node("Pow", ["Exp", "x"], ["Pow"]),
        helper.make_node("LayerNormalization", ["x", "gain"], ["Norm"]),
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("MatMulInteger", ["q", "m", "zero"], ["Integers"]),
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["half", "half"], ["Halves"]),
        helper.make_node("Cast", ["Exp"], ["long"], to=TensorProto.INT64),
        helper.make_node("Mod", ["long", "seven"], ["Mod"]),
        helper.make_node("Cast", ["x"], ["double"], to=TensorProto.DOUBLE),
        helper.make_node("Sin", ["double"], ["Sin"]),
        helper.make_node("Conv", ["image", "w"], ["Conv"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("AveragePool", ["Conv"], ["Pool"], kernel_shape=[3, 3], auto_pad="SAME_LOWER"),
        helper.make_node("LSTM", ["x", "lw", "lr"], ["Lstm"], hidden_size=8),
    ]
    results = {"Integers": TensorProto.INT32, "Halves": TensorProto.FLOAT16, "Mod": TensorProto.INT64}
    results |= {"Sin": TensorProto.DOUBLE, "q": TensorProto.UINT8}
    names = [node.output[0] for node in nodes if node.output[0] not in ("half", "long", "double")]
    outputs = [helper.make_tensor_value_info(name, results.get(name, TensorProto.FLOAT), None) for name in names]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6, 12]),
        helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 15, 17]),
    ]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "operators", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_operators_give_what_onnxruntime_gives() -> None:
    onnxruntime = need_module("onnxruntime")
    model = operators()
    random = np.random.default_rng(1)
    inputs = {
        "x": random.standard_normal((4, 6, 12), np.float32),
        "image": random.standard_normal((1, 3, 15, 17), np.float32),
    }
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = dict(zip([info.name for info in session.get_outputs()], session.run(None, inputs), strict=True))
    found = run_packaged(tw.load_model(model.SerializeToString()), inputs)
    for (name, theirs), ours in zip(expected.items(), found, strict=True):
        assert ours.dtype == theirs.dtype, name
        np.testing.assert_allclose(ours, theirs, rtol=2e-3 if name == "Halves" else 1e-4, atol=1e-5, err_msg=name)


def test_levels_share_their_weights(folder: Path) -> None:
    assert len(list((folder / "image").glob("weights*"))) == 1
    description = json.loads((folder / "image" / "model.json").read_text())
    assert [code["level"] for code in description["code"]] == ["relaxed", "simd", "plain"]
    for code in description["code"]:
        content = (folder / "image" / code["file"]).read_bytes()
        assert content[code["memory_flags"]] == 1 and len(content) == code["bytes"]


def test_code_is_small(folder: Path) -> None:
    """A budget of bytes that pages fetch compressed: 150 KB of kernels for MobileNet-v2 (bench.web says), less here."""
    kernels = (folder / "image" / "model.relaxed.wasm").read_bytes()
    assert len(gzip.compress(kernels)) < 8_000
    scripts = ("index.js", "tilewright.js", "errors.js", "files.js", "inputs.js", "mathematics.js", "worker.js")
    assert sum(len(gzip.compress((folder / "image" / name).read_bytes())) for name in scripts) < 20_000


def test_types_are_those_of_the_model(folder: Path) -> None:
    text = (folder / "text" / "index.d.ts").read_text()
    assert '/** int64[batch, sequence] */\n  "input_ids": Input<BigInt64Array>;' in text
    assert '"scores": Tensor<Float32Array>;' in text
    npm = json.loads((folder / "text" / "package.json").read_text())
    assert npm["name"] == "text" and npm["type"] == "module"


def test_javascript_knows_what_packages_say() -> None:
    scripts = Path(package.__file__).with_name("javascript")
    text = "".join((scripts / name).read_text() for name in ("tilewright.js", "inputs.js"))
    assert all(name in text for name in (*package.PROVIDED, *elements.ARRAYS.values(), *package.LEVELS))
    assert f"description.format !== {package.FORMAT}" in text


def test_mathematics() -> None:
    """The functions are those that packages may call, and right: against the standard library's."""
    file = Path(package.__file__).with_name("javascript") / "mathematics.js"
    places = [
        -170.3,
        -30.7,
        -5.5,
        -2.5,
        -1,
        -0.6,
        -0.3,
        -1e-9,
        0,
        1e-9,
        0.2,
        0.5,
        1,
        1.5,
        2,
        2.7,
        5.5,
        20.25,
        26,
        150.5,
    ]
    script = f"""
        import {{ mathematics }} from {json.dumps(file.as_uri())};
        const places = {json.dumps(places)};
        const single = Object.entries(mathematics).filter(([name, compute]) => compute.length !== 2);
        console.log(JSON.stringify([Object.keys(mathematics), Object.fromEntries(
          single.map(([name, compute]) => [name, places.map((x) => String(compute(x)))]))]));
    """
    command = [need_tool("node"), "--input-type=module", "-e", script]
    names, values = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert set(names) == package.MATHEMATICS | {f"{name}f" for name in package.MATHEMATICS}
    for name, found in values.items():
        function = getattr(math, "gamma" if name == "tgamma" else name, None)
        for place, value in zip(places, found, strict=True) if function is not None else ():
            try:
                expected = function(place)
            except (ValueError, OverflowError):
                continue
            assert float(value) == pytest.approx(expected, rel=2e-13, abs=1e-300), (name, place)


def test_a_target_that_names_its_features_has_one_level(folder: Path, tmp_path: Path) -> None:
    Compilation(folder / "image.onnx", target="wasm -mattr=+relaxed-simd").export_library(tmp_path / "one", name="One!")
    assert [file.name for file in (tmp_path / "one").glob("*.wasm")] == ["model.relaxed.wasm"]
    assert json.loads((tmp_path / "one" / "package.json").read_text())["name"] == "one"


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "web"
    command = ["compile", str(folder / "image.onnx"), "--target", "wasm", "-o", str(out)]
    assert main(command) == 0
    assert "import { load } from './web/index.js'" in capsys.readouterr().out
    assert main(command) == 0  # a package is replaced
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    assert main([*command[:-1], str(tmp_path / "mine")]) == 1
    assert "holds no package" in capsys.readouterr().err
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_code_for_javascript_does_not_run_here(folder: Path) -> None:
    with pytest.raises(UserError, match="is not this machine"):
        tw.compile(folder / "image.onnx", target="wasm")


def test_a_missing_linker_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="no linker for WebAssembly"):
        find_wasm_linker()


def test_targets() -> None:
    target = Target("wasm")
    assert (target.triple, target.features, target.cores) == ("wasm32-unknown-unknown", "+simd128", 4)
    assert Target(str(target)) == target and not target.has_fma
    assert Target("wasm -mattr=+relaxed-simd").has_fma


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x7fELF", "no WebAssembly module"),
        (b"\0asm\1\0\0\0", "imports no memory"),
        (b"\0asm\1\0\0\0\x02\x01\x00", "imports no memory"),
        (b"\0asm\1\0\0\0\x02\x08\x01\x01e\x01m\x02\x00\x01", "has no maximum"),
        (b"\0asm\1\0\0\0\x02\x09\x01\x01e\x01m\x03\x7f\x00", "which is no function"),
    ],
)
def test_modules_that_are_not_what_the_linker_should_write(content: bytes, message: str) -> None:
    with pytest.raises(CompilerBug, match=message):
        read_imports(content)
