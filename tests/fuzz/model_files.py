"""Damaged model files of every format but ONNX: `python -m tests.fuzz.model_files --count 5000 --seed 0`.

Bits are flipped, parts lost, put in or exchanged, lengths and numbers made huge. Importing must give a model or a
`UserError`, in bounded time and memory; the format is named, so that a file that lost its first bytes is read as well.
"""

from __future__ import annotations

import functools
import io
import re
import resource
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.fuzz.children import run_campaign
from tilewright.frontend import read_weights
from tilewright.frontend.formats import from_file
from tilewright.support.errors import UserError

TESTS = Path(__file__).resolve().parents[1]
LONGEST = 30.0
"""Seconds that one file may take."""
MEMORY = 8 << 30
"""Bytes that the child may map."""
VICTIMS: dict[str, str] = {
    "tflite": "frontend/tflite/models/*.tflite",
    "keras": "fixtures/keras/*.[kh]*",
    "tensorflow": "fixtures/tensorflow/*.pb",
    "tensorflow-folder": "fixtures/tensorflow/decoder/**/*.*",
    "stablehlo": "frontend/stablehlo/fixtures/*.mlirbc",
    "xgboost": "fixtures/boosting/xgboost_*",
    "lightgbm": "fixtures/boosting/lightgbm_*",
    "darknet": "fixtures/darknet/tiny.*",
    "openvino": "fixtures/openvino/network.*[ln]",
    "openvino documents": "fixtures/openvino/*.xml",
    "paddle": "fixtures/paddle/*_old.pdmodel",
    "paddle pir": "fixtures/paddle/*.json",
    "paddle files": "fixtures/paddle/network_old.pd*",
    "caffe": "fixtures/caffe/network.*",
    "mxnet": "fixtures/mxnet/network-*",
    "caffe2": "fixtures/caffe2/*.pb",
    "ncnn": "fixtures/ncnn/network.*",
    "coreml": "fixtures/coreml/**/*.mlmodel",
    "cntk": "fixtures/cntk/*.dnn",
    "gguf": "fixtures/weights/*.gguf",
    "safetensors": "fixtures/weights/*.safetensors",
}
"""Files of each format, by patterns in `tests`; what follows the key of the format tells several of one apart."""
PAIRS: dict[str, tuple[str, str]] = {
    "darknet": ("net.cfg", "net.weights"),
    "openvino": ("net.bin", "net.xml"),
    "paddle files": ("net.pdiparams", "net.pdmodel"),
    "caffe": ("net.caffemodel", "net.prototxt"),
    "mxnet": ("net-0000.params", "net-symbol.json"),
    "caffe2": ("init_net.pb", "predict_net.pb"),
    "ncnn": ("net.bin", "net.param"),
}
"""The names of the two files of a model, in the order in which the pattern gives them."""
WEIGHTS = ("gguf", "safetensors")

Random = np.random.Generator


@functools.cache
def victims(key: str) -> list[bytes]:
    """Whole files of a format."""
    found = [path.read_bytes() for path in sorted(TESTS.glob(VICTIMS[key]))]
    assert found, f"there are no files of the format {key}"
    return found


def damaged(content: bytes, other: bytes, random: Random) -> bytes:
    """A file with something lost, changed or added."""
    data = bytearray(content)
    for _ in range(random.integers(1, 4)):
        size = max(len(data), 1)
        # Headers, where lengths are, are met as often as all the rest.
        place = int(random.integers(0, size if random.random() < 0.5 else min(size, 256)))
        count = int(2 ** random.integers(0, 10))
        match random.integers(8):
            case 0 | 1:
                data[place : place + 1] = bytes([(data[place] if data else 0) ^ 1 << int(random.integers(8))])
            case 2:
                data[place : place + count] = random.bytes(count)
            case 3:
                del data[place:]
            case 4:
                del data[place : place + count]
            case 5:
                data[place:place] = data[place : place + count]
            case 6:
                width = int(random.choice([1, 2, 4, 8]))
                data[place : place + width] = bytes([255] * width) if random.random() < 0.5 else bytes([0] * width)
            case _:
                data[place : place + count] = other[place : place + count]
    return bytes(data) if random.random() < 0.7 else _other_number(bytes(data), random)


def _other_number(data: bytes, random: Random) -> bytes:
    """One number of a text is another one."""
    numbers = list(re.finditer(rb"-?[0-9]+", data))
    if not numbers:
        return data
    at = numbers[random.integers(len(numbers))]
    value = random.choice([b"-1", b"0", b"1000000", b"9223372036854775807", b"1e400", b"x"])
    return data[: at.start()] + bytes(value) + data[at.end() :]


def run_one(key: str, seed: int) -> str:
    """Read the damaged file of a seed; says how it went."""
    random = np.random.default_rng(seed)
    whole = victims(key)
    first, second = random.integers(len(whole), size=2)
    content = _damaged_part(whole[first], random) or damaged(whole[first], whole[second], random)
    try:
        if key in PAIRS:
            _read_pair(key, content if first == 0 else whole[0], content if first == 1 else whole[1])
        elif key == "tensorflow-folder":
            _read_folder([content if at == first else part for at, part in enumerate(whole)])
        elif key in WEIGHTS:
            for weight in read_weights(content).values():
                if weight.blocks is None or weight.blocks.numbers is not None:
                    weight.numbers()
        else:
            from_file(content, format=key.split()[0])
    except UserError:
        return f"{key} refused"
    return f"{key} read"


def _damaged_part(content: bytes, random: Random) -> bytes | None:
    """An archive whose parts fit their checksums, one of which was damaged before; None if it is none, or not now."""
    if not content.startswith(b"PK") or random.random() < 0.2:
        return None
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = str(random.choice(sorted(parts)))
    parts[name] = damaged(parts[name], parts[name], random)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for key, part in parts.items():
            archive.writestr(key, part)
    return made.getvalue()


def _read_pair(key: str, first: bytes, second: bytes) -> None:
    """A model of two files, one of them damaged."""
    names = PAIRS[key]
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-") as folder:
        (Path(folder) / names[0]).write_bytes(first)
        (Path(folder) / names[1]).write_bytes(second)
        from_file(Path(folder) / names[0], format=key.split()[0])


def _read_folder(parts: list[bytes]) -> None:
    """A SavedModel, one of whose three files is damaged."""
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-") as folder:
        (Path(folder) / "variables").mkdir()
        for path, content in zip(sorted(TESTS.glob(VICTIMS["tensorflow-folder"])), parts, strict=True):
            is_graph = path.name == "saved_model.pb"
            (Path(folder) / ("." if is_graph else "variables") / path.name).write_bytes(content)
        from_file(folder, format="tensorflow")


def prepare() -> Callable[[int], str]:
    """The function that reads the file of a seed; formats take turns."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    keys = list(VICTIMS)
    return lambda seed: run_one(keys[seed % len(keys)], seed)


if __name__ == "__main__":
    sys.exit(run_campaign("tests.fuzz.model_files", "model files", 5_000 * len(VICTIMS), prepare, LONGEST))
