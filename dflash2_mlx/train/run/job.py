"""One training from beginning to end: check, load, answer the held-out prompts, train, finish."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import pairs
from ...chat.progress import loading
from ...drafter import quantization
from ...drafter.model import DraftModel
from ...drafter.quantization import QuantSpec
from ...errors import RequestError
from ...pairs import Pair
from ..check.prepared import Prepared, prepare
from ..check.room import check_room
from ..data.dataset import Dataset
from ..data.held_out import HeldOut, answer, some_of
from ..lanes import let_lanes_run_together, open_lanes
from ..loop import checkpoint
from ..loop.replay import record
from ..loop.trainer import Trainer
from ..recipe.values import Recipe
from ..reporting.history import EvaluationLine, History, StepLine
from ..reporting.terminal import Console
from ..reporting.waiting import counting
from ..rows.kept import mark, outdated
from ..rows.store import GB, RowStore
from ..start.warm import RANDOM, check_start, new_model
from ..wording import counted, in_brackets
from .export import check_export, clean
from .finishing import finish, quantize, write_run_report
from .folder import RunFolder, check_same, is_run, open_run
from .stopping import Stopper

ANSWER_TOKENS = 128  # of each held-out answer


@dataclass(frozen=True)
class Job:
    """What was asked for. `out` is the run's folder; with `quantize` the export is packed, too.

    At the end `decode` of the held-out prompts are decoded (None: all).
    """

    recipe: Recipe
    out: Path
    minutes: float | None = None
    evaluate_only: bool = False
    quantize: QuantSpec | None = None
    decode: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a job ended: "steps", "patience", "evaluated", or "cancelled", which may be gone on with.

    That was Ctrl-C (`interrupted`) or a limit of time.
    """

    stopped: str
    interrupted: bool = False


def run_job(job: Job, trainer: Callable[..., Any] = Trainer) -> Ended:
    """Do it all. Raises a DFlashError; KeyboardInterrupt outside of a step. `trainer` stands in for `Trainer`."""
    let_lanes_run_together()
    stopper = Stopper(job.minutes)
    prepared = _checked(job)
    with open_run(job.out, job.recipe, prepared.identity) as run:
        clean(run.drafter)
        pair, held_out = _loaded(prepared, run)
        ended = Ended("evaluated")
        if not job.evaluate_only:
            ended = _train(prepared, run, pair, held_out, stopper, trainer)
        if ended.stopped != "cancelled":
            _finish(job, prepared, run, pair, held_out)
        return ended


def _checked(job: Job) -> Prepared:
    """All that can be refused before weights are loaded; tells what will be needed."""
    if job.evaluate_only and not is_run(job.out):
        raise RequestError(f"{job.out} holds no training run: train without --evaluate-only first", param="out")
    prepared = prepare(job.recipe)
    if job.quantize is not None:  # raises for a group size that does not fit; nothing is computed
        quantization.quantize(DraftModel(prepared.config), job.quantize)
    run = RunFolder(job.out)
    if is_run(job.out):
        check_same(job.out, job.recipe, prepared.identity)
        check_export(run.drafter, replace=True)
        History.open(run.history)
    if not job.evaluate_only:
        _check_steps(job.recipe.loop.steps, run)
        if not checkpoint.exists(run.state):
            check_start(prepared.config, job.recipe.start)
        needed = check_room(prepared, job.out)
        _say(f"about {needed.total / 1e9:.1f} GB of memory, {needed.disk / 1e9:.1f} GB of disk for the target's rows")
    _tell(prepared)
    return prepared


def _check_steps(steps: int, run: RunFolder) -> None:
    done = checkpoint.steps_done(run.state)
    if done is not None and steps < done:
        raise RequestError(
            f"steps is {steps}: {done} are done in {run.path} already. Give at least that, or --evaluate-only",
            param="steps",
        )


def _tell(prepared: Prepared) -> None:
    """What the user may want to mend, though nothing of it hinders the training."""
    if prepared.leaked:
        _say(
            f"{prepared.leaked} of {len(prepared.prompts)} held-out prompts are in the data: acceptance will look "
            "better than it is; prepare the data with --exclude, or hold out others"
        )
    if prepared.masks:
        _say(
            f"the mask token {prepared.config.mask_token_id} is in the data's answers, "
            f"{counted(prepared.masks, 'time')}: name an id that no text holds with --mask-token"
        )
    if old := outdated(prepared.data.folder, prepared.data.digest):
        folders = ", ".join(f"{folder} ({size / GB:.2f} GB)" for folder, size in old)
        _say(f"rows of this data as it was before are no longer in use and may be removed: {folders}")


def _loaded(prepared: Prepared, run: RunFolder) -> tuple[Pair, list[HeldOut]]:
    """The target, and its answers to the held-out prompts."""
    with loading() as progress:
        pair = pairs.load(prepared.recipe.target, None, dtype=prepared.target_dtype, progress=progress)
    with counting("held-out answers") as count:
        held_out = answer(
            pair,
            prepared.prompts,
            ANSWER_TOKENS,
            kept=run.held_out,
            identity=f"{prepared.fingerprint} {pair.target.dtype}",
            reasoning=prepared.reasoning,
            progress=count,
        )
    return pair, held_out


def _train(
    prepared: Prepared,
    run: RunFolder,
    pair: Pair,
    held_out: list[HeldOut],
    stopper: Stopper,
    trainer: Callable[..., Any],
) -> Ended:
    recipe, data = prepared.recipe, prepared.data
    target, lanes = pair.target.tapped(prepared.config.target_layer_ids), open_lanes()
    # A state replaces whatever the start was, which may be gone by now.
    start = RANDOM if checkpoint.exists(run.state) else recipe.start
    model, notes = new_model(prepared.config, target, start, recipe.loop.seed)
    for note in notes:
        _say(note)
    shards = [data.conversations_of(shard) for shard in range(data.shards)]
    store = RowStore(target, shards, prepared.rows, int(recipe.rows_gb * GB), lanes)
    if store.limit > 0:
        mark(prepared.rows, data.digest)
    log = _Log(prepared, run)
    with stopper:
        with counting("shards of the target's rows") as count:
            store.prepare(count, stopper, lambda: _say("another training computes the target's rows: waiting for it"))
        training = trainer(
            recipe,
            target,
            store,
            by_frequency(data),
            model,
            run.path,
            held_out=record(target, held_out, lanes),
            lanes=lanes,
            on_step=log.step,
            on_evaluation=log.evaluation,
            cancelled=stopper,
        )
        with log.running(training.step):
            outcome = training.run()
    lanes.close()
    # Asked to stop in the last step it stops, too: what comes after takes its time.
    return Ended("cancelled" if stopper.interrupted else outcome.stopped, stopper.interrupted)


class _Log:
    """Where steps and evaluations go: the history, the terminal, and with each evaluation the report."""

    def __init__(self, prepared: Prepared, run: RunFolder) -> None:
        self._prepared, self._run = prepared, run
        self._history = History.open(run.history)
        self._console = Console(prepared.recipe.loop.steps)

    @contextlib.contextmanager
    def running(self, step: int) -> Iterator[None]:
        """From that step on; lines after it, of steps whose state was not saved, are dropped and come anew."""
        self._history.truncate(step)
        self._console = Console(self._prepared.recipe.loop.steps, step, self._history.best)
        with self._console.running():
            yield

    def step(self, line: StepLine) -> None:
        self._history.append(line)
        self._console.step(line)

    def evaluation(self, line: EvaluationLine) -> None:
        self._history.append(line)
        self._console.evaluation(line)
        write_run_report(self._prepared, self._run, self._history, {})


def by_frequency(data: Dataset) -> NDArray[np.int64]:
    """The vocabulary's tokens (V,), those first that the target writes most often."""
    return np.argsort(-data.frequencies(), kind="stable")


def _finish(job: Job, prepared: Prepared, run: RunFolder, pair: Pair, held_out: list[HeldOut]) -> None:
    chosen = some_of(held_out, job.decode)
    with counting("decoding with the drafter") as count:
        line = finish(prepared, run, pair, chosen, tokens=ANSWER_TOKENS, progress=count)
    rate = f"{line.tokens_per_cycle:.3f} tokens per cycle{in_brackets(line.by_kind)}"
    share = f", {len(chosen)} of {len(held_out)} prompts" if len(chosen) < len(held_out) else ""
    decoded = f"{rate} with the weights of step {line.step:,}{share}"
    report = write_run_report(prepared, run, History.open(run.history), {"decoded": decoded})
    Console(prepared.recipe.loop.steps).show(report)
    _say(f"decoded: {decoded}\ndrafter: {run.drafter}\nreport: {run.report}")
    if job.quantize:
        _say(f"packed: {quantize(run, job.quantize)}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
