"""Host functions in JavaScript give what those of the runtime give, and refuse what these refuse."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import numpy as np

from tests.requirements import need, need_tool
from tilewright.backends.wasm import package
from tilewright.backends.wasm.program import HOST_FUNCTIONS
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.host import host_function
from tilewright.support.errors import UserError

need("node")

JAVASCRIPT = Path(package.__file__).with_name("javascript")
RANDOM = np.random.default_rng(5)
FLOATS = RANDOM.standard_normal((3, 4, 5)).astype(np.float32)
ROUGH = RANDOM.integers(-2, 3, (4, 6))
RULE = {"nearest": "round_prefer_floor", "cubic": -0.75, "exclude_outside": False, "antialias": False}
TRANSFORMATIONS = """asymmetric half_pixel pytorch_half_pixel align_corners tf_half_pixel_for_nn half_pixel_symmetric
    tf_crop_and_resize""".split()

Case = tuple[str, list[Any], dict[str, Any]]


def longs(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def selections() -> list[Case]:
    """Calls of functions that select elements."""
    halves = np.array([1.5, -0.0, 0.0, np.nan, -np.inf, 65504, 6e-8], np.float16)
    cases: list[Case] = [("host.nonzero", [data], {"dtype": str(data.dtype)}) for data in (ROUGH, FLOATS, halves)]
    cases += [("host.nonzero", [np.array(value)], {"dtype": "int64"}) for value in (0, 7)]
    cases.append(("host.nonzero", [np.zeros((0, 3), np.bool_)], {"dtype": "bool"}))
    condition = np.array([True, False, True, True])
    cases += [("host.compress", [ROUGH, condition], {"axis": axis}) for axis in (-1, 0, 1)]
    cases.append(("host.compress", [ROUGH[:2], condition], {"axis": 0}))
    for data in (ROUGH, ROUGH.astype(np.uint8), np.array([2.5, np.nan, 1, np.nan, 2.5, -np.inf]), halves):
        for ordered in (False, True):
            cases.append(("host.unique", [data], {"axis": -1, "sorted": ordered, "dtype": str(data.dtype)}))
    repeated = ROUGH[[1, 0, 1, 2, 0]]
    cases += [
        ("host.unique", [data], {"axis": axis, "sorted": axis == 0, "dtype": "int64"})
        for axis, data in ((0, repeated), (1, repeated.T.copy()))
    ]
    for largest in (False, True):
        for data in (ROUGH, FLOATS[0], np.array([[3, np.nan, 1, 3]], np.float32), halves[None]):
            attributes = {"axis": 1, "largest": largest, "dtype": str(data.dtype)}
            cases.append(("host.topk", [data, longs(3)], attributes))
    cases.append(("host.topk", [FLOATS, longs(2)], {"axis": 0, "largest": True, "dtype": "float32"}))
    cases.append(("host.topk", [ROUGH, longs(9)], {"axis": 1, "largest": True, "dtype": "int64"}))
    return cases


def shapes() -> list[Case]:
    """Calls of functions that shape tensors."""
    cases: list[Case] = [("shape.match", [FLOATS], {})]
    for sizes in ((-1,), (0, -1), (5, 12), (7, -1), (-1, -1), (3, 4, 5, 0), (-2, 30)):
        cases += [("shape.reshape", [FLOATS, longs(*sizes)], {"copy_zeros": copy}) for copy in (False, True)]
    for sizes in ((2, 3, 4, 5), (1,), (4, 1), (2, 4, 5), (0, 1, 1, 1), (-1,)):
        cases.append(("shape.broadcast", [FLOATS, longs(*sizes)], {}))
    cases.append(("shape.broadcast", [np.array(2, np.int8), longs(2, 2)], {}))
    cases.append(("shape.broadcast", [FLOATS, np.array([1.5])], {}))
    far = 1 << 62
    for first, last, step in (
        (1, 3, 1),
        (-1, -far, -1),
        (far, 0, -2),
        (-far, far, 3),
        (3, 1, 1),
        (0, 0, -1),
        (0, 4, 0),
    ):
        cases.append(("shape.slice", [FLOATS, longs(first), longs(last), longs(step)], {"axes": (1,)}))
    backwards = [longs(0, -1), longs(2, -far), longs(1, -2), longs(-1, 0)]
    cases.append(("shape.slice", [FLOATS, *backwards], {"axes": ()}))
    cases.append(("shape.slice", [np.zeros((0, 2)), longs(0), longs(-far), longs(-1)], {"axes": (0,)}))
    cases += [("shape.tile", [ROUGH, longs(*repeats)], {}) for repeats in ((2, 3), (0, 1), (1,), (1, -1))]
    for mode in ("constant", "edge", "reflect", "wrap"):
        for amounts in ((1, 2, 3, 0), (-1, 2, 0, -2), (9, 0, 0, 13), (-9, 0, 7, 0), (-3, 0, -3, 0)):
            cases.append(("shape.pad", [ROUGH, longs(*amounts), longs(7)], {"axes": (0, 1), "mode": mode}))
        cases.append(("shape.pad", [FLOATS, longs(2, 1), np.float32([0.5]), longs(-1)], {"axes": (), "mode": mode}))
    for kind in (np.int64, np.int32, np.float32, np.float64, np.float16):
        for numbers in ((1, 12, 3), (5, -4, -2), (3, 3, 1), (4, 0, 1), (0, 3, 0)):
            cases.append(("shape.range", [kind(number) for number in numbers], {}))
    cases.append(("shape.range", [np.float16(0.1), np.float16(2), np.float16(0.3)], {}))
    cases += [("shape.split", [FLOATS, longs(*sizes)], {"axis": 1}) for sizes in ((1, 0, 3), (2, 3), (5, -1))]
    for axes in ((0,), (-1, 0), (1, 2), (), (3,), (1, -2)):
        cases += [(f"axes.{name}", [FLOATS, longs(*axes)], {}) for name in ("to_end", "from_end", "insert")]
    cases += [("axes.remove", [FLOATS[:1, :, :1], longs(*axes)], {}) for axes in ((0, -1), (0,), (1,))]
    return cases


def sequences() -> list[Case]:
    """Calls of functions of sequences, optionals and conditions."""
    items, empty = [FLOATS[0], FLOATS[1], FLOATS[2]], np.array([4, 5], np.int64)
    cases: list[Case] = [
        ("sequence.make", items, {}),
        ("sequence.make", [], {}),
        ("sequence.insert", [items, ROUGH], {}),
    ]
    for place in (0, -1, 2, 3, 4, -3, -4):
        cases += [("sequence.insert", [items, ROUGH, longs(place)], {}), ("sequence.at", [items, longs(place)], {})]
        cases.append(("sequence.erase", [items, longs(place)], {}))
    cases += [("sequence.erase", [items], {}), ("sequence.erase", [[]], {}), ("sequence.length", [items], {})]
    cases += [("sequence.at", [FLOATS, longs(0)], {}), ("sequence.length", [[]], {})]
    for axis in (0, 1, 2, -1, -3):
        cases.append(
            (
                "sequence.concatenate",
                [
                    items,
                ],
                {"axis": axis, "new_axis": True},
            )
        )
        if axis not in (2, -3):
            cases.append(("sequence.concatenate", [items], {"axis": axis, "new_axis": False}))
    cases.append(("sequence.concatenate", [[]], {"axis": 0, "new_axis": False}))
    cases.append(("sequence.concatenate", [[FLOATS[0], ROUGH]], {"axis": 0, "new_axis": True}))
    for given in (items, [], [FLOATS[0], FLOATS[1, :2]]):
        cases += [("sequence.stack", [given, empty], {"axis": axis, "dtype": "float32"}) for axis in (0, 1)]
    for sizes in (None, np.array(2, np.int64), np.array(0, np.int64), longs(1, 3), longs(4, -1, 1), longs(2, 1)):
        cases += [("sequence.split", [FLOATS, sizes], {"axis": 1, "keepdims": keep}) for keep in (False, True)]
    cases += [("optional.make", [ROUGH], {}), ("optional.make", [], {}), ("optional.has", [None], {})]
    cases += [("optional.has", [ROUGH], {}), ("optional.has", [], {}), ("optional.get", [ROUGH], {})]
    cases += [("optional.get", [None], {}), ("host.rank", [FLOATS], {}), ("host.fail", [], {"message": "it ends"})]
    cases += [("host.require", [np.array(flag)], {"message": "it must hold"}) for flag in (True, False)]
    return cases


def tables() -> list[Case]:
    """Calls of functions that compute tables and patches."""
    cases: list[Case] = []
    region = [np.float32(0.2), np.float32(0.9)]
    for transformation in TRANSFORMATIONS:
        for mode in ("nearest", "linear", "cubic"):
            for dim, size in ((5, 8), (8, 3), (4, 1)):
                attributes = RULE | {"mode": mode, "transformation": transformation}
                sizes = [np.int64(dim), np.int64(size), np.float32(size / dim)]
                cases.append(("host.resize_weights", [*sizes, *region], attributes))
    for changed in (
        {"antialias": True},
        {"exclude_outside": True},
        {"mode": "nearest", "nearest": "ceil"},
        {"mode": "nearest", "nearest": "round_prefer_ceil"},
    ):
        attributes = RULE | {"mode": "cubic", "transformation": "half_pixel"} | changed
        cases += [
            ("host.resize_weights", [np.int64(6), np.int64(size), np.float32(size / 6), *region], attributes)
            for size in (4, 9, -1)
        ]
    mel = [np.int64(8), np.int64(16), np.int64(8192), np.float32(0), np.float32(4096)]
    cases += [("host.mel_weights", mel, {"dtype": kind}) for kind in ("float32", "float64")]
    cases.append(("host.mel_weights", [np.int64(0), *mel[1:]], {"dtype": "float32"}))
    places = RANDOM.integers(0, 12, (2, 30, 4)).astype(np.float32) / 4
    scores = RANDOM.integers(0, 8, (2, 3, 30)).astype(np.float32) / 8
    scores[0, 0, :3] = np.nan
    limits = [np.int64(9), np.float32(0.4), np.float32(0.2)]
    for centered in (False, True):
        attributes = {"center_point_box": centered}
        for given in (limits, limits[:2], [np.int64(40), np.float32(0)], []):
            cases.append(("host.non_max_suppression", [places, scores, *given], attributes))
        cases.append(("host.non_max_suppression", [places[:, :0], scores[:, :, :0], *limits], attributes))
        cases.append(("host.non_max_suppression", [places[:1], scores, *limits], attributes))
    patches = {"strides": (2, 1), "dilations": (1, 2), "pads": (1, 0, 0, 1)}
    columns = RANDOM.standard_normal((2, 12, 4 * 4)).astype(np.float32)
    cases.append(("host.col2im", [columns, longs(8, 5), longs(2, 2)], patches))
    plain = {"strides": (), "dilations": (), "pads": ()}
    cases.append(("host.col2im", [RANDOM.integers(0, 9, (1, 5, 5)), longs(5, 5), longs(1, 5)], plain))
    cases.append(("host.col2im", [columns, longs(8, 8), longs(2, 2)], plain))
    return cases


def ngrams() -> list[Case]:
    """Calls that count n-grams."""
    cases: list[Case] = []
    grams = {"pool": (1, 0, -1, 2, 1, 1, -2, 0), "places": (0, 2, 4, 1, 3), "starts": (0, 2), "width": 5}
    for longest, skips in ((1, 0), (2, 0), (2, 3)):
        attributes = grams | {"longest": longest, "shortest": 1, "skips": skips}
        cases += [("text.ngrams", [data], attributes) for data in (ROUGH, ROUGH[0].astype(np.int32), ROUGH[:0])]
    return cases


def written(*items: str) -> np.ndarray:
    return np.array(items, object)


def texts() -> list[Case]:
    """Calls of functions on texts."""
    words = written("", "a", "Ärger, Straße", " two  words ", "a,b,,c", "x-1", "42")
    table = np.array([["a", "b"], ["", "d"]], object)
    cases: list[Case] = [("text.concat", [words, written("+")], {}), ("text.concat", [table, written("1", "2")], {})]
    cases += [("text.equal", [table, written("a", "d")], {}), ("text.equal", [words, words[::-1].copy()], {})]
    condition = np.array([[True], [False]])
    cases += [("text.where", [condition, table, written("x", "y")], {}), ("text.transpose", [table], {"axes": (1, 0)})]
    for delimiter in ("", ",", "--"):
        cases += [("text.split", [words], {"delimiter": delimiter, "maxsplit": most}) for most in (-1, 0, 1, 2)]
    for pattern in (r"[a-z]", r"\w+-\d", r"(?P<word>\w+).*", r"[\w\-]*", r"a|.*,.*", r"\d{2}", r"(?i)A", r""):
        cases.append(("text.full_match", [words], {"pattern": pattern}))
    for action in ("LOWER", "UPPER", "NONE"):
        for exact in (0, 1):
            rule = {"case_change_action": action, "is_case_sensitive": exact, "stopwords": ("A", "42")}
            cases.append(("text.normalize", [words], rule))
    gone = {"case_change_action": "NONE", "is_case_sensitive": 1, "stopwords": ("a",)}
    cases += [("text.normalize", [np.array([["a"]], object)], gone), ("text.normalize", [table], gone)]
    counted = {"keys": ("a", "42"), "values": (1, 2), "default": -1, "dtype": "int64"}
    cases += [("text.lookup", [words], counted), ("text.lookup", [words], {**counted, "dtype": "float32"})]
    named = {"keys": (1, 2), "values": ("one", "two"), "default": "many", "dtype": "string"}
    cases += [("text.lookup", [data], named) for data in (longs(1, 2, 3), np.array([1, 2.5], np.float32))]
    numbers = [0.0, -0.0, 1, -2.5, 0.1, 1e-4, 9.9e-5, 123456789, 1e8, 3.4e38, np.nan, np.inf, -np.inf]
    for dtype in ("float32", "float64"):
        cases.append(("text.from_numbers", [np.array(numbers, dtype)], {"dtype": dtype}))
    halves = np.array([0.1, 65504, 6e-8, 1, -3.14], np.float16)
    cases.append(("text.from_numbers", [halves], {"dtype": "float16"}))
    cases += [("text.from_numbers", [longs(-7, 2**62)], {"dtype": "int64"})]
    cases += [("text.from_numbers", [np.array([True, False])], {"dtype": "bool"})]
    plain = written("1", "-2", " +3 ")
    for dtype in ("int64", "int32", "uint8", "float32", "float16", "bfloat16", "bool"):
        cases.append(("text.to_numbers", [plain], {"dtype": dtype}))
    cases.append(("text.to_numbers", [written("1.5e3", ".5", "-inf", "NaN", "1_0")], {"dtype": "float64"}))
    cases += [("text.to_numbers", [written(item)], {"dtype": "int64"}) for item in ("", "1.5", "x")]
    cases += [("text.to_numbers", [written(item)], {"dtype": "float32"}) for item in ("", "1,5", "0x10")]
    places = np.array([[0, -1]], np.int64)
    cases += [("text.take", [table, places], {"axis": axis}) for axis in (0, 1)]
    cases += [("text.concatenate", [table, table], {"axis": axis}) for axis in (0, 1)]
    cases.append(("host.unique", [words], {"axis": -1, "sorted": True, "dtype": "string"}))
    grams = {"pool": ("a", "a,b", "b"), "places": (0, 1), "starts": (0, 1), "longest": 2, "shortest": 1}
    cases.append(("text.ngrams", [written("a", "a,b", "b")], {**grams, "width": 2, "skips": 0}))
    return cases


def sent(value: Any) -> Any:
    if value is None or isinstance(value, list):
        return value if value is None else [sent(item) for item in value]
    array = np.asarray(value)
    if array.dtype == object:
        return {"shape": list(array.shape), "texts": array.ravel().tolist()}
    content = b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": str(array.dtype), "shape": list(array.shape), "bytes": content}


def same(found: Any, expected: Any, case: Case) -> None:
    if expected is None or isinstance(expected, list):
        assert (found is None) == (expected is None), case
        for mine, theirs in zip(found or [], expected or [], strict=True):
            same(mine, theirs, case)
        return
    if expected.dtype == object:
        assert (found["texts"], tuple(found["shape"])) == (expected.ravel().tolist(), expected.shape), case
        return
    dtype = storage_dtype(found["dtype"])
    assert (dtype, tuple(found["shape"])) == (expected.dtype, expected.shape), case
    array = np.frombuffer(b64decode(found["bytes"]), dtype).reshape(expected.shape)
    if case[0] in ("host.resize_weights", "host.mel_weights", "host.col2im"):
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6, err_msg=str(case))
    else:
        np.testing.assert_array_equal(array, expected, err_msg=str(case))


def run(cases: list[Case]) -> tuple[list[str], list[Any]]:
    """The names of all functions in JavaScript, and what calls of them give."""
    question = [
        {"name": name, "values": [sent(value) for value in values], "attributes": attributes}
        for name, values, attributes in cases
    ]
    command = [need_tool("node"), str(Path(__file__).with_name("hosts.mjs")), str(JAVASCRIPT)]
    done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names, results = json.loads(done.stdout)
    return names, results


def test_keys_differ_from_call_to_call() -> None:
    _, results = run([("random.key", [], {"draw": 0})] * 2)
    first, second = (np.frombuffer(b64decode(result[0]["bytes"]), np.uint32) for result in results)
    assert first.shape == second.shape == (2,) and not np.array_equal(first, second)


def test_host_functions_are_those_of_the_runtime() -> None:
    cases = [*selections(), *shapes(), *sequences(), *tables(), *ngrams(), *texts()]
    assert {name for name, _, _ in cases} == HOST_FUNCTIONS - {"random.key"}
    names, results = run(cases)
    assert set(names) == HOST_FUNCTIONS
    refused = 0
    for case, found in zip(cases, results, strict=True):
        name, values, attributes = case
        try:
            arrays = [value if value is None or isinstance(value, list) else np.asarray(value) for value in values]
            expected = host_function(name)(arrays, attributes)
        except UserError:
            assert "error" in found, case
            refused += 1
            continue
        assert isinstance(found, list), (case, found)
        same(found, expected, case)
    assert refused > 20
