"""Which block size runs, and why, as HTML: the choice in words, bars by block size, and a table. Pure functions.

Block size 1 is plain decoding. Figures are those of one loaded pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dflash2_app.wording import count
from dflash2_mlx.decode.width_figures import WidthFigures
from dflash2_server.management import ModelView

# A cycle is told in milliseconds: the shortest take less than one, the longest some hundred.
_MS = 1000.0


def choice_words(figures: WidthFigures, block_size: int | None, verify_mode: str) -> str:
    """How the block size is chosen. `block_size` None is automatic."""
    most = block_size or figures.block_size
    if verify_mode == "off":
        return "Verify mode off: plain decoding."
    if verify_mode == "adaptive":
        return f"Adaptive: chosen cycle by cycle, from plain decoding up to {most}. Now {size_words(figures.width)}."
    if block_size is None:
        return f"Automatic: the best block of 2 to {most}, chosen for each request. Now {size_words(figures.width)}."
    return f"Fixed at {size_words(block_size)} by the settings."


def chosen_width(figures: WidthFigures, block_size: int | None, verify_mode: str) -> int:
    """The block size in force now."""
    if verify_mode == "off":
        return 1
    return figures.width if verify_mode == "adaptive" or block_size is None else block_size


def in_force_words(view: ModelView) -> str:
    """The block size of a loaded pair: 5; automatic, now 5; up to 8, now 5; a dash where nothing is drafted."""
    running, size = view.running, view.settings.dflash_block_size
    if running is None or running.state != "active" or running.verify_mode == "off":
        return "–"
    if running.widths is None or (size is not None and running.verify_mode != "adaptive"):
        return str(running.block_size)
    most = "automatic" if size is None else f"up to {size}"
    return f"{most}, now {running.widths.width}"


def size_words(width: int) -> str:
    return "1 (plain decoding)" if width == 1 else str(width)


def costs_here(figures: WidthFigures) -> tuple[float | None, ...]:
    """Seconds of a cycle by width at the present depth; where that was not measured, at the nearest one before it."""
    measured = sorted(figures.costs)
    if not measured:
        return ()
    here = [depth for depth in measured if depth <= figures.depth]
    return tuple(figures.costs[here[-1] if here else measured[0]])


def rates_html(figures: WidthFigures, *, chosen: int) -> str:
    """A bar for each block size: expected tokens per second; that of the chosen one is marked, in words too."""
    known = [rate for rate in figures.rates if rate is not None]
    if not known:
        return '<p class="soft small">Nothing is measured yet: the first requests do, or dflash2-mlx tune.</p>'
    most = max(*known, 1e-9)
    said = ", ".join(
        f"{place}: {'not known' if rate is None else f'{rate:.1f}'}{' (in use)' if place == chosen else ''}"
        for place, rate in enumerate(figures.rates, 1)
    )
    bars = "".join(_bar(place, rate, most, place == chosen) for place, rate in enumerate(figures.rates, 1))
    label = f"Expected tokens per second by block size: {said}"
    return f'<div class="columns width-columns" role="img" aria-label="{escape(label)}">{bars}</div>'


def table_html(figures: WidthFigures, *, chosen: int) -> str:
    """Cost of a cycle and cycles so far, a column for each block size."""
    widest = max(len(figures.rates), len(figures.cycles_by_width), figures.block_size)
    rows = {
        "Cycle, ms": [_milliseconds(cost) for cost in _padded(costs_here(figures), widest)],
        "Cycles": [
            count(number) for number in figures.cycles_by_width + (0,) * (widest - len(figures.cycles_by_width))
        ],
    }
    head = "".join(
        f'<th scope="col"{_mark(place, chosen)}>{place}{" plain" if place == 1 else ""}</th>'
        for place in range(1, widest + 1)
    )
    body = "".join(
        f'<tr><th scope="row">{name}</th>'
        + "".join(f"<td{_mark(place, chosen)}>{cell}</td>" for place, cell in enumerate(cells, 1))
        + "</tr>"
        for name, cells in rows.items()
    )
    return (
        '<table class="figures by-width"><thead><tr><th scope="col">Block size</th>'
        f"{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def facts_html(figures: WidthFigures) -> str:
    """Why, at which depth, how often it changed, and where the costs are from."""
    rows = {
        "Reason": figures.reason or "–",
        "Depth": f"{count(figures.depth)} tokens of context",
        "Switches": f"{count(figures.switches)}, {_times(figures.probes, 'cycle')} at another block size to see it",
        "Costs from": figures.source,
    }
    cells = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in rows.items())
    return f'<dl class="facts small">{cells}</dl>'


def _bar(place: int, rate: float | None, most: float, chosen: bool) -> str:
    shown = "–" if rate is None else f"{rate:.0f}" if rate >= 99.95 else f"{rate:.1f}"
    height = 100 * max(0.0, rate or 0.0) / most
    return (
        f'<div class="column{" chosen" if chosen else ""}"><span>{shown}</span>'
        f'<div class="column-room"><div style="height:{height:.1f}%"></div></div><span>{place}</span></div>'
    )


def _mark(place: int, chosen: int) -> str:
    return ' class="chosen" aria-current="true"' if place == chosen else ""


def _padded(values: Sequence[float | None], length: int) -> list[float | None]:
    return [*values, *[None] * (length - len(values))]


def _milliseconds(cost: float | None) -> str:
    return "–" if cost is None else f"{_MS * cost:.1f}"


def _times(number: int, what: str) -> str:
    return f"{count(number)} {what}{'' if number == 1 else 's'}"
