"""What a check of exactness found: plain data for a file, and one line for whoever looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

VERDICTS = ("equal", "rounding", "different")  # the better first


@dataclass(frozen=True)
class WidthExactness:
    """Blocks of one width against single rows."""

    width: int
    verdict: str  # of VERDICTS
    rows: int  # that were compared, the one after each rolled-back block among them
    gap: float | None  # the largest gap of a logit; None: a row is not finite
    share: float | None  # the largest gap of a row as a share of its largest logit; None: a row is not finite
    flips: int  # rows whose best logit is another token's
    margin: float | None  # the largest gap between two tokens that changed places; None without a flip
    rolled_back: bool  # the largest share is that of a row after a block of which a part was rolled back


@dataclass(frozen=True)
class ExactnessReport:
    """How a verify compares with single rows on this machine, by width in growing order."""

    dtype: str
    widths: tuple[WidthExactness, ...]

    @property
    def rows(self) -> int:
        """Rows that were compared."""
        return sum(width.rows for width in self.widths)

    @property
    def verdict(self) -> str:
        """The worst of all widths; "equal" where there are none."""
        return max((width.verdict for width in self.widths), key=VERDICTS.index, default="equal")

    @property
    def summary(self) -> str:
        """One line."""
        if not self.widths:
            return "no blocks to check"
        by_verdict = {v: [width for width in self.widths if width.verdict == v] for v in VERDICTS}
        parts = [_different(width) for width in by_verdict["different"]]
        if by_verdict["rounding"]:
            parts.append(_rounding(by_verdict["rounding"]))
        if by_verdict["equal"]:
            parts.append(f"verify equals single rows for {_blocks(by_verdict['equal'])} (bit for bit)")
        return "; ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as JSON has it."""
        widths = [asdict(width) for width in self.widths]
        return {
            "dtype": self.dtype,
            "rows": self.rows,
            "verdict": self.verdict,
            "summary": self.summary,
            "widths": widths,
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> ExactnessReport:
        """What `as_dict` gave. Raises ValueError or KeyError for what it cannot have given."""
        dtype, rows = tree["dtype"], tree["widths"]
        if not isinstance(dtype, str) or not isinstance(rows, list):
            raise ValueError(f"no report of exactness: {tree!r}")
        return cls(dtype, tuple(_width(row) for row in rows))


_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
    "float | None": (int, float, type(None)),
}


def _width(row: Any) -> WidthExactness:
    if not isinstance(row, Mapping):
        raise ValueError(f"no width of a report of exactness: {row!r}")
    values = {field.name: row[field.name] for field in fields(WidthExactness)}
    for field in fields(WidthExactness):
        value, kinds = values[field.name], _KINDS[str(field.type)]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"{field.name} is {value!r} in a report of exactness: it must be {field.type}")
    if values["verdict"] not in VERDICTS:
        raise ValueError(f"verdict is {values['verdict']!r} in a report of exactness: it is one of {VERDICTS}")
    return WidthExactness(**values)


def _different(width: WidthExactness) -> str:
    where = " in the row after a rollback" if width.rolled_back else ""
    if width.gap is None or width.share is None:
        return f"DIFFERENT at block {width.width}: logits are not finite{where}"
    return f"DIFFERENT at block {width.width}: a logit is off by {width.share:.0%} of the largest{where}"


def _rounding(widths: Sequence[WidthExactness]) -> str:
    gap = max(width.gap or 0.0 for width in widths)
    rows, flips = sum(width.rows for width in widths), sum(width.flips for width in widths)
    margin = max((width.margin for width in widths if width.margin is not None), default=None)
    flipped = f"{flips or 'no'} flip{'s' if flips > 1 else ''} of the best token in {rows} rows"
    at = "" if margin is None else f", at a margin of {'up to ' if flips > 1 else ''}{margin:.2g}"
    return f"within rounding for {_blocks(widths)}: largest gap {gap:.2g}, {flipped}{at}"


def _blocks(widths: Sequence[WidthExactness]) -> str:
    """ "block 3", "blocks 2-8", "blocks 2-4, 8"."""
    runs: list[list[int]] = []
    for width in (w.width for w in widths):
        if runs and width == runs[-1][-1] + 1:
            runs[-1].append(width)
        else:
            runs.append([width])
    names = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"block{'s' if len(widths) > 1 else ''} {', '.join(names)}"
