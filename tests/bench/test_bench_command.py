"""`dflash2-mlx bench` as a whole: what is refused before a model is loaded, and what a run on a tiny pair gives."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx import cli, pairs
from dflash2_mlx.bench import bench_command, loading
from dflash2_mlx.bench import run as run_module
from dflash2_mlx.bench.choices import checked_files
from dflash2_mlx.bench.progress import duration, measuring
from dflash2_mlx.bench.results import from_dict
from dflash2_mlx.errors import DFlashError, PairError, RequestError
from tests.bench.benching import NoisyBackend, sample
from tests.bench.fake_endpoint import serving
from tests.tiny_checkpoints import write_target
from tests.tiny_drafters import tiny_drafter_config, tiny_v1_config, write_drafter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`target`, `drafter` (block size 6), `other` (DFlash) and `prompts.jsonl` of two kinds."""
    root = tmp_path_factory.mktemp("bench")
    model = write_target(root / "target", window=64)
    write_drafter(root / "drafter", tiny_drafter_config(model))
    write_drafter(root / "other", tiny_v1_config(model))
    rows = [{"prompt": f"question {i}", "kind": kind} for i, kind in enumerate(("code", "chat", "code", "chat"))]
    (root / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


@pytest.fixture(autouse=True)
def private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the user's is read or written."""
    monkeypatch.setenv("DFLASH2_MEASURED", str(tmp_path / "widths"))


@pytest.fixture
def no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: Any, **options: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(pairs, "load", load)


def bench(*arguments: str) -> int:
    """The command as `cli.main` runs it, errors raised."""
    return bench_command.run(cli.command_parser("bench", bench_command).parse_args(arguments))


def tiny_bench(folder: Path, *arguments: str, draft: str = "drafter") -> int:
    return bench(
        *("--model", str(folder / "target"), "--draft", str(folder / draft) if draft != "none" else draft),
        *("--prompts", str(folder / "prompts.jsonl"), "--max-tokens", "6", "--rounds", "1", *arguments),
    )


def read(path: Path) -> Any:
    return from_dict(json.loads(path.read_text()))


def test_a_run_writes_table_json_and_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    files = ("--json", str(tmp_path / "new" / "r.json"), "--html", str(tmp_path / "r.html"))
    assert tiny_bench(folder, "--block-sizes", "1,3,auto", "--verify-modes", "dflash,off", *files) == 0
    out, err = capsys.readouterr()
    assert "All prompts" in out
    assert "8 of 8" not in out
    assert "4 of 4" in out  # greedy texts of the float32 pair
    assert "12 samples, up to" in err
    result = read(tmp_path / "new" / "r.json")
    assert [arm.name for arm in result.plan.arms] == ["plain", "block 3", "automatic block"]
    assert len(result.samples) == 12
    for fact in ("machine", "system", "versions", "command", "prompts", "target", "drafter", "drafter quantisation"):
        assert result.facts[fact], fact
    assert result.facts["prompts"].startswith("4 of prompts.jsonl, digest ")
    assert "Acceptance by position" in (tmp_path / "r.html").read_text()


def test_drafters_and_packings_are_compared_on_one_target(folder: Path, tmp_path: Path) -> None:
    loaded = []
    original = pairs._load_target  # counted: the target is what costs memory

    def count(*args: Any) -> Any:
        loaded.append(args[0])
        return original(*args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pairs, "_load_target", count)
        out = str(tmp_path / "r.json")
        given = ("--compare-draft", str(folder / "other"), "--block-sizes", "3", "--json", out)
        assert tiny_bench(folder, *given, "--prompts-per-kind", "1") == 0
    assert len(loaded) == 1
    result = read(tmp_path / "r.json")
    assert [arm.name for arm in result.plan.arms] == ["plain", "block 3 · drafter", "block 3 · other"]
    engines = {sample.arm: sample.engine for sample in result.samples}
    assert engines == {"plain": "plain", "block 3 · drafter": "dflash2", "block 3 · other": "dflash"}
    assert len({sample.digest for sample in result.samples}) == 2  # two prompts, whatever the drafter
    assert result.facts["other: engine"] == "dflash"


def test_packings_have_names(folder: Path) -> None:
    args = cli.command_parser("bench", bench_command).parse_args(
        ["--draft", "a/b", "--compare-draft-quant", "w4a16:gs64", "--compare-draft", "c/b", "--compare-draft", "a/b"]
    )
    assert list(bench_command._drafts(args)) == ["a/b as it is", "c/b as it is", "a/b w4a16:gs64"]


def test_without_a_drafter_plain_decoding_is_measured(folder: Path, tmp_path: Path) -> None:
    assert tiny_bench(folder, "--json", str(tmp_path / "r.json"), "--control", draft="none") == 0
    assert [arm.name for arm in read(tmp_path / "r.json").plan.arms] == ["plain", "plain again"]


def test_a_model_without_a_known_drafter_is_refused(folder: Path) -> None:
    with pytest.raises(RequestError, match=r"nothing to compare: no drafter is known.*--draft none"):
        bench("--model", str(folder / "target"), "--prompts", str(folder / "prompts.jsonl"))


def test_a_block_size_beyond_the_drafters_is_refused_after_loading(folder: Path) -> None:
    with pytest.raises(RequestError, match="arm 'block 9': block_size is 9"):
        tiny_bench(folder, "--block-sizes", "9")


def test_ctrl_c_reports_what_is_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt

    backend = NoisyBackend(at_call=interrupt)
    original = run_module.run
    monkeypatch.setattr(run_module, "run", lambda plan, backends, **o: original(plan, {"pair": backend}, **o))
    assert tiny_bench(folder, "--json", str(tmp_path / "r.json")) == 130
    result = read(tmp_path / "r.json")
    assert (len(result.samples), result.cancelled) == (3, True)
    assert "Ended early (interrupted): 3 of 8" in " ".join(capsys.readouterr().out.split())


def test_a_file_that_cannot_be_written_does_not_cost_the_table(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise DFlashError(f"{path} cannot be written: no space left")

    monkeypatch.setattr("dflash2_mlx.report.whole.write_whole", full)
    with pytest.raises(DFlashError, match="no space left"):
        tiny_bench(folder, "--json", str(tmp_path / "r.json"))
    assert "All prompts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "param"),
    [
        (("--json", "file/r.json"), "json"),
        (("--html", "file/r.html", "--json", "good.json"), "html"),
        (("--json", "folder", "--html", "good.html"), "json"),
        (("--html", "same.md", "--json", "./folder/../same.md"), "html"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], param: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    args = argparse.Namespace(json=None, html=None)
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        setattr(args, flag.removeprefix("--"), value)
    with pytest.raises(RequestError) as caught:
        checked_files(args)
    assert caught.value.param == param
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_files_that_can_be_written_are_left_as_they_are(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("kept")
    new = tmp_path / "new" / "r.html"
    assert checked_files(argparse.Namespace(json=str(there), html=str(new))) == [there, new]
    assert there.read_text() == "kept"
    assert not new.parent.exists()


REFUSED = [
    (("--block-sizes", "3,x"), "'x' is none of its values"),
    (("--block-sizes", "0"), "block_sizes is 0"),
    (("--verify-modes", "fast"), "verify mode 'fast'"),
    (("--temps", "warm"), "'warm'"),
    (("--temps", "-1"), "temperatures is -1"),
    (("--depths", "-5"), "depths is -5"),
    (("--kinds", "poems"), "poems"),
    (("--prompts-per-kind", "0"), "--prompts-per-kind is 0"),
    (("--prompts-per-kind", "13"), "--prompts-per-kind: 13 prompts of a kind: there are 12"),
    (("--set", "trivia"), "--set trivia: there are gsm8k"),
    (("--set", "gsm8k,mbpp", "--prompts", "x.jsonl"), "one set only"),
    (("--prompts", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
    (("--max-tokens", "0"), "max_tokens is 0"),
    (("--rounds", "0"), "rounds is 0"),
    (("--cool-down", "-1"), "cool_down is -1"),
    (("--seed", "-1"), "seed is -1"),
    (("--concurrency", "4"), "--concurrency is 4, but a model of this machine"),
    (("--draft-quant", "w9"), "w9"),
    (("--compare-draft-quant", "w9"), "w9"),
    (("--compare-draft", "none"), "plain decoding is measured anyway"),
    (("--html", "report.pdf"), "report.pdf"),
    (("--html", "report.json"), "--json"),
    (("--json", "."), "is a folder"),
    (("--endpoint-model", "m"), "add --endpoint URL"),
    (("--endpoint", "http://me:secret@host/v1"), "no key or password in the address"),
    (("--endpoint", "http://host/v1?key=secret"), "no key or password in the address"),
    (("--endpoint", "http://a", "--endpoint-key-env", "NOT_THERE"), "no such variable"),
    (("--endpoint", "http://a", "--endpoint-model", "m", "--endpoint-model", "n"), "2 times"),
]


@pytest.mark.usefixtures("no_load")
@pytest.mark.parametrize(("arguments", "told"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_bad_input_is_refused_before_a_model_is_loaded(arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(RequestError) as caught:
        bench(*arguments)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("no_load")
def test_quick_is_small_and_what_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []

    def keep(args: Any, plan: Any, *rest: Any) -> Any:
        plans.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_command, "_backends", keep)
    for arguments in (["--quick"], ["--quick", "--rounds", "5"], []):
        with pytest.raises(KeyboardInterrupt):
            bench(*arguments)
    assert [(plan.rounds, plan.max_tokens, len(plan.prompts)) for plan in plans] == [
        (2, 48, 6),
        (5, 48, 6),
        (3, 128, 21),
    ]
    assert {prompt.kind for prompt in plans[0].prompts} == {"code", "chat", "prose"}


@pytest.mark.usefixtures("no_load")
def test_a_set_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "one and one?", "answer": "2"}\n{"question": "two and two?", "answer": "4"}\n')
    args = cli.command_parser("bench", bench_command).parse_args(["--set", "gsm8k", "--prompts", str(file)])
    from dflash2_mlx.bench.choices import chosen_prompts

    assert [prompt.kind for prompt in chosen_prompts(args)] == ["mathematics"] * 2


@pytest.mark.usefixtures("no_load")
def test_an_endpoint_alone_loads_no_model_and_no_key_is_written(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BENCH_KEY", "very-secret")
    with serving() as fake:
        given = ("--endpoint", fake.url, "--endpoint-key-env", "BENCH_KEY", "--concurrency", "2", "--rounds", "1")
        files = ("--prompts", str(folder / "prompts.jsonl"), "--json", str(tmp_path / "r.json"))
        assert bench(*given, *files, "--html", str(tmp_path / "r.html"), "--max-tokens", "4") == 0
    result = read(tmp_path / "r.json")
    assert [arm.verify_mode for arm in result.plan.arms] == ["server"]
    assert (len(result.samples), len(result.passes)) == (4, 1)
    shown = capsys.readouterr().out + (tmp_path / "r.json").read_text() + (tmp_path / "r.html").read_text()
    assert "very-secret" not in shown
    assert "With 2 in flight, speculation in" in shown


def test_servers_have_names_of_their_own() -> None:
    urls = ["http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1", "https://host"]
    named = loading.server_names(loading.named_servers(urls, ["m"], []))
    assert list(named) == ["m at 127.0.0.1:8000", "m at 127.0.0.1:8000 (2)", "m at host"]


def test_progress_without_a_terminal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from dflash2_mlx.bench.model import Progress

    with measuring(2) as progress:
        for done, left in ((0, None), (0, 100.0), (1, 90.0)):
            progress(Progress(done=done, total=9, sample=sample() if done else None, seconds_left=left))
    assert capsys.readouterr().err == "9 samples, up to 2 min\n"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "1 s"), (89, "89 s"), (90, "2 min"), (5340, "89 min"), (5400, "1 h 30 min")]
)
def test_durations_are_said_as_one_would(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_pair_takes_one_drafter_and_needs_a_known_one(folder: Path) -> None:
    bare = pairs.load(str(folder / "target"), None)
    drafted = pairs.with_drafter(bare, str(folder / "drafter"))
    assert (bare.engine, drafted.engine) == ("plain", "dflash2")
    with pytest.raises(PairError, match="the pair has a drafter"):
        pairs.with_drafter(drafted, str(folder / "other"))
    with pytest.raises(PairError, match="no drafter is known"):
        pairs.with_drafter(bare, "auto")
