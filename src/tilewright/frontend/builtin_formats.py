"""The formats that come with Tilewright. Their importers are loaded when a file needs them."""

from __future__ import annotations

import re
from pathlib import Path

from tilewright.frontend.companions import caffe2_pair, caffe_pair, mxnet_pair, ncnn_pair
from tilewright.frontend.format import Format
from tilewright.frontend.sample import Sample

_ONNX_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
"""Wire types of the fields of an ONNX `ModelProto`; 7 is the graph."""


def _is_onnx(sample: Sample) -> bool:
    fields = sample.fields
    return 7 in fields and all(_ONNX_FIELDS.get(number, kind) == kind for number, kind in fields.items())


def _has_parts(sample: Sample, *ends: str) -> bool:
    """Whether an archive has files whose names end so, in whatever folder."""
    return all(any(f"/{name}".endswith(end) or f"{end}/" in f"/{name}" for name in sample.archive) for end in ends)


def _is_exported_program(sample: Sample) -> bool:
    return _has_parts(sample, "/serialized_exported_program.json") or _has_parts(sample, "/archive_format", "/models")


def _is_torchscript(sample: Sample) -> bool:
    return _has_parts(sample, "/data.pkl", "/constants.pkl", "/code")


def _is_keras(sample: Sample) -> bool:
    """An archive or folder of a configuration and weights, or an HDF5 file with a configuration."""
    if sample.head.startswith(b"\x89HDF\r\n\x1a\n"):
        return b"model_config" in sample.head
    names = sample.entries if sample.is_folder else sample.archive
    return "config.json" in names and any(name.startswith("model.weights.") for name in names)


def _is_xgboost(sample: Sample) -> bool:
    """The first key of the document is `learner`, in JSON or in its binary form."""
    text = sample.text[:256]
    if text:
        return text.lstrip().startswith("{") and text.lstrip()[1:].lstrip().startswith('"learner"')
    return sample.head.startswith(b"{") and b"learner" in sample.head[:32]


def _is_safetensors(sample: Sample) -> bool:
    return sample.head[8:10] == b'{"' and 0 < int.from_bytes(sample.head[:8], "little") < 1 << 27


def _is_darknet(sample: Sample) -> bool:
    lines = (line.partition("#")[0].strip() for line in sample.text.splitlines())
    return next((line for line in lines if line and not line.startswith(";")), "") in ("[net]", "[network]")


def _darknet_files(path: Path) -> list[Path]:
    """The other one of a model's two files."""
    other = path.with_suffix(".cfg" if path.suffix == ".weights" else ".weights")
    return [other] if other.exists() else []


def _is_openvino(sample: Sample) -> bool:
    head = sample.text[:4096]
    return head.lstrip("\ufeff \r\n\t").startswith("<") and "<net " in head and "<layers>" in head


def _openvino_files(path: Path) -> list[Path]:
    """The other one of a model's two files."""
    other = path.with_suffix(".xml" if path.suffix == ".bin" else ".bin")
    return [other] if other.exists() else []


_PADDLE_BLOCK = {1: 0, 2: 0, 3: 2, 4: 2, 5: 0}
"""Wire types of the fields of a block of PaddlePaddle: two numbers, variables, operators."""


def _is_paddle(sample: Sample) -> bool:
    """A JSON text of the kind `pir`, a message of blocks, or a folder with such a program."""
    if sample.is_folder:
        return any(name == "__model__" or name.endswith((".pdmodel", ".pdiparams")) for name in sample.entries)
    head = sample.text[:256].replace(" ", "")
    if head.startswith("{"):
        return '"magic":"pir"' in head
    if set(sample.fields) - {1, 4, 5} or 1 not in sample.fields:
        return False
    block, variable = sample.nested_fields(1), sample.nested_fields(1, 3)
    fits = all(_PADDLE_BLOCK.get(number) == kind for number, kind in block.items())
    return fits and {1, 2} <= set(block) and variable.get(1) == variable.get(2) == 2


def _paddle_files(path: Path) -> list[Path]:
    """The file of parameters beside a program, or the program beside it; all files of a folder of the old layout."""
    if path.name == "__model__":
        return [item for item in sorted(path.parent.iterdir()) if item.is_file() and item != path]
    beside = [path.with_suffix(suffix) for suffix in (".json", ".pdmodel", ".pdiparams")]
    return [item for item in beside if item != path and item.is_file()]


_CAFFE_LAYER = re.compile(r"^\s*layers?\s*\{", re.MULTILINE)


def _is_caffe(sample: Sample) -> bool:
    """Layers in a text, or messages that name, type and join layers as Caffe's two versions do."""
    if sample.text:
        return _CAFFE_LAYER.search(sample.text) is not None and re.search(r"\btop\s*:", sample.text) is not None
    fields = sample.fields
    if fields.get(100) == 2 and set(fields) <= {1, 3, 4, 5, 6, 7, 8, 100}:
        layer = sample.nested_fields(100)
        return layer.get(1) == layer.get(2) == 2
    if fields.get(2) == 2 and set(fields) <= {1, 2, 3, 4, 5, 6, 7, 8} and fields.get(7, 0) == 0:
        layer = sample.nested_fields(2)
        return (layer.get(4) == 2 and layer.get(5) == 0) or sample.nested_fields(2, 1).get(2) == 2
    return False


def _caffe_files(path: Path) -> list[Path]:
    """The other one of a model's two files."""
    return [item for item in caffe_pair(path) if item is not None and item != path]


_MXNET_NODE = re.compile(r'"op"\s*:\s*"null"')


def _is_mxnet(sample: Sample) -> bool:
    """A JSON text of nodes, some of which are variables; or the first numbers of a file of arrays."""
    if sample.text:
        text = sample.text.lstrip()
        begins = text.startswith("{") and text[1:].lstrip().startswith('"nodes"')
        return begins and _MXNET_NODE.search(text) is not None and '"tvm_op"' not in text
    return sample.head[:16] == bytes([0x12, 1, *bytes(14)])


def _mxnet_files(path: Path) -> list[Path]:
    """The other one of a model's two files."""
    return [item for item in mxnet_pair(path) if item is not None and item != path]


_CAFFE2_OPERATOR = re.compile(r"^\s*op\s*\{", re.MULTILINE)


def _is_caffe2(sample: Sample) -> bool:
    """Operators in a text, or messages of operators, whose fourth field is their type."""
    if sample.text:
        has_results = re.search(r"\boutput\s*:", sample.text) is not None
        return _CAFFE2_OPERATOR.search(sample.text) is not None and has_results
    fields = sample.fields
    kinds = {1: 2, 2: 2, 3: 2, 4: 0, 5: 2, 6: 2, 7: 2, 8: 2}
    if fields.get(2) != 2 or any(kinds.get(number) != kind for number, kind in fields.items()):
        return False
    operator = sample.nested_fields(2)
    texts = all(kind == 2 for number, kind in operator.items() if number != 9)
    return operator.get(4) == operator.get(2) == 2 and texts and set(operator) <= set(range(1, 13))


def _caffe2_files(path: Path) -> list[Path]:
    """The other one of a model's two nets."""
    return [item for item in caffe2_pair(path) if item is not None and item != path]


def _is_ncnn(sample: Sample) -> bool:
    """The number 7767517, as a line of a text or in the first bytes; or a .bin file beside layers that begin so."""
    if sample.text:
        return sample.text.split("\n", 1)[0].strip() == "7767517"
    if sample.head[:4] == _NCNN:
        return True
    if sample.path is None or sample.suffix != ".bin" or sample.is_folder:
        return False
    layers = ncnn_pair(sample.path)[0]
    return layers is not None and layers != sample.path and _is_ncnn(Sample(layers))


_NCNN = (7767517).to_bytes(4, "little")


def _ncnn_files(path: Path) -> list[Path]:
    """The other one of a model's two files."""
    return [item for item in ncnn_pair(path) if item is not None and item != path]


_COREML_FIELDS = {1: 0, 2: 2, 10: 0}
"""Wire types of the fields of a Core ML `Model` beside what it is, which has a number from 200 on."""


def _is_coreml(sample: Sample) -> bool:
    if sample.is_folder:
        return {"Manifest.json", "Data"} <= sample.entries
    fields = sample.fields
    kinds = [number for number in fields if 200 <= number <= 3000 and fields[number] == 2]
    rest = {number: kind for number, kind in fields.items() if number not in kinds}
    return len(kinds) == 1 and 1 in rest and 2 in rest and rest.items() <= _COREML_FIELDS.items()


def _coreml_files(path: Path) -> list[Path]:
    """The files of weights of the package that a model lies in."""
    weights = path.parent / "weights"
    return sorted(weights.iterdir()) if weights.is_dir() else []


def _is_cntk(sample: Sample) -> bool:
    """A dictionary of CNTK: a version, and pairs of a key and a value that has a version and a kind."""
    if sample.fields != {1: 0, 2: 2} or sample.nested_fields(2) != {1: 2, 2: 2}:
        return False
    value = sample.nested_fields(2, 2)
    return (
        value.get(1) == 0 and value.get(2) == 0 and set(value) <= set(range(1, 14)) and b"version" in sample.head[:4096]
    )


_TENSORFLOW_NODE = {1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 2, 7: 2}
"""Wire types of the fields of a `NodeDef`; 1 and 2 are its name and operator."""


def _is_tensorflow(sample: Sample) -> bool:
    """A folder with a SavedModel, or a graph: nodes in field 1, in field 2 of 1 (a meta graph), or in 2, 2 and 1."""
    if sample.is_folder:
        return not sample.entries.isdisjoint({"saved_model.pb", "saved_model.pbtxt"})
    if sample.text:
        return re.match(r"\s*(#.*\n\s*)*(node|library|versions)\s*\{", sample.text) is not None and "op:" in sample.text
    fields = sample.fields
    if set(fields) <= {1, 2, 3, 4} and fields.get(1) == 2 and _is_tensorflow_node(sample, 1):
        return True
    if fields.get(1) == 2 and fields.get(2) == 2 and _is_tensorflow_node(sample, 2, 1):
        return True
    return fields.get(1) == 0 and fields.get(2) == 2 and _is_tensorflow_node(sample, 2, 2, 1)


def _is_tensorflow_node(sample: Sample, *path: int) -> bool:
    fields = sample.nested_fields(*path)
    is_node = 1 in fields and 2 in fields and all(_TENSORFLOW_NODE.get(key) == kind for key, kind in fields.items())
    return is_node and (5 not in fields or sample.nested_fields(*path, 5) == {1: 2, 2: 2})


def _tensorflow_files(path: Path) -> list[Path]:
    """The checkpoint of a meta graph, or what is in the folders of a SavedModel (and its graph, for the folder)."""
    if path.is_dir() or path.name.startswith("saved_model.pb"):
        folder = path if path.is_dir() else path.parent
        inside = [item for part in ("variables", "assets") for item in sorted((folder / part).glob("*"))]
        graph = sorted(folder.glob("saved_model.pb*")) if path.is_dir() else []
        return [item for item in (*graph, *inside) if item.is_file()]
    if path.suffix not in (".meta", ".index"):
        return []
    return [item for item in sorted(path.parent.glob(f"{path.stem}.*")) if item != path and item.is_file()]


FORMATS: tuple[Format, ...] = (
    Format(
        "caffe2",
        "Caffe2",
        "a protobuf message (or a text) of operators: predict_net.pb with init_net.pb beside it",
        _is_caffe2,
        ("tilewright.frontend.caffe2", "from_caffe2"),
        (),
        ("google.protobuf",),
        "protobuf",
        companions=_caffe2_files,
    ),
    Format(
        "onnx",
        "ONNX",
        "a protobuf message with a graph in its field 7",
        _is_onnx,
        ("tilewright.frontend.onnx", "from_onnx"),
        (".onnx",),
        ("onnx",),
        "onnx",
    ),
    Format(
        "torch-export",
        "PyTorch exported program",
        "a ZIP archive with a serialized exported program",
        _is_exported_program,
        ("tilewright.frontend.torch.files", "from_exported_file"),
        (".pt2",),
        ("torch",),
        "torch",
    ),
    Format(
        "torchscript",
        "TorchScript",
        "a ZIP archive with data.pkl, constants.pkl and code/",
        _is_torchscript,
        ("tilewright.frontend.torch.files", "from_script_file"),
        (),
        ("torch",),
        "torch",
    ),
    Format(
        "keras",
        "Keras",
        "a ZIP archive or folder with config.json and model.weights.h5, or an HDF5 file with 'model_config'",
        _is_keras,
        ("tilewright.frontend.keras", "from_keras"),
        (".keras", ".h5", ".hdf5"),
        ("h5py",),
        "keras",
    ),
    Format(
        "tensorflow",
        "TensorFlow",
        "a folder with saved_model.pb, or a protobuf message or text of nodes (a GraphDef, a meta graph)",
        _is_tensorflow,
        ("tilewright.frontend.tensorflow", "from_tensorflow"),
        (".pb", ".pbtxt", ".meta", ".index"),
        ("google.protobuf",),
        "protobuf",
        companions=_tensorflow_files,
    ),
    Format(
        "tflite",
        "TensorFlow Lite",
        "the bytes 'TFL3' at byte 4",
        lambda sample: sample.head[4:8] == b"TFL3",
        ("tilewright.frontend.tflite", "from_tflite"),
        (".tflite",),
    ),
    Format(
        "stablehlo",
        "StableHLO",
        "bytecode of MLIR, or a text with operators 'stablehlo.'",
        lambda sample: sample.head.startswith(b"ML\xefR") or "stablehlo." in sample.text,
        ("tilewright.frontend.stablehlo.files", "from_stablehlo_file"),
        (".mlir", ".mlirbc"),
    ),
    Format(
        "xgboost",
        "XGBoost",
        "a JSON or UBJSON document whose first key is 'learner'",
        _is_xgboost,
        ("tilewright.frontend.boosting", "from_xgboost"),
        (".ubj",),
    ),
    Format(
        "lightgbm",
        "LightGBM",
        "a text that begins with the lines 'tree' and 'version='",
        lambda sample: sample.text.startswith(("tree\nversion=", "tree\r\nversion=")),
        ("tilewright.frontend.boosting", "from_lightgbm"),
    ),
    Format(
        "darknet",
        "Darknet",
        "a text whose first section is [net], with a .weights file of its name beside it",
        _is_darknet,
        ("tilewright.frontend.darknet", "from_darknet"),
        (".weights",),
        companions=_darknet_files,
    ),
    Format(
        "openvino",
        "OpenVINO IR",
        "an XML document <net> with layers, and a .bin file of its name beside it",
        _is_openvino,
        ("tilewright.frontend.openvino", "from_openvino"),
        (),
        companions=_openvino_files,
    ),
    Format(
        "paddle",
        "PaddlePaddle",
        "a JSON text of the kind 'pir', or a protobuf message of blocks; parameters beside it",
        _is_paddle,
        ("tilewright.frontend.paddle", "from_paddle"),
        (".pdmodel", ".pdiparams"),
        ("google.protobuf",),
        "protobuf",
        companions=_paddle_files,
    ),
    Format(
        "caffe",
        "Caffe",
        "a text of layers with tops, or a protobuf message of layers; a .prototxt and a .caffemodel beside each other",
        _is_caffe,
        ("tilewright.frontend.caffe", "from_caffe"),
        (".prototxt", ".caffemodel"),
        ("google.protobuf",),
        "protobuf",
        companions=_caffe_files,
    ),
    Format(
        "mxnet",
        "MXNet",
        "a JSON text of nodes (-symbol.json), or the number 0x112 (.params), beside each other",
        _is_mxnet,
        ("tilewright.frontend.mxnet", "from_mxnet"),
        (".params",),
        companions=_mxnet_files,
    ),
    Format(
        "ncnn",
        "ncnn",
        "the number 7767517, as the first line or in the first bytes, with a .bin file beside it",
        _is_ncnn,
        ("tilewright.frontend.ncnn", "from_ncnn"),
        (".param",),
        companions=_ncnn_files,
    ),
    Format(
        "coreml",
        "Core ML",
        "a protobuf message with a description and one model from field 200 on, or a folder with Manifest.json",
        _is_coreml,
        ("tilewright.frontend.coreml", "from_coreml"),
        (".mlmodel",),
        ("google.protobuf",),
        "protobuf",
        companions=_coreml_files,
    ),
    Format(
        "cntk",
        "CNTK",
        "a protobuf message of pairs of keys and values with versions",
        _is_cntk,
        ("tilewright.frontend.cntk", "from_cntk"),
        (".dnn",),
        ("google.protobuf",),
        "protobuf",
    ),
    Format(
        "gguf",
        "GGUF (weights)",
        "the bytes 'GGUF'",
        lambda sample: sample.head.startswith(b"GGUF"),
        ("tilewright.frontend.weights", "refuse_weights"),
        (".gguf",),
    ),
    Format(
        "safetensors",
        "safetensors (weights)",
        "a length, and a JSON header of that length",
        _is_safetensors,
        ("tilewright.frontend.weights", "refuse_weights"),
        (".safetensors",),
    ),
)
"""The formats that come with Tilewright, in the order in which they are tried."""
