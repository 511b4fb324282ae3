"""The controller against every fixed width in hindsight, on machines and texts in numbers."""

from __future__ import annotations

from functools import cache

import pytest

from dflash2_mlx.decode.width import WidthController
from tests.width.scenarios import COSTS, TEXTS, WIDEST, Cost, cliff, flat, linear, texts
from tests.width.simulate import Content, simulate

LEAST = 0.97
LONG = 12000


def tuned(cost: Cost, widest: int = WIDEST) -> WidthController:
    """As after `dflash2-mlx tune`."""
    controller = WidthController(widest)
    for depth in (0, 512, 4096, 16384):
        for width in range(1, widest + 1):
            controller.costs.set(width, depth, cost(width, max(depth, 200)))
    return controller


@pytest.mark.parametrize("start", ["tuned", "cold"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("machine", COSTS)
def test_it_is_close_to_the_best_fixed_width_and_to_plain(machine: str, text: str, start: str) -> None:
    cost = COSTS[machine]
    requests = texts(text, prompt=LONG if machine == "long context" else 200)
    for seed in (1, 2):
        controller = tuned(cost) if start == "tuned" else WidthController(WIDEST)
        outcome = simulate(cost, requests, controller, seed=seed)
        assert outcome.against_best >= LEAST, (outcome.best, outcome.widths)
        assert outcome.against_plain >= LEAST, outcome.widths


@cache
def fixed_widths() -> list[list[float]]:
    """Seconds of every fixed width in each scenario."""
    return [
        simulate(cost, texts(text, requests=2), WidthController(WIDEST)).fixed
        for cost in COSTS.values()
        for text in TEXTS
    ]


def test_the_scenarios_ask_for_different_widths() -> None:
    """Else the test above would pass with a constant."""
    assert {1, 2, 3, 4, 8} <= {seconds.index(min(seconds)) + 1 for seconds in fixed_widths()}


@pytest.mark.parametrize("width", range(1, WIDEST + 1))
def test_no_fixed_width_would_pass(width: int) -> None:
    assert min(min(seconds) / seconds[width - 1] for seconds in fixed_widths()) < LEAST


def test_a_controller_that_never_looks_back_at_drafts_loses_on_mixed_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of re-entry: prose first, then code, on a machine where prose decodes best plainly."""
    requests = [*texts("hopeless", requests=6), *texts("code", requests=12)]
    good = simulate(linear, requests, tuned(linear), seed=4)
    assert good.against_best >= LEAST
    monkeypatch.setattr("dflash2_mlx.decode.adaptive.AdaptiveWidth._probe", lambda *_: None)
    assert simulate(linear, requests, tuned(linear), seed=4).against_best < 0.95


@pytest.mark.parametrize("poor", [20, 60])
def test_after_much_text_that_is_hopeless_it_comes_back(poor: int) -> None:
    controller = tuned(linear)
    simulate(linear, texts("hopeless", requests=poor), controller, seed=1)
    assert simulate(linear, texts("code", requests=15), controller, seed=2).against_best >= 0.93


@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0, 4.0])
def test_a_verify_that_alone_gets_dearer_is_noticed(factor: float) -> None:
    def dear(width: int, depth: int) -> float:
        return flat(width, depth) * (1.0 if width == 1 else factor)

    controller = tuned(flat)
    simulate(flat, texts("chat", requests=5), controller, seed=1)
    outcome = simulate(dear, texts("chat", requests=20), controller, seed=2)
    assert outcome.against_plain >= 0.95
    assert outcome.against_best >= 0.95


@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0])
def test_a_verify_that_gets_cheaper_again_is_noticed(factor: float) -> None:
    def dear(width: int, depth: int) -> float:
        return flat(width, depth) * (1.0 if width == 1 else factor)

    controller = tuned(dear)
    simulate(dear, texts("chat", requests=5), controller, seed=1)
    assert simulate(flat, texts("chat", requests=20), controller, seed=2).against_best >= 0.93


def test_a_slow_first_cycle_of_each_width_does_no_harm() -> None:
    built: set[int] = set()

    class Building(WidthController):
        """The first cycle of each width takes a hundred times as long."""

        def cycle_done(self, kind: str, width: int, accepted: int, depth: int, seconds: float | None) -> None:
            if seconds is not None and width not in built:
                built.add(width)
                seconds *= 100
            super().cycle_done(kind, width, accepted, depth, seconds)

    outcome = simulate(cliff, texts("chat", requests=12), Building(WIDEST), seed=4)
    assert built
    assert outcome.against_best >= LEAST


def test_short_answers_from_cold() -> None:
    for cost in (flat, linear, cliff):
        short = [Content(texts("chat", requests=1)[0].stretches, tokens=30) for _ in range(200)]
        outcome = simulate(cost, short, WidthController(WIDEST), seed=5)
        assert outcome.against_best >= 0.95
        assert outcome.against_plain >= LEAST


def test_a_machine_that_heats_up_changes_nothing() -> None:
    """Everything gets twice as slow: the same width stays the best, and is kept."""
    passed = 0

    def heating(width: int, depth: int) -> float:
        nonlocal passed
        passed += 1
        return cliff(width, depth) * (1.0 + min(1.0, passed / 60_000))

    outcome = simulate(heating, texts("chat"), tuned(cliff), seed=5)
    assert outcome.widths[4] > 0.9 * sum(outcome.widths.values())


def test_noise_and_interruptions_do_not_lead_astray() -> None:
    """Cycles that now and then take ten times as long, beside a noise of 15 %."""
    outcome = simulate(flat, texts("chat"), tuned(flat), noise=0.15, seed=6)
    assert outcome.against_best >= 0.95


def test_sixteen_wide_and_cold() -> None:
    wide = [Content([[0.85 * 0.99**i for i in range(15)]]) for _ in range(24)]
    outcome = simulate(linear, wide, WidthController(16), seed=7)
    assert outcome.against_best >= LEAST, outcome.widths
    outcome = simulate(flat, wide, WidthController(16), seed=7)
    assert outcome.against_best >= LEAST, outcome.widths


def test_probes_are_few() -> None:
    controller = tuned(cliff)
    outcome = simulate(cliff, texts("code"), controller, seed=8)
    assert controller.figures().probes < 0.05 * sum(outcome.widths.values())
