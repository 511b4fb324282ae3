"""Acceptance by position: moving averages, priors, a request's offset, and what a width is expected to commit."""

from __future__ import annotations

import itertools
import random

import pytest

from dflash2_mlx.decode.acceptance import Offset, Profile, committed, survival

RATES = [0.8, 0.7, 0.6]


def accepted(rates: list[float], rng: random.Random) -> int:
    return next((i for i, rate in enumerate(rates) if rng.random() >= rate), len(rates))


def test_expected_tokens_by_enumeration() -> None:
    for width in range(1, 5):
        expected = 0.0
        for outcome in itertools.product((True, False), repeat=width - 1):
            chance = 1.0
            for stands, rate in zip(outcome, RATES, strict=False):
                chance *= rate if stands else 1 - rate
            expected += chance * (1 + len(list(itertools.takewhile(bool, outcome))))
        assert committed(RATES)[width - 1] == pytest.approx(expected)
    assert survival(RATES) == pytest.approx((0.8, 0.56, 0.336))


def test_a_profile_finds_the_rates() -> None:
    profile, rng = Profile(3), random.Random(0)
    for _ in range(3000):
        profile.observe(4, accepted(RATES, rng))
    assert profile.rates() == pytest.approx(RATES, abs=0.08)


def test_positions_that_a_block_did_not_have_are_left_alone() -> None:
    profile = Profile(3)
    before = profile.rates()[2]
    for _ in range(50):
        profile.observe(2, 1)
    assert profile.rates()[0] > 0.9
    assert profile.rates()[2] > before, "told by the position before, since nothing was seen of it"
    for _ in range(50):
        profile.observe(4, 1)
    assert profile.rates()[1] < 0.2
    assert 80 < profile.cycles < 100


def test_a_kind_follows_the_others_until_it_has_its_own() -> None:
    everything = Profile(3)
    kind = Profile(3, everything)
    for _ in range(200):
        everything.observe(4, 3)
    assert min(kind.rates()) > 0.9
    for _ in range(60):
        kind.observe(4, 0)
    assert kind.rates()[0] < 0.2
    assert everything.rates()[0] > 0.9


def test_a_kind_that_never_drafts_hears_of_the_others() -> None:
    everything = Profile(3)
    kind = Profile(3, everything)
    for _ in range(400):
        everything.observe(4, 0)
    assert kind.rates()[0] < 0.1
    for _ in range(3000):
        everything.observe(4, 3)
    assert kind.rates()[0] > 0.9


def test_it_forgets() -> None:
    profile = Profile(1)
    for _ in range(2000):
        profile.observe(2, 1)
    for _ in range(2000):
        profile.observe(2, 0)
    assert profile.rates()[0] < 0.02


@pytest.mark.parametrize("truth", [[0.3, 0.2, 0.15], [0.95, 0.93, 0.9]])
def test_a_few_cycles_tell_a_request_from_its_kind(truth: list[float]) -> None:
    before = after = 0.0
    for seed in range(20):
        offset, rng = Offset(), random.Random(seed)
        for _ in range(12):
            offset.observe(RATES, 4, accepted(truth, rng))
        before += abs(committed(RATES)[3] - committed(truth)[3]) / 20
        after += abs(committed(offset.applied(RATES))[3] - committed(truth)[3]) / 20
    assert after < 0.5 * before


def test_an_ordinary_request_stays_with_its_kind() -> None:
    offset, rng = Offset(), random.Random(1)
    seen = []
    for _ in range(400):
        offset.observe(RATES, 4, accepted(RATES, rng))
        seen.append(committed(offset.applied(RATES))[3])
    assert sum(seen) / len(seen) == pytest.approx(committed(RATES)[3], rel=0.1)


def test_what_a_request_did_fades_while_nothing_is_drafted() -> None:
    offset = Offset()
    for _ in range(20):
        offset.observe(RATES, 4, 0)
    low = offset.applied(RATES)[0]
    for _ in range(1000):
        offset.rest()
    assert low < 0.5
    assert offset.applied(RATES)[0] == pytest.approx(RATES[0], abs=0.02)


def test_rates_stay_rates_whatever_comes() -> None:
    offset = Offset()
    for width, count in [(4, 3)] * 500 + [(4, 0)] * 500:
        offset.observe([1.0, 0.0, 0.5], width, count)
        assert all(0.0 <= rate <= 1.0 for rate in offset.applied([1.0, 0.0, 0.5]))


def test_a_profile_is_kept_and_read() -> None:
    profile = Profile(3)
    for count in (0, 1, 2, 3, 3):
        profile.observe(4, count)
    twin = Profile(3)
    twin.unpack(profile.pack())
    assert twin.rates() == pytest.approx(profile.rates(), abs=1e-3)


@pytest.mark.parametrize(
    "tree",
    [
        {"tried": [1.0], "stood": [1.0]},
        {"tried": [1.0, 1.0, 1.0], "stood": [2.0, 0.0, 0.0]},
        {"tried": [1.0, 1.0, 1e9], "stood": [0.0, 0.0, 0.0]},
        {"tried": [1.0, 1.0, -1.0], "stood": [0.0, 0.0, -1.0]},
    ],
)
def test_what_is_no_profile_is_refused(tree: dict[str, list[float]]) -> None:
    profile = Profile(3)
    with pytest.raises(ValueError, match="acceptance"):
        profile.unpack(tree)
    assert profile.cycles == 0
