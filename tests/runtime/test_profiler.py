"""Profiles as text and as a page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from tilewright.runtime import KernelInfo, Profile, ProfileRow


def _profile() -> Profile:
    rows = (
        ProfileRow(0, KernelInfo("conv", ("conv<1>", "relu & add"), op="conv2d"), 1e-3, 9e-4, 2_000_000, 4_000),
        ProfileRow(1, KernelInfo("copy"), 3e-3, 2e-3, 0, 0),
    )
    return Profile("net", rows, 3.9e-3, 5)


def test_figures_and_text() -> None:
    profile = _profile()
    assert profile.rows[0].gflops == 2.0
    assert profile.rows[0].gigabytes == 0.004
    assert profile.kernel_seconds == 4e-3
    lines = profile.text().splitlines()
    assert lines[0].startswith("net: 3.90 ms a run, 0.5 GFLOP/s; 2 kernel calls take 4.00 ms")
    assert lines[3].split()[:2] == ["copy", "-"]
    assert "25.0" in lines[4]


def test_page_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "profile.html"
    _profile().save_html(path)
    text = path.read_text()
    assert "conv&lt;1&gt;, relu &amp; add" in text
    assert "http" not in text
    depth: list[str] = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "br"):
                depth.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert depth.pop() == tag

    Balance().feed(text)
    assert depth == []


def test_empty_profile() -> None:
    empty = Profile("none", (), 0.0, 1)
    assert "0 kernel calls" in str(empty)
    assert "none" in empty.html()
    assert ProfileRow(0, KernelInfo("k", (), 5, 5), 0.0, 0.0, 5, 5).gflops == 0
