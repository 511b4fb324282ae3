"""Arms and prompts from what a user asks for, every value checked before a model is touched."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from ..errors import RequestError
from ..prompts import Prompt
from .model import Arm, BenchPrompt, Plan

LOCAL = "pair"
MODES = ("dflash", "adaptive", "off")
PLAIN = "plain"
CONTROL = "plain again"
_MOST = 1 << 31


def make_plan(
    prompts: Sequence[Prompt],
    *,
    block_sizes: Sequence[int | None] = (None,),
    verify_modes: Sequence[str] = ("dflash",),
    temperatures: Sequence[float] = (0.0,),
    depths: Sequence[int] = (0,),
    pairs: Sequence[str] = (LOCAL,),
    endpoints: Sequence[str] = (),
    control: bool = False,
    max_tokens: int = 128,
    rounds: int = 3,
    cool_down: float = 0.0,
    concurrency: int = 1,
    seed: int = 0,
) -> Plan:
    """A plan of plain decoding, then of every mode and block size on every one of `pairs`, then of the `endpoints`.

    Plain decoding runs on the first pair; all this at each temperature. Block size None is automatic, 1 and mode "off"
    are plain decoding, which is there once. `control` adds plain decoding a second time: what comes out when a thing
    is compared with itself. Raises RequestError that names the parameter, its value and the remedy.
    """
    _check_prompts(prompts)
    _each("block_sizes", [size for size in block_sizes if size is not None], 1, _MOST)
    _each("depths", depths, 0, _MOST)
    _some("block_sizes", block_sizes)
    _some("depths", depths)
    for mode in _some("verify_modes", verify_modes):
        if mode not in MODES:
            raise RequestError(f"verify mode {mode!r}: use {', '.join(MODES)}", param="verify_modes")
    for temperature in _some("temperatures", temperatures):
        _number("temperatures", temperature, 0.0)
    _number("cool_down", cool_down, 0.0)
    _whole("concurrency", concurrency, 1, 1024)
    _whole("rounds", rounds, 1, _MOST)
    _whole("seed", seed, 0, (1 << 64) - 1)
    if _whole("max_tokens", max_tokens, 2, _MOST) and not (pairs or endpoints):
        raise RequestError("there is nothing to measure: give a model or an endpoint", param="model")
    several = len(set(temperatures)) > 1
    arms = []
    for temperature in dict.fromkeys(float(value) for value in temperatures):
        suffix = f", T={temperature:g}" if several else ""
        arms += _local_arms(pairs, block_sizes, verify_modes, temperature, suffix, control) if pairs else []
        arms += [_endpoint_arm(name, temperature, suffix) for name in endpoints]
        if control and not pairs:
            arms.append(_endpoint_arm(endpoints[0], temperature, f" again{suffix}"))
    return Plan(
        arms=tuple(arms),
        prompts=tuple(_at_depths(prompts, tuple(dict.fromkeys(depths)))),
        max_tokens=max_tokens,
        rounds=rounds,
        cool_down=float(cool_down),
        concurrency=concurrency,
        seed=seed,
    )


def _local_arms(
    pairs: Sequence[str],
    block_sizes: Sequence[int | None],
    verify_modes: Sequence[str],
    temperature: float,
    suffix: str,
    control: bool,
) -> list[Arm]:
    arms = {}
    for name in (PLAIN, CONTROL) if control else (PLAIN,):
        arms[name] = Arm(name=name + suffix, backend=pairs[0], block_size=1, verify_mode="off", temperature=temperature)
    for pair in pairs:
        for mode in verify_modes:
            for size in block_sizes:
                if mode == "off" or size == 1:
                    continue
                name = _arm_name(mode, size, pair if len(pairs) > 1 else "")
                arms[name] = Arm(
                    name=name + suffix, backend=pair, block_size=size, verify_mode=mode, temperature=temperature
                )
    return list(arms.values())


def _arm_name(mode: str, size: int | None, pair: str) -> str:
    width = f"block {size}" if size is not None else "automatic block" if mode == "dflash" else ""
    words = width if mode == "dflash" else f"{mode} {f'up to {size}' if size is not None else ''}".strip()
    return f"{words} · {pair}" if pair else words


def _endpoint_arm(name: str, temperature: float, suffix: str) -> Arm:
    return Arm(name=name + suffix, backend=name, verify_mode="server", temperature=temperature)


def _at_depths(prompts: Sequence[Prompt], depths: Sequence[int]) -> Iterable[BenchPrompt]:
    """Kinds and depths mixed, so that a run that is ended early has some of each."""
    by_kind: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    for row in zip_longest(*by_kind.values()):
        for prompt in row:
            if prompt is not None:
                for depth in depths:
                    yield BenchPrompt(id=prompt.id, kind=prompt.kind, messages=prompt.messages, depth=depth)


def _check_prompts(prompts: Sequence[Prompt]) -> None:
    if not prompts:
        raise RequestError("there are no prompts: choose kinds, a set, or a file with some", param="prompts")
    twice = [name for name, count in Counter(prompt.id for prompt in prompts).items() if count > 1]
    if twice:
        raise RequestError(f"{twice[0]!r} is the id of several prompts: give each its own", param="prompts")


def _some(name: str, values: Sequence[Any]) -> Sequence[Any]:
    if not values:
        raise RequestError(f"{name} is empty: give at least one", param=name)
    return values


def _each(name: str, values: Sequence[Any], low: int, high: int) -> None:
    for value in values:
        _whole(name, value, low, high)


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} is {value!r}: it must be a whole number from {low} to {high}", param=name)
    return value


def _number(name: str, value: Any, low: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < math.inf:
        raise RequestError(f"{name} is {value!r}: it must be a number from {low:g} on", param=name)
    return float(value)
