"""Plots and heatmaps as SVG: text in the colour of its surroundings, lines in colours that light and dark both bear."""

from __future__ import annotations

from xml.sax.saxutils import escape

from dflash2_mlx.report import points
from dflash2_mlx.report.blocks import Heatmap, Plot
from dflash2_mlx.report.svg_axes import axes, baseline, lay_out, legend
from dflash2_mlx.report.svg_bars import bars
from dflash2_mlx.report.svg_heatmap import heatmap
from dflash2_mlx.report.svg_lines import lines
from dflash2_mlx.report.svg_parts import FONT, TITLE, clean, element, text, tooltip, wrapped

WIDTH, NARROW = 680.0, 350.0
_TITLE_LINE = 21.0
# A file of its own has no surroundings: it brings its ground with it.
_OWN_GROUND = (
    "svg{color:#1a2127;background:#fff}@media (prefers-color-scheme:dark){svg{color:#e6ebef;background:#1d2328}}"
)


def svg(block: Plot | Heatmap, *, width: float = WIDTH, titled: bool = True) -> str:
    """An <svg> element, to be put into a page or written to a file. `width` in px; a heatmap is as wide as it must be.

    `titled` False leaves the title to the page; it is still told to those who do not see the drawing.
    """
    return _svg(block, width=width, titled=titled, style="")


def standalone(block: Plot | Heatmap) -> str:
    """The drawing as a file of its own, with a ground by the reader's light or dark."""
    style = element("style", escape(_OWN_GROUND))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _svg(block, width=WIDTH, titled=True, style=style) + "\n"


def _svg(block: Plot | Heatmap, *, width: float, titled: bool, style: str) -> str:
    top = 4.0
    titles = wrapped(block.title, width - 8, TITLE) if titled else []
    head = [
        text(4, top + 14 + i * _TITLE_LINE, words, size=TITLE, font_weight="600", fill="currentColor")
        for i, words in enumerate(titles)
    ]
    top += len(titles) * _TITLE_LINE + (4 if titles else 0)
    if isinstance(block, Heatmap):
        body, wide, height = heatmap(block, top=top)
        width = max(wide, width if titled and titles else 0)
    else:
        body, height = _plot(block, width=width, top=top)
    size = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "width": f"{width:.0f}", "height": f"{height:.0f}"}
    return element(
        "svg",
        tooltip(block.title),
        style,
        *head,
        body,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_label=_described(block),
        font_family=FONT,
        **size,
    )


def _plot(plot: Plot, *, width: float, top: float) -> tuple[str, float]:
    named, top = legend(plot, width=width, top=top)
    if not points.values(plot):
        return named + text(width / 2, top + 30, "no data", text_anchor="middle", fill="currentColor"), top + 54
    area = lay_out(plot, width=width, top=top)
    drawing = bars(plot, area) if plot.kind == "bars" else lines(plot, area)
    return named + axes(plot, area) + drawing + baseline(plot, area), area.height


def _described(block: Plot | Heatmap) -> str:
    if isinstance(block, Heatmap):
        return clean(f"{block.title}: {len(block.rows)} rows by {len(block.columns)} columns")
    names = ", ".join(series.name for series in block.series if series.name)
    return clean(f"{block.title}: {block.y_label} by {block.x_label}" + (f" of {names}" if names else ""))
