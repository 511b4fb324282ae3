"""The plots of the page Live as data: ECharts' options for the lines, HTML for the bars. Pure functions.

Colours of text and lines come from the style sheet, so that light and dark need no new data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from dflash2_app.wording import percent, size
from dflash2_server.management import LiveFigures, PairFigures

# What the axis spans, and beyond which distance two samples are not joined: nothing was sampled in between.
SPAN_SECONDS = 300
GAP_SECONDS = 3.5
# Readable on light and on dark ground.
GENERATION, PROMPT, CYCLES = "#1f8a70", "#c2702e", "#7a5fc0"

Value = Callable[[LiveFigures], float]


def speed_options(history: Sequence[LiveFigures]) -> dict[str, Any]:
    """Tokens per second: of answers on the left axis, of prompts on the right one, which is of another size."""
    options = _options(history)
    options["yAxis"] = [_axis(), _axis(position="right", lines=False)]
    options["series"] = [
        _line("answers (left)", GENERATION, points(history, lambda sample: sample.generation_tps)),
        _line("prompts (right)", PROMPT, points(history, lambda sample: sample.prompt_tps), axis=1),
    ]
    return options


def cycle_options(history: Sequence[LiveFigures]) -> dict[str, Any]:
    options = _options(history)
    options["legend"] = {"show": False}
    options["grid"] |= {"top": 12, "right": 24}
    options["yAxis"] = [_axis(least=1)]
    options["series"] = [_line("tokens per cycle", CYCLES, points(history, lambda sample: sample.tokens_per_cycle))]
    return options


def points(history: Sequence[LiveFigures], value: Value) -> list[list[float | None]]:
    """[milliseconds since the epoch, value], with an empty value where nothing was sampled for a while."""
    found: list[list[float | None]] = []
    before: LiveFigures | None = None
    for sample in history:
        if before is not None and sample.time - before.time > GAP_SECONDS:
            found.append([round((before.time + 1) * 1000), None])
        found.append([round(sample.time * 1000), round(value(sample), 2)])
        before = sample
    return found


def speed_words(history: Sequence[LiveFigures]) -> str:
    """The latest and the highest, for those who do not see the plot."""
    if not history:
        return "Tokens per second: no samples yet"
    latest, most = history[-1], max(sample.generation_tps for sample in history)
    return (
        f"Tokens per second of the last five minutes. Now: answers {latest.generation_tps:.1f}, "
        f"prompts {latest.prompt_tps:.0f}. Highest of answers: {most:.1f}"
    )


def cycle_words(history: Sequence[LiveFigures]) -> str:
    if not history:
        return "Tokens per cycle: no samples yet"
    return f"Tokens per cycle of the last five minutes. Now: {history[-1].tokens_per_cycle:.2f}"


def memory_parts(sample: LiveFigures) -> list[tuple[str, str, int]]:
    """Name, class and bytes of each part of the memory that is held."""
    return [
        ("weights", "part-weights", sample.weights_bytes),
        ("prefix cache", "part-cache", sample.prefix_cache_bytes),
        ("requests", "part-requests", sample.request_bytes),
        ("free buffers", "part-free", sample.free_cache_bytes),
    ]


def memory_html(sample: LiveFigures) -> str:
    """A stacked bar, its scale the limit or what is held, and a line at the limit."""
    parts = memory_parts(sample)
    held = sum(count for _, _, count in parts)
    scale = max(sample.memory_limit, held, 1)
    said = ", ".join(f"{name} {size(count)}" for name, _, count in parts)
    label = f"Memory: {said}. Limit: {size(sample.memory_limit)}"
    limit = 100 * sample.memory_limit / scale
    return (
        f'<div class="stacked" role="img" aria-label="{escape(label)}">{_stack(parts, scale)}'
        f'<span class="limit" style="left:{limit:.2f}%"></span></div>'
        f"{_legend([(name, css, size(count)) for name, css, count in parts])}"
        f'<p class="soft small">{size(held)} of {size(sample.memory_limit)} held</p>'
    )


def acceptance_html(figures: PairFigures) -> str:
    """A bar for each drafted position: in which share of the cycles its draft was accepted."""
    shares = figures.acceptance_by_position
    if not shares:
        return '<p class="soft small">No drafts were verified yet.</p>'
    said = ", ".join(f"{place}: {percent(share)}" for place, share in enumerate(shares, 1))
    bars = "".join(
        f'<div class="column"><span>{100 * share:.0f}</span>'
        f'<div class="column-room"><div style="height:{100 * min(1.0, max(0.0, share)):.1f}%"></div></div>'
        f"<span>{place}</span></div>"
        for place, share in enumerate(shares, 1)
    )
    return f'<div class="columns" role="img" aria-label="Accepted drafts by position: {said}">{bars}</div>'


def cycle_time_html(figures: PairFigures) -> str:
    """Where a cycle's time goes, where cycles were timed."""
    timed = (figures.draft_seconds, figures.verify_seconds, figures.commit_seconds)
    names = (("draft", "part-requests"), ("verify", "part-weights"), ("commit", "part-cache"))
    parts = [(name, css, value) for (name, css), value in zip(names, timed, strict=True) if value is not None]
    total = sum(value for _, _, value in parts)
    if not total:
        return '<p class="soft small">No cycle was timed by part yet.</p>'
    shares = [(name, css, percent(value / total)) for name, css, value in parts]
    said = ", ".join(f"{name} {share}" for name, _, share in shares)
    return (
        f'<div class="stacked" role="img" aria-label="Time of a cycle: {said}">{_stack(parts, total)}</div>'
        f"{_legend(shares)}"
    )


def _stack(parts: Sequence[tuple[str, str, float]], scale: float) -> str:
    return "".join(f'<div class="{css}" style="width:{100 * value / scale:.2f}%"></div>' for _, css, value in parts)


def _legend(entries: Sequence[tuple[str, str, str]]) -> str:
    items = "".join(
        f'<li><i class="{css}"></i>{escape(name)} <strong>{escape(value)}</strong></li>' for name, css, value in entries
    )
    return f'<ul class="legend">{items}</ul>'


def _options(history: Sequence[LiveFigures]) -> dict[str, Any]:
    end = history[-1].time if history else 0.0
    return {
        "animation": False,
        "textStyle": {"fontFamily": "system-ui, sans-serif"},
        "grid": {"left": 56, "right": 64, "top": 34, "bottom": 28},
        "legend": {"top": 0, "left": 48, "icon": "roundRect", "itemHeight": 4, "itemGap": 24},
        "tooltip": {"trigger": "axis"},
        "xAxis": {
            "type": "time",
            "min": round((end - SPAN_SECONDS) * 1000),
            "max": round(end * 1000),
            "splitNumber": 4,
            "axisLabel": {"hideOverlap": True, "formatter": "{HH}:{mm}:{ss}"},
        },
    }


def _axis(*, position: str = "left", lines: bool = True, least: float = 0) -> dict[str, Any]:
    return {
        "type": "value",
        "min": least,
        "position": position,
        "splitNumber": 4,
        "splitLine": {"show": lines, "lineStyle": {"color": "#8884"}},
    }


def _line(name: str, color: str, data: list[list[float | None]], *, axis: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "type": "line",
        "yAxisIndex": axis,
        "showSymbol": False,
        "color": color,
        "lineStyle": {"width": 2},
        "data": data,
    }
