"""What a run has measured, step by step: JSON Lines that only grow, but for a resume, which cuts what it does anew."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from ...report.whole import write_whole


@dataclass(frozen=True)
class StepLine:
    """One step. `step` counts from 1: so many are done.

    `seconds` it took, without evaluations and saves; `tokens` of conversations read and `blocks` learnt from in it.
    `loss` is the sum that is minimised, `ce` the part of the rows, `selector` that of the selector (0 without one).
    `grad_norm` is before clipping. `top1` and `recall` hold, by drafted position, the share of blocks whose true token
    is the row's own best one, and is among its 16 best.
    """

    step: int
    seconds: float
    tokens: int
    blocks: int
    loss: float
    ce: float
    selector: float
    learning_rate: float
    grad_norm: float
    top1: list[float]
    recall: list[float]


@dataclass(frozen=True)
class EvaluationLine:
    """Held-out texts after `step` steps: tokens that one cycle commits on average, over all and by kind of prompt.

    `accepted_by_position` holds, by drafted position, the share of cycles in which that draft is accepted.
    """

    step: int
    tokens_per_cycle: float
    by_kind: dict[str, float]
    accepted_by_position: list[float]


Line = StepLine | EvaluationLine
_KINDS: dict[str, type[StepLine] | type[EvaluationLine]] = {"step": StepLine, "evaluation": EvaluationLine}


class History:
    """The lines of one run's file, in their order. One process writes it (see `run.folder`)."""

    def __init__(self, path: Path, lines: list[Line], size: int) -> None:
        self.path = path
        self.lines = lines
        self._size = size  # bytes of whole lines in the file; what stands after them is half a line

    @classmethod
    def open(cls, path: Path) -> History:
        """Read the file where it exists, without its last line when that was cut by a kill.

        Raises CheckpointError that names file and line for one that is damaged.
        """
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}): mend its permissions") from None
        size = content.rfind(b"\n") + 1
        whole = enumerate(content[:size].splitlines(), 1)
        return cls(path, [_parse(line, f"{path}:{number}") for number, line in whole if line.strip()], size)

    @property
    def steps(self) -> list[StepLine]:
        """The lines of steps."""
        return [line for line in self.lines if isinstance(line, StepLine)]

    @property
    def evaluations(self) -> list[EvaluationLine]:
        """The lines of evaluations."""
        return [line for line in self.lines if isinstance(line, EvaluationLine)]

    @property
    def best(self) -> EvaluationLine | None:
        """The evaluation with most tokens per cycle, the first of equals; None before one."""
        sound = [line for line in self.evaluations if math.isfinite(line.tokens_per_cycle)]
        return max(sound, key=lambda line: line.tokens_per_cycle, default=None)

    def append(self, line: Line) -> None:
        """Add a line. Raises CheckpointError where it cannot be written: the lines before it are kept."""
        content = _format(line).encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.truncate(self._size)
                file.write(content)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be written ({error.strerror or error}): make room; the same command goes on"
            ) from None
        self._size += len(content)
        self.lines.append(line)

    def truncate(self, step: int) -> None:
        """Drop the lines after `step` steps, in the file too: a resumed run writes them anew.

        Raises DFlashError where it cannot be written; the file is then as it was.
        """
        kept = [line for line in self.lines if line.step <= step]
        if len(kept) < len(self.lines):
            text = "".join(map(_format, kept))
            write_whole(self.path, text)
            self.lines, self._size = kept, len(text.encode())


def _format(line: Line) -> str:
    kind = "step" if isinstance(line, StepLine) else "evaluation"
    return json.dumps({"line": kind, **_numbers(asdict(line))}, allow_nan=False) + "\n"


def _parse(text: bytes, place: str) -> Line:
    try:
        found = json.loads(text)
        kind = _KINDS[found.pop("line")]
        values = {field.name: _read_back(field.name, found[field.name]) for field in fields(kind)}
        return kind(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{place} is no line of a training run ({error!r}): remove that line") from None


def _numbers(value: Any) -> Any:
    """For JSON, which has no NaN and no infinity: null."""
    if isinstance(value, Mapping):
        return {name: _numbers(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_back(name: str, value: Any) -> Any:
    """The value of a field. Raises TypeError where it cannot be one."""
    if name in ("step", "tokens", "blocks"):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}, expected a whole number")
        return value
    if name == "by_kind":
        return {str(kind): _float(one) for kind, one in dict(value).items()}
    return [_float(one) for one in value] if name in ("top1", "recall", "accepted_by_position") else _float(value)


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)
