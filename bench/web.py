"""Models in JavaScript engines: packages of Tilewright against onnxruntime-web and TensorFlow.js.

    python -m bench.web                              # Node and Chromium, 1 and 2 threads, WebGPU, three models
    python -m bench.web --engines node --threads 1 --models mobilenet_v2 --save
    python -m bench.web --devices webgpu             # WebGPU alone: in Chromium, on its software adapter
    python -m bench.web --markdown                   # the table of docs/web.md, of what was saved

In each engine a process (or page) loads every runtime once and runs them in turns, round by round; outputs are compared
with those of native code. Load time is that of files on this machine, and bytes are what a browser fetches. The peers
are installed with npm into `.web-peers`; Chromium is what Debian's package `chromium` brings. Ends with a line of JSON.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from bench import harness, zoo
from bench.web_runner import FLAGS
from tilewright.cli.web_server import serve_folders
from tilewright.compiler import Compilation
from tilewright.support.errors import UserError
from tilewright.support.text import human_bytes, table

MODELS = ("mobilenet_v2", "resnet18", "bert_small")
DEVICES = {"node": ("wasm",), "chromium": ("wasm", "webgpu")}
"""Engines, and where models run in them."""
RUNTIMES = ("tilewright", "onnxruntime", "tensorflow")
_SCRIPTS = Path(__file__).with_name("web")
_PEERS = Path(__file__).resolve().parents[1] / ".web-peers"
_CHROMIUM = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-extensions", "--no-first-run")
_WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
"""WebGPU without a GPU: Chromium's own software adapter."""
_LONGEST = 1800
"""Seconds that one page or process may take."""
_MOST_ROUNDS = {"wasm": 100, "webgpu": 3}
"""Rounds at most: without a GPU a run takes seconds."""
_MOST_ERROR = 1e-3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.markdown:
        print(markdown_table(json.loads((harness.RESULTS_FOLDER / "web.json").read_text())["rows"]))
        return 0
    harness.say(harness.machine_line())
    peers = install_peers()
    rows: list[dict[str, Any]] = []
    models, settings = options.models.split(","), _settings(options)
    versions = {engine: _version(engine) for engine in sorted({engine for engine, _, _ in settings})}
    with tempfile.TemporaryDirectory(prefix="tilewright-web-") as work:
        for name in models:
            harness.say(f"{name}: compiling")
            model = prepare(name, Path(work) / name)
            for engine, device, threads in settings:
                place = f"{name} in {engine}, {device}, {threads} thread(s)"
                harness.say(f"{place}: {len(rows) + 1} of {len(models) * len(settings)}")
                job = {"model": model, "device": device, "threads": threads, "runtimes": options.runtimes.split(",")}
                job |= {"rounds": min(options.rounds, _MOST_ROUNDS[device]), "seconds": options.seconds}
                rows.append(measured(engine, job, Path(work) / name, peers))
                harness.say(f"{place}: {_line(rows[-1])}")
    print(_table(rows))
    summary = {"rows": rows, "geometric_means": _means(rows), "engines": versions, "machine": harness.machine()}
    if options.save:
        harness.write_json(harness.RESULTS_FOLDER / "web.json", summary)
    print(json.dumps(summary))
    return 1 if any(row["error"] > _MOST_ERROR for row in rows) else 0


def _settings(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Engines, with the devices that they have, and numbers of threads: a GPU is asked by one."""
    threads = {"wasm": tuple(map(int, options.threads.split(","))), "webgpu": (1,)}
    return [
        (engine, device, count)
        for engine in options.engines.split(",")
        for device in options.devices.split(",")
        if device in DEVICES[engine]
        for count in threads[device]
    ]


def install_peers() -> Path:
    """The folder of the peers' packages, installed with npm if they are not there."""
    listed = _SCRIPTS / "package.json"
    modules = _PEERS / "node_modules"
    if not modules.is_dir() or (_PEERS / "package.json").read_bytes() != listed.read_bytes():
        if shutil.which("npm") is None:
            raise UserError("the peers are installed with npm, which is not here", hint="install nodejs and npm")
        harness.say("installing onnxruntime-web and TensorFlow.js with npm")
        _PEERS.mkdir(exist_ok=True)
        shutil.copyfile(listed, _PEERS / "package.json")
        subprocess.run(["npm", "install", "--silent", "--no-fund", "--no-audit"], cwd=_PEERS, check=True)
    return modules


def prepare(name: str, folder: Path) -> dict[str, Any]:
    """Write a model's package and ONNX file; what `measure.mjs` must know of it."""
    folder.mkdir()
    onnx.save(zoo.build(name), folder / "model.onnx")
    target = {"webgpu": "webgpu -mattr=+software", "host": "wasm"}
    Compilation(folder / "model.onnx", target=target).export_library(folder / "package")
    description = json.loads((folder / "package" / "model.json").read_text())
    return {"name": name, "inputs": description["inputs"]}


def measured(engine: str, job: dict[str, Any], folder: Path, peers: Path) -> dict[str, Any]:
    """The times of all runtimes in an engine, with the largest error of ours against native code."""
    results = (_in_node if engine == "node" else _in_chromium)(job, folder, peers)
    if "error" in results:
        raise UserError(f"the page failed: {results['error']}")
    row: dict[str, Any] = {"model": job["model"]["name"], "engine": engine, "device": job["device"]}
    row |= {"threads": job["threads"], "times": {}}
    for name, found in results.items():
        outputs = found.pop("outputs", None)
        if name == "tilewright":
            row["error"] = _error(folder, job["model"]["inputs"], outputs)
        times = found.pop("times", [])
        if times:
            found["ms"] = statistics.median(item["least"] for item in times)
            found["median_ms"] = statistics.median(item["median"] for item in times)
        row["times"][name] = found
    ours = row["times"]["tilewright"]
    others = [found["ms"] for name, found in row["times"].items() if name != "tilewright" and "ms" in found]
    row["ratio"] = min(others) / ours["ms"] if others and "ms" in ours else None
    row["bytes"] = _bytes(folder / "package", job["device"])
    return row


def _error(folder: Path, infos: Sequence[dict[str, Any]], outputs: Sequence[Sequence[float]] | None) -> float:
    """The largest difference from native code, relative to the largest number."""
    if outputs is None:
        return float("inf")
    expected = tw.compile(folder / "model.onnx", threads=1).run(made_inputs(infos))
    worst = 0.0
    for ours, theirs in zip(outputs, expected, strict=True):
        wanted = np.asarray(theirs, np.float64).ravel()[: len(ours)]
        worst = max(worst, float(np.abs(wanted - np.array(ours)).max() / max(np.abs(wanted).max(), 1e-9)))
    return worst


def made_inputs(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The numbers that `measure.mjs` makes."""
    state, inputs = 1, {}
    for info in infos:
        count = int(np.prod(info["shape"]))
        numbers = np.empty(count)
        for index in range(count):
            state = state * 16807 % 2147483647
            numbers[index] = state / 2147483647
        whole = info["array"].startswith("BigInt")
        values = np.floor(numbers * 2) if whole else numbers * 2 - 1
        inputs[info["name"]] = values.astype(info["dtype"]).reshape(info["shape"])
    return inputs


def _bytes(package: Path, device: str) -> dict[str, int]:
    """What a page (with relaxed SIMD) fetches: code and scripts, as they are and compressed, and weights."""
    description = json.loads((package / "model.json").read_text())
    taken = description["code"][0] if device == "wasm" else description[device]
    scripts = ["index.js", "tilewright.js", "errors.js", "files.js", "inputs.js", "mathematics.js", "model.json"]
    scripts += ["worker.js"] if device == "wasm" else ["webgpu.js", "extents.js"]
    contents = [(package / name).read_bytes() for name in (*scripts, taken["file"])]
    return {
        "code": sum(map(len, contents)),
        "compressed_code": len(gzip.compress((package / taken["file"]).read_bytes())),
        "weights": taken["constant_bytes"],
    }


def _in_node(job: dict[str, Any], folder: Path, peers: Path) -> dict[str, Any]:
    wasm = peers / "@tensorflow" / "tfjs-backend-wasm" / "dist"
    places = {
        "package": f"{(folder / 'package').as_uri()}/",
        "onnx": (folder / "model.onnx").as_uri(),
        "onnxruntime": (peers / "onnxruntime-web" / "dist" / "ort.node.min.mjs").as_uri(),
        "tensorflow": (peers / "@tensorflow" / "tfjs" / "dist" / "tf.node.js").as_uri(),
        "tensorflow_wasm": (wasm / "tf-backend-wasm.node.js").as_uri(),
        "tensorflow_files": f"{wasm}/",
    }
    command = ["node", *FLAGS, str(_SCRIPTS / "node.mjs"), json.dumps({**job, "places": places})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST, check=False)
    if done.returncode:
        raise UserError(f"Node failed: {done.stderr.strip()[-500:]}")
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


def _program(engine: str) -> str:
    """The program of an engine."""
    names = ("node",) if engine == "node" else ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        package = "nodejs" if engine == "node" else names[0]
        hint = f"install Debian's package {package}, or leave it out of --engines"
        raise UserError(f"there is no {names[0]} here", hint=hint)
    return found


def _version(engine: str) -> str:
    """What an engine says of itself."""
    done = subprocess.run([_program(engine), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _in_chromium(job: dict[str, Any], folder: Path, peers: Path) -> dict[str, Any]:
    places = {
        "package": "/model/package/",
        "onnx": "/model/model.onnx",
        "onnxruntime": f"/peers/onnxruntime-web/dist/ort.{job['device']}.min.mjs",
        "wasm": "/peers/onnxruntime-web/dist/",
        "tensorflow": "/peers/@tensorflow/tfjs/dist/tf.min.js",
        "tensorflow_wasm": "/peers/@tensorflow/tfjs-backend-wasm/dist/tf-backend-wasm.min.js",
        "tensorflow_webgpu": "/peers/@tensorflow/tfjs-backend-webgpu/dist/tf-backend-webgpu.min.js",
        "tensorflow_files": "/peers/@tensorflow/tfjs-backend-wasm/dist/",
    }
    folders = {"model": folder, "peers": peers, "web": _SCRIPTS}
    (folder / "job.json").write_text(json.dumps({**job, "places": places}))
    return in_browser(_program("chromium"), folders, "web/page.html")


def in_browser(browser: str, folders: dict[str, Path], page: str) -> Any:
    """What a page of served folders posts to /answer, in a browser without a window."""
    answers: queue.Queue[bytes] = queue.Queue()
    # Processes of the browser may still write when the first of them has ended.
    kept = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with serve_folders(folders, posts={"/answer": answers.put}) as url, kept as profile:
        command = [browser, *_CHROMIUM, *_WEBGPU, f"--user-data-dir={profile}", f"{url}{page}"]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            return json.loads(answers.get(timeout=_LONGEST))
        except queue.Empty:
            raise UserError(f"the page did not answer in {_LONGEST} s") from None
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _line(row: dict[str, Any]) -> str:
    times = ", ".join(
        f"{name} {found['ms']:.1f} ms" if "ms" in found else f"{name}: {found['error'][:80]}"
        for name, found in row["times"].items()
    )
    return f"{times}; error {row['error']:.1e}"


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        times = [row["times"].get(name, {}).get("ms") for name in RUNTIMES]
        loads = [row["times"].get(name, {}).get("load_ms") for name in RUNTIMES[:2]]
        lines.append(
            [
                *(row["model"], row["engine"], row["device"], str(row["threads"])),
                *("-" if time is None else f"{time:.1f}" for time in times),
                "-" if row["ratio"] is None else f"{row['ratio']:.2f}x",
                *("-" if time is None else f"{time:.0f}" for time in loads),
                human_bytes(row["bytes"]["code"]),
                human_bytes(row["bytes"]["compressed_code"]),
                human_bytes(row["bytes"]["weights"]),
            ]
        )
    heads = [
        "model",
        "engine",
        "device",
        "threads",
        *(f"{name} ms" for name in RUNTIMES),
        "ratio",
        "load ms",
        "its load ms",
    ]
    return table([*heads, "code", "of it kernels, gzipped", "weights"], lines)


def markdown_table(rows: Sequence[dict[str, Any]]) -> str:
    """Milliseconds of all runtimes as a page has them."""
    lines = ["| model | engine | through | threads | Tilewright | onnxruntime-web | TensorFlow.js | ratio |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in rows:
        times = [row["times"].get(name, {}).get("ms") for name in RUNTIMES]
        cells = [row["model"], row["engine"], row.get("device", "wasm"), str(row["threads"])]
        cells += ["-" if time is None else f"{time:.0f} ms" for time in times]
        cells.append("-" if row["ratio"] is None else f"{row['ratio']:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The geometric mean of the ratios, by device."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row["ratio"] is not None:
            ratios.setdefault(row["device"], []).append(row["ratio"])
    return {device: statistics.geometric_mean(found) for device, found in ratios.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.web", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help=f"names of bench.zoo (default: {','.join(MODELS)})")
    parser.add_argument("--engines", default=",".join(DEVICES), help="node, chromium (default: both)")
    parser.add_argument(
        "--devices", default="wasm,webgpu", help="wasm, webgpu (default: both, where engines have them)"
    )
    parser.add_argument("--runtimes", default=",".join(RUNTIMES), help=f"some of {', '.join(RUNTIMES)} (default: all)")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default: 1,2)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which runtimes take turns (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds of each in a round (default: 0.5)")
    parser.add_argument("--save", action="store_true", help="write bench/results/web.json")
    parser.add_argument("--markdown", action="store_true", help="print what was saved as a table of Markdown, and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
