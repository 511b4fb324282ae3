"""The loop: a kill changes nothing, best weights are kept, it stops when told; and it learns a text by heart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash2_mlx.errors import CheckpointError
from dflash2_mlx.train.data.held_out import HeldOut
from dflash2_mlx.train.learning.batches import conversations_of, micro_batches
from dflash2_mlx.train.loop import checkpoint
from dflash2_mlx.train.loop.replay import record, replay
from dflash2_mlx.train.loop.trainer import Outcome, Trainer, stretch
from dflash2_mlx.train.recipe.values import Loop, Loss, Recipe
from dflash2_mlx.train.reporting.history import EvaluationLine, StepLine
from dflash2_mlx.train.rows.hidden import Rows
from dflash2_mlx.train.rows.store import RowStore
from tests.running import decode
from tests.train.training import Subject, subject

RECIPE = Recipe(
    loss=Loss(anchors=3, frequent=20, sampled=10, distill=0.3, full_steps=2),
    loop=Loop(steps=6, batch=2, micro_batch=1, warmup=2, evaluate_every=2, save_every=2, seed=3),
)


def held_out(one: Subject) -> list[HeldOut]:
    found = []
    for i, conversation in enumerate(one.conversations):
        ids = tuple(conversation.tokens.tolist())
        first = int(np.argmax(conversation.mask))
        found.append(HeldOut(ids[:first], "code" if i % 2 else "chat", ids[first:]))
    return found


class Run:
    """A trainer in a folder, and what it told."""

    def __init__(self, folder: Path, recipe: Recipe = RECIPE, **options: Any) -> None:
        self.one = subject(count=5, tokens=20)
        self.steps: list[StepLine] = []
        self.evaluations: list[EvaluationLine] = []
        store = RowStore(self.one.target, [self.one.conversations[:3], self.one.conversations[3:]], folder / "rows",
                         10**9, self.one.lanes)  # fmt: skip
        store.prepare()
        self.trainer = Trainer(
            recipe,
            self.one.target,
            store,
            np.arange(self.one.target.vocab_size),
            self.one.drafter,
            folder,
            held_out=record(self.one.target, held_out(self.one), self.one.lanes),
            lanes=self.one.lanes,
            on_step=self.steps.append,
            on_evaluation=self.evaluations.append,
            **options,
        )

    def go(self) -> Outcome:
        return self.trainer.run()

    @property
    def weights(self) -> dict[str, mx.array]:
        return dict(tree_flatten(self.one.drafter.parameters()))


def cancel_after(steps: int) -> Callable[[], bool]:
    calls = iter(range(10**6))
    return lambda: next(calls) >= steps


def test_a_run_that_was_stopped_and_resumed_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole = Run(tmp_path / "a")
    assert whole.go() == Outcome(6, whole.trainer.best, "steps")
    first = Run(tmp_path / "b", cancelled=cancel_after(3))
    assert first.go().stopped == "cancelled"
    assert first.trainer.step == 3
    second = Run(tmp_path / "b")
    assert second.trainer.step == 3
    assert second.go().step == 6
    for name, array in whole.weights.items():
        assert mx.array_equal(array, second.weights[name]), name
    assert [line.loss for line in first.steps + second.steps] == [line.loss for line in whole.steps]
    assert second.trainer.best == whole.trainer.best


def test_a_kill_between_saves_costs_the_steps_since_the_last_one_only(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def die(line: StepLine) -> None:
        if line.step == 5:
            raise Killed

    whole, killed = Run(tmp_path / "a"), Run(tmp_path / "b")
    whole.go()
    killed.trainer._on_step = die
    with pytest.raises(Killed):
        killed.go()
    again = Run(tmp_path / "b")
    assert again.trainer.step == 4
    again.go()
    for name, array in whole.weights.items():
        assert mx.array_equal(array, again.weights[name]), name


def test_a_gradient_that_is_not_finite_ends_the_run_before_it_spoils_the_weights(tmp_path: Path) -> None:
    run = Run(tmp_path)
    given = run.trainer.store.rows

    def rows(places: Sequence[tuple[int, int]]) -> list[Rows]:
        found = given(places)
        return found if run.trainer.step < 3 else [replace(one, taps=one.taps * float("nan")) for one in found]

    run.trainer.store.rows = rows  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match=r"step 4: .*not finite.*--learning-rate"):
        run.go()
    assert all(mx.isfinite(array).all() for array in run.weights.values())
    state = checkpoint.load(tmp_path / "state")
    assert state is not None
    assert state.step == 2


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    a, b = Run(tmp_path / "a"), Run(tmp_path / "b", replace(RECIPE, loop=replace(RECIPE.loop, seed=4)))
    a.go(), b.go()
    assert a.steps[0].loss != b.steps[0].loss


def test_the_best_weights_are_those_of_the_best_evaluation(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.go()
    best = max(run.evaluations, key=lambda line: line.tokens_per_cycle)
    assert run.trainer.best is not None
    assert run.trainer.best.tokens_per_cycle == best.tokens_per_cycle
    kept = checkpoint.load_weights(tmp_path / "best")
    assert kept is not None
    assert kept.step == run.trainer.best.step


def test_it_stops_where_nothing_gets_better(tmp_path: Path) -> None:
    frozen = replace(RECIPE, loop=replace(RECIPE.loop, steps=40, learning_rate=1e-12, evaluate_every=1, patience=2))
    run = Run(tmp_path, frozen)
    assert run.go().stopped == "patience"
    assert len(run.evaluations) == 3
    # A later call sees that as well: it does not go on for another evaluation.
    again = Run(tmp_path, frozen)
    assert again.go().stopped == "patience"
    assert not again.evaluations


def test_rows_beyond_the_limit_are_computed_each_time_and_are_the_same(tmp_path: Path) -> None:
    one = subject(count=4, tokens=20)
    shards = [one.conversations[:2], one.conversations[2:]]
    half = RowStore(one.target, shards, tmp_path / "half", 2 * sum(map(len, shards[0])) * 2 * 48 * 3, one.lanes)
    seen: list[tuple[int, int]] = []
    half.prepare(lambda done, total: seen.append((done, total)))
    assert half.kept == 1
    assert seen == [(1, 2)]
    none = RowStore(one.target, shards, tmp_path / "none", 0, one.lanes)
    none.prepare()
    assert none.kept == 0
    assert not (tmp_path / "none").exists()
    places = [(1, 1), (0, 0), (1, 0)]
    for a, b in zip(half.rows(places), none.rows(places), strict=True):
        assert mx.allclose(a.taps.astype(mx.float32), b.taps.astype(mx.float32), rtol=2e-2, atol=2e-2)
        assert mx.allclose(a.logits, b.logits, atol=1e-3)


def test_every_conversation_comes_once_an_epoch_in_an_order_of_its_own() -> None:
    seen = [conversations_of(step, 4, 10, seed=1) for step in range(10)]
    flat = [i for batch in seen for i in batch]
    epochs = [flat[i : i + 10] for i in range(0, 40, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert micro_batches([5, 1, 4, 2, 3], 2) == [[1, 3], [4, 2], [0]]


def test_a_long_conversation_is_cut_around_what_the_target_wrote() -> None:
    from dflash2_mlx.train.data.tokens import Conversation

    conversation = Conversation(np.arange(100, dtype=np.int32), np.arange(100) >= 80)
    rows = Rows(mx.arange(100)[:, None], mx.arange(100)[:, None], mx.arange(100)[:, None])
    for seed in range(20):
        cut, part = stretch(conversation, rows, 30, np.random.default_rng(seed))
        assert len(cut) == 30
        assert cut.mask.any()
        assert cut.tokens.tolist() == part.taps[:, 0].tolist() == part.ids[:, 0].tolist()
    assert stretch(conversation, rows, 100, np.random.default_rng(0))[0] is conversation


@pytest.mark.parametrize("selector", [True, False])
def test_replaying_counts_what_greedy_decoding_counts(selector: bool) -> None:
    from dflash2_mlx.drafter.propose import Drafter
    from tests.train.training import drafter_model

    one = subject(count=4, tokens=40, **({} if selector else {"selector_rank": 0, "selector_top_k": 0}))
    line = replay(one.drafter, one.target, record(one.target, held_out(one), one.lanes), 7, one.lanes)
    twin = drafter_model(one.config, one.raw)
    drafter = Drafter(twin)
    accepted = cycles = 0
    for text in held_out(one):
        taken = decode_all(one, drafter, text)
        accepted += taken[0]
        cycles += taken[1]
    assert cycles > 40
    assert line.tokens_per_cycle == pytest.approx(1 + accepted / cycles)
    assert line.step == 7
    assert set(line.by_kind) == {"code", "chat"}


def decode_all(one: Subject, drafter: Any, text: HeldOut) -> tuple[int, int]:
    """(drafts accepted, cycles) of real greedy decoding."""
    run = decode(one.target, drafter, text.prompt_ids, max_tokens=len(text.answer), block_size=one.config.block_size)
    assert run.tokens == list(text.answer)
    return sum(run.accepted), len(run.accepted)


def test_it_learns_a_targets_text_by_heart(tmp_path: Path) -> None:
    """From random weights, with every part on, to what a perfect drafter commits, by real decoding."""
    from dflash2_mlx.train.run.evaluate import drafter_of

    layers = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    one = subject("llama", count=2, tokens=40, output_multiplier=1.0, final_logit_softcapping=None, **layers)
    recipe = Recipe(
        loss=Loss(anchors=40, frequent=30, sampled=20, distill=0.0, full_steps=20),
        loop=Loop(steps=280, batch=2, micro_batch=1, warmup=10, learning_rate=5e-3, evaluate_every=10**6, seed=1),
    )
    store = RowStore(one.target, [one.conversations], tmp_path / "rows", 10**9, one.lanes)
    store.prepare()
    texts = held_out(one)
    start = replay(one.drafter, one.target, record(one.target, texts, one.lanes), 0, one.lanes)
    order = np.arange(one.target.vocab_size)
    trainer = Trainer(recipe, one.target, store, order, one.drafter, tmp_path, lanes=one.lanes)
    assert trainer.run().step == recipe.loop.steps
    weights = dict(tree_flatten(one.drafter.parameters()))
    drafter = drafter_of(one.config, weights, mx.float32)
    accepted, cycles = (sum(counts) for counts in zip(*(decode_all(one, drafter, text) for text in texts), strict=True))
    # A perfect drafter commits whole blocks, but for the last of each text.
    drafts = sum(len(text.answer) - 1 for text in texts)
    perfect = drafts / sum(-(-(len(text.answer) - 1) // one.config.block_size) for text in texts)
    assert start.tokens_per_cycle < 0.5 * perfect
    assert (cycles + accepted) / cycles > 0.95 * perfect
