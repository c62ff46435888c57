"""`CompileOptions`: one object from every door to the cache, and each of its fields in the name of the result."""

from __future__ import annotations

import argparse
import inspect
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.integration.small_models import FLOAT, model
from tests.requirements import need_module
from tilewright import front, request, torch_backend
from tilewright.cli.main import parser
from tilewright.cli.options import FLAGS, compile_options
from tilewright.compiler import Compilation
from tilewright.graph.likely_sizes import likely_sizes
from tilewright.options import CompileOptions, OptionFields, key_parts, make_options
from tilewright.request import CompileRequest, make_request
from tilewright.support import extensions, settings
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tune import model as tune_model_module

OTHERS: dict[str, object] = {
    "threads": 2,
    "shapes": {"x": (3, 8)},
    "winograd": False,
    "infinities": True,
    "specialize": ({"n": 3},),
    "likely": {"n": 3},
    "database": Path("none.db"),
    "precision": "float16",
    "calibration": Path("examples.npz"),
    "cpus": ("generic",),
    "on_host": ("a_kernel", "b_kernel"),
    "unchecked": True,
    "state": {"x": "y"},
}
"""A value of each field that is not the default."""

ALSO: dict[str, dict[str, str]] = {"calibration": {"precision": "int8"}}
"""Other fields without which a value is refused."""

WORDS: dict[str, list[str]] = {
    "threads": ["--threads", "2"],
    "shapes": ["--shape", "x=3,8"],
    "winograd": ["--no-winograd"],
    "infinities": ["--infinities"],
    "specialize": ["--specialize", "n=3"],
    "likely": ["--likely", "n=3"],
    "database": ["--database", "none.db"],
    "precision": ["--precision", "float16"],
    "calibration": ["--precision", "int8", "--calibration", "examples.npz"],
    "cpus": ["--cpus", "generic"],
    "on_host": ["--on-host", "b_kernel,a_kernel"],
    "unchecked": ["--unchecked"],
    "state": ["--state", "x=y"],
}
"""The same on the command line."""

NAMES = [item.name for item in fields(CompileOptions)]
COMMANDS = ("compile", "run", "bench", "inspect", "check", "tune", "reduce")


def small() -> bytes:
    """y = max(x * 2, 0) for any number of rows."""
    nodes = [onnx.helper.make_node("Mul", ["x", "w"], ["t"]), onnx.helper.make_node("Relu", ["t"], ["y"])]
    weights = {"w": np.full((8,), 2, np.float32)}
    return bytes(model(nodes, {"x": (FLOAT, ("n", 8))}, {"y": (FLOAT, ("n", 8))}, weights).SerializeToString())


def test_every_field_is_tried_here() -> None:
    assert set(OTHERS) == set(WORDS) == set(FLAGS) == set(NAMES), "a new field of CompileOptions needs a value here"
    assert all(getattr(CompileOptions(), name) != value for name, value in OTHERS.items())


def test_keywords_are_the_fields() -> None:
    types = CompileOptions.__annotations__
    keywords = {name: kind.__forward_arg__ for name, kind in OptionFields.__annotations__.items()}
    assert {"threads": types["threads"], **keywords} == types
    for function in (tw.compile, Compilation.__init__, tune_model_module.tune_model):
        parameters = inspect.signature(function).parameters
        assert parameters["changes"].annotation == "Unpack[OptionFields]" and "threads" in parameters


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_every_field(command: str, name: str) -> None:
    more = ["-o", "small.onnx"] if command == "reduce" else []
    given = parser([command]).parse_args([command, "model.onnx", *more, *WORDS[name]])
    plain = parser([command]).parse_args([command, "model.onnx", *more])
    chosen = compile_options(given)
    assert chosen == replace(compile_options(plain), **ALSO.get(name, {}), **{name: OTHERS[name]})
    assert getattr(chosen, name) == OTHERS[name]
    threads = {"check": 1, "reduce": 1}.get(command)
    assert compile_options(plain) == CompileOptions(threads=threads)


def test_keywords_go_before_the_fields_of_an_object() -> None:
    given = CompileOptions(threads=3, winograd=False)
    assert make_options(given, None, {}) == given
    assert make_options(given, 1, {"unchecked": True}) == CompileOptions(threads=1, winograd=False, unchecked=True)
    assert make_options(None, None, {"threads": 4}) == CompileOptions(threads=4)


def test_values_are_checked_when_the_object_is_made() -> None:
    for changes, message in (
        ({"threads": 0}, "the number of threads must be a whole number of at least 1, not 0"),
        ({"threads": True}, "not True"),
        ({"precision": "float9"}, "there is no precision 'float9'"),
        ({"calibration": "examples.npz"}, "calibration data changes nothing in precision 'float32'"),
        ({"winograd": "no"}, "the option winograd is True or False, not 'no'"),
        ({"winogard": True}, "there is no option 'winogard'"),
    ):
        with pytest.raises(UserError, match=message):
            make_options(None, None, changes)
    with pytest.raises(UserError, match=r"options are a tw\.CompileOptions, not a dict"):
        tw.compile(small(), options={"threads": 1})  # type: ignore[arg-type]
    made = CompileOptions(shapes={"x": [1, 2]}, specialize=[{"n": 1}])
    assert made.shapes == {"x": (1, 2)} and made.specialize == ({"n": 1},)
    with pytest.raises(FrozenInstanceError):
        made.threads = 2  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[CompileOptions]:
    """The options of all requests; each ends there."""
    found: list[CompileOptions] = []

    def note(model: object, target: object, given: CompileOptions) -> CompileRequest:
        found.append(given)
        raise UserError("far enough")

    for module in (front, tw.Compilation.__init__.__globals__):
        monkeypatch.setitem(vars(module) if not isinstance(module, dict) else module, "make_request", note)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_door_hands_every_field_on(name: str, asked: list[CompileOptions]) -> None:
    changes: dict[str, Any] = {**ALSO.get(name, {}), name: OTHERS[name]}
    doors = [
        lambda: tw.compile(small(), **changes),
        lambda: tw.compile(small(), options=CompileOptions(**changes)),
        lambda: tw.Compilation(small(), **changes),
        lambda: tw.Compilation(small(), options=CompileOptions(**changes)),
        lambda: tw.tune.tune_model(small(), **changes),
        lambda: tw.tune.tune_model(small(), options=CompileOptions(**changes)),
    ]
    for door in doors:
        with pytest.raises(UserError, match="far enough"):
            door()
    # Tuning asks the database by itself, when it has opened it for writing.
    tuned = CompileOptions() if name == "database" else CompileOptions(**changes)
    assert asked == [CompileOptions(**changes)] * 4 + [tuned] * 2


def test_torch_hands_options_on() -> None:
    torch = need_module("torch")
    heard: list[object] = []

    def note(module: object, target: object, *, options: CompileOptions) -> object:
        heard.append((target, options))
        return front.compile(module, target, options=options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched, torch.no_grad():
        patched.setattr(torch_backend, "compile", note)
        function = torch.compile(lambda x: x * 3, backend="tilewright", options={"threads": 1, "unchecked": True})
        assert function(torch.ones(4)).tolist() == [3, 3, 3, 3]
        assert heard == [("native", CompileOptions(threads=1, unchecked=True))]
        torch._dynamo.reset()
        wrong = torch.compile(lambda x: x * 5, backend="tilewright", options={"thraeds": 1})
        with pytest.raises(Exception, match="there is no option 'thraeds'"):
            wrong(torch.ones(4))


# -------------------------------------------------------------------- names of results


@pytest.fixture
def _keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_VERIFY", "0")
    # Other tests register operators of their own in this process, which would keep all models out of the cache.
    monkeypatch.setattr(extensions, "_foreign", [])


@pytest.mark.usefixtures("_keyed")
def test_each_field_of_the_options_is_in_the_key_or_says_why_not() -> None:
    def key(chosen: CompileOptions) -> str:
        found = make_request(small(), "native", chosen).key
        assert found is not None
        return found

    plain = CompileOptions()
    for name in NAMES:
        if name in key_parts(plain):
            assert key(replace(plain, **{name: OTHERS[name]})) != key(plain), name
    left_out = {item.name: item.metadata.get("not in the key") for item in fields(CompileOptions)}
    assert [name for name, reason in left_out.items() if reason] == ["database", "calibration"]


@pytest.mark.usefixtures("_keyed")
def test_each_field_of_a_request_is_in_the_key_or_says_why_not() -> None:
    plain = make_request(small(), "native", CompileOptions())
    others: dict[str, object] = {
        "target": plain.target.replace(l2_bytes=plain.target.l2_bytes * 2),
        "host": plain.host.replace(l2_bytes=plain.host.l2_bytes * 2),
        "options": CompileOptions(unchecked=True),
        "answers": {"tw_kernel": {"tile": 4}},
    }
    assert set(others) == set(key_parts(plain)), "a new field of CompileRequest needs a value here"
    keys = [replace(plain, **{name: value}).key for name, value in others.items()]  # type: ignore[arg-type]
    assert len({plain.key, *keys}) == 1 + len(others)
    assert replace(plain, model=small() + b" ").key != plain.key
    for item in fields(CompileRequest):
        assert item.name in others or item.metadata["not in the key"], item.name
    assert replace(plain, names_device=True, device_index=1).key == plain.key


@pytest.mark.usefixtures("_keyed")
def test_what_a_database_says_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says: dict[str, dict[str, int]] = {}
    monkeypatch.setattr(request, "_read", lambda place, target: dict(says))
    chosen = CompileOptions(database=tmp_path / "tuned.db")
    before = make_request(small(), "native", chosen).key
    assert make_request(small(), "native", replace(chosen, database=tmp_path / "other.db")).key == before
    says["tw_kernel"] = {"tile": 8}
    assert make_request(small(), "native", chosen).key != before


def test_a_module_has_its_shapes() -> None:
    module = tw.frontend.from_onnx(small())
    with pytest.raises(UserError, match="shapes are given when a model is imported"):
        tw.Compilation(module, shapes={"x": (2, 8)})


def test_precision_decides_the_target() -> None:
    made = make_request(small(), Target("cuda -arch=sm_90"), CompileOptions(precision="tf32"))
    assert "+tf32" in str(made.target)
    with pytest.raises(UserError, match="tf32 is a precision of NVIDIA GPUs"):
        make_request(small(), "native", CompileOptions(precision="tf32"))


def test_flags_say_what_is_wrong_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    def given(*words: str) -> argparse.Namespace:
        return parser(["compile"]).parse_args(["compile", "model.onnx", *words])

    found = compile_options(given("--specialize", "n=3,m=4", "--specialize", "n=1,m=1"))
    assert found.specialize == ({"n": 3, "m": 4}, {"n": 1, "m": 1})
    with pytest.raises(UserError, match="'n' is not a size"):
        compile_options(given("--specialize", "n"))
    with pytest.raises(UserError, match="'n' is given twice"):
        compile_options(given("--specialize", "n=1,n=2"))
    assert compile_options(given("--likely", "n=3,m=4")).likely == {"n": 3, "m": 4}
    with pytest.raises(UserError, match="'n' is not a size"):
        compile_options(given("--likely", "n"))
    with settings.PROGRESS.override("never"), pytest.raises(SystemExit):
        given("--precision", "float7")
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.parametrize("likely", [{"n": 0}, {"n": True}, {"n": 2.5}, {3: 4}, ["n"], 64])
def test_likely_sizes_are_sizes_by_name(likely: object) -> None:
    with pytest.raises(UserError, match="likely sizes are whole numbers from 1 on by the names of dimensions"):
        CompileOptions(likely=likely)  # type: ignore[arg-type]


def test_likely_sizes_are_of_dimensions_that_the_model_has() -> None:
    with pytest.raises(UserError, match="the model has no symbolic dimension 'm'") as caught:
        _ = Compilation(small(), threads=1, likely={"n": 4, "m": 3}).imported
    assert "the model has: n" in str(caught.value)
    assert likely_sizes(Compilation(small(), threads=1, likely={"n": 4}).imported) == {"n": 4}
