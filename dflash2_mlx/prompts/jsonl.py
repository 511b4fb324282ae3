"""Prompts from a JSON Lines file of the user's: one object a line."""

from __future__ import annotations

import codecs
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from dflash2_mlx.errors import RequestError
from dflash2_mlx.prompts.model import Prompt

# Columns that hold the question, in the order in which they are looked for: our own, then those of the known sets.
COLUMNS = ("messages", "prompt", "turns", "question", "problem", "text")
OTHER = "other"  # the kind where a line does not tell it
_ROLES = ("system", "user", "assistant")


def from_jsonl(path: Path, limit: int | None = None) -> list[Prompt]:
    """The prompts of a file, the first `limit` where it is given.

    A line holds `prompt` (a text) or `messages` (role and content, a user's last), and may have `kind` and `id`; the
    columns of the known sets (`question`, `problem`, `text`, `turns`: the first of them) are read too. Raises
    RequestError that names file and line.
    """
    check_limit(limit)
    found: list[Prompt] = []
    for number, row in rows(path):
        if limit is not None and len(found) == limit:
            break
        found.append(_prompt(row, number, path))
    if not found:
        raise RequestError(f"{path} holds no prompts: one JSON object a line is expected", param="prompts")
    return found


def rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects with the numbers of their lines, without empty lines; `.gz` is unpacked. Raises RequestError."""
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if content.strip():
                    yield number, _object(content, f"{path}:{number}")
    except (OSError, EOFError) as error:  # EOFError: a packed file that was cut short
        cause = getattr(error, "strerror", None) or error
        raise RequestError(f"{path} cannot be read: {cause}", param="prompts") from None


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def question(row: Mapping[str, Any], columns: tuple[str, ...] = COLUMNS) -> tuple[Mapping[str, str], ...]:
    """The messages of a row. Raises ValueError that says what is wrong with it."""
    column = next((name for name in columns if row.get(name) is not None), None)
    if column is None:
        raise ValueError(f"none of {', '.join(columns)} is there; it has {', '.join(sorted(row)) or 'nothing'}")
    value = row[column]
    if column == "messages":
        return _messages(value)
    if isinstance(value, list) and value:  # turns: later ones hang on the answers to those before
        value = value[0]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{column} is no text, or an empty one")
    check_text(column, value)
    return ({"role": "user", "content": value},)


def kind(row: Mapping[str, Any]) -> str:
    """The kind that a row tells, else OTHER. Raises ValueError where it is no short text."""
    return _name(row, "kind", OTHER)


def check_text(key: str, text: str) -> None:
    """Raises ValueError for half of a surrogate pair, which JSON can write and no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{key} holds half of a character (\\ud800 to \\udfff): remove it") from None


def check_limit(limit: int | None) -> None:
    """Raises RequestError where it is not at least 1."""
    if limit is not None and limit < 1:
        raise RequestError(f"a limit of {limit} prompts: it has to be 1 or more", param="limit")


def _prompt(row: Mapping[str, Any], number: int, path: Path) -> Prompt:
    try:
        name = _name(row, "id", f"{path.stem}-{number}")
        return Prompt(id=name, kind=kind(row), messages=question(row), source=path.name)
    except ValueError as error:
        raise RequestError(f"{path}:{number}: {error}", param="prompts") from None


def _name(row: Mapping[str, Any], key: str, otherwise: str) -> str:
    value = row.get(key)
    if value is None:
        return otherwise
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip() or len(value) > 80:
        raise ValueError(f"{key} is to be a text of 1 to 80 signs")
    return value


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise RequestError(f"{where}: no UTF-8 text ({error.reason})", param="prompts") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where}: no JSON ({error})", param="prompts") from None
    if not isinstance(found, dict):
        raise RequestError(f"{where}: a JSON object is expected, with one of {', '.join(COLUMNS)}", param="prompts")
    return found


def _messages(value: Any) -> tuple[Mapping[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("messages is no list, or an empty one")
    found = []
    for message in value:
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if role not in _ROLES or not isinstance(content, str):
            raise ValueError(f"each message needs a role ({', '.join(_ROLES)}) and a text as content")
        check_text("content", content)
        found.append({"role": role, "content": content})
    if found[-1]["role"] != "user":
        raise ValueError("the last message has to be the user's")
    return tuple(found)
