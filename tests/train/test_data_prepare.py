"""Shards as they fill: order, what is left out, stops of every kind, and going on; no model is needed for it."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dflash2_mlx.errors import CheckpointError, DFlashError, PairError, RequestError
from dflash2_mlx.pairs import TargetFacts
from dflash2_mlx.train.data.answers import Asked
from dflash2_mlx.train.data.conversations import Encoder, conversations
from dflash2_mlx.train.data.dataset import Dataset, open_dataset, read_dataset
from dflash2_mlx.train.data.plan import Item
from dflash2_mlx.train.data.prepare import (
    SHARD,
    Progress,
    TargetIdentity,
    begin,
    check_options,
    check_same_target,
    existing,
    is_enough,
    prepare,
)
from dflash2_mlx.train.data.tokens import Conversation
from tests.chat_doubles import make_tokenizer

TARGET = TargetIdentity("m", "f" * 64, "t" * 64, TargetFacts(8, 2, 512))
COUNT = 150


def plan_of(count: int = COUNT) -> list[Item]:
    kinds = ("code", "chat")
    return [
        Item(kind=kinds[i % 2], source="s", messages=({"role": "user", "content": f"p{i}"},), seed=i)
        for i in range(count)
    ]


def made(number: int) -> Conversation:
    length = 5 + number % 7
    return Conversation(np.full(length, number, dtype=np.int32), np.arange(length) >= 2, 0.5)


def stream(plan: list[Item], first: int) -> Iterator[Conversation | None]:
    """Every tenth is left out."""
    return (None if number % 10 == 9 else made(number) for number in range(first, len(plan)))


def numbers(dataset: Dataset) -> list[int]:
    return [int(one.tokens[0]) for shard in range(dataset.shards) for one in dataset.conversations_of(shard)]


def prepared(folder: Path, plan: list[Item], **options: object) -> Dataset:
    dataset = existing(folder) or begin(folder, plan, TARGET, {"seed": 0})
    return prepare(dataset, plan, stream(plan, dataset.done), **options)  # type: ignore[arg-type]


def test_shards_fill_in_the_plans_order(tmp_path: Path) -> None:
    shown: list[Progress] = []
    dataset = prepared(tmp_path / "new" / "data", plan_of(), progress=shown.append)
    assert dataset == open_dataset(tmp_path / "new" / "data")
    assert [part.conversations for part in dataset.parts] == [SHARD, SHARD, 7]
    assert numbers(dataset) == [i for i in range(COUNT) if i % 10 != 9]
    assert dataset.done == dataset.planned == COUNT
    assert dataset.kinds == {"chat": 60, "code": 75}
    assert (shown[-1].done, shown[-1].conversations, shown[-1].shards) == (COUNT, 135, 2)
    assert (
        shown[-1].answer_tokens == dataset.answer_tokens == sum(made(i).mask.sum() for i in range(COUNT) if i % 10 != 9)
    )


def test_a_stopped_preparation_goes_on_to_the_same_data(tmp_path: Path) -> None:
    whole = prepared(tmp_path / "whole", plan_of())
    calls = iter(range(1000))
    stopped = prepared(tmp_path / "cut", plan_of(), cancelled=lambda: next(calls) == 100)
    assert (stopped.shards, stopped.complete) == (1, False)
    with pytest.raises(CheckpointError, match="not finished"):
        open_dataset(tmp_path / "cut")

    def interrupted() -> Iterator[Conversation | None]:
        for count, one in enumerate(stream(plan_of(), stopped.done)):
            if count == 75:
                raise KeyboardInterrupt
            yield one

    with pytest.raises(KeyboardInterrupt):
        prepare(stopped, plan_of(), interrupted())
    assert read_dataset(tmp_path / "cut").shards == 2
    (tmp_path / "cut" / "tokens-00002.safetensors").write_bytes(b"cut short by a kill")
    finished = prepared(tmp_path / "cut", plan_of())
    assert finished.digest == whole.digest
    assert finished.complete


def test_it_stops_at_enough_tokens_and_may_be_asked_for_more(tmp_path: Path) -> None:
    first = prepared(tmp_path, plan_of(), tokens=1)
    assert (first.shards, first.complete, is_enough(first, 1), is_enough(first, None)) == (1, True, True, False)
    assert prepared(tmp_path, plan_of(), tokens=1) == first
    digests = [part.digest for part in first.parts]
    more = prepared(tmp_path, plan_of())
    assert [part.digest for part in more.parts][:1] == digests
    assert numbers(more) == [i for i in range(COUNT) if i % 10 != 9]


def test_what_fills_no_shard_at_the_end_counts_as_done(tmp_path: Path) -> None:
    plan = plan_of(SHARD + 3)
    dataset = begin(tmp_path, plan, TARGET, {})
    found: list[Conversation | None] = [*(made(i) for i in range(SHARD)), None, None, None]
    dataset = prepare(dataset, plan, iter(found))
    assert (dataset.shards, dataset.done, is_enough(dataset, None)) == (1, SHARD + 3, True)
    with pytest.raises(DFlashError, match="no answer could be kept"):
        prepare(begin(tmp_path / "b", plan[:2], TARGET, {}), plan[:2], iter([None, None]))


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    plan = plan_of()
    dataset = begin(tmp_path, plan, TARGET, {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def filling() -> Iterator[Conversation | None]:
        """After the first shard no file may have more than 500 bytes."""
        for number, one in enumerate(stream(plan, 0)):
            if number == SHARD + 20:
                resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
            yield one

    try:
        with pytest.raises(CheckpointError, match=r"cannot be written .* make room; what is done so far is kept"):
            prepare(dataset, plan, filling())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept = read_dataset(tmp_path)
    assert (kept.shards, len(kept.conversations_of(0))) == (1, SHARD)
    assert not list(tmp_path.glob(".*"))
    assert numbers(prepared(tmp_path, plan)) == [i for i in range(COUNT) if i % 10 != 9]


def test_other_folders_options_and_targets_are_refused(tmp_path: Path) -> None:
    assert existing(tmp_path / "new") is None
    assert existing(tmp_path) is None
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"other files \(notes\.txt\)"):
        existing(tmp_path)
    with pytest.raises(CheckpointError, match="is a file"):
        existing(tmp_path / "notes.txt")
    data = tmp_path / "data"
    begin(data, plan_of(4), TARGET, {"seed": 0, "max_tokens": 256})
    found = existing(data)
    assert found is not None
    check_options(found, {"seed": 0, "max_tokens": 256})
    with pytest.raises(RequestError, match=r"begun with --max-tokens 256 \(now 128\)") as caught:
        check_options(found, {"seed": 0, "max_tokens": 128})
    assert caught.value.param == "max_tokens"
    check_same_target(found, TARGET)
    with pytest.raises(PairError, match=r"prepared with m .* now the target is other"):
        check_same_target(found, replace(TARGET, name="other", fingerprint="e" * 64))
    with pytest.raises(PairError, match="another tokenizer"):
        check_same_target(found, replace(TARGET, tokenizer_fingerprint="e" * 64))
    (data / "plan.jsonl").unlink()
    with pytest.raises(CheckpointError, match="without its plan"):
        existing(data)


def answered(asked: Iterable[Asked]) -> Iterator[tuple[int, list[int]]]:
    """Answers of number + 1 tokens, in pairs whose second comes first."""
    waiting: list[Asked] = []
    for one in asked:
        waiting.append(one)
        if len(waiting) == 2:
            yield from ((w.number, [w.number] * (w.number + 1)) for w in reversed(waiting))
            waiting = []
    yield from ((w.number, [w.number] * (w.number + 1)) for w in waiting)


def test_answers_come_in_the_plans_order_and_unfit_ones_are_none() -> None:
    items = plan_of(9)
    long = ({"role": "user", "content": "x" * 300},)
    items[4] = replace(items[4], messages=long)
    items[8] = replace(items[8], messages=long)
    items[5] = replace(items[5], text="raw", messages=())
    items[6] = replace(items[6], completion="yes<|im_end|>", finished=False)
    items[7] = replace(items[7], completion="no", temperature=0.7)
    tokenizer = make_tokenizer()
    options = {"max_prompt_tokens": 100, "shortest": 2}
    found = list(conversations(items, 0, Encoder(tokenizer), answered, **options))
    assert [one is None for one in found] == [True, False, False, False, True, False, False, False, True]
    for number in (1, 2, 3):
        one = found[number]
        assert one is not None
        assert one.tokens[one.mask].tolist() == [number] * (number + 1)
        prompt = tokenizer.decode(one.tokens[~one.mask].tolist())
        assert prompt == f"<|im_start|>user\np{number}<|im_end|>\n<|im_start|>assistant\n"
    raw, cut, whole = found[5], found[6], found[7]
    assert raw is not None
    assert cut is not None
    assert whole is not None
    assert tokenizer.decode(raw.tokens[~raw.mask].tolist()) == "raw"
    end = tokenizer.eos_token_id
    assert cut.tokens[cut.mask].tolist() == [*tokenizer.encode("yes"), end]
    assert whole.tokens[whole.mask].tolist() == [*tokenizer.encode("no"), end]
    assert (whole.temperature, whole.tokens.dtype) == (0.7, np.int32)
    later = list(conversations(items, 3, Encoder(tokenizer), answered, **options))
    assert [None if one is None else one.tokens.tolist() for one in later] == [
        None if one is None else one.tokens.tolist() for one in found[3:]
    ]


def test_a_model_without_a_template_is_told_to_take_texts() -> None:
    with pytest.raises(RequestError, match="give --texts"):
        next(conversations(plan_of(1), 0, Encoder(make_tokenizer(None)), answered, max_prompt_tokens=9, shortest=1))
