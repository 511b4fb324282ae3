"""One data folder out of several of the same target, such as those of two machines: their shards, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import CheckpointError, PairError, RequestError
from .dataset import FILE, PLAN, Dataset, Part, read_dataset, write_dataset
from .prepare import TargetIdentity, check_same_target, empty
from .tokens import shard_path, write_shard


def to_join(folders: Sequence[Path], target: TargetIdentity) -> list[Dataset]:
    """What those folders hold, finished or not; a folder that is named twice counts twice.

    Raises CheckpointError where one holds no shard, PairError where one is of another target or tokenizer, and
    RequestError where they reason differently: held-out prompts are asked as those of the data were.
    """
    found = []
    for folder in folders:
        if not (folder / FILE).exists():
            raise CheckpointError(f"--join {folder}: it holds no training data ({FILE} is missing)")
        one = read_dataset(folder)
        try:
            check_same_target(one, target)
        except PairError as error:
            raise PairError(f"--join {folder}: {error}") from None
        if not one.parts:
            raise CheckpointError(f"--join {folder}: no shard is finished there yet")
        found.append(one)
    if len({str(one.options.get("reasoning")) for one in found}) > 1:
        told = ", ".join(f"{one.folder} {one.options.get('reasoning')}" for one in found)
        raise RequestError(f"--join: the folders differ in --reasoning ({told}): train on one kind", param="join")
    return found


def join(
    out: Path,
    sources: Sequence[Dataset],
    target: TargetIdentity,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Dataset:
    """Copy the shards of `sources` to `out`, or what of them is not there yet; the same call goes on after a stop.

    Raises CheckpointError where `out` holds something else, a shard is damaged or a file cannot be written, and
    RequestError where `out` is one of the sources.
    """
    if any(out.resolve() == one.folder.resolve() for one in sources):
        raise RequestError(f"--out {out}: it is one of the folders to join; give a new one", param="out")
    places = [(one, number) for one in sources for number in range(one.shards)]
    wanted = _one_after_another(places)
    dataset = _begun(out, sources, target, wanted)
    out.mkdir(parents=True, exist_ok=True)
    for done in range(dataset.shards, len(wanted)):
        source, number = places[done]
        write_shard(shard_path(out, done), source.conversations_of(number))
        dataset = replace(dataset, parts=wanted[: done + 1], complete=done + 1 == len(wanted))
        write_dataset(dataset)
        progress(done + 1, len(wanted))
    return dataset


def _one_after_another(places: Sequence[tuple[Dataset, int]]) -> tuple[Part, ...]:
    """Parts as `dataset.json` will tell them: what is left out of the sources' plans is no longer counted."""
    parts: list[Part] = []
    for source, number in places:
        part = source.parts[number]
        before = parts[-1].planned if parts else 0
        parts.append(replace(part, planned=before + part.conversations))
    return tuple(parts)


def _begun(out: Path, sources: Sequence[Dataset], target: TargetIdentity, wanted: tuple[Part, ...]) -> Dataset:
    """What is in `out` already, if it is the beginning of the same; else an empty dataset."""
    if (out / FILE).exists():
        found = read_dataset(out)
        if (out / PLAN).exists() or found.parts != wanted[: found.shards]:
            raise CheckpointError(f"{out} holds other data already: give --out a new folder")
        return found
    if out.exists() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise CheckpointError(f"{out} holds other files and no {FILE}: give --out a new folder")
    names = {name for one in sources for name in one.sources}
    options = {"join": [one.digest for one in sources], "reasoning": sources[0].options.get("reasoning")}
    return empty(out, target, names, options, wanted[-1].planned)
