"""A server of folders on this machine, for pages that may share memory between threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from tilewright.support.errors import UserError

HOST = "127.0.0.1"
ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cache-Control": "no-cache",
}
"""The headers of pages that may share memory."""
_TYPES = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm", ".json": "application/json"}


class _Handler(SimpleHTTPRequestHandler):
    """Files of some folders, by the first part of their path, and functions that take what a page posts."""

    def __init__(
        self, folders: Mapping[str, Path], posts: Mapping[str, Callable[[bytes], None]], *arguments: Any
    ) -> None:
        self._folders, self._posts = folders, posts
        super().__init__(*arguments)

    def guess_type(self, path: Any) -> str:
        return _TYPES.get(Path(path).suffix) or super().guess_type(path)

    def translate_path(self, path: str) -> str:
        parts = PurePosixPath(unquote(urlsplit(path).path)).parts[1:]
        name, rest = (parts[0], parts[1:]) if parts and parts[0] in self._folders else ("", parts)
        # A path that leads out of its folder, or into none, is a file that is not there.
        if name not in self._folders or any(part in ("..", ".") or "\0" in part for part in rest):
            return "/nonexistent/tilewright"
        return str(self._folders[name].joinpath(*rest))

    def list_directory(self, path: Any) -> None:
        self.send_error(404)

    def end_headers(self) -> None:
        for name, value in ISOLATED.items():
            self.send_header(name, value)
        super().end_headers()

    def do_POST(self) -> None:
        """Hand what a page posts to its function."""
        take = self._posts.get(self.path)
        if take is None:
            self.send_error(404)
            return
        take(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Requests are not printed."""


@contextmanager
def serve_folders(
    folders: Mapping[str, Path], port: int = 0, posts: Mapping[str, Callable[[bytes], None]] | None = None
) -> Iterator[str]:
    """Serve folders by name (the one called "" at the root) while the `with` body runs; gives the URL."""
    try:
        server = ThreadingHTTPServer((HOST, port), partial(_Handler, folders, posts or {}))
    except OSError as error:
        raise UserError(f"cannot serve on port {port}: {error.strerror}", hint="choose another --port") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
