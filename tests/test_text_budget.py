"""Budgets and waiting grammars around reasoning, over a vocabulary of a dozen ids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import pytest

from dflash2_mlx.decode.constraint import Constraint
from dflash2_mlx.errors import RequestError
from dflash2_mlx.text.budget import AfterReasoning, All, ThinkingBudget
from tests.constrained import allowed, drafted, sampler, single

V = 12
EOS, OTHER_EOS, START, CLOSE, SECOND = 0, 1, 2, 3, 4
ANY = list(range(V))
NO_END = [token for token in ANY if token not in (EOS, OTHER_EOS)]


@dataclass
class Count:
    """An inner constraint: a token t must be followed by t + 1, from 5 on; after 8 only the end."""

    told: list[int] = field(default_factory=list)

    def free(self, rows: int) -> bool:
        return False

    def masks(self, tokens: Sequence[int]) -> mx.array:
        rows = [self._next([*self.told, *tokens[:i]]) for i in range(len(tokens) + 1)]
        return mx.array(rows)[:, None] == mx.arange(V)

    def _next(self, seen: Sequence[int]) -> int:
        return EOS if seen and seen[-1] in (EOS, 8) else 5 + len(seen) % 4

    def advance(self, tokens: Sequence[int]) -> None:
        self.told += tokens


class Free:
    """Allows everything, and says so; nobody may ask it for masks."""

    def free(self, rows: int) -> bool:
        return True

    def masks(self, tokens: Sequence[int]) -> mx.array:
        raise AssertionError("asked although free")

    def advance(self, tokens: Sequence[int]) -> None:
        pass


@dataclass
class Only:
    """Allows some tokens in every row."""

    tokens: Sequence[int]

    def free(self, rows: int) -> bool:
        return False

    def masks(self, tokens: Sequence[int]) -> mx.array:
        row = (mx.array(list(self.tokens))[:, None] == mx.arange(V)).any(axis=0)
        return mx.repeat(row[None], len(tokens) + 1, axis=0)

    def advance(self, tokens: Sequence[int]) -> None:
        pass


def budget(
    limit: int, *, inside: bool = True, end: Sequence[int] = (CLOSE,), start: Sequence[int] = (START,)
) -> ThinkingBudget:
    return ThinkingBudget(limit, end, inside, start, V)


def after(
    inner: Constraint, *, inside: bool = True, end: Sequence[int] = (CLOSE,), start: Sequence[int] = (START,)
) -> AfterReasoning:
    return AfterReasoning(inner, end, inside, start, vocab_size=V, eos_token_ids=[EOS, OTHER_EOS, 99])


def rows(constraint: Constraint, tokens: Sequence[int]) -> list[list[int]]:
    """The allowed ids of the R + 1 rows."""
    found = constraint.masks(tokens)
    assert found.shape == (len(tokens) + 1, V)
    assert found.dtype == mx.bool_
    return [allowed(row) for row in found]


def test_the_budget_leaves_so_many_tokens_free_and_then_asks_for_the_end() -> None:
    assert rows(budget(2), [7, 7, CLOSE, 7]) == [ANY, ANY, [CLOSE], ANY, ANY]


def test_a_budget_of_nothing_closes_at_once() -> None:
    assert rows(budget(0), [CLOSE, 7]) == [[CLOSE], ANY, ANY]
    assert rows(budget(0, inside=False), [START, CLOSE, 7]) == [ANY, [CLOSE], ANY, ANY]


def test_an_end_that_comes_by_itself_ends_the_budget() -> None:
    running = budget(3)
    running.advance([7, CLOSE])
    assert running.free(10_000)
    assert rows(running, [7] * 5) == [ANY] * 6


def test_no_budget_outside_reasoning() -> None:
    running = budget(1, inside=False)
    running.advance([7])
    assert running.free(10_000)
    assert rows(running, [START, 7, 7]) == [ANY] * 4


def test_without_markers_there_is_no_reasoning() -> None:
    assert budget(0, inside=False, start=()).free(10_000)
    assert budget(0, end=()).free(10_000)


def test_markers_of_several_tokens() -> None:
    end, start = (CLOSE, SECOND), (START, 9)
    assert rows(budget(1, end=end), [7, CLOSE, SECOND, 7]) == [ANY, [CLOSE], [SECOND], ANY, ANY]
    assert rows(budget(1, end=end, start=start, inside=False), [START, 9, 7]) == [ANY, ANY, ANY, [CLOSE]]
    # another text that begins as the marker does
    assert rows(budget(0, end=end, start=start, inside=False), [START, 7, 7]) == [ANY] * 4
    # an end that has begun by itself is completed, also where it begins anew in the middle
    assert rows(budget(2, end=end), [7, CLOSE, SECOND]) == [ANY, ANY, [SECOND], ANY]
    assert rows(budget(9, end=(CLOSE, CLOSE, SECOND)), [CLOSE, CLOSE, CLOSE, SECOND, 7])[-1] == ANY
    running = budget(5, end=(CLOSE, CLOSE, SECOND))
    running.advance([CLOSE, CLOSE, CLOSE, SECOND])
    assert running.free(10_000)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("start", [(START,), (START, 9)])
def test_free_says_exactly_that_no_row_can_bind(inside: bool, start: tuple[int, ...]) -> None:
    """Along the worst case: the answer begins with the marker and reasoning goes on."""
    worst = ([] if inside else list(start)) + [7] * 20
    for limit in range(4):
        for position in range(6):
            running = budget(limit, inside=inside, start=start)
            running.advance(worst[:position])
            for count in range(1, 8):
                found = rows(running, worst[position : position + count - 1])
                assert running.free(count) == all(row == ANY for row in found)


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(RequestError, match="thinking_budget is -1") as caught:
        budget(-1)
    assert caught.value.param == "thinking_budget"


def test_a_grammar_waits_for_the_end_of_the_reasoning() -> None:
    inner = Count()
    waiting = after(inner)
    assert rows(waiting, [7, CLOSE, 5, 6]) == [NO_END, NO_END, [5], [6], [7]]
    waiting.advance([7, 7])
    assert inner.told == []
    waiting.advance([7, CLOSE, 5])
    assert inner.told == [5]
    assert rows(waiting, [6]) == [[6], [7]]
    waiting.advance([START])  # text by now
    assert inner.told == [5, START]


def test_an_answer_without_reasoning_is_bound_at_once() -> None:
    inner = Count()
    waiting = after(inner, inside=False)
    assert rows(waiting, []) == [[START, 5]]
    assert rows(waiting, [5, 6, CLOSE]) == [[START, 5], [6], [7], [8]]
    assert rows(waiting, [START, 7, CLOSE, 5]) == [[START, 5], NO_END, NO_END, [5], [6]]
    waiting.advance([5])
    assert inner.told == [5]
    assert rows(waiting, [6]) == [[6], [7]]


def test_a_marker_that_has_begun_is_completed() -> None:
    inner = Count()
    waiting = after(inner, inside=False, start=(START, 9), end=(CLOSE, SECOND))
    assert rows(waiting, [START, 9, CLOSE, CLOSE, SECOND, 5]) == [[START, 5], [9], NO_END, NO_END, NO_END, [5], [6]]
    waiting.advance([START])
    assert rows(waiting, []) == [[9]]
    waiting.advance([9, CLOSE, SECOND])
    assert inner.told == []
    assert rows(waiting, []) == [[5]]


def test_every_end_token_is_forbidden_while_a_grammar_waits() -> None:
    (row,) = rows(after(Count()), [])
    assert not {EOS, OTHER_EOS} & set(row)
    assert after(Free()).free(1) is False


def test_a_free_inner_constraint_is_free_once_it_counts() -> None:
    waiting = after(Free())
    waiting.advance([CLOSE])
    assert waiting.free(5)


def test_without_markers_the_grammar_binds_at_once() -> None:
    assert rows(after(Count(), inside=False, start=()), [5]) == [[5], [6]]
    assert rows(after(Count(), end=()), [5]) == [[5], [6]]


def test_all_is_what_every_one_allows() -> None:
    assert rows(All([Only([1, 2, 3]), Only([2, 3, 4]), Only([3, 2])]), [2]) == [[2, 3]] * 2


def test_where_nothing_is_left_the_first_counts() -> None:
    assert rows(All([Only([1, 2]), Only([3]), Only([2])]), [1]) == [[2]] * 2


def test_all_asks_only_those_that_bind() -> None:
    both = All([Free(), Only([4])])
    assert not both.free(1)
    assert rows(both, [4]) == [[4]] * 2
    assert All([Free(), Free()]).free(3)


def test_all_tells_every_one() -> None:
    first, second = Count(), Count()
    All([first, second]).advance([5, 6])
    assert (first.told, second.told) == ([5, 6], [5, 6])


def composed(inside: bool, limit: int) -> tuple[All, Count]:
    inner = Count()
    return All([budget(limit, inside=inside), after(inner, inside=inside)]), inner


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_budget_and_grammar_together_alone_and_along_drafts(seed: int, inside: bool) -> None:
    limit = seed % 4
    constraint, inner = composed(inside, limit)
    answer = single(constraint, sampler(seed), [EOS])
    thought = CLOSE in answer and (inside or answer[0] == START)
    body = answer[answer.index(CLOSE) + 1 :] if thought else answer
    assert body == [5, 6, 7, 8, EOS]
    assert inner.told == body
    reasoning = answer[: len(answer) - len(body)]
    assert len(reasoning) <= limit + (1 if inside else 2)
    rng = random.Random(seed)

    def draft(position: int) -> list[int]:
        return [token if rng.random() < 0.8 else rng.randrange(V) for token in (answer[position:] + [0] * 6)[:5]]

    again, told = composed(inside, limit)
    assert drafted(again, sampler(seed), [EOS], draft) == answer
    assert told.told == body


@pytest.mark.parametrize("make", [lambda: budget(2), lambda: after(Count()), lambda: composed(False, 1)[0]])
def test_masks_leave_no_trace_and_are_those_of_single_steps(make: object) -> None:
    rng = random.Random(3)
    for _ in range(30):
        tokens = [rng.choice([START, CLOSE, 5, 6, 7, 8, EOS]) for _ in range(6)]
        running: Constraint = make()  # type: ignore[operator]
        found = rows(running, tokens)
        assert rows(running, tokens) == found
        for token, row in zip(tokens, found, strict=False):
            assert row == rows(running, [])[0]
            if token not in row:
                break
            running.advance([token])
