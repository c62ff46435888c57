"""`tilewright demo web`: a model in the browser, with its time and the time of its kernels."""

from __future__ import annotations

import argparse
import tempfile
import threading
import webbrowser
from pathlib import Path

from tilewright.cli.options import natural_int
from tilewright.cli.web_server import serve_folders
from tilewright.compiler import Compilation

DESCRIPTION = """\
Show a model in the browser: digits that you draw are classified by a network that was compiled here, to WebGPU and to
WebAssembly (which runs it where there is no GPU), with the time of a run and of each kernel. The page is served on
this machine alone, until you interrupt the command.

  tilewright demo web
  tilewright demo web --port 8080 --no-browser
"""
_PAGE = Path(__file__).with_name("web")
TARGET = {"webgpu": "", "host": "wasm"}
"""What the model is compiled for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("what", choices=["web"], help="web: a model in the browser")
    parser.add_argument("--port", type=natural_int, default=0, metavar="N", help="the port (default: one that is free)")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page, print its address only")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    with tempfile.TemporaryDirectory(prefix="tilewright-demo-") as folder:
        package = Path(folder) / "digits"
        Compilation(_PAGE / "digits.onnx", target=TARGET).export_library(package)
        with serve_folders({"": _PAGE, "digits": package}, options.port) as url:
            print(f"{url} shows the demonstration; interrupt (Ctrl-C) to end it", flush=True)
            if not options.no_browser:
                webbrowser.open(url)
            threading.Event().wait()
    return 0
