"""What convolution and selector bring: four small drafters on the same data, steps and draws, judged by real decoding.

    python -m benchmarks.train_ablation --data DATA --runs RUNS --out docs/ablation.md -- --layers 2 --steps 200

What stands after `--` are options of `dflash2-mlx train`, the same for all four. A run that is finished is not done
again, one that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dflash2_mlx.report.blocks import Cell, Plot, Report, Series, Table, Text
from dflash2_mlx.report.files import write_report
from dflash2_mlx.train.reporting.blocks import machine_facts
from dflash2_mlx.train.reporting.figures import blocks_per_second, latest
from dflash2_mlx.train.reporting.history import EvaluationLine, History

VARIANTS = {
    "DFlash": ["--no-convolution", "--no-selector"],
    "with selector": ["--no-convolution"],
    "with convolution": ["--no-selector"],
    "both (DFlash 2)": [],
}


@dataclass(frozen=True)
class Trained:
    """One variant's history."""

    name: str
    history: History

    @property
    def last(self) -> EvaluationLine:
        """The evaluation after the last step: all variants are compared at the same one."""
        return self.history.evaluations[-1]


def train(name: str, data: Path, runs: Path, options: list[str]) -> Trained:
    """Train one variant in its own folder, or read what it has done."""
    folder = runs / name.replace(" ", "-").replace("(", "").replace(")", "").lower()
    if not (folder / "drafter").exists():
        command = [sys.executable, "-m", "dflash2_mlx.cli", "train", "--recipe", "demo", "--data", str(data)]
        subprocess.run([*command, "--out", str(folder), *options, *VARIANTS[name]], check=True)
    return Trained(name, History.open(folder / "history.jsonl"))


def report(found: list[Trained], options: list[str]) -> Report:
    """The four side by side."""
    kinds = sorted(found[0].last.by_kind)
    rows: list[list[Cell]] = [
        [one.name, one.last.tokens_per_cycle, *(one.last.by_kind.get(kind) for kind in kinds)] for one in found
    ]
    steps = found[0].history.steps
    return Report(
        title="What convolution and selector bring",
        facts=machine_facts(),
        blocks=[
            Text(text=f"Options: {' '.join(options)}; {len(steps)} steps each, the same texts, anchors and columns."),
            Table(title="Tokens per cycle on held-out prompts", columns=["drafter", "all", *kinds], rows=rows),
            _by_position("Share of cycles that accept the draft", "accepted", found),
            _course(found),
            _training(found),
        ],
    )


def _by_position(title: str, label: str, found: list[Trained]) -> Plot:
    series = [
        Series(name=one.name, x=list(range(1, 1 + len(one.last.accepted_by_position))), y=one.last.accepted_by_position)
        for one in found
    ]
    return Plot(title=title, x_label="drafted position", y_label=label, series=series, y_from=0.0)


def _course(found: list[Trained]) -> Plot:
    series = [
        Series(
            name=one.name,
            x=[line.step for line in one.history.evaluations],
            y=[line.tokens_per_cycle for line in one.history.evaluations],
        )
        for one in found
    ]
    return Plot(title="Tokens per cycle over the steps", x_label="step", y_label="tokens per cycle", series=series)


def _training(found: list[Trained]) -> Table:
    rows: list[list[Cell]] = []
    for one in found:
        end = latest(one.history.steps)
        assert end is not None
        first, final = end.top1, end.recall
        rows.append([one.name, first[0], first[-1], final[0], final[-1], blocks_per_second(one.history.steps)])
    return Table(
        title="At the end of training, on the texts that it learns from",
        columns=["drafter", "top-1, first", "top-1, last", "recall@16, first", "recall@16, last", "blocks/s"],
        rows=rows,
        note="First and last are drafted positions. With a selector, top-1 is its choice after the true token before.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("options", nargs="*", help="of `dflash2-mlx train`, after --")
    arguments = parser.parse_args()
    found = [train(name, arguments.data, arguments.runs, arguments.options) for name in VARIANTS]
    write_report(report(found, arguments.options), arguments.out)
    for one in found:
        print(f"{one.name}: {one.last.tokens_per_cycle:.3f} tokens per cycle")


if __name__ == "__main__":
    main()
