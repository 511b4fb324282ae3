"""A result as a report: what was measured, the figures as tables and plots, and what to know of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from ..report.blocks import Block, Plot, Report, Series, Text
from .cells import By, Cell, cells, groups
from .model import Result
from .notes import notes
from .tables import by_group, endings, summary, throughput, widths

_WORDS = {"kind": "kind of content", "depth": "context depth"}


def report(result: Result) -> Report:
    """For a terminal, a page or Markdown; tables without rows and plots without points are left out."""
    overall = cells(result, "all")
    blocks: list[Block] = [Text(text=_measured(result))]
    if not overall:
        blocks.append(Text(text="There is no sample."))
    else:
        blocks.append(summary(result, overall))
        for by in ("kind", "depth"):
            if len(groups(result, by)) > 1:
                blocks += _section(result, by)
        blocks += [plot for plot in [_acceptance(result, overall)] if plot.series]
        blocks += [table for table in (throughput(result), widths(result), endings(result)) if table.rows]
    blocks += [Text(text=note, kind="note") for note in notes(result)]
    return Report(title="Benchmark: plain and speculative decoding", facts=facts(result), blocks=blocks)


def facts(result: Result) -> Mapping[str, str]:
    """The result's own, and how it was measured."""
    plan = result.plan
    return {
        **result.facts,
        "measured": datetime.fromtimestamp(result.started).astimezone().isoformat(timespec="seconds"),
        "seed": str(plan.seed),
        "cool-down": f"{plan.cool_down:g} s",
        "in flight": str(plan.concurrency),
    }


def _measured(result: Result) -> str:
    plan = result.plan
    prompts = _counted(len({prompt.id for prompt in plan.prompts}), "prompt")
    kinds, arms, rounds = groups(result, "kind"), _counted(len(plan.arms), "arm"), _counted(plan.rounds, "round")
    depths = [int(depth) for depth in groups(result, "depth")]
    at = f", at depths of {', '.join(map(str, depths))} tokens" if depths != [0] else ""
    order = "one after another in changing order" if plan.concurrency == 1 else "in passes of changing order"
    caches = ", each from empty caches" if any("target" in key for key in result.facts) else ""
    return (
        f"{prompts} ({', '.join(kinds)}){at}, {rounds}, answers of up to {plan.max_tokens} tokens that end where the "
        f"model ends them; {arms}, {order}{caches}. Speeds are tokens per second after the first token."
    )


def _section(result: Result, by: By) -> Iterator[Block]:
    found = cells(result, by)
    yield Text(text=f"By {_WORDS[by]}", kind="heading")
    yield by_group(result, by, found)
    if by == "kind":
        yield Plot(
            title="Speed by kind of content",
            x_label="kind",
            y_label="tokens per second",
            series=_series(result, by, found, "speed"),
            kind="bars",
            y_from=0.0,
            note="Medians; the marks are quartiles.",
        )
    ratios = _series(result, by, found, "ratio")
    if ratios:
        yield Plot(
            title=f"Ratio to the baseline by {_WORDS[by]}",
            x_label=_WORDS[by] + (", tokens" if by == "depth" else ""),
            y_label="times the baseline's speed",
            series=ratios,
            kind="lines" if by == "depth" else "bars",
            baseline=1.0,
            y_from=0.0 if by == "kind" else None,
            note="Medians of pairs; the marks are 99 % intervals, absent where the pairs are too few.",
        )


def _series(result: Result, by: By, found: Sequence[Cell], what: str) -> list[Series]:
    """A series for each arm that has the figure."""
    out = []
    for index, arm in enumerate(result.plan.arms):
        of_arm = {cell.group: cell for cell in found if cell.arm == arm.name}
        here = [of_arm[group] for group in groups(result, by) if group in of_arm]
        if what == "ratio":
            here = [cell for cell in here if cell.ratio is not None]
        if here:
            out.append(_one_series(arm.name, index, by, here, what))
    return out


def _one_series(name: str, colour: int, by: By, here: Sequence[Cell], what: str) -> Series:
    x: list[float | str] = [float(cell.group) if by == "depth" else cell.group for cell in here]
    if what == "speed":
        return Series(
            name=name,
            colour=colour,
            x=x,
            y=[cell.speed for cell in here],
            low=[cell.speed_low for cell in here],
            high=[cell.speed_high for cell in here],
        )
    return Series(
        name=name,
        colour=colour,
        x=x,
        y=[cell.ratio for cell in here],
        low=[cell.interval[0] if cell.interval else None for cell in here],
        high=[cell.interval[1] if cell.interval else None for cell in here],
    )


def _acceptance(result: Result, overall: Sequence[Cell]) -> Plot:
    colours = {arm.name: index for index, arm in enumerate(result.plan.arms)}
    series = [
        Series(
            name=cell.arm,
            colour=colours[cell.arm],
            x=[float(position) for position in range(1, len(cell.acceptance) + 1)],
            y=list(cell.acceptance),
        )
        for cell in overall
        if cell.acceptance
    ]
    return Plot(
        title="Acceptance by position",
        x_label="position of the draft",
        y_label="share of cycles in which it stood",
        series=series,
        y_from=0.0,
    )


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
