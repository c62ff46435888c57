"""What `make docs` does: checks that the documentation's links lead somewhere and that the code in its pages runs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import pages

REPOSITORY = Path(__file__).resolve().parents[1]

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_LINK_TEXT = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check everything; prints what is wrong and returns 1 if anything is."""
    root = Path(arguments[0]) if arguments else REPOSITORY
    problems = [*broken_links(root), *failing_pages(root)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"documentation: {len(problems)} problem{'s' if len(problems) != 1 else ''}")
    return 1 if problems else 0


def broken_links(root: Path) -> list[str]:
    """Links of Markdown files to files of the repository, or to headings in them, that are not there."""
    problems = []
    for page in pages.pages(root):
        for link in _LINK.findall(pages.prose(page)):
            file, _, heading = link.partition("#")
            if "://" in link or link.startswith("mailto:"):
                continue
            place = page.parent / file if file else page
            if not place.exists() or (heading and heading not in _headings(place)):
                problems.append(f"{page.relative_to(root)}: the link to '{link}' leads nowhere")
    return problems


def _headings(page: Path) -> set[str]:
    """The names under which a page's headings are linked to: words in small letters, joined by hyphens."""
    titles = [_LINK_TEXT.sub(r"\1", title) for title in _HEADING.findall(pages.prose(page))]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def failing_pages(root: Path) -> list[str]:
    """Pages whose code cannot run, or does not run to its end."""
    problems = []
    for page in pages.pages(root):
        name = page.relative_to(root)
        problems += [f"{name}: {defect}" for defect in pages.defects(page)]
        if not pages.program(page):
            continue
        if reason := pages.missing(page):
            print(f"{name}: left out ({reason})", flush=True)
            continue
        start = time.perf_counter()
        error = pages.run(page, root)
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
        if error:
            problems.append(f"{name} failed:\n{error}")
    return problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
