"""Models of several files: which other file belongs to the one that is named."""

from __future__ import annotations

from pathlib import Path


def beside(path: Path, suffix: str) -> Path | None:
    """The file of another kind that belongs to one: of the same name, or the only one of its kind in the folder."""
    same = path.with_suffix(suffix)
    if same.exists():
        return same
    if not path.parent.is_dir():
        return None
    others = list(path.parent.glob(f"*{suffix}"))
    kin = [item for item in path.parent.glob(f"*{path.suffix}") if item != path]
    return others[0] if len(others) == 1 and not kin else None


def caffe_pair(path: Path) -> tuple[Path | None, Path | None]:
    """The text and the weights of a Caffe model, of which one is named."""
    if path.suffix.lower() == ".caffemodel":
        return beside(path, ".prototxt"), path
    return path, beside(path, ".caffemodel")


def mxnet_pair(path: Path) -> tuple[Path | None, Path | None]:
    """The symbol and the arrays of an MXNet model, of which one is named; the last of several arrays."""
    if path.suffix.lower() != ".params":
        stem = path.name.removesuffix(".json").removesuffix("-symbol")
        numbered = sorted(path.parent.glob(f"{stem}-[0-9][0-9][0-9][0-9].params")) if path.parent.is_dir() else []
        same = path.with_name(f"{stem}.params")
        return path, numbered[-1] if numbered else same if same.exists() else beside(path, ".params")
    stem = path.stem
    if len(stem) > 5 and stem[-5] == "-" and stem[-4:].isdigit():
        stem = stem[:-5]
    for name in (f"{stem}-symbol.json", f"{stem}.json"):
        if path.with_name(name).exists():
            return path.with_name(name), path
    return beside(path, ".json"), path


def caffe2_pair(path: Path) -> tuple[Path | None, Path | None]:
    """The net that computes and the net of weights of a Caffe2 model, of which one is named."""
    if "init" in path.name:
        other = path.with_name(path.name.replace("init", "predict"))
        return (other if other.exists() else None), path
    if "predict" in path.name:
        other = path.with_name(path.name.replace("predict", "init"))
        return path, (other if other.exists() else None)
    init = path.with_name(f"init_net{path.suffix}")
    return path, (init if init.exists() and init != path else None)


def ncnn_pair(path: Path) -> tuple[Path | None, Path | None]:
    """The layers and the weights of an ncnn model, of which one is named: net.param or net.param.bin, and net.bin."""
    name = path.name
    if name.endswith((".param", ".param.bin")):
        weights = path.with_name(name.removesuffix(".bin").removesuffix(".param") + ".bin")
        return path, weights if weights.exists() else None
    if name.endswith(".bin"):
        for suffix in (".param", ".param.bin"):
            layers = path.with_name(name.removesuffix(".bin") + suffix)
            if layers.exists():
                return layers, path
        return None, path
    weights = path.with_suffix(".bin")
    return path, weights if weights.exists() else None
