"""Where artifacts go: into this process (JIT), or into a shared library that needs no compiler to run.

exe = deploy.executable(artifact)             # tilewright.runtime.Executable
mod = deploy.module(artifact)                 # tilewright.runtime.Module
deploy.export_library(artifact, Path("resnet18.so"))
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tilewright.backends.llvm.arm_arithmetic import arithmetic_objects
from tilewright.backends.llvm.jit import JitLibrary
from tilewright.backends.llvm.levels import JoinedLevels, join_levels
from tilewright.backends.llvm.link import find_linker, link_shared, work_folder_beside
from tilewright.backends.llvm.objects import write_data_object
from tilewright.backends.llvm.pool import pool_object, runtime_imports
from tilewright.backends.llvm.processor_features import machine_code
from tilewright.backends.llvm.wrapper import exported_symbols, starts_threads, wrapper_object
from tilewright.runtime.core.artifact import Artifact
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.header import header_path, library_name, write_header
from tilewright.runtime.core.module import ExportOptions, Module
from tilewright.runtime.device.devices import find_device
from tilewright.support import trace
from tilewright.support.errors import UserError
from tilewright.support.files import cannot_write

_SMALLEST_BLOB = 64
_PLAIN = ExportOptions()


def load_artifact(artifact: Artifact) -> JitLibrary:
    """The artifact's code in this process, on the shared thread pool."""
    return JitLibrary(artifact.objects, runtime_imports())


def executable(artifact: Artifact, threads: int | None = None, *, may_be_absent: bool = False) -> Executable:
    """A compiled model, ready to run here; or to be exported, if its device `may_be_absent` and is."""
    absent: UserError | None = None
    if may_be_absent and artifact.device is not None:
        try:
            find_device(artifact.device.kind)
        except UserError as error:
            absent = error
    return Executable(artifact, load_artifact(artifact), export_library, threads, absent)


def module(artifact: Artifact) -> Module:
    """Compiled functions, ready to run here."""
    return Module(artifact, load_artifact(artifact), export_library)


def export_library(artifacts: Artifact | Sequence[Artifact], path: Path, options: ExportOptions = _PLAIN) -> None:
    """Write a model as a shared library at `path`, and its C header beside it with the suffix `.h`.

    The library holds the code (also that for a device), the constants, the thread pool and a description of itself
    (see docs/abi.md). Of several artifacts, for several processors, the last that a machine can run is what runs there.
    """
    path = Path(path)
    header_path(path)
    name = library_name(path, options.name)
    levels = [artifacts] if isinstance(artifacts, Artifact) else list(artifacts)
    joined = JoinedLevels(levels[0], ()) if len(levels) == 1 else join_levels(levels)
    artifact = joined.artifact
    exports = exported_symbols(artifact, name)
    with trace.span("export"), work_folder_beside(path) as folder_name:
        folder = Path(folder_name)
        find_linker(artifact.triple)  # before the work, so that a missing one is said at once
        pool = pool_object(artifact.triple, hidden=True)
        images = [*artifact.objects, wrapper_object(artifact, name, joined.levels), pool]
        images += arithmetic_objects(artifact.triple)
        objects = [folder / f"{index}.o" for index in range(len(images))]
        data_objects: dict[str, Path] = {}
        try:
            for file, image in zip(objects, images, strict=True):
                file.write_bytes(image)
            if artifact.model is not None:
                symbol = f"{artifact.model.name}__constants"
                data_objects[symbol] = folder / "constants.o"
                write_data_object(data_objects[symbol], symbol, _blob(artifact), triple=artifact.triple)
            for symbol, code in machine_code(artifact.triple).items() if joined.levels else ():
                data_objects[symbol] = folder / f"{symbol}.o"
                content = np.frombuffer(code, np.uint8)
                write_data_object(data_objects[symbol], symbol, content, triple=artifact.triple, is_code=True)
        except OSError as error:
            raise cannot_write(path, error) from None
        link_shared(
            objects,
            path,
            triple=artifact.triple,
            data_objects=data_objects,
            work_folder=folder,
            exports=exports,
            sign=options.sign,
            starts_threads=starts_threads(artifact),
        )
        write_header(artifact, path, name)


def _blob(artifact: Artifact) -> npt.NDArray[np.uint8]:
    """The constants, and behind them the code for a device, piece by piece."""
    if not artifact.device_code:
        return artifact.constants if artifact.constants.nbytes else np.zeros(_SMALLEST_BLOB, np.uint8)
    code = np.frombuffer(b"".join(artifact.device_code), np.uint8)
    blob = np.concatenate([artifact.constants, code])
    return blob if blob.nbytes else np.zeros(_SMALLEST_BLOB, np.uint8)
