"""A training run as a report: what was trained, on what, how fast, and how well it drafts by now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ... import machine
from ...report.blocks import Block, Cell, Plot, Report, Series, Table, Text
from ...report.format import number
from ..recipe.fields import FIELDS, TITLES
from ..recipe.file import shown
from ..recipe.values import Loss, Recipe
from ..wording import counted, duration, in_brackets, several
from . import figures
from .figures import Spread, Stretch
from .history import EvaluationLine, History, StepLine

_SCOPE = (
    "Tokens per cycle are measured by decoding held-out prompts with the drafter: the drafts that the target accepts "
    "in one cycle, and its own token; 1 is decoding without a drafter. They, not the loss, tell what a drafter is "
    "worth. Loss, top-1 and recall are of the training texts."
)
_BY_KIND = "Tokens per cycle by kind of prompt"
_BY_DRAFT = "Share of cycles in which each draft is accepted"
_LOSS = "Loss over steps"
_TOP1 = "Top-1 by position: the row's best token is the true one"
_RECALL = "Recall@16 by position: the true token is among the 16 best"
_ROWS = 12  # evaluations in the table


def machine_facts() -> dict[str, str]:
    """The machine that trains, and the versions of what runs on it. Imports mlx."""
    device = machine.device()
    total = machine.memory().total
    name = next((str(device[key]) for key in ("device_name", "architecture") if device.get(key)), "")
    blas = f", BLAS {machine.blas()}" if device["backend"] == "CPU" else ""
    return {
        "device": f"{device['backend']} {name}".strip() + blas,
        "memory": f"{total / 2**30:.0f} GiB" if total else "unknown",
        "system": machine.system(),
        "versions": ", ".join(f"{package} {version}" for package, version in machine.versions().items()),
    }


def training_report(recipe: Recipe, history: History, facts: Mapping[str, str]) -> Report:
    """The whole report. `facts` is what only the caller knows (command, data and its digest, parameters, machine)."""
    steps, evaluations = history.steps, history.evaluations
    blocks: list[Block] = [Text(text=_summary(recipe, history)), Text(text=_SCOPE, kind="note")]
    blocks += _acceptance(evaluations, history.best)
    if steps:
        found = figures.stretches(steps)
        blocks += _losses(found, recipe)
        blocks += _positions(found, steps, recipe.loss)
        blocks += _course(found, recipe)
    blocks += _recipe(recipe)
    told = {"target": recipe.target, "drafter": _shape(recipe), "progress": _progress(recipe, steps), **facts}
    return Report(title=f"Training a drafter for {recipe.target}", facts=told, blocks=tuple(blocks))


def brief(report: Report) -> Report:
    """What the terminal shows at the end: the summary and the plots of acceptance, loss and recall."""
    shown_plots = (_BY_KIND, _BY_DRAFT, _LOSS, _RECALL)
    plots = [block for block in report.blocks if isinstance(block, Plot) and block.title in shown_plots]
    return Report(title=report.title, facts={}, blocks=(report.blocks[0], *plots))


def _shape(recipe: Recipe) -> str:
    shape = recipe.shape
    window = "no window" if shape.window is None else f"window {shape.window}"
    parts = [
        counted(shape.layers, "layer"),
        f"block size {shape.block_size}",
        window,
        f"convolution in groups of {shape.conv_group_size}" if shape.convolution else "no convolution",
        f"selector of rank {shape.selector_rank} over {shape.selector_top_k}" if shape.selector else "no selector",
    ]
    return ", ".join(parts)


def _progress(recipe: Recipe, steps: Sequence[StepLine]) -> str:
    if not steps:
        return f"no step of {recipe.loop.steps:,} is done"
    tokens, blocks = sum(one.tokens for one in steps), sum(one.blocks for one in steps)
    seconds = sum(one.seconds for one in steps)
    return (
        f"{steps[-1].step:,} of {recipe.loop.steps:,} steps in {duration(seconds)}: "
        f"{figures.count(tokens)} tokens at {number(figures.tokens_per_second(steps), 0)}/s, "
        f"{figures.count(blocks)} blocks at {number(figures.blocks_per_second(steps), 0)}/s"
    )


def _summary(recipe: Recipe, history: History) -> str:
    best = history.best
    done = f"A drafter for {recipe.target}, trained on {recipe.data}: {_progress(recipe, history.steps)}."
    if best is None:
        return f"{done} It has not been evaluated yet."
    at = f"after step {best.step:,}" if best.step else "before the first step"
    rate = f"{best.tokens_per_cycle:.2f} tokens per cycle{in_brackets(best.by_kind)}"
    return f"{done} The best evaluation is the one {at}: {rate}."


def _acceptance(evaluations: Sequence[EvaluationLine], best: EvaluationLine | None) -> list[Block]:
    heading = Text(text="Acceptance of held-out texts", kind="heading")
    if not evaluations:
        return [heading, Text(text="No evaluation yet.", kind="note")]
    kinds = list(several({kind: rate for one in evaluations for kind, rate in one.by_kind.items()}))
    at = [one.step for one in evaluations]
    series = [_line("all", at, [one.tokens_per_cycle for one in evaluations])]
    series += [_line(kind, at, [one.by_kind.get(kind) for one in evaluations]) for kind in kinds]
    blocks: list[Block] = [
        heading,
        Plot(
            title=_BY_KIND,
            x_label="step",
            y_label="tokens per cycle",
            series=series,
            baseline=1.0,
            note="At 1 a cycle brings no more than the target's own token.",
        ),
        _evaluations(evaluations, kinds, best),
    ]
    named = [("last", evaluations[-1]), *([("best", best)] if best not in (None, evaluations[-1]) else [])]
    bars = [
        Series(name=f"{name}, step {one.step:,}", x=_numbers(one.accepted_by_position), y=one.accepted_by_position)
        for name, one in named
        if one is not None
    ]
    blocks.append(
        Plot(
            title=_BY_DRAFT,
            x_label="position in the block (1: the first draft)",
            y_label="share",
            series=bars,
            kind="bars",
            y_from=0.0,
        )
    )
    return blocks


def _evaluations(evaluations: Sequence[EvaluationLine], kinds: Sequence[str], best: EvaluationLine | None) -> Table:
    """The last ones, and the best where it is not among them."""
    chosen = list(evaluations[-_ROWS:])
    if best is not None and best not in chosen:
        chosen.insert(0, best)
    rows: list[list[Cell]] = [
        [f"{one.step:,}{' (best)' if one == best else ''}", one.tokens_per_cycle, *map(one.by_kind.get, kinds)]
        for one in chosen
    ]
    left = len(evaluations) - len(chosen)
    return Table(
        title="Tokens per cycle at each evaluation",
        columns=["after step", "all", *kinds],
        rows=rows,
        digits=3,
        note=f"{left} earlier evaluations are in the plot alone." if left else "",
    )


def _losses(found: Sequence[Stretch], recipe: Recipe) -> list[Block]:
    named: list[tuple[str, Callable[[Stretch], Spread]]] = [("loss", lambda one: one.loss)]
    named.append(("rows", lambda one: one.ce))
    if recipe.shape.selector:
        named.append(("selector", lambda one: one.selector))
    return [
        Text(text="Loss", kind="heading"),
        Plot(
            title=_LOSS,
            x_label="step",
            y_label="nats a token",
            series=[_means(name, found, get) for name, get in named],
            note=f"Means over {_every(found)}, with the least and the largest of them. {_columns(recipe.loss)}",
        ),
    ]


def _columns(loss: Loss) -> str:
    if loss.frequent == 0:
        return "All of the vocabulary is in the loss."
    full = f"; the last {loss.full_steps:,} steps see all of it" if loss.full_steps else ""
    return (
        f"The loss sees {loss.frequent:,} frequent columns of the vocabulary and {loss.sampled:,} drawn for each step"
        f"{full}: with fewer columns the loss is lower and the shares are higher than over all of them."
    )


def _positions(found: Sequence[Stretch], steps: Sequence[StepLine], loss: Loss) -> list[Block]:
    now = figures.latest(steps)
    assert now is not None
    length = min(len(steps), figures.LATEST)
    return [
        Text(text="Drafts by position", kind="heading"),
        _over_steps(_TOP1, found, lambda one: one.top1),
        _over_steps(_RECALL, found, lambda one: one.recall),
        Table(
            title=f"By position, the last {length} steps" if length > 1 else "By position, the last step",
            columns=["share of blocks", *map(str, range(1, len(now.top1) + 1))],
            rows=[["top-1", *now.top1], ["recall@16", *now.recall]],
            digits=3,
            note=f"Of training texts; a draft counts also where one before it is wrong. {_columns(loss)}",
        ),
    ]


def _over_steps(title: str, found: Sequence[Stretch], get: Callable[[Stretch], Sequence[float | None]]) -> Plot:
    positions = figures.shown_positions(max(len(get(one)) for one in found))
    at = [one.step for one in found]
    series = [
        _line(f"position {i + 1}", at, [get(one)[i] if i < len(get(one)) else None for one in found]) for i in positions
    ]
    return Plot(title=title, x_label="step", y_label="share of blocks", series=series, y_from=0.0)


def _course(found: Sequence[Stretch], recipe: Recipe) -> list[Block]:
    at = [one.step for one in found]
    return [
        Text(text="Course of the training", kind="heading"),
        Plot(
            title="Learning rate",
            x_label="step",
            y_label="learning rate",
            series=[_line("learning rate", at, [one.learning_rate for one in found])],
            y_from=0.0,
        ),
        Plot(
            title="Norm of the gradient",
            x_label="step",
            y_label="norm",
            series=[_means("norm", found, lambda one: one.grad_norm)],
            baseline=recipe.loop.clip,
            y_from=0.0,
            note=f"Before it is clipped to {recipe.loop.clip:g}. Means over {_every(found)}, their least and largest.",
        ),
        Plot(
            title="Speed",
            x_label="step",
            y_label="tokens a second",
            series=[_line("tokens a second", at, [one.tokens_per_second for one in found])],
            y_from=0.0,
            note="Tokens of the conversations that were read, without evaluations and saves. What else runs on the "
            "machine shows here too.",
        ),
    ]


def _recipe(recipe: Recipe) -> list[Block]:
    rows = [[TITLES[field.part], field.key, shown(field, field.of(recipe)), field.help] for field in FIELDS]
    return [
        Text(text="Recipe", kind="heading"),
        Table(title="Every field", columns=["part", "field", "value", "what it is"], rows=rows),
    ]


def _line(name: str, steps: Sequence[int], values: Sequence[float | None]) -> Series:
    """Over steps. The axis begins at 0, so that it is linear: a report's axis is logarithmic where it can be."""
    return Series(name=name, x=[0, *steps], y=[None, *values])


def _means(name: str, found: Sequence[Stretch], get: Callable[[Stretch], Spread]) -> Series:
    """Over steps, with the spread of each stretch."""
    spreads = [get(one) for one in found]
    return Series(
        name=name,
        x=[0, *(one.step for one in found)],
        y=[None, *(one.mean for one in spreads)],
        low=[None, *(one.low for one in spreads)],
        high=[None, *(one.high for one in spreads)],
    )


def _every(found: Sequence[Stretch]) -> str:
    """How many steps a point of the plots stands for."""
    length = found[1].step - found[0].step if len(found) > 1 else 1
    return f"{length} steps" if length > 1 else "single steps"


def _numbers(values: Sequence[float]) -> list[str]:
    return [str(i) for i in range(1, len(values) + 1)]
