"""An analysis as a report: its tables and plots, section by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..report.blocks import Block, Cell, Heatmap, Plot, Report, Series, Table, Text
from .arms import NO_SELECTOR
from .figures import ArmFigures
from .run import AttentionFigures, Figures

_POSITION = "position in the block (1: the first draft)"
_FIRST_GENERATION = (
    "A first-generation drafter: it has no selector and no convolution, so that the figures of the walk and the "
    "ablations do not apply. Its drafts are each row's own best token; at temperature 1 they are proposed with "
    "certainty."
)
_SCOPE = (
    "Figures of what is drafted, none of speed. Every block stands on the target's own text before its anchor and is "
    "compared with the text after it; a block of which the text shows only a part counts for no mean."
)


def report(figures: Figures, facts: Mapping[str, str] | None = None) -> Report:
    """The whole report of an analysis; what does not apply to its drafter is left out and said."""
    two = figures.engine == "dflash2"
    blocks: list[Block] = [Text(text=_SCOPE, kind="note")]
    if not two:
        blocks.append(Text(text=_FIRST_GENERATION, kind="note"))
    if figures.agreement is not None:
        blocks.append(Text(text=_agreement(figures.agreement), kind="note"))
    blocks += _lengths(figures, two)
    if figures.served.blocks:
        blocks += _positions(figures, two)
        blocks += _recalls(figures.served)
        if two:
            blocks += _ablations(figures)
    blocks += _kinds(figures)
    if figures.attention is not None:
        blocks += _attention(figures.attention)
    return Report(title="Analysis of a drafter", facts=dict(facts or {}), blocks=tuple(blocks))


def _agreement(share: float) -> str:
    if share == 1:
        return "Every token of the greedy texts is the target's greedy one when it reads them in one pass."
    return (
        f"{share:.1%} of the greedy texts' tokens are the target's greedy ones when it reads them in one pass; the "
        "rest are near-ties that rounding decides."
    )


def _lengths(figures: Figures, two: bool) -> list[Block]:
    measured = figures.measured
    columns = ["drafts", "T 0", "T 0 in cycles", "T 1 expected"]
    rows = [
        [name, arm.tokens, arm.cycle_tokens, arm.expected, *([arm.oracle] if two else [])]
        for name, arm in figures.arms.items()
    ]
    note = (
        "Tokens a cycle commits, the target's own one included. T 0: mean over all anchors of the greedy texts. In "
        "cycles: where each block begins at the token that ended the one before, as in decoding. T 1 expected: along "
        "texts drawn from the target, the probability that rejection sampling lets the first drafts stand, summed over "
        "positions; no draft is drawn, and it is a mean over all anchors. "
    )
    if two:
        note += (
            "With the selector a draft is drawn from its law; without it each row's best token is proposed with "
            "certainty, so that at T 1 “no selector” changes how drafts are proposed too. "
        )
        columns.append("oracle, T 0")
        note += "Oracle: a selector that never errs, limited by the candidate lists alone. "
    if measured:
        told = ", ".join(f"{value:.3f} at T {temperature:g}" for temperature, value in measured.items())
        note += (
            f"Measured by the runtime while it wrote the texts: {told}, counted over cycles, as “in cycles”; the means "
            "over all anchors are not to be compared with it."
        )
    bars = [
        Series(name=name, x=list(figures.arms), y=[get(arm) for arm in figures.arms.values()])
        for name, get in (("T 0", lambda arm: arm.tokens), ("T 1 expected", lambda arm: arm.expected))
    ]
    return [
        Text(text="Acceptance length", kind="heading"),
        Table(title="Tokens per cycle", columns=columns, rows=rows, digits=3, note=note.strip()),
        Plot(
            title="Tokens per cycle by arm",
            x_label="drafts",
            y_label="tokens per cycle",
            series=bars,
            kind="bars",
            y_from=0.0,
        ),
    ]


def _positions(figures: Figures, two: bool) -> list[Block]:
    served = figures.served
    named: list[tuple[str, Sequence[float | None]]] = [("all blocks", served.accuracy)]
    if two:
        named.append(("without the selector", figures.arms[NO_SELECTOR].accuracy))
    named.append(("given that all before are right", served.after_prefix))
    return [
        Text(text="Accuracy by position", kind="heading"),
        _by_position("Share of right drafts by position, temperature 0", named),
        Table(
            title="Accuracy by position",
            columns=["drafts", *_numbers(served)],
            rows=[[name, *values] for name, values in named],
            digits=3,
            note="A right draft counts in “all blocks” also where one before it is wrong.",
        ),
    ]


def _recalls(served: ArmFigures) -> list[Block]:
    found = [("by the drafter's own logits", served.recall)]
    if served.walk_recall is not None:
        found.append(("by the scores along the selector's walk", served.walk_recall))
    blocks: list[Block] = [Text(text="Recall of the true token", kind="heading")]
    for name, recall in found:
        named = [(f"recall@{k}", values) for k, values in recall.items()]
        blocks.append(_by_position(f"Recall {name}", named))
    rows: list[list[Cell]] = [[name, k, *values] for name, recall in found for k, values in recall.items()]
    blocks.append(
        Table(
            title="Recall@k by position",
            columns=["ranked", "k", *_numbers(served)],
            rows=rows,
            digits=3,
            note="Share of blocks whose true token is among the k best candidates of that row.",
        )
    )
    return blocks


def _ablations(figures: Figures) -> list[Block]:
    named = [(name, arm.accuracy) for name, arm in figures.arms.items()]
    return [
        Text(text="What each part brings", kind="heading"),
        _by_position("Share of right drafts with parts taken out", named),
        Text(
            text="A part is taken out of the trained drafter, which was never trained to do without it: the figures "
            "tell how much it leans on the part, not what a drafter trained without it would reach.",
            kind="note",
        ),
    ]


def _kinds(figures: Figures) -> list[Block]:
    kinds = figures.kinds
    columns = ["kind", "texts", "T 0", "T 0 in cycles", "T 1 expected", "oracle, T 0", "first draft right", "top-1"]
    rows: list[list[Cell]] = [
        [
            kind,
            sum(text.kind == kind for text in figures.texts),
            arm.tokens,
            arm.cycle_tokens,
            arm.expected,
            arm.oracle,
            arm.accuracy[0] if arm.accuracy else None,
            arm.top1,
        ]
        for kind, arm in kinds.items()
    ]
    if figures.engine != "dflash2":
        columns.remove("oracle, T 0")
        rows = [[*row[:5], *row[6:]] for row in rows]
    bars = [
        Series(name="T 0", x=list(kinds), y=[arm.tokens for arm in kinds.values()]),
        Series(name="T 1 expected", x=list(kinds), y=[arm.expected for arm in kinds.values()]),
    ]
    return [
        Text(text="By kind of content", kind="heading"),
        Plot(
            title="Tokens per cycle by kind",
            x_label="kind",
            y_label="tokens per cycle",
            series=bars,
            kind="bars",
            y_from=0.0,
        ),
        Table(
            title="Agreement by kind",
            columns=columns,
            rows=rows,
            digits=3,
            note="Tokens per cycle as above; top-1 is the share of right drafts over all positions.",
        ),
    ]


def _attention(attention: AttentionFigures) -> list[Block]:
    layers = [f"layer {i}" for i in range(len(attention.heads))]
    heads = [str(i) for i in range(len(attention.heads[0]))]
    rows = ["anchor", *map(str, range(1, len(attention.rows[0])))]
    even = ", ".join(f"{share:.3f}" for share in attention.even)
    return [
        Text(text="Attention within the block", kind="heading"),
        Heatmap(
            title="Share of attention on the block's own rows, by layer and head",
            rows=layers,
            columns=heads,
            values=attention.heads,
            note=f"Mean over the rows of {attention.blocks} blocks; the rest falls on the context. Spread evenly over "
            f"all visible rows it would be, layer by layer: {even}.",
        ),
        Heatmap(
            title="Share of attention on the block's own rows, by layer and row",
            rows=layers,
            columns=rows,
            values=attention.rows,
            note="Mean over the heads.",
        ),
    ]


def _by_position(title: str, named: Sequence[tuple[str, Sequence[float | None]]]) -> Plot:
    series = [Series(name=name, x=list(range(1, len(values) + 1)), y=list(values)) for name, values in named]
    return Plot(title=title, x_label=_POSITION, y_label="share", series=series, y_from=0.0)


def _numbers(served: ArmFigures) -> list[str]:
    return [str(i) for i in range(1, len(served.accuracy) + 1)]
