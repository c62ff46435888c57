"""A model as a package of ES modules: code for several levels of engines, weights, a description, a typed interface.

out/index.js, index.d.ts     load() and the types of this model's inputs and outputs
out/tilewright.js, worker.js what runs it (`javascript/`), the same for every model
out/model.json               the description that tilewright.js reads
out/model.<level>.wasm       code; weights.bin beside it
out/model.wgsl               kernels for WebGPU, with weights.webgpu.bin, of models for the device `webgpu`
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tilewright.backends.llvm.cache import compile_cached
from tilewright.backends.llvm.entry import emit_profiled_entry
from tilewright.backends.wasm.binary import read_imports
from tilewright.backends.wasm.elements import TEXTS, array_of
from tilewright.backends.wasm.gpu_plan import gpu_plan, refusal
from tilewright.backends.wasm.link import link_module
from tilewright.backends.wasm.program import (
    describe_program,
    describe_type,
    program_entries,
    program_steps,
    read_program,
)
from tilewright.runtime.core.artifact import Artifact, ModelInfo, TensorInfo
from tilewright.runtime.core.checks import code_messages
from tilewright.runtime.core.module import ExportOptions
from tilewright.support import trace
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.files import replacing_folder
from tilewright.support.version import VERSION

FORMAT: Final = 1
"""The version of model.json; tilewright.js refuses others."""
LEVELS: Final = {"relaxed": "relaxed-simd", "simd": "simd128", "plain": ""}
"""What engines can do, the best first, with the feature of LLVM that code of the level needs."""
PROVIDED: Final = frozenset({"tw_parallel", "tw_alloc", "tw_free", "tw_step"})
"""What tilewright.js gives to the code."""
MATHEMATICS: Final = frozenset(
    """acos acosh asin asinh atan atan2 atanh cbrt cos cosh erf erfc exp exp10 exp2 expm1 fmax fmin fmod hypot lgamma
    log log10 log1p log2 pow sin sinh tan tanh tgamma""".split()
)
"""What mathematics.js gives to it, in double precision; with an f at the end in single precision."""
DESCRIPTION: Final = "model.json"
GPU: Final = "webgpu"
"""The kind of device that packages run models on, where there is one."""
KERNELS: Final = "model.wgsl"
_STEP_HOOK = "tw_step"
_RUNTIME = Path(__file__).with_name("javascript")


def level_of(artifact: Artifact) -> str:
    """The level of an artifact's code."""
    added = {word[1:] for word in artifact.features.split(",") if word.startswith("+")}
    return next(level for level, feature in LEVELS.items() if not feature or feature in added)


def write_package(artifacts: Sequence[Artifact], folder: Path, options: ExportOptions) -> None:
    """Write the package of a model into a folder, which is made or replaced as a whole."""
    if options.sign is not None:
        raise UserError("packages of JavaScript are not signed", hint="leave the key out; serve the package over HTTPS")
    for artifact in artifacts:
        _check(artifact)
    on_gpu = [artifact for artifact in artifacts if artifact.device is not None]
    on_host = [artifact for artifact in artifacts if artifact.device is None]
    on_host.sort(key=lambda artifact: list(LEVELS).index(level_of(artifact)))
    with trace.span("export"), replacing_folder(folder, DESCRIPTION, "package of a model") as written:
        _fill(written, on_host, on_gpu[0] if on_gpu else None, options.name or folder.name)


def _check(artifact: Artifact) -> None:
    model = artifact.model
    if model is None:
        raise CompilerBug("a package of JavaScript holds a model")
    if model.program:
        read_program(model)
    if artifact.device is not None and artifact.device.kind != GPU:
        raise UserError(
            f"packages of JavaScript run models on a GPU through {GPU}, not through {artifact.device.kind}",
            hint=f"target={{'{GPU}': '', 'host': 'wasm'}}",
        )


def _fill(folder: Path, artifacts: Sequence[Artifact], on_gpu: Artifact | None, name: str) -> None:
    model = artifacts[0].model
    assert model is not None
    weights: dict[bytes, str] = {}
    code = [_write_code(folder, artifact, weights) for artifact in artifacts]
    description = {
        "format": FORMAT,
        "tilewright": VERSION,
        "name": name,
        "inputs": _inputs(model),
        "outputs": [_tensor(info) for info in model.outputs],
        "symbols": list(model.symbols),
        "threads": model.threads,
        "messages": {str(code): text for code, text in code_messages(model).items()},
        "code": code,
        GPU: None if on_gpu is None else _write_gpu(folder, on_gpu, weights),
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, separators=(",", ":")) + "\n", encoding="utf-8")
    for file in sorted(_RUNTIME.iterdir()):
        shutil.copyfile(file, folder / file.name)
    (folder / "index.js").write_text(_INDEX, encoding="utf-8")
    (folder / "index.d.ts").write_text(_declarations(model, name), encoding="utf-8")
    (folder / "package.json").write_text(json.dumps(_npm_package(name), indent=2) + "\n", encoding="utf-8")


def _write_code(folder: Path, artifact: Artifact, weights: dict[bytes, str]) -> dict[str, Any]:
    """Write the code of one level, and its weights; what model.json says of it."""
    model, level = artifact.model, level_of(artifact)
    assert model is not None
    objects, entries, described = _described_program(artifact) if model.program else _described_entry(artifact)
    with tempfile.TemporaryDirectory(prefix="tilewright-") as work:
        module = link_module(objects, entries, Path(work))
    imports = read_imports(module)
    unknown = sorted(set(imports.functions) - PROVIDED - MATHEMATICS - {f"{name}f" for name in MATHEMATICS})
    if unknown:
        raise CompilerBug(f"the compiled code calls '{unknown[0]}', which nothing provides")
    file = f"model.{level}.wasm"
    (folder / file).write_bytes(module)
    return {
        "level": level,
        "file": file,
        "bytes": len(module),
        "memory_pages": imports.memory_pages,
        "memory_flags": imports.memory_flags,
        **_write_weights(folder, artifact, level, weights),
        **described,
    }


def _write_gpu(folder: Path, artifact: Artifact, weights: dict[bytes, str]) -> dict[str, Any]:
    """Write the kernels and weights of a model for WebGPU; what model.json says of them, or why there are none."""
    if reason := refusal(artifact):
        return {"refused": reason}
    plan = gpu_plan(artifact)
    (folder / KERNELS).write_bytes(plan.code)
    return {"file": KERNELS, **_write_weights(folder, artifact, GPU, weights), **plan.description}


def _write_weights(folder: Path, artifact: Artifact, name: str, weights: dict[bytes, str]) -> dict[str, Any]:
    """Write the weights of an artifact, if none before it has the same; what model.json says of them."""
    content = artifact.constants.tobytes()
    if content not in weights:
        weights[content] = "weights.bin" if not weights else f"weights.{name}.bin"
        (folder / weights[content]).write_bytes(content)
    return {"weights": weights[content], "constant_bytes": len(content)}


_Described = tuple[list[bytes], list[str], dict[str, Any]]
"""What is linked, the functions of it that JavaScript calls, and what model.json says of them."""


def _described_program(artifact: Artifact) -> _Described:
    model = artifact.model
    assert model is not None
    described = {"program": describe_program(model), "steps": program_steps(model)}
    return list(artifact.objects), program_entries(model), described


def _described_entry(artifact: Artifact) -> _Described:
    model = artifact.model
    assert model is not None
    profiled = f"{model.name}_profiled"
    hooked = compile_cached(
        emit_profiled_entry(model, profiled, _STEP_HOOK),
        triple=artifact.triple,
        cpu=artifact.cpu,
        features=artifact.features,
        opt_level=1,
    )
    entries = [model.entry, profiled, *(variant.entry for variant in model.variants)]
    described = {
        "workspace_bytes": model.workspace_bytes,
        "entry": model.entry,
        "profiled_entry": profiled,
        "shapes_entry": model.binder if model.symbols else None,
        "variants": [{"fixed": list(variant.fixed), "entry": variant.entry} for variant in model.variants],
        "steps": [_step(model, step.kernel) for step in model.steps],
    }
    return [*artifact.objects, hooked], entries + ([model.binder] if model.symbols else []), described


def _step(model: ModelInfo, kernel: int) -> dict[str, Any]:
    info = model.kernels[kernel]
    return {"kernel": info.symbol, "nodes": list(info.nodes)}


def _inputs(model: ModelInfo) -> list[dict[str, Any]]:
    """The inputs, with the types of those that are no tensors."""
    kinds = read_program(model).inputs if model.program else [None] * len(model.inputs)
    return [
        {**_tensor(info), **({} if kind is None or not info.value else {"type": describe_type(kind)})}
        for info, kind in zip(model.inputs, kinds, strict=True)
    ]


def _tensor(info: TensorInfo) -> dict[str, Any]:
    array = "" if info.value else array_of(info.dtype)
    return {"name": info.name, "dtype": info.dtype, "array": array, "shape": list(info.shape)}


def _npm_package(name: str) -> dict[str, Any]:
    label = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "model"
    return {
        "name": label,
        "version": "1.0.0",
        "description": f"The model {name}, compiled to WebAssembly by Tilewright {VERSION}",
        "type": "module",
        "exports": {".": {"types": "./index.d.ts", "default": "./index.js"}, "./*": "./*"},
        "sideEffects": False,
    }


_INDEX = """\
import { loadModel } from "./tilewright.js";

export { TilewrightError } from "./tilewright.js";

/** Load the model: from its own package, or from the folder at a URL. */
export function load(url = new URL(".", import.meta.url), options = {}) {
  return loadModel(url, options);
}
"""


def _declarations(model: ModelInfo, name: str) -> str:
    """The types of a model's own inputs and outputs."""
    inputs = "".join(_member(info, "Input") for info in model.inputs)
    outputs = "".join(_member(info, "Tensor") for info in model.outputs)
    title = name.replace("*/", "* /")
    return f"""\
import type {{ Input, LoadOptions, Model, Tensor }} from "./tilewright.js";

export {{ TilewrightError }} from "./tilewright.js";

/** The inputs of {title}. */
export interface Inputs {{
{inputs}}}

/** The outputs of {title}. */
export interface Outputs {{
{outputs}}}

/** Load the model: from its own package, or from the folder at a URL. */
export function load(url?: string | URL, options?: LoadOptions): Promise<Model<Inputs, Outputs>>;
"""


def _member(info: TensorInfo, kind: str) -> str:
    shape = f"[{', '.join(map(str, info.shape))}]"
    comment = (info.value or f"{info.dtype}{shape}").replace("*/", "* /")
    return f"  /** {comment} */\n  {json.dumps(info.name)}: {_type(info, kind)};\n"


def _type(info: TensorInfo, kind: str) -> str:
    """The type of an input or output in TypeScript: of a sequence or an optional value that of what is inside."""
    if info.value.startswith("sequence("):
        return f"{_type(replace(info, value=_inside(info.value)), kind)}[]"
    if info.value.startswith("optional("):
        return f"({_type(replace(info, value=_inside(info.value)), kind)} | null)"
    dtype = info.value.partition("[")[0] or info.dtype
    array = array_of(dtype)
    return f"{kind}<{'string[]' if array == TEXTS else array}>"


def _inside(value: str) -> str:
    """What a type is of: `sequence(float32[2])` -> `float32[2]`."""
    return value.partition("(")[2][:-1]
