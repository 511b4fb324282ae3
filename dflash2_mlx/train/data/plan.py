"""The plan of a preparation: which prompt is answered how, in which order. It is stored before anything is answered."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...errors import CheckpointError
from ...report.whole import write_whole
from .dataset import PLAN


@dataclass(frozen=True, kw_only=True)
class Item:
    """One conversation to come: `messages` for the chat template, or `text` that is gone on with as it is.

    `completion` is an answer that the target has given already; where it was not `finished`, no end token follows it.
    """

    kind: str
    source: str
    messages: tuple[Mapping[str, str], ...] = ()
    text: str | None = None
    completion: str | None = None
    finished: bool = True
    temperature: float = 0.0
    seed: int = 0

    @property
    def asked(self) -> str:
        """What is asked last, or the text."""
        return self.text if self.text is not None else self.messages[-1]["content"]


def make_plan(
    prompts: Sequence[Item], *, temperatures: Sequence[float], answers_per_prompt: int, seed: int
) -> list[Item]:
    """Each prompt as often as it is answered, temperatures in turn, shuffled by `seed`.

    A second greedy answer would be the first one again and is left out, as is a prompt that occurred before. Answers
    that are there already stay as they are.
    """
    rng = random.Random(seed)
    plan = [item for item in prompts if item.completion is not None]
    turn = 0
    fresh = _distinct([item for item in prompts if item.completion is None])
    rng.shuffle(fresh)  # sources have their kinds in turn, too: no kind may always meet the same temperature
    for item in fresh:
        chosen = [temperatures[(turn + i) % len(temperatures)] for i in range(answers_per_prompt)]
        turn += answers_per_prompt
        greedy = [t for t in chosen if t == 0][:1]
        plan += [
            replace(item, temperature=t, seed=rng.getrandbits(31)) for t in [*greedy, *(t for t in chosen if t > 0)]
        ]
    rng.shuffle(plan)
    return plan


def _distinct(prompts: Sequence[Item]) -> list[Item]:
    """The first of each that is asked."""
    found: dict[str, Item] = {}
    for item in prompts:
        found.setdefault(json.dumps([item.text, [dict(message) for message in item.messages]]), item)
    return list(found.values())


def write_plan(folder: Path, plan: Sequence[Item]) -> None:
    """Write it as JSON Lines, whole or not at all. Raises DFlashError."""
    lines = (json.dumps(asdict(item), ensure_ascii=False) for item in plan)
    write_whole(folder / PLAN, "".join(f"{line}\n" for line in lines))


def read_plan(folder: Path) -> list[Item]:
    """The plan that was stored. Raises CheckpointError for a damaged one."""
    path = folder / PLAN
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        return [Item(**{**row, "messages": tuple(row["messages"])}) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be used ({error}): prepare the data anew in another folder") from None
