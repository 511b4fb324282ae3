"""Tunes a pair to this machine: surveys what cycles cost, gives it to the pair's controller, and keeps it on disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from dflash2_mlx import machine
from dflash2_mlx.bench.survey import DepthCosts, Report, learn_acceptance, survey_depth
from dflash2_mlx.decode.acceptance import committed
from dflash2_mlx.errors import PairError
from dflash2_mlx.pairs import Pair
from dflash2_mlx.prompts.own import own
from dflash2_mlx.report import blocks
from dflash2_mlx.text.template import ChatTemplate

DEPTHS = (256, 2048, 8192)
SECONDS = 60.0
# Of the time, for acceptance: the rest is for costs. Four kinds of content, so that none decides alone.
_FOR_ACCEPTANCE = 0.3
_KINDS = ("code", "chat", "prose", "structured")
_ANSWER = 64


def tune(pair: Pair, *, depths: Sequence[int] = DEPTHS, seconds: float = SECONDS, report: Report) -> list[DepthCosts]:
    """Measure for about so many seconds; depths for which the time does not last are left out, the first never.

    The pair's controller has the result at once, and its file, where it has one. Raises PairError without a drafter.
    """
    if pair.widths is None:
        raise PairError(f"{pair.model_name} runs without a drafter: there is no block size to tune (--draft)")
    begin = time.monotonic()
    for done in learn_acceptance(pair, _prompts(pair), tokens=_ANSWER, until=begin + _FOR_ACCEPTANCE * seconds):
        report("acceptance", done / len(_KINDS))
    found: list[DepthCosts] = []
    for i, depth in enumerate(sorted(depths)):
        now = time.monotonic()
        left = begin + seconds - now
        if found and left < found[-1].prompt_seconds * depth / found[-1].depth:
            break
        until = now + max(left, 0.0) / (len(depths) - i)
        found.append(survey_depth(pair, depth, until=until, report=report))
    take_over(pair, found)
    return found


def take_over(pair: Pair, found: Sequence[DepthCosts]) -> None:
    """Give the controller what was surveyed, and keep it."""
    assert pair.widths is not None, "a pair with a drafter has one"
    now = datetime.now(UTC)
    today = now.strftime("%Y-%m-%d")
    with pair.widths.lock:
        for costs in found:
            for width, (middle, _, _) in costs.seconds.items():
                pair.widths.costs.set(width, costs.depth, middle)
        pair.widths.source = f"tune, {today}"
        pair.widths.pinned.clear()
    if pair.widths.store is not None:
        pair.widths.store.save(pair.widths, tuned=now.isoformat(timespec="seconds"))


def tune_report(pair: Pair, found: Sequence[DepthCosts], command: str) -> blocks.Report:
    """What was measured, what it promises, and which width is chosen; tables and plots."""
    assert pair.widths is not None, "a pair with a drafter has one"
    widths = list(range(1, pair.block_size + 1))
    tokens = committed(pair.widths.kinds["greedy"].rates())
    costs = [
        blocks.Series(
            name=f"{item.depth} tokens of context",
            x=widths,
            y=[1000 * item.seconds[w][0] for w in widths],
            low=[1000 * item.seconds[w][1] for w in widths],
            high=[1000 * item.seconds[w][2] for w in widths],
        )
        for item in found
    ]
    rates = [
        blocks.Series(
            name=s.name,
            x=widths,
            y=[
                1000 * t / y if y and w not in pair.widths.avoided else None
                for w, t, y in zip(widths, tokens, s.y, strict=True)
            ],
        )
        for s in costs
    ]
    rows = [
        [w, *(1000 * item.seconds[w][0] for item in found), tokens[w - 1], *(s.y[w - 1] for s in rates)] for w in widths
    ]
    columns = [
        "block size",
        *(f"ms at {item.depth}" for item in found),
        "tokens per cycle expected",
        *(f"tokens/s at {item.depth}" for item in found),
    ]
    return blocks.Report(
        title=f"What a cycle costs: {pair.model_name} with {pair.drafter_name}",
        facts=_facts(pair, found, command),
        blocks=[
            *(blocks.Text(text=_choice(item.depth, rates[i].y)) for i, item in enumerate(found)),
            blocks.Table(title="By block size; 1 is a step of plain decoding", columns=columns, rows=rows),
            blocks.Plot(title="Cost", x_label="block size", y_label="ms a cycle", series=costs, y_from=0.0),
            blocks.Plot(title="Speed", x_label="block size", y_label="expected tokens/s", series=rates, y_from=0.0),
        ],
    )


def _choice(depth: int, rates: Sequence[float | None]) -> str:
    known = {width: rate for width, rate in enumerate(rates, 1) if rate}
    best = max(known, key=lambda width: known[width])
    name = "plain decoding" if best == 1 else f"block size {best}"
    return f"After {depth} tokens: {name}, {known[best] / known[1]:.2f} times the speed of plain decoding expected."


def _facts(pair: Pair, found: Sequence[DepthCosts], command: str) -> dict[str, str]:
    device = machine.device()
    where = "" if pair.widths is None or pair.widths.store is None else str(pair.widths.store.path)
    return {
        "pair": f"{pair.model_name} with {pair.drafter_name}, drafter {pair.new_stats(2, 'dflash').draft_quant}",
        "machine": f"{device.get('device_name', 'unknown')}, {device['backend']}, {machine.blas()}, {machine.system()}",
        "versions": ", ".join(f"{name} {version}" for name, version in machine.versions().items()),
        "samples": ", ".join(f"{item.samples} of each width at {item.depth}" for item in found),
        "acceptance": "greedy answers, as averaged so far",
        "kept": where or "not on disk",
        "command": command,
    }


def _prompts(pair: Pair) -> list[list[int]]:
    """One of each kind."""
    tokenizer = pair.tokenizer
    if tokenizer is None:
        return []
    prompts = own(_KINDS, 1)
    if not getattr(tokenizer, "has_chat_template", False):
        return [tokenizer.encode(prompt.messages[-1]["content"]) for prompt in prompts]
    template = ChatTemplate(tokenizer)
    return [template.encode(template.render([dict(m) for m in prompt.messages])) for prompt in prompts]
