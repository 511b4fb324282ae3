"""Numbers as text, one way for all renderers."""

from __future__ import annotations

import math

from dflash2_mlx.report.blocks import Cell

DASH = "–"
# Beyond these the sums and differences of a plot could overflow.
_MOST = 1e300


def finite(value: float | None) -> float | None:
    """The value; None where it is none that can be drawn: missing, NaN, infinite."""
    return value if value is not None and abs(value) <= _MOST else None  # NaN compares false


def number(value: float | None, digits: int = 2) -> str:
    """Grouped by thousands with `digits` decimals, whole numbers without; a dash for what is no number.

    What those decimals cannot tell, such as 1e-7 or 3e12, is given with an exponent.
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return DASH
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else _exponent(value)
    if value != 0 and (abs(value) < 0.5 * 10**-digits or abs(value) >= 1e9):
        return f"{value:.{max(digits, 1)}e}"
    return f"{value:,.{digits}f}"


def cell(value: Cell, digits: int = 2) -> str:
    """A cell of a table: a text as it is, a number by `number`."""
    return value if isinstance(value, str) else number(value, digits)


def short(value: float) -> str:
    """A number with as few signs as tell it to four digits, for labels and tooltips."""
    if value == round(value) and abs(value) < 1e6:
        return f"{round(value):,}"
    return f"{value:,.4g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"


def tick(value: float, step: float) -> str:
    """A tick of an axis whose ticks are `step` apart: all of one axis get the same decimals."""
    if not 1e-4 <= step < 1e6 or abs(value) >= 1e7:
        return f"{value:.6g}"
    decimals = max(0, -math.floor(math.log10(step)))
    if round(step * 10**decimals, 6) % 1:  # steps of 2.5 need one more
        decimals += 1
    return f"{value + 0.0:,.{decimals}f}"  # + 0.0: no minus zero


def _exponent(value: int) -> str:
    try:
        return f"{value:.2e}"
    except OverflowError:  # more than a float holds
        return f"{'-' if value < 0 else ''}1e{len(str(abs(value))) - 1}"
