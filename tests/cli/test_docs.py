"""`docs/cli.md` against the parser: the commands and options it names exist, and all that exist are named."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tilewright.cli import inspect, main
from tilewright.cli.peers import PEERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def parsers() -> dict[str, argparse.ArgumentParser]:
    [commands] = [a for a in main.parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(commands.choices)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}


def all_options_of(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a command and of what comes after it (`rpc server`)."""
    found = options_of(parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found = found.union(*(all_options_of(child) for child in action.choices.values()))
    return found


def test_every_command_has_its_section() -> None:
    text = PAGE.read_text()
    for name in main.COMMANDS:
        assert f"\n## {name}\n" in text
        assert f"| [`{name}`](#{name}) |" in text


def test_every_option_is_named_and_every_name_is_an_option() -> None:
    text = PAGE.read_text()
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", re.sub(r"llvm -m\S+( -m\S+)*", "", text)))
    known = set().union(*(all_options_of(parser) for parser in parsers().values())) | {"--help"}
    assert named - known - {"-m"} == set()
    assert known - named == set()


def test_shared_options_belong_to_the_commands_listed() -> None:
    section = PAGE.read_text().split("## Options of several commands")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(--[\w-]+)[^|]*\| ([^|]*) \|", section, flags=re.MULTILINE)
    assert len(rows) == 16
    for option, commands in rows:
        having = [name for name, parser in parsers().items() if option in options_of(parser)]
        assert commands.split(", ") == having


def test_stages_peers_and_exit_codes() -> None:
    text = PAGE.read_text()
    for stage in inspect._STAGES:
        assert f"| `{stage}` |" in text
    for peer in PEERS:
        assert f"`{peer}`" in text
    for code in (0, 1, 2, 3, 4, 130):
        assert f"| {code} |" in text
