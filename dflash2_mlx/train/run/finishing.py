"""What comes after training: the best weights decoded for real, exported with their card, packed, and the report."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...drafter.model import DraftModel
from ...drafter.quantization import QuantSpec
from ...errors import RequestError
from ...pairs import Pair
from ...report.blocks import Report
from ...report.files import write_report
from ..check.memory import parameters
from ..check.prepared import Prepared
from ..data.held_out import HeldOut
from ..loop import checkpoint
from ..reporting.blocks import machine_facts, training_report
from ..reporting.card import CardFacts
from ..reporting.figures import count
from ..reporting.history import EvaluationLine, History
from .evaluate import decode_acceptance, drafter_of
from .export import export
from .folder import RunFolder

Progress = Callable[[int, int], None]


def best_weights(run: RunFolder) -> checkpoint.Weights:
    """Those of the best evaluation, else of the latest state. Raises RequestError where the run has neither."""
    best = checkpoint.load_weights(run.best)
    if best is not None:
        return best
    state = checkpoint.load(run.state)
    if state is None:
        raise RequestError(f"{run.path} holds no trained weights yet: train without --evaluate-only", param="out")
    return checkpoint.Weights(state.step, dict(state.weights))


def finish(
    prepared: Prepared,
    run: RunFolder,
    pair: Pair,
    held_out: Sequence[HeldOut],
    *,
    tokens: int,
    progress: Progress = lambda done, of: None,
) -> EvaluationLine:
    """Decode the held-out prompts with the best weights, export them with that figure, and write the report."""
    best = best_weights(run)
    drafter = drafter_of(prepared.config, best.weights, pair.target.drafter_dtype)
    drafted = replace(pair, drafter=drafter, drafter_name=str(run.drafter))
    block = prepared.config.block_size
    line = decode_acceptance(drafted, held_out, block_size=block, tokens=tokens, step=best.step, progress=progress)
    facts = CardFacts(
        recipe=prepared.recipe,
        digest=prepared.data.digest,
        conversations=prepared.data.conversations,
        answer_tokens=prepared.data.answer_tokens,
        step=best.step,
        kinds=prepared.data.kinds,
        acceptance=line,
        prompts=len(held_out),
        tokens=tokens,
    )
    model = DraftModel(prepared.config)  # another one: decoding joins some weights of its own
    model.load_weights(list(best.weights.items()), strict=True)
    export(run.drafter, model, prepared.config, facts=facts, replace=True)
    return line


def write_run_report(prepared: Prepared, run: RunFolder, history: History, more: Mapping[str, str]) -> Report:
    """`report.html` of what the history holds by now; gives the report."""
    data = prepared.data
    facts = {
        **more,
        "parameters": count(parameters(prepared.config)),
        "data": f"{data.conversations:,} conversations, {data.answer_tokens:,} tokens of the target's, {data.digest}",
        **machine_facts(),
    }
    report = training_report(prepared.recipe, history, facts)
    write_report(report, run.report)
    return report


def quantize(run: RunFolder, spec: QuantSpec) -> Path:
    """Pack the exported drafter beside it, as `dflash2-mlx quantize` does; gives the folder."""
    # By name: quantising stands above training, as a command of its own.
    command = importlib.import_module("dflash2_quantize.quantize_command")
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    folder = run.drafter.with_name(f"{run.drafter.name}-{str(spec).replace(':', '-')}")
    command.run(parser.parse_args([str(run.drafter), "--spec", str(spec), "--out", str(folder), "--force"]))
    return folder
