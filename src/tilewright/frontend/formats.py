"""The formats of model files: what each is recognised by, and the importer that reads it.

    module = from_file("resnet18.onnx")            # whatever its name is: the content decides
    register_format(Format("mine", ...))           # another importer, for all commands too

This file loads no importer before a file needs it: a model from the cache of compiled models is ready without.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from tilewright.frontend.sample import Sample, Source
from tilewright.ir.function import IRModule
from tilewright.support.errors import MissingDependencyError, UserError
from tilewright.support.extensions import note_registration
from tilewright.support.file_kinds import looks_like
from tilewright.support.text import plural, shorten

Shapes: TypeAlias = "Mapping[str, Sequence[int | str | None]]"
Importer: TypeAlias = "Callable[..., IRModule]"
"""Takes a path or the bytes of a file, and `shapes`: sizes of inputs by name, or None."""
_ENTRIES_SHOWN = 100


@dataclass(frozen=True)
class Format:
    """A format of files: recognised by `recognise`, where that says nothing by its suffixes; read by its importer."""

    key: str
    """A short name, for `from_file(path, format=key)`."""
    title: str
    """Its name in messages and tables."""
    content: str
    """What it is recognised by, in words."""
    recognise: Callable[[Sample], bool]
    importer: Importer | tuple[str, str]
    """The importer, or its module and name: loaded when a file needs it."""
    suffixes: tuple[str, ...] = ()
    """Ends of names that say this format where no format knows the content."""
    packages: tuple[str, ...] = ()
    """Packages that the importer needs."""
    extra: str = ""
    """The extra of Tilewright that installs them."""
    companions: Callable[[Path], Sequence[Path]] = lambda path: ()
    """The files that belong to the model beside the one that is named."""

    def missing(self) -> list[str]:
        """The packages that the importer needs and that are not installed."""
        return [name for name in self.packages if find_spec(name) is None]

    def load(self) -> Importer:
        """The importer; an error says what it lacks."""
        for package in self.missing():
            raise MissingDependencyError.for_extra(package, self.extra, f"importing a model in the format {self.title}")
        if not isinstance(self.importer, tuple):
            return self.importer
        module, name = self.importer
        found: Importer = getattr(import_module(module), name)
        return found


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
_OWN: dict[str, Format] = {}


def register_format(own: Format) -> Format:
    """Add a format of your own: it is tried before those of Tilewright. One that is registered again is replaced."""
    if any(item.key == own.key for item in FORMATS):
        raise UserError(f"there is a format '{own.key}' already", hint="choose another key")
    _OWN[own.key] = own
    note_registration(own.recognise)
    return own


def known_formats() -> tuple[Format, ...]:
    """All formats, in the order in which they are tried."""
    return (*_OWN.values(), *FORMATS)


def identify(source: Source, format: str | None = None) -> Format:
    """The format of a file, a folder, or the bytes of a file: by its content, or where that says nothing its name."""
    if format is not None:
        return _by_key(format)
    sample = Sample(source)
    for item in known_formats():
        if item.recognise(sample):
            return item
    for item in known_formats():
        if sample.suffix and sample.suffix in item.suffixes and not sample.is_folder:
            return item
    raise _unknown(sample)


def _by_key(key: str) -> Format:
    for item in known_formats():
        if item.key == key:
            return item
    raise UserError(
        f"there is no format '{key}'", hint=f"the formats are {', '.join(item.key for item in known_formats())}"
    )


def _unknown(sample: Sample) -> UserError:
    """The error for what no importer reads: what it looks like, and what is known."""
    known = f"Tilewright reads {', '.join(item.title for item in known_formats())} (`tilewright formats`)"
    if sample.is_folder:
        entries = shorten(", ".join(sorted(sample.entries)) or "nothing", _ENTRIES_SHOWN)
        return UserError(f"{sample} is a folder without a model that Tilewright knows: it holds {entries}", hint=known)
    if not sample.head:
        return UserError(f"{sample}: the file is empty", hint="download or export it again")
    kind = looks_like(sample.head, sample.path, sample.archive)
    if kind is not None:
        return UserError(f"{sample} is no model: it looks like {kind.name}", hint=f"{kind.hint}; {known}")
    begins = sample.head[:8].hex(" ")
    return UserError(
        f"{sample} is no model that Tilewright knows, or it is damaged: it begins with the "
        f"{plural(min(8, len(sample.head)), 'byte')} {begins}",
        hint=known,
    )


def from_file(model: object, shapes: Shapes | None = None, *, format: str | None = None) -> IRModule:
    """Import a model from a file or folder of any format, or from the bytes of a file.

    The format is that of the content, whatever the name says, or `format`, the key of one. `shapes` fixes or names open
    dimensions of inputs: `{"input": (1, 3, 224, 224)}`. Objects of frameworks are for the importers themselves, but for
    an `onnx.ModelProto`.
    """
    if isinstance(model, (bytearray, memoryview)):
        model = bytes(model)
    if isinstance(model, (str, os.PathLike, bytes)):
        return identify(model, format).load()(model, shapes=shapes)
    return _by_key(format or "onnx").load()(model, shapes=shapes)


load_model = from_file
"""The name that it has in the package itself: `tw.load_model(path)`."""


def model_files(path: Path, chosen: Format) -> list[Path] | None:
    """The files that a model is made of; None where they cannot be told (a folder)."""
    return None if path.is_dir() else [path, *chosen.companions(path)]
