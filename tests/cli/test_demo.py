"""`tilewright demo web`: what it serves, and to whom."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import need, need_tool
from tilewright.cli.web_server import ISOLATED, serve_folders
from tilewright.support.errors import UserError


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("a page")
    (tmp_path / "page" / "code.mjs").write_text("1")
    (tmp_path / "secret").write_text("secret")
    with serve_folders({"": tmp_path / "page", "more": tmp_path / "page"}) as found:
        yield found


def test_pages_may_share_memory(url: str) -> None:
    for path in ("", "index.html", "more/index.html", "index.html?a=1"):
        with urllib.request.urlopen(url + path) as answer:
            assert answer.read() == b"a page"
            assert all(answer.headers[name] == value for name, value in ISOLATED.items())
    with urllib.request.urlopen(url + "code.mjs") as answer:
        assert answer.headers["Content-Type"] == "text/javascript"


@pytest.mark.parametrize("path", ["../secret", "more/../../secret", "%2e%2e/secret", "more/%2e%2e/%2e%2e/secret", "x"])
def test_nothing_else_is_served(url: str, path: str) -> None:
    request = urllib.request.Request(url)
    request.selector = f"/{path}"  # as it is: a client would tidy it
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(request)


def test_a_port_that_is_taken(url: str, tmp_path: Path) -> None:
    port = int(url.rstrip("/").rpartition(":")[2])
    with pytest.raises(UserError, match="cannot serve"), serve_folders({"": tmp_path}, port):
        pass


def test_the_demonstration(tmp_path: Path) -> None:
    need("node", "wasm-ld")
    command = [sys.executable, "-m", "tilewright", "demo", "web", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        with urllib.request.urlopen(url) as answer:
            assert b"Draw a digit" in answer.read()
        # Node imports no modules over HTTP: it takes the runtime from a file, and the model by its URL.
        code = f"""
            const {{ writeFileSync }} = await import("node:fs");
            for (const name of ["tilewright", "errors", "extents", "files", "inputs", "mathematics", "webgpu"]) {{
              const text = await (await fetch(`{url}digits/${{name}}.js`)).text();
              writeFileSync(`{tmp_path}/${{name}}.mjs`, text.replace(/((?:from |import\\()".*)\\.js"/g, '$1.mjs"'));
            }}
            const {{ loadModel }} = await import("{tmp_path}/tilewright.mjs");
            const model = await loadModel("{url}digits/", {{ threads: 1 }});
            const image = new Float32Array(256);
            for (let row = 2; row < 14; row += 1) image[16 * row + 8] = image[16 * row + 7] = 1;
            const {{ probabilities }} = await model.run({{ image }});
            console.log(JSON.stringify(Array.from(probabilities.data)));
        """
        done = subprocess.run([need_tool("node"), "--input-type=module", "-e", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shares = json.loads(done.stdout)
        assert shares.index(max(shares)) == 1 and sum(shares) == pytest.approx(1, abs=1e-5)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
