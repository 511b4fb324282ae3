"""A data folder from nothing or from where it stopped: the plan first, then shards as they fill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, DFlashError, PairError, RequestError
from ...pairs import TargetFacts
from .dataset import FILE, PLAN, Dataset, check_target, describe, read_dataset, write_dataset
from .plan import Item, write_plan
from .tokens import SHARD, Conversation, shard_path, write_shard


@dataclass(frozen=True)
class TargetIdentity:
    """What is stored of the target."""

    name: str
    fingerprint: str
    tokenizer_fingerprint: str
    facts: TargetFacts


@dataclass(frozen=True)
class Progress:
    """How far a preparation is: items of the plan, conversations kept, answer tokens, shards on disk."""

    done: int
    planned: int
    conversations: int
    answer_tokens: int
    shards: int


def existing(folder: Path) -> Dataset | None:
    """What was prepared there so far; None for a new or empty folder. Raises CheckpointError for any other folder."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file: give --out a folder")
    if (folder / FILE).exists():
        found = read_dataset(folder)
        if not (folder / PLAN).exists():
            raise CheckpointError(
                f"{folder} holds data without its plan ({PLAN}): it cannot be gone on with, give another --out"
            )
        return found
    others = (
        [path.name for path in folder.iterdir() if path.name != PLAN and not path.name.startswith(".")]
        if folder.exists()
        else []
    )
    if others:
        raise CheckpointError(
            f"{folder} holds other files ({', '.join(sorted(others)[:3])}) and no {FILE}: give --out a new folder"
        )
    return None


def check_options(found: Dataset, options: Mapping[str, Any]) -> None:
    """Raises RequestError that names each option that is another one than the preparation began with."""
    stored = found.options
    changed = [name for name in options if options[name] != stored.get(name)]
    if changed:
        told = ", ".join(f"--{name.replace('_', '-')} {stored.get(name)} (now {options[name]})" for name in changed)
        raise RequestError(
            f"the data in {found.folder} was begun with {told}: give the same options, or another --out",
            param=changed[0],
        )


def check_same_target(found: Dataset, target: TargetIdentity) -> None:
    """Raises PairError where the preparation began with another target or tokenizer."""
    check_target(found, target.name, target.fingerprint, target.facts)
    if found.tokenizer_fingerprint != target.tokenizer_fingerprint:
        raise PairError(
            f"the data in {found.folder} was begun with another tokenizer or chat template of {found.target} than "
            f"{target.name} has now: put it back, or give another --out"
        )


def begin(folder: Path, plan: Sequence[Item], target: TargetIdentity, options: Mapping[str, Any]) -> Dataset:
    """Store the plan and an empty dataset. Raises DFlashError where the folder cannot be written."""
    new = empty(folder, target, {item.source for item in plan}, options, len(plan))
    write_plan(folder, plan)
    write_dataset(new)
    return new


def empty(
    folder: Path, target: TargetIdentity, names: Iterable[str], options: Mapping[str, Any], planned: int
) -> Dataset:
    """A dataset of `planned` conversations, without any yet; `names` are of its sources. Nothing is written."""
    sources = tuple(sorted(names))
    shown = sources if len(sources) <= 20 else (*sources[:20], f"and {len(sources) - 20} more")
    return Dataset(
        folder=folder,
        target=target.name,
        target_fingerprint=target.fingerprint,
        tokenizer_fingerprint=target.tokenizer_fingerprint,
        vocab_size=target.facts.vocab_size,
        hidden_size=target.facts.hidden_size,
        num_layers=target.facts.num_layers,
        sources=shown,
        options=dict(options),
        planned=planned,
    )


def is_enough(dataset: Dataset, tokens: int | None) -> bool:
    """Whether nothing is left to do: the plan is through, or there are `tokens` answer tokens."""
    return dataset.done >= dataset.planned or (tokens is not None and dataset.answer_tokens >= tokens)


def prepare(
    dataset: Dataset,
    plan: Sequence[Item],
    conversations: Iterable[Conversation | None],
    *,
    tokens: int | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Dataset:
    """Write the conversations of the plan from `dataset.done` on, None where one is left out; stops at `tokens`.

    The dataset as it is on disk; not complete when `cancelled`. What a shard has not taken up yet is lost at a stop,
    whole shards stay. Raises CheckpointError where a file cannot be written.
    """
    if is_enough(dataset, tokens):
        return _finished(dataset)
    done = dataset.done
    held: list[tuple[Conversation, str]] = []
    fresh = 0  # answer tokens that are held
    for one in conversations:
        kind = plan[done].kind
        done += 1
        if one is not None:
            held.append((one, kind))
            fresh += int(one.mask.sum())
        if len(held) == SHARD:
            dataset, fresh = _with_shard(dataset, held, done), 0
            held = []
        kept = dataset.conversations + len(held)
        progress(Progress(done, len(plan), kept, dataset.answer_tokens + fresh, dataset.shards))
        if cancelled() and done < len(plan):
            return dataset
        if not held and is_enough(dataset, tokens):
            break
    return _finished(_with_rest(dataset, held, done))


def _with_rest(dataset: Dataset, held: list[tuple[Conversation, str]], done: int) -> Dataset:
    if held:
        return _with_shard(dataset, held, done)
    if not dataset.parts:
        raise DFlashError("no answer could be kept: prompts are too long for --max-prompt-tokens, or answers too short")
    *before, last = dataset.parts
    return replace(dataset, parts=(*before, replace(last, planned=done)))


def _with_shard(dataset: Dataset, held: Sequence[tuple[Conversation, str]], done: int) -> Dataset:
    """Write a shard, then that it is there: killed in between, it is written once more."""
    found = [one for one, _ in held]
    write_shard(shard_path(dataset.folder, dataset.shards), found)
    part = describe(found, [kind for _, kind in held], done)
    new = replace(dataset, parts=(*dataset.parts, part), complete=False)
    write_dataset(new)
    return new


def _finished(dataset: Dataset) -> Dataset:
    if dataset.complete:
        return dataset
    new = replace(dataset, complete=True)
    write_dataset(new)
    return new
