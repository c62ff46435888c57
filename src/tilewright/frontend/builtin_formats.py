"""The formats that come with Tilewright. Their importers are loaded when a file needs them."""

from __future__ import annotations

import re
from pathlib import Path

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
