"""What a line typed in the chat is: one of these commands, by exact words, or something to say."""

from __future__ import annotations

from typing import NamedTuple

from dflash2_mlx.chat.options import REASONING

QUOTES = '"""'


class Command(NamedTuple):
    """`arguments` is how they are written in the help, empty when the command takes none."""

    arguments: str
    help: str


COMMANDS: dict[str, Command] = {
    "/help": Command("", "list these commands"),
    "/clear": Command("", "forget the conversation; system message and settings stay"),
    "/system": Command("[TEXT|none]", "show, set or drop the system message"),
    "/think": Command(f"[{'|'.join(REASONING)}|default]", "show or set how much the model thinks"),
    "/set": Command("[NAME [VALUE|default]]", "show or set a decoding parameter, such as /set temp 0.7"),
    "/model": Command("[ID|PATH]", "show the pair, or load another target with its own drafter"),
    "/draft": Command("[ID|PATH|auto|none]", "show the pair, or load it with another drafter"),
    "/stats": Command("", "figures of the last answer, with acceptance by position"),
    "/retry": Command("", "answer the last message once more"),
    "/undo": Command("", "take back the last message and its answer"),
    "/save": Command("PATH", "write the conversation to a file"),
    "/load": Command("PATH", "go on with a saved conversation"),
    "/bye": Command("", "leave (also Ctrl-D)"),
}


class Said(NamedTuple):
    """A line that goes to the model."""

    text: str


class Ordered(NamedTuple):
    """A line that is a command; `rest` is what follows its name, without blank edges."""

    name: str
    rest: str


def parse(line: str) -> Said | Ordered:
    """A command when the first word is exactly one and what follows fits; otherwise it is said as it is.

    Text in triple quotes and text of several lines is always said.
    """
    if is_quoted(line):
        return Said(line.strip()[3:-3].strip("\n"))
    name, *rest = line.strip().split(maxsplit=1) or [""]
    command = COMMANDS.get(name)
    if command is None or "\n" in line.strip() or (rest and not command.arguments):
        return Said(line.strip("\n"))
    return Ordered(name, rest[0] if rest else "")


def is_quoted(line: str) -> bool:
    text = line.strip()
    return len(text) >= 6 and text.startswith(QUOTES) and text.endswith(QUOTES)


def is_open(line: str) -> bool:
    """Whether more lines are to come: triple quotes were opened and not closed."""
    return line.strip().startswith(QUOTES) and not is_quoted(line)


def quoted(text: str) -> str:
    return f"{QUOTES}{text}{QUOTES}"


def help_lines() -> list[str]:
    width = max(len(f"{name} {command.arguments}") for name, command in COMMANDS.items())
    lines = [f"{name + ' ' + command.arguments:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return [
        *lines,
        "",
        'Alt-Enter begins a new line; """ before and after a text makes it one message of several lines.',
        "Pasted text is never a command. Ctrl-C stops the answer, what has come of it stays.",
    ]
