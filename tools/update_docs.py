"""Writes what the program says about itself into docs/cli.md: run it after changing a flag or a chat command.

A block stands between `<!-- shown: NAME -->` and `<!-- end -->`, where NAME is a command line without
`--help`, or `chat commands`. tests/test_docs.py fails while docs and program differ.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import re
from pathlib import Path

from dflash2_mlx import cli
from dflash2_mlx.chat.commands import help_lines

DOCS = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
_BLOCK = re.compile(r"(<!-- shown: (?P<name>[^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def shown(name: str) -> str:
    """The text that belongs into the block of that name; KeyError for an unknown one."""
    if name == "chat commands":
        return "\n".join(help_lines())
    program, _, command = name.partition(" ")
    if program != cli.PROGRAM:
        raise KeyError(name)
    if not command:
        return _help(cli.top_parser())
    module = importlib.import_module(cli.COMMANDS[command][0])
    return _help(cli.command_parser(command, module))


def _help(parser: argparse.ArgumentParser) -> str:
    """The help in a terminal of 100 columns, whatever the terminal that this runs in."""
    parser.formatter_class = functools.partial(parser.formatter_class, width=98)  # type: ignore[assignment]
    parser.color = False  # Python 3.14 and later
    return parser.format_help().rstrip()


def updated(text: str) -> str:
    """`text` with every block as the program of today fills it."""
    return _BLOCK.sub(lambda found: f"{found[1]}```text\n{shown(found['name'])}\n```\n{found[3]}", text)


def blocks(text: str) -> list[str]:
    return [found["name"] for found in _BLOCK.finditer(text)]


if __name__ == "__main__":
    DOCS.write_text(updated(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
