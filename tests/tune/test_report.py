"""The report page: one file, every kernel that was tuned, names that are no markup."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from tests.tune import toy
from tests.tune.test_tuner import OPTIONS, FakeMeasurer, ToyTask
from tilewright.lower.cost import work_of
from tilewright.lower.database import Database
from tilewright.lower.kernel import Kernel
from tilewright.tune.report import report_html, write_report
from tilewright.tune.tuner import tune


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page(tmp_path: Path) -> None:
    func = toy.matmul()
    kernel = Kernel("tw_<b>&matmul_0", func, work_of(func))
    with Database(tmp_path / "t.db") as database:
        report = tune([ToyTask(kernel, toy.TARGET)], database, OPTIONS, measurer=FakeMeasurer())
    write_report(tmp_path / "report.html", "Tuning of <x>", report)
    text = (tmp_path / "report.html").read_text()
    assert text == report_html("Tuning of <x>", report)
    assert "Tuning of &lt;x&gt;" in text and "&lt;b&gt;&amp;matmul" in text and "<x>" not in text
    reader = _Tags()
    reader.feed(text)
    assert not any("src" in attributes or "href" in attributes for _, attributes in reader.tags)
    curves = [attributes["points"] or "" for tag, attributes in reader.tags if tag == "polyline"]
    # All kernels batch by batch, then each kernel trial by trial.
    assert [len(points.split()) for points in curves] == [len(report.timeline), report.tasks[0].trials]
    for points in curves:
        heights = [float(point.split(",")[1]) for point in points.split()]
        assert heights == sorted(heights, reverse=True) and heights[-1] < heights[0]
    assert "64x64 -&gt; 64x64" in text and ">100%<" in text
    best = report.tasks[0].best
    changed = [
        f"{name}={value}" for name, value in sorted(best.items()) if report.tasks[0].space.default[name] != value
    ]
    assert f"<td>{', '.join(changed)}</td>" in text


def test_a_kernel_that_gained_nothing_keeps_its_answers(tmp_path: Path) -> None:
    func = toy.matmul()
    with Database(tmp_path / "t.db") as database:
        task = ToyTask(Kernel("tw_matmul_0", func, work_of(func)), toy.TARGET)
        report = tune([task], database, replace(OPTIONS, trials=1), measurer=FakeMeasurer())
    text = report_html("Tuning", report)
    assert "<td>1.00x</td>" in text and "<td>as by default</td>" in text


def test_a_resumed_run_begins_where_the_other_ended(tmp_path: Path) -> None:
    func = toy.matmul()
    task = ToyTask(Kernel("tw_matmul_0", func, work_of(func)), toy.TARGET)
    with Database(tmp_path / "t.db") as database:
        first = tune([task], database, OPTIONS, measurer=FakeMeasurer())
        again = tune([task], database, replace(OPTIONS, trials=1), measurer=FakeMeasurer())
    assert again.timeline[0] == first.timeline[-1]
    assert again.timeline[-1][0] == first.trials + again.trials
    text = report_html("Tuning", again)
    assert f"{first.trials + again.trials} trials</text>" in text
    # Where nothing was left to try, the chart is a level, not nothing.
    reader = _Tags()
    reader.feed(report_html("Tuning", replace(again, timeline=again.timeline[:1])))
    curve = next(attributes["points"] or "" for tag, attributes in reader.tags if tag == "polyline")
    assert len(curve.split()) == 2
