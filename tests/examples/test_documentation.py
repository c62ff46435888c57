"""The code in the pages of the documentation runs, and what cannot run here is at least well-formed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import pages
from tests.requirements import need

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = pages.pages(REPOSITORY)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_code_of_a_page_is_well_formed(page: Path) -> None:
    assert pages.defects(page) == []


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if pages.program(page)], ids=lambda path: path.stem)
def test_a_page_runs(page: Path) -> None:
    need(*("c-compiler" if name == "cc" else name for name in pages.needs(page)))
    assert pages.run(page, REPOSITORY, _settings(page)) == ""


def _settings(page: Path) -> dict[str, str]:
    """Pages share the kernels of tests, but for the one that empties the cache. Devices optimise: some are timed."""
    shared = ["TILEWRIGHT_COMPILE_PROCESSES"]
    if "clear-cache" not in pages.program(page):
        shared.append("TILEWRIGHT_CACHE_DIR")
    return {name: os.environ[name] for name in shared} | {"POCL_EXTRA_BUILD_FLAGS": "", "GALLIVM_PERF": ""}


def written(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_blocks_are_one_program_and_errors_name_the_line_of_the_page(tmp_path: Path) -> None:
    page = written(
        tmp_path,
        "# A page\n<!-- python\nx = 1\n-->\nWords.\n```python\ny = x + 1\n```\n```python no-run\nnowhere()\n```\n"
        "```console\n$ echo $((20 + 22)) > file\n42, say\n```\n```python\nassert open('file').read() == '42\\n'\n"
        "assert y == 3, 'three'\n```\n",
    )
    assert pages.defects(page) == []
    error = pages.run(page, REPOSITORY)
    assert "line 18, in <module>" in error
    assert error.endswith("AssertionError: three")


def test_a_command_of_a_page_that_fails(tmp_path: Path) -> None:
    page = written(tmp_path, "```console\n$ tilewright doctor > doctor.txt\n$ tilewright run absent.onnx\n```\n")
    error = pages.run(page, REPOSITORY)
    assert "line 3, in <module>" in error and "error: there is no file absent.onnx" in error
    assert error.endswith("Command 'tilewright run absent.onnx' returned non-zero exit status 1.")


def test_files_of_a_page_are_there_for_later_blocks(tmp_path: Path) -> None:
    page = written(
        tmp_path,
        "```python file parts/one.py\nx = 1\n```\n"
        "```python\nexec(open('parts/one.py').read())\nassert x == 2, 'two'\n```\n",
    )
    assert pages.defects(page) == []
    error = pages.run(page, REPOSITORY)
    assert "line 6, in <module>" in error and error.endswith("AssertionError: two")


@pytest.mark.parametrize(
    ("text", "defect"),
    [
        ("```\nx\n```\n", "line 2: ``` is none of python,"),
        ("```pyhton\nx\n```\n", "line 2: ```pyhton is none of python,"),
        ("```python no-run\nx = = 1\n```\n", "line 2: is no Python: invalid syntax"),
        ("Words.\n\n    x = 1\n", "code stands between ```, not four columns in: 'x = 1'"),
        (
            "```console no-run\n$ tilewright compile m.onnx --speed 3\n```\n",
            "line 2: 'tilewright compile m.onnx --speed",
        ),
        ("```console no-run\n$ python -m bench.nothing\n```\n", "there is no module bench.nothing"),
        ("```c\nint x;\n```\nWords.\n", "line 2: this C code is compiled by no Python block after it"),
        (
            "```c\nint x;\n```\n```c\nint y;\n```\n<!-- python\nprint(c_code)\n-->\n",
            "line 2: this C code is compiled by no Python block after it",
        ),
    ],
)
def test_what_could_not_run_anywhere(tmp_path: Path, text: str, defect: str) -> None:
    [found] = pages.defects(written(tmp_path, text))
    assert defect in found


def test_c_code_is_compiled_and_runs(tmp_path: Path, c_compiler: str) -> None:
    text = "```c\nint32_t three(void);\n```\n<!-- python\nfrom bench.page_c import run_c\n"
    body = 'c_code + "int32_t three(void) {{ return {value}; }}", "return three() != 3;"'
    right = written(tmp_path, f"{text}run_c({body.format(value=3)})\n-->\n")
    assert pages.defects(right) == [] and pages.run(right, REPOSITORY) == ""
    wrong = written(tmp_path, f"{text}run_c({body.format(value=4)})\n-->\n")
    assert "./main ended with status 1" in pages.run(wrong, REPOSITORY)
    no_c = written(tmp_path, text.replace("three(void)", "three(") + f"run_c({body.format(value=3)})\n-->\n")
    assert "error" in pages.run(no_c, REPOSITORY)


def test_what_a_page_needs(tmp_path: Path) -> None:
    assert pages.missing(written(tmp_path, "<!-- needs: numpy -->\n")) == ""
    assert pages.missing(written(tmp_path, "<!-- needs: numpy, not_a_package -->\n")) == (
        "the package not_a_package is not installed"
    )
