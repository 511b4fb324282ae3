"""How much a model thinks: a choice in the words of the APIs becomes the arguments that its chat template reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..errors import RequestError

EFFORTS = ("minimal", "low", "medium", "high", "xhigh")
CHOICES = ("on", "off", "none", *EFFORTS)

_SWITCHES = ("enable_thinking", "thinking")
_EFFORT_NAMES = ("reasoning_effort", "reasoning_strength")
# What every template with efforts knows, for those that only some know.
_NEAREST = {"minimal": "low", "xhigh": "high"}

_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_CODE = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)


class Effort:
    """What one chat template reads about reasoning.

    `source` is its Jinja source. `switch` is the name to use where there is none: mlx-lm maps `enable_thinking` for
    the models whose template is Python code.
    """

    def __init__(self, source: str, switch: str | None = None) -> None:
        code = " ".join(_CODE.findall(_COMMENT.sub("", source)))
        names = _STRING.sub("", code)
        self._switch = _first_read(_SWITCHES, names) or switch
        self._effort = _first_read(_EFFORT_NAMES, names)
        self._known = {effort for effort in _NEAREST if re.search(rf"['\"]{effort}['\"]", code)}

    def arguments(self, choice: str | None, *, lenient: bool = False) -> dict[str, Any]:
        """The template's own arguments for one of CHOICES ("none" is "off"); none for None.

        A choice that the template has no word for raises RequestError. With `lenient` it is brought to the nearest one
        that it has: an effort only switches the thinking on, "off" without a switch is the lowest effort, and a model
        that cannot think at all stays as it is. Clients such as Codex send an effort to every model.
        """
        if choice is None:
            return {}
        if choice not in CHOICES:
            raise RequestError(f"reasoning is {choice!r}: it must be one of {', '.join(CHOICES)}", param="reasoning")
        if choice in ("on", "off", "none"):
            return self._switched("on" if choice == "on" else "off", lenient)
        if self._effort is not None:
            word = choice if choice in self._known else _NEAREST.get(choice, choice)
            return {self._effort: word, **({self._switch: True} if self._switch else {})}
        if lenient:
            return {self._switch: True} if self._switch else {}
        known = "it can only be on or off" if self._switch else "the template knows no reasoning"
        raise RequestError(f"reasoning {choice!r}: {known}", param="reasoning")

    def _switched(self, choice: str, lenient: bool) -> dict[str, Any]:
        if self._switch is not None:
            return {self._switch: choice == "on"}
        if self._effort is None:
            if lenient:
                return {}
            raise RequestError(f"reasoning {choice!r}: the model's chat template knows no reasoning", param="reasoning")
        if choice == "on":
            return {}  # such a template always reasons, by its own default
        if lenient:
            return {self._effort: "low"}
        raise RequestError(
            "reasoning 'off': the template has no switch for it, only low, medium and high", param="reasoning"
        )


def _first_read(names: Sequence[str], code: str) -> str | None:
    """The first of the variables that the code reads; `message.thinking` is none, but a field of a message."""
    return next((name for name in names if re.search(rf"(?<![\w.]){name}\b", code)), None)
