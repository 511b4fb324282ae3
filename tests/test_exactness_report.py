"""The report of exactness: right targets pass in every family and dtype, and what is at fault is told, by width."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import dflash2_mlx
from dflash2_mlx import cli
from dflash2_mlx.chat import doctor, exactness_check
from dflash2_mlx.decode.exactness import ExactnessReport, WidthExactness, exactness, sample_tokens, tolerance
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.target.rollback import RecurrentEntry, RotatingEntry, TrimEntry
from tests import tiny
from tests.running import subject
from tests.tiny_checkpoints import write_target
from tests.tiny_drafters import tiny_drafter_config, write_drafter
from tests.tiny_tokenizer import tokenizer

TOKENS = tiny.random_prompt(40, seed=1)  # past every window
ON_CPU = mx.default_device() == mx.cpu
# MLX's CPU backend multiplies by chosen experts in float32 alone.
DENSE = ("llama_untied", "gemma4", "qwen3_5", "lfm2", "mamba2", "falcon_h1")


def in_bfloat16(family: str) -> Target:
    model = tiny.build(family)
    model.set_dtype(mx.bfloat16)
    target = Target(model)
    target.prepare([1])
    return target


class Bent(Target):
    """Its logits go through `bend`."""

    bend: Callable[[mx.array], mx.array]

    def __call__(self, tokens: mx.array, caches: list[Any]) -> mx.array:
        return self.bend(super().__call__(tokens, caches))


def bent(bend: Callable[[mx.array], mx.array], target: Target | None = None) -> Target:
    twin = copy(target or subject("llama").target)
    twin.__class__ = Bent
    twin.bend = bend  # type: ignore[attr-defined]
    return twin


def row_off(rows: int, row: int, by: float) -> Callable[[mx.array], mx.array]:
    """One logit of one row is off in blocks of so many rows."""

    def bend(logits: mx.array) -> mx.array:
        if logits.shape[1] == rows:
            logits[0, row, 5] += by
        return logits

    return bend


# --- targets that are right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_is_exact_in_float32(family: str) -> None:
    report = exactness(subject(family).target, (8, 2, 2), tokens=TOKENS, anchors=1)
    assert report.dtype == "float32"
    assert [(width.width, width.rows) for width in report.widths] == [(2, 3), (8, 9)]
    assert report.rows == 12
    assert report.verdict != "different", report.summary
    if ON_CPU:
        assert all(width.share is not None and width.share < 5e-5 for width in report.widths)
        assert sum(width.flips for width in report.widths) == 0


@pytest.mark.skipif(not ON_CPU, reason="a GPU runs blocks and single rows by other kernels")
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "qwen3_5"])
def test_with_the_bundled_blas_blocks_equal_single_rows_bit_for_bit(family: str) -> None:
    report = exactness(subject(family).target, range(2, 6), tokens=TOKENS, anchors=1)
    assert report.verdict == "equal"
    assert report.summary == "verify equals single rows for blocks 2-5 (bit for bit)"
    assert {(width.gap, width.share, width.flips, width.margin) for width in report.widths} == {(0.0, 0.0, 0, None)}


@pytest.mark.parametrize("family", DENSE)
def test_bfloat16_stays_within_rounding(family: str) -> None:
    report = exactness(in_bfloat16(family), (2, 7), tokens=TOKENS, anchors=1)
    assert report.dtype == "bfloat16"
    assert report.verdict != "different", report.summary


@pytest.mark.skipif(not ON_CPU, reason="a GPU rounds in other places")
def test_rounding_is_told_from_equality() -> None:
    report = exactness(in_bfloat16("falcon_h1"), (3,), tokens=TOKENS)
    assert report.verdict == "rounding"
    assert "within rounding for block 3: largest gap 0.0" in report.summary


def test_short_contexts_and_long_ones() -> None:
    target = subject("gpt_oss").target
    for tokens in ([1, 2], tiny.random_prompt(1100)):
        assert exactness(target, (4,), tokens=tokens, anchors=1).verdict != "different"
    assert exactness(target, (), tokens=[1, 2]).summary == "no blocks to check"
    for widths, tokens, anchors in (((1, 2), [1, 2], 1), ((2,), [1], 1), ((2,), [1, 2], 0)):
        with pytest.raises(ValueError, match="widths"):
            exactness(target, widths, tokens=tokens, anchors=anchors)


def test_the_cost_is_bounded_and_told() -> None:
    calls: list[int] = []

    def count(logits: mx.array) -> mx.array:
        calls.append(logits.shape[1])
        return logits

    shares: list[float] = []
    exactness(bent(count), range(2, 17), tokens=TOKENS, anchors=1, progress=shares.append)
    assert calls[0] == len(TOKENS) - 1
    assert sorted(n for n in calls[1:] if n > 1) == list(range(2, 17))
    assert calls[1:].count(1) <= 16 + 15 + 2
    assert shares == [i / 15 for i in range(15)]


def test_sample_tokens_are_a_few_dozen_and_fit() -> None:
    assert len(sample_tokens(None, 7)) == 48
    assert set(sample_tokens(None, 7)) == set(range(7))
    assert 30 < len(sample_tokens(tokenizer(), 300)) <= 64


# --- targets that are not -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [0, 4])
def test_one_wrong_row_is_found_at_its_width(row: int) -> None:
    report = exactness(bent(row_off(5, row, 4.0)), range(2, 9), tokens=TOKENS)
    assert [width.width for width in report.widths if width.verdict == "different"] == [5]
    assert report.verdict == "different"
    assert report.summary.startswith("DIFFERENT at block 5: a logit is off by ")
    assert "rollback" not in report.summary


def test_rows_that_are_not_finite_are_different() -> None:
    report = exactness(bent(row_off(3, 1, float("nan"))), (2, 3), tokens=TOKENS)
    assert [width.verdict for width in report.widths] == ["equal" if ON_CPU else report.widths[0].verdict, "different"]
    assert (report.widths[1].gap, report.widths[1].share) == (None, None)
    assert "DIFFERENT at block 3: logits are not finite" in report.summary
    assert "NaN" not in json.dumps(report.as_dict())


def test_forbidden_tokens_are_no_gap() -> None:
    def forbid(logits: mx.array) -> mx.array:
        logits[..., 9] = -mx.inf
        return logits

    report = exactness(bent(forbid), (2,), tokens=TOKENS)
    assert report.verdict != "different"
    assert report.widths[0].share is not None


def test_flips_come_with_their_margin() -> None:
    """Tokens 7 and 9 all but tie, and change places in blocks."""
    by = 2.0**-10

    def tie(logits: mx.array) -> mx.array:
        logits = mx.round(logits)
        logits[..., 7] = 64.0
        logits[..., 9] = 64.0 + (by if logits.shape[1] > 1 else -by)
        return logits

    (width,) = exactness(bent(tie), (4,), tokens=TOKENS, anchors=3).widths
    assert (width.verdict, width.rows, width.gap, width.flips, width.margin) == ("rounding", 15, 2 * by, 12, by)


NOT_ROLLED_BACK = [
    ("llama", TrimEntry),
    ("gpt_oss", RotatingEntry),
    ("gemma3_text", RotatingEntry),
    ("qwen3_5", RecurrentEntry),
    ("mamba2", RecurrentEntry),
    ("falcon_h1", RecurrentEntry),
]


@pytest.mark.parametrize(("family", "entry"), NOT_ROLLED_BACK, ids=lambda value: getattr(value, "__name__", value))
def test_a_rollback_that_does_nothing_is_found(family: str, entry: type, monkeypatch: pytest.MonkeyPatch) -> None:
    target = subject(family).target  # before: a target that does not roll back is refused
    monkeypatch.setattr(entry, "settle", lambda self, keep, rows: None)
    report = exactness(target, (2, 5), tokens=TOKENS)
    assert {(width.verdict, width.rolled_back) for width in report.widths} == {("different", True)}
    assert "in the row after a rollback" in report.summary


@pytest.mark.parametrize(
    ("family", "entry"), [("llama_untied", TrimEntry), ("gemma4", RotatingEntry), ("mamba2", RecurrentEntry)]
)
def test_rounding_of_bfloat16_does_not_hide_it(family: str, entry: type, monkeypatch: pytest.MonkeyPatch) -> None:
    target = in_bfloat16(family)
    monkeypatch.setattr(entry, "settle", lambda self, keep, rows: None)
    assert exactness(target, (4, 8), tokens=TOKENS).verdict == "different"


def test_tolerances_follow_the_mantissa() -> None:
    assert tolerance(mx.float32) < tolerance(mx.float16) < tolerance(mx.bfloat16) < 0.25


# --- the report ---------------------------------------------------------------------------------------------------

EQUAL = WidthExactness(2, "equal", 6, 0.0, 0.0, 0, None, False)
ROUNDED = WidthExactness(3, "rounding", 12, 0.031, 0.002, 1, 0.008, False)
WRONG = WidthExactness(5, "different", 7, 3.0, 0.31, 2, 1.5, True)


@pytest.mark.parametrize(
    ("widths", "summary"),
    [
        ((), "no blocks to check"),
        ((EQUAL,), "verify equals single rows for block 2 (bit for bit)"),
        (
            tuple(replace(EQUAL, width=width) for width in (2, 3, 4, 8)),
            "verify equals single rows for blocks 2-4, 8 (bit for bit)",
        ),
        (
            (ROUNDED, replace(ROUNDED, width=4, gap=0.01, flips=0, margin=None)),
            (
                "within rounding for blocks 3-4: largest gap 0.031, "
                "1 flip of the best token in 24 rows, at a margin of 0.008"
            ),
        ),
        (
            (replace(ROUNDED, flips=2),),
            (
                "within rounding for block 3: largest gap 0.031, "
                "2 flips of the best token in 12 rows, at a margin of up to 0.008"
            ),
        ),
        (
            (replace(ROUNDED, flips=0, margin=None),),
            "within rounding for block 3: largest gap 0.031, no flip of the best token in 12 rows",
        ),
        (
            (EQUAL, replace(ROUNDED, flips=0, margin=None), WRONG),
            (
                "DIFFERENT at block 5: a logit is off by 31% of the largest in the row after a rollback; "
                "within rounding for block 3: largest gap 0.031, no flip of the best token in 12 rows; "
                "verify equals single rows for block 2 (bit for bit)"
            ),
        ),
    ],
)
def test_summaries(widths: tuple[WidthExactness, ...], summary: str) -> None:
    assert ExactnessReport("bfloat16", widths).summary == summary


def test_a_report_comes_back_from_a_file() -> None:
    for widths in ((), (EQUAL, ROUNDED, WRONG), (replace(WRONG, gap=None, share=None, margin=None),)):
        report = ExactnessReport("bfloat16", widths)
        tree = json.loads(json.dumps(report.as_dict(), allow_nan=False))
        assert ExactnessReport.from_dict(tree) == report
        assert tree["verdict"] == report.verdict
        assert tree["rows"] == sum(width.rows for width in widths)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": 3},
        {"widths": {}},
        {"widths": [3]},
        {"widths": [{}]},
        {"widths": [{"verdict": "fine"}]},
        {"widths": [{"width": "2"}]},
        {"widths": [{"flips": True}]},
        {"widths": [{"rolled_back": 0}]},
        {"widths": [{"gap": "wide"}]},
    ],
)
def test_what_is_no_report_is_refused(change: dict[str, Any]) -> None:
    good = ExactnessReport("float32", (EQUAL,)).as_dict()
    tree = {**good, **change}
    if isinstance(change.get("widths"), list) and change["widths"] not in ([3], [{}]):
        tree["widths"] = [{**good["widths"][0], **change["widths"][0]}]
    with pytest.raises((ValueError, KeyError)):
        ExactnessReport.from_dict(tree)


# --- the doctor ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    model = write_target(folder / "target")
    write_drafter(folder / "drafter", tiny_drafter_config(model, block_size=5))
    return str(folder / "target"), str(folder / "drafter")


class Loads:
    """A backend whose targets go through `bend`."""

    def __init__(self, bend: Callable[[mx.array], mx.array]) -> None:
        self.bend = bend
        self.asked: list[Any] = []

    def load(self, choice: Any, progress: Any) -> Pair:
        self.asked.append(choice)
        pair = dflash2_mlx.load(choice.model, choice.draft, quantize=choice.draft_quant, dtype=choice.dtype)
        pair.target = bent(self.bend, pair.target)
        return pair

    def stream(self, *args: Any, **parameters: Any) -> Any:
        raise AssertionError("the doctor generates nothing")

    check = stream


def arguments(model: str, draft: str, **others: Any) -> Namespace:
    return Namespace(
        **{"model": model, "draft": draft, "draft_quant": "off", "json": True, "exactness": True, **others}
    )


def test_the_doctor_checks_all_widths(folders: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    target, drafter = folders
    command = ["doctor", "--model", target, "--draft", drafter, "--exactness"]
    assert cli.main([*command, "--json"]) == 0
    report = ExactnessReport.from_dict(json.loads(capsys.readouterr().out)["exactness"])
    assert [width.width for width in report.widths] == [2, 3, 4, 5]
    assert report.verdict != "different"
    assert cli.main(command) == 0
    assert "exactness     " + report.summary[:12] in capsys.readouterr().out


def test_the_doctor_warns(folders: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    backend = Loads(row_off(4, 2, 9.0))
    assert doctor.run(arguments(*folders), backend) == cli.EXIT_ERROR
    assert json.loads(capsys.readouterr().out)["exactness"]["verdict"] == "different"
    assert doctor.run(arguments(*folders, json=False), backend) == cli.EXIT_ERROR
    assert "DIFFERENT at block 4" in capsys.readouterr().out
    assert [(choice.model, choice.draft) for choice in backend.asked] == [folders] * 2


def test_without_the_flag_nothing_is_loaded_and_the_last_check_is_told(
    folders: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DFLASH2_MEASURED", str(tmp_path))
    backend = Loads(lambda logits: logits)
    assert doctor.run(arguments(*folders, exactness=False), backend) == 0
    found = json.loads(capsys.readouterr().out)["exactness"]
    assert found == {"verdict": None, "summary": exactness_check.NOT_ASKED}
    assert backend.asked == []
    checked = dflash2_mlx.load(*folders).exactness
    assert checked is not None
    assert doctor.report(*folders, None)["exactness"] == checked.as_dict()


def test_pairs_that_cannot_be_checked(folders: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    backend = Loads(lambda logits: logits)
    target, _ = folders
    for draft, code, reason in (("none", 0, "without a drafter"), ("/absent", cli.EXIT_ERROR, "'not usable'")):
        assert doctor.run(arguments(target, draft), backend) == code
        assert reason in json.loads(capsys.readouterr().out)["exactness"]["summary"]
    assert backend.asked == []
