"""Beginnings of plain text files, which the target goes on with as they are, without a chat template."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from ...errors import RequestError
from .plan import Item

_KINDS = {
    "prose": (".txt", ".md", ".rst", ".tex"),
    "code": (".py", ".js", ".ts", ".java", ".c", ".h", ".cpp", ".go", ".rs", ".rb", ".swift", ".kt", ".sh", ".sql"),
    "structured": (".json", ".csv", ".tsv", ".yaml", ".yml", ".toml", ".xml", ".html"),
}
_KIND_OF = {suffix: kind for kind, suffixes in _KINDS.items() for suffix in suffixes}
# A beginning has 64 to 256 tokens of about four characters; a long file gives one for each stretch of 8,000.
_LEAST, _MOST, _STRETCH = 256, 1024, 8000
_LARGEST = 2_000_000  # characters of one file; what follows is left


def text_items(folder: Path, seed: int) -> list[Item]:
    """Beginnings from all text files below a folder, hidden ones aside, shuffled. Raises RequestError (param texts)."""
    if not folder.is_dir():
        raise RequestError(f"{folder} is no folder: --texts takes one with text files", param="texts")
    rng = random.Random(seed)
    found = [item for path in _files(folder) for item in _of_file(path, rng)]
    if not found:
        known = ", ".join(_KIND_OF)
        raise RequestError(f"{folder} holds no text of {_LEAST} characters or more in files {known}", param="texts")
    rng.shuffle(found)
    return found


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in _KIND_OF and not hidden and path.is_file():
            yield path


def _of_file(path: Path, rng: random.Random) -> Iterator[Item]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_LARGEST)
    except UnicodeDecodeError:  # no text after all
        return
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}", param="texts") from None
    if "\0" in text:  # the same, though it can be read as UTF-8
        return
    for first in range(0, len(text), _STRETCH):
        piece = _beginning(text[first : first + _STRETCH], rng.randint(_LEAST, _MOST), at_line=first > 0)
        if len(piece) >= _LEAST // 2:
            yield Item(kind=_KIND_OF[path.suffix.lower()], source=path.name, text=piece)


def _beginning(stretch: str, length: int, *, at_line: bool) -> str:
    """The first `length` characters, from the start of a line to the end of a word; empty where little follows."""
    start = stretch.find("\n") + 1 if at_line else 0
    if len(stretch) - start < _LEAST:
        return ""
    piece = stretch[start : start + min(length, (len(stretch) - start) // 2)]
    return piece[: max(piece.rfind(" "), piece.rfind("\n"))].strip()
