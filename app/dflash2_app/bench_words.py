"""A bench in words and tables, from its job alone: state, figures, what they prove, what they stand on. No elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from itertools import islice

from dflash2_app.wording import Tone, count, percent, seconds
from dflash2_mlx.bench.cells import ALL, By, Cell
from dflash2_mlx.bench.disturbed import gathered
from dflash2_mlx.bench.model import Result, Sample
from dflash2_mlx.bench.run import turns
from dflash2_mlx.bench.spread import LEVEL, values_needed
from dflash2_server.bench.engine_backend import DISTURBED
from dflash2_server.work import BenchJob

COLUMNS = (
    "Content",
    "Decoding",
    "tok/s",
    "quartiles",
    "against plain",
    "quartiles",
    "interval",
    "Tokens per cycle",
    "",
)
STATES: dict[str, tuple[str, Tone]] = {
    "running": ("running", "busy"), "completed": ("completed", "good"), "cancelled": ("cancelled", "idle"),
    "failed": ("failed", "bad"),
}  # fmt: skip
STAGES = {"load": "loading the model", "warm-up": "warming up", "cancelling": "ending after the answer under way"}


def result_of(job: BenchJob) -> Result | None:
    """Of the samples so far; None before the plan is made."""
    if job.result is not None:
        return job.result
    if job.plan is None:
        return None
    return Result(plan=job.plan, facts={}, samples=job.samples, started=job.created)


def title(job: BenchJob) -> str:
    when = datetime.fromtimestamp(job.created, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{job.model}, {when}"


def request_words(job: BenchJob) -> str:
    """What was asked for, in a line."""
    result = result_of(job)
    if result is None:
        return ""
    plan = result.plan
    arms = ", ".join(arm.name for arm in plan.arms)
    kinds = ", ".join(dict.fromkeys(prompt.kind for prompt in plan.prompts))
    depths = sorted({prompt.depth for prompt in plan.prompts} - {0})
    words = [arms, kinds, f"{plan.max_tokens} tokens", f"{plan.rounds} round{'' if plan.rounds == 1 else 's'}"]
    if depths:
        words.append("depths " + ", ".join(count(depth) for depth in depths))
    return " · ".join(words)


def progress_words(job: BenchJob) -> str:
    """12 of 126 samples · plain, code · 2 min left."""
    if job.ended:
        return f"{count(job.done)} of {count(job.total)} samples"
    if job.stage in STAGES:
        return f"{STAGES[job.stage]} …"
    words = [f"{count(job.done)} of {count(job.total)} samples", next_words(job)]
    if job.seconds_left is not None:
        words.append(f"{seconds(job.seconds_left)} left")
    return " · ".join(word for word in words if word)


def next_words(job: BenchJob) -> str:
    """What is being decoded now."""
    if job.plan is None:
        return ""
    turn = next(islice(turns(job.plan), job.done, None), None)
    return "" if turn is None else f"now {turn.arm.name}, {turn.prompt.kind}"


def verdict(cell: Cell) -> str:
    """What the samples say of an arm against its baseline, and no more."""
    if cell.baseline is None:
        return "what the others are compared with"
    said = _compared(cell)
    if cell.ran_plain:
        said += f"; {count(cell.ran_plain)} of {count(cell.samples)} ran without drafts"
    return said


def _compared(cell: Cell) -> str:
    if cell.ratio is None:
        return "no pair of samples yet"
    if cell.interval is None:
        return f"too few pairs to tell: {cell.pairs} of at least {values_needed()}"
    if not cell.distinguishable:
        return "no difference to be told"
    return "faster" if cell.ratio > 1 else "slower than plain decoding"


def tone(cell: Cell) -> Tone:
    """Of the verdict."""
    if not cell.distinguishable or cell.ratio is None:
        return "idle"
    return "good" if cell.ratio > 1 else "warn"


def summary(overall: Sequence[Cell], by_kind: Sequence[Cell]) -> str:
    """The best arm that is proved to differ over everything, and what is proved by kind: for those who read only that.

    An arm whose interval holds 1, or that has none, gets no number: the largest of several medians is the luckiest.
    """
    compared = [cell for cell in overall if cell.baseline is not None and cell.ratio is not None]
    if not compared:
        return "Nothing to compare yet."
    proved = [cell for cell in compared if cell.distinguishable]
    if proved:
        best = max(proved, key=lambda cell: cell.ratio or 0.0)
        headline = f"{best.arm}: {best.ratio:.2f} times the speed of {best.baseline}, the median over all prompts."
        return " ".join([headline, *_by_kind(best.arm, by_kind)])
    if not any(cell.interval for cell in compared):
        pairs = max(cell.pairs for cell in compared)
        return f"Too few pairs to tell: {pairs} of at least {values_needed()}."
    said = ["Over all prompts no difference to be told."]
    # Kinds that gain and kinds that lose may cancel out.
    for arm in dict.fromkeys(cell.arm for cell in by_kind if cell.baseline is not None and cell.distinguishable):
        said += [f"{arm}:", *_by_kind(arm, by_kind)]
    return " ".join(said)


def _by_kind(arm: str, by_kind: Sequence[Cell]) -> list[str]:
    """What is proved of an arm, a sentence for each verdict."""
    mine = [cell for cell in by_kind if cell.arm == arm]
    said = []
    for words, kinds in (
        ("Faster on", [c.group for c in mine if c.distinguishable and (c.ratio or 0) > 1]),
        ("Slower on", [c.group for c in mine if c.distinguishable and (c.ratio or 0) <= 1]),
        ("No difference to be told on", [c.group for c in mine if c.interval and not c.distinguishable]),
        ("Too few pairs to tell on", [c.group for c in mine if not c.interval]),
    ):
        if kinds:
            said.append(f"{words} {', '.join(kinds)}.")
    return said


def table_html(cells: Sequence[Cell], by: By) -> str:
    """A row for each group and arm, the arms of a group together."""
    if not cells:
        return '<p class="soft">No samples yet.</p>'
    groups = list(dict.fromkeys(cell.group for cell in cells))
    first = {"kind": "Content", "depth": "Context", "all": "Over"}[by]
    names = (first, *COLUMNS[1:6], f"{percent(LEVEL)} interval", *COLUMNS[7:])
    head = "".join(f'<th scope="col">{escape(name) or "Verdict"}</th>' for name in names)
    rows = "".join(_group_rows(group, [cell for cell in cells if cell.group == group], by) for group in groups)
    return f'<table class="figures"><thead><tr>{head}</tr></thead>{rows}</table>'


def group_words(group: str, by: By) -> str:
    if by == "depth":
        return "as it is" if group == "0" else f"{count(int(group))} tokens"
    return "everything" if group == ALL else group


def same_words(cells: Sequence[Cell]) -> str:
    """Whether greedy answers are those of plain decoding; empty where none could be compared."""
    same, compared = sum(cell.same_texts for cell in cells), sum(cell.compared_texts for cell in cells)
    if not compared:
        return ""
    if same == compared:
        return f"All {count(compared)} greedy answers are those of plain decoding, letter by letter."
    return (
        f"{count(same)} of {count(compared)} greedy answers are those of plain decoding, letter by letter; "
        "others fork at near-ties of the target, or the exactness report of the pair says more."
    )


def disturbed_words(samples: Sequence[Sample]) -> str:
    """How many samples other requests disturbed; empty where none did."""
    number = sum(_parted(sample.note)[1] for sample in samples)
    return f"{DISTURBED} ({count(number)} of {count(len(samples))} samples)" if number else ""


def noted_words(samples: Sequence[Sample]) -> str:
    """What else is to be known of samples, a sentence for each sort of note; empty where there is nothing."""
    return " ".join(gathered([replace(sample, note=_parted(sample.note)[0]) for sample in samples]))


def _parted(note: str) -> tuple[str, bool]:
    """What a sample is noted for, and whether other requests disturbed it, which stands last."""
    if note != DISTURBED and not note.endswith(f"; {DISTURBED}"):
        return note, False
    return note.removesuffix(DISTURBED).removesuffix("; "), True


def failures_words(result: Result) -> str:
    """How many samples are missing, and why the first is."""
    if not result.failures:
        return ""
    number = len(result.failures)
    return f"{count(number)} sample{'' if number == 1 else 's'} failed. The first: {result.failures[0].error}"


def facts_html(facts: Mapping[str, str]) -> str:
    cells = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f'<dl class="facts small">{cells}</dl>' if cells else ""


def _group_rows(group: str, cells: Sequence[Cell], by: By) -> str:
    rows = []
    for place, cell in enumerate(cells):
        head = f'<th scope="rowgroup" rowspan="{len(cells)}">{escape(group_words(group, by))}</th>' if not place else ""
        values = (
            cell.arm, _number(cell.speed, 1), _range(cell.speed_low, cell.speed_high, 1), _times(cell.ratio),
            _range(cell.ratio_low, cell.ratio_high, 2), _interval(cell),
            _number(cell.tokens_per_cycle, 2),
        )  # fmt: skip
        body = "".join(f"<td>{escape(value)}</td>" for value in values)
        rows.append(f'<tr>{head}{body}<td class="tone-{tone(cell)}">{escape(verdict(cell))}</td></tr>')
    return f"<tbody>{''.join(rows)}</tbody>"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _range(low: float | None, high: float | None, digits: int) -> str:
    return "–" if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"


def _interval(cell: Cell) -> str:
    return "–" if cell.interval is None else _range(*cell.interval, 2)


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f} ×"
