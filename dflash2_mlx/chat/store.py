"""Conversations on disk: one JSON file, written whole or not at all, read strictly."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dflash2_mlx.chat.options import REQUEST_PARAMETERS, bias_map
from dflash2_mlx.errors import RequestError


class StoredMessage(BaseModel):
    """One message; `reasoning_content` is what the model thought before it answered."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["user", "assistant"]
    content: str
    reasoning_content: str | None = None


class Conversation(BaseModel):
    """What a saved file holds. `model` and `drafter` tell where it came from; they are not loaded again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Literal["dflash2-mlx conversation"] = "dflash2-mlx conversation"
    version: Literal[1] = 1
    model: str
    drafter: str | None
    system: str | None
    reasoning: Literal["on", "off", "low", "medium", "high"] | None
    parameters: dict[str, Any]
    messages: list[StoredMessage]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        roles = [message.role for message in self.messages]
        if roles != ["user", "assistant"] * (len(roles) // 2):
            raise ValueError("messages must be the user's and the assistant's in turns")
        unknown = sorted(set(self.parameters) - set(REQUEST_PARAMETERS))
        if unknown:
            raise ValueError(f"unknown parameters {unknown}")
        if isinstance(self.parameters.get("logit_bias"), dict):
            self.parameters["logit_bias"] = bias_map(self.parameters["logit_bias"])  # JSON knows only text keys
        return self


def write(path: Path, conversation: Conversation) -> None:
    """Write the file by way of a neighbour that is renamed. Only a conversation is overwritten.

    Raises RequestError when the file cannot be written.
    """
    if os.path.exists(path) and not _is_conversation(path):
        raise RequestError(f"{path} is there already and holds no conversation: choose another name", param="path")
    text = conversation.model_dump_json(indent=2)
    scratch = None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".", delete=False) as file:
            scratch = Path(file.name)
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror or error}", param="path") from error
    finally:
        if scratch is not None:
            with suppress(OSError):
                scratch.unlink()


def read(path: Path) -> Conversation:
    """Read a saved conversation. Raises RequestError that names what is wrong with the file."""
    try:
        return Conversation.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}", param="path") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RequestError(
            f"{path} is no saved conversation: {where + ': ' if where else ''}{first['msg']}", param="path"
        ) from error


def _is_conversation(path: Path) -> bool:
    try:
        read(path)
    except RequestError:
        return False
    return True
