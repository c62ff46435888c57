"""What `make docs` does: checks that the documentation's links lead somewhere and that its tutorials run.

A tutorial is a Python file, or a Markdown file whose `python` blocks form one program, in `docs/tutorials/`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK_TEXT = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check everything; prints what is wrong and returns 1 if anything is."""
    root = Path(arguments[0]) if arguments else REPOSITORY
    problems = [*broken_links(root), *failing_tutorials(root)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"documentation: {len(problems)} problem{'s' if len(problems) != 1 else ''}")
    return 1 if problems else 0


def broken_links(root: Path) -> list[str]:
    """Links of Markdown files to files of the repository, or to headings in them, that are not there."""
    problems = []
    for page in [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]:
        for link in _LINK.findall(_prose(page)):
            file, _, heading = link.partition("#")
            if "://" in link or link.startswith("mailto:"):
                continue
            place = page.parent / file if file else page
            if not place.exists() or (heading and heading not in _headings(place)):
                problems.append(f"{page.relative_to(root)}: the link to '{link}' leads nowhere")
    return problems


def _prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def _headings(page: Path) -> set[str]:
    """The names under which a page's headings are linked to: words in small letters, joined by hyphens."""
    titles = [_LINK_TEXT.sub(r"\1", title) for title in _HEADING.findall(_prose(page))]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def failing_tutorials(root: Path) -> list[str]:
    """Tutorials that do not run to their end."""
    problems = []
    folder = root / "docs" / "tutorials"
    for page in sorted([*folder.glob("*.py"), *folder.glob("*.md")]):
        code = page.read_text(encoding="utf-8")
        if page.suffix == ".md":
            code = "\n".join(_BLOCK.findall(code))
        if not code.strip():
            continue
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as scratch:
            script = Path(scratch) / f"{page.stem}.py"
            script.write_text(code, encoding="utf-8")
            result = subprocess.run(
                [sys.executable, str(script)],
                cwd=scratch,
                env={**_environment(), "PYTHONPATH": str(root)},
                capture_output=True,
                text=True,
                check=False,
            )
        print(f"{page.relative_to(root)}: {time.perf_counter() - start:.1f} s", flush=True)
        if result.returncode != 0:
            problems.append(f"{page.relative_to(root)} failed:\n{result.stderr.strip()}")
    return problems


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
