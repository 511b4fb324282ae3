"""A prepared data folder: `dataset.json`, which tells what it holds and of which target, and the token shards.

`dataset.json` is there from the first moment of the preparation and grows by a line for each shard; `complete` says
that the preparation came to its end.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import CheckpointError, PairError
from ...pairs import TargetFacts
from ...report.whole import write_whole
from .tokens import Conversation, read_shard, shard_path

FORMAT = 1
FILE = "dataset.json"
PLAN = "plan.jsonl"


@dataclass(frozen=True)
class Part:
    """One shard: its counts, a digest of its content, and how many lines of the plan are done with it."""

    conversations: int
    tokens: int
    answer_tokens: int
    kinds: dict[str, int]  # conversations of each kind
    digest: str
    planned: int


@dataclass(frozen=True)
class Dataset:
    """What a data folder holds. `options` are those of the command, `sources` where the prompts are from."""

    folder: Path
    target: str
    target_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    sources: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    planned: int = 0  # conversations in the plan
    complete: bool = False
    parts: tuple[Part, ...] = ()

    @property
    def shards(self) -> int:
        return len(self.parts)

    @property
    def done(self) -> int:
        """How many conversations of the plan are through, those left out included."""
        return self.parts[-1].planned if self.parts else 0

    @property
    def conversations(self) -> int:
        return sum(part.conversations for part in self.parts)

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)

    @property
    def answer_tokens(self) -> int:
        return sum(part.answer_tokens for part in self.parts)

    @property
    def kinds(self) -> dict[str, int]:
        """Conversations of each kind of content."""
        total: Counter[str] = Counter()
        for part in self.parts:
            total.update(part.kinds)
        return dict(sorted(total.items()))

    @property
    def facts(self) -> TargetFacts:
        return TargetFacts(self.hidden_size, self.num_layers, self.vocab_size)

    @property
    def digest(self) -> str:
        """12 hexadecimal digits for the target and the content of all shards in their order."""
        content = [self.target_fingerprint, self.tokenizer_fingerprint, *self.facts, *(p.digest for p in self.parts)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    def conversations_of(self, shard: int) -> list[Conversation]:
        """The conversations of one shard. Raises CheckpointError where it is not what it was when it was written."""
        path = shard_path(self.folder, shard)
        found = read_shard(path)
        if content_digest(found) != self.parts[shard].digest:
            raise CheckpointError(
                f"{path} is not the shard that was prepared: put it back, or prepare the data anew in another --out"
            )
        return found

    def frequencies(self) -> NDArray[np.int64]:
        """How often each token (vocab_size,) was written by the target; reads all shards."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for shard in range(self.shards):
            for one in self.conversations_of(shard):
                counts += np.bincount(one.tokens[one.mask], minlength=self.vocab_size)
        return counts


def describe(conversations: Sequence[Conversation], kinds: Sequence[str], planned: int) -> Part:
    """What `dataset.json` tells of a shard of those conversations, one kind for each."""
    return Part(
        conversations=len(conversations),
        tokens=sum(map(len, conversations)),
        answer_tokens=sum(int(one.mask.sum()) for one in conversations),
        kinds=dict(sorted(Counter(kinds).items())),
        digest=content_digest(conversations),
        planned=planned,
    )


def content_digest(conversations: Sequence[Conversation]) -> str:
    """64 hexadecimal digits of the ids, masks and temperatures, whatever file they are in."""
    digest = hashlib.sha256()
    for one in conversations:
        digest.update(f"{len(one)} {np.float32(one.temperature):.6g}\n".encode())
        digest.update(one.tokens.astype("<i4").tobytes())
        digest.update(one.mask.astype(np.uint8).tobytes())
    return digest.hexdigest()


def open_dataset(folder: Path) -> Dataset:
    """The data of a folder whose preparation came to its end; no shard is read.

    Raises CheckpointError that says what to do where it is missing, unfinished or damaged.
    """
    if not (folder / FILE).exists():
        raise CheckpointError(f"{folder} holds no training data ({FILE} is missing): prepare it with `train data`")
    found = read_dataset(folder)
    if not found.complete:
        raise CheckpointError(
            f"the data in {folder} is not finished ({found.done} of {found.planned} conversations): "
            "give the same `train data` command again, it goes on where it stopped"
        )
    if not found.parts:
        raise CheckpointError(f"the data in {folder} holds no conversation: prepare it again with `train data`")
    missing = [path.name for i in range(found.shards) if not (path := shard_path(folder, i)).exists()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {', '.join(missing[:4])}: put that back, or prepare the data anew in another --out"
        )
    return found


def read_dataset(folder: Path) -> Dataset:
    """What `dataset.json` tells, finished or not. Raises CheckpointError for a damaged one."""
    path = folder / FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored.pop("format") != FORMAT:
            raise ValueError("it has another format")
        parts = tuple(Part(**part) for part in stored.pop("parts"))
        return Dataset(folder=folder, sources=tuple(stored.pop("sources")), parts=parts, **stored)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} cannot be used ({error}): put it back, or prepare the data anew in another --out"
        ) from None


def write_dataset(dataset: Dataset) -> None:
    """Write `dataset.json`, whole or not at all. Raises DFlashError."""
    stored = {"format": FORMAT, **asdict(dataset)}
    del stored["folder"]
    write_whole(dataset.folder / FILE, json.dumps(stored, ensure_ascii=False, indent=1) + "\n")


def check_target(dataset: Dataset, name: str, fingerprint: str, facts: TargetFacts) -> None:
    """Raises PairError where the data is not of this target: its text would be another model's."""
    if dataset.target_fingerprint == fingerprint and dataset.facts == facts:
        return
    raise PairError(
        f"the data in {dataset.folder} was prepared with {dataset.target} ({_short(dataset.target_fingerprint)}, "
        f"{tuple(dataset.facts)}), now the target is {name} ({_short(fingerprint)}, {tuple(facts)}): "
        f"prepare it again, or give --model {dataset.target}"
    )


def _short(fingerprint: str) -> str:
    return fingerprint[:12]
