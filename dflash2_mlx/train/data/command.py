"""`dflash2-mlx train data`: prompts to the target's own answers, as token shards. Bad input is refused before."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CheckpointError, RequestError
from ..wording import counted
from . import options

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from .conversations import Answering
    from .dataset import Dataset
    from .plan import Item
    from .prepare import TargetIdentity
    from .tokens import Conversation

_INTERRUPTED = 130  # as cli.EXIT_INTERRUPTED, which is above


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Raises RequestError, CheckpointError, PairError or ModelNotFound; 130 after Ctrl-C, with whole shards kept."""
    from ..folder_lock import held
    from .fingerprint import target_folder
    from .prepare import existing

    options.check(args)
    if args.join:
        return _join(args)
    dataset, plan = _begun_or_planned(args)
    folder = target_folder(args.model)
    target = _identity(args.model, folder)
    out = Path(args.out).expanduser()
    with held(out, "another preparation"):
        if existing(out) != dataset:
            message = f"another preparation has written to {out} meanwhile: give the same command again"
            raise RequestError(message, param="out")
        return _go_on(args, _stored(args, dataset, plan, target), plan, folder)


def _join(args: argparse.Namespace) -> int:
    from ..folder_lock import held
    from .fingerprint import target_folder
    from .join import join, to_join
    from .progress import joining

    target = _identity(args.model, target_folder(args.model))
    sources = to_join([Path(folder).expanduser() for folder in args.join], target)
    out = Path(args.out).expanduser()
    with held(out, "another preparation"), joining() as progress:
        dataset = join(out, sources, target, progress)
    _summary(dataset)
    return 0


def _go_on(args: argparse.Namespace, dataset: Dataset, plan: Sequence[Item], folder: Path) -> int:
    from .prepare import is_enough

    if is_enough(dataset, args.tokens) and dataset.complete:
        more = "" if dataset.done >= dataset.planned else "--tokens with a larger number, or "
        print(f"nothing is left to do: {more}another --out prepares more", file=sys.stderr)
        _summary(dataset)
        return 0
    try:
        dataset = _prepared(args, dataset, plan, folder)
    except KeyboardInterrupt:
        _tell_how_to_go_on(args)
        return _INTERRUPTED
    _summary(dataset)
    return 0


def _begun_or_planned(args: argparse.Namespace) -> tuple[Dataset | None, Sequence[Item]]:
    """What is there with its plan, which later changes of the sources do not touch; else a new plan."""
    from .plan import make_plan, read_plan
    from .prepare import check_options, existing
    from .sources import gather

    out = Path(args.out).expanduser()
    dataset = existing(out)
    if dataset is not None:
        check_options(dataset, options.kept(args))
        plan = read_plan(out)
        if len(plan) != dataset.planned:
            raise CheckpointError(f"{out} holds a plan of another preparation: give another --out")
        return dataset, plan
    return None, make_plan(
        gather(options.sources(args), args.seed),
        temperatures=options.temperatures(args),
        answers_per_prompt=args.answers_per_prompt,
        seed=args.seed,
    )


def _identity(name: str, folder: Path) -> TargetIdentity:
    """What the target's files tell; no weights are loaded."""
    from ...drafter.config import read_config
    from ...facts import embedding_rows, tensors
    from ...pairs import target_facts
    from .fingerprint import fingerprint, tokenizer_fingerprint
    from .prepare import TargetIdentity

    facts = target_facts(read_config(folder), embedding_rows(tensors(folder)))
    return TargetIdentity(name, fingerprint(folder), tokenizer_fingerprint(folder), facts)


def _stored(args: argparse.Namespace, dataset: Dataset | None, plan: Sequence[Item], target: TargetIdentity) -> Dataset:
    from .prepare import begin, check_same_target

    if dataset is None:
        return begin(Path(args.out).expanduser(), plan, target, options.kept(args))
    check_same_target(dataset, target)
    return dataset


def _prepared(args: argparse.Namespace, dataset: Dataset, plan: Sequence[Item], folder: Path) -> Dataset:
    from .prepare import prepare
    from .progress import Meter, preparing

    tokenizer, model = _loaded(args, plan[dataset.done :], folder)
    meter = Meter(args.tokens)
    with preparing(meter) as (show, count):
        found = _conversations(args, dataset, plan, tokenizer, _answering(args, model, tokenizer, count))
        with closing(found):
            return prepare(dataset, plan, found, tokens=args.tokens, progress=show)


def _loaded(args: argparse.Namespace, items: Sequence[Item], folder: Path) -> tuple[Any, Any]:
    """The tokenizer, and the model where there is anything to answer (else None)."""
    if all(item.completion is not None for item in items):
        from mlx_lm.utils import load_tokenizer

        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return load_tokenizer(folder, eos_token_ids=config.get("eos_token_id")), None
    from ...chat.progress import loading
    from ...pairs import load

    with loading() as progress:
        pair = load(args.model, None, dtype=args.dtype, progress=progress)
    return pair.tokenizer, pair.target.model


def _answering(args: argparse.Namespace, model: Any, tokenizer: Any, count: Callable[[int], None]) -> Answering:
    from .answers import answers

    return partial(
        answers,
        model,
        end_tokens=tokenizer.eos_token_ids,
        max_tokens=args.max_tokens,
        batch=args.batch,
        on_tokens=count,
    )


def _conversations(
    args: argparse.Namespace, dataset: Dataset, plan: Sequence[Item], tokenizer: Any, answering: Answering
) -> Generator[Conversation | None, None, None]:
    from .conversations import Encoder, conversations

    return conversations(
        plan,
        dataset.done,
        Encoder(tokenizer, reasoning=args.reasoning),
        answering,
        max_prompt_tokens=args.max_prompt_tokens,
        shortest=args.keep_short,
    )


def _tell_how_to_go_on(args: argparse.Namespace) -> None:
    from .dataset import read_dataset

    found = read_dataset(Path(args.out).expanduser())
    command = f"dflash2-mlx train data {shlex.join(_given(sys.argv[1:]))}"
    print(
        f"stopped: done are {counted(found.shards, 'shard')} with {found.answer_tokens:,} answer tokens "
        f"({found.done} of {found.planned} planned). To go on:\n  {command}\n"
        "To train on what is there, add --tokens 1.",
        file=sys.stderr,
    )


def _given(arguments: list[str]) -> list[str]:
    """The flags of the command line, without the command's words."""
    first = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return arguments[first:]


def _summary(dataset: Dataset) -> None:
    kinds = ", ".join(f"{kind} {count}" for kind, count in dataset.kinds.items())
    left_out = dataset.done - dataset.conversations
    print(
        f"{dataset.folder}: {counted(dataset.conversations, 'conversation')} in {counted(dataset.shards, 'shard')}, "
        f"digest {dataset.digest}"
    )
    print(f"  {dataset.tokens:,} tokens, {dataset.answer_tokens:,} of them written by {dataset.target}")
    print(f"  kinds: {kinds}" + (f"; {left_out} left out (too long or too short)" if left_out else ""))
    if dataset.done < dataset.planned:
        print(f"  {dataset.planned - dataset.done} of the plan's {dataset.planned} are not answered: --tokens ended it")
