"""`dflash2-mlx quantize` from the command line to the folder, on a tiny pair."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx import cli
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.quantization import QuantSpec
from dflash2_mlx.prompts import Prompt
from dflash2_quantize import job, quantize_command, target
from dflash2_quantize.card import Measured
from dflash2_quantize.checkpoint import Written
from dflash2_quantize.measure import Acceptance
from dflash2_quantize.quantize_command import size_in_bytes
from dflash2_quantize.search import Limit
from dflash2_quantize.source import open_source
from tests.quantize.subjects import DFLASH2, same, write
from tests.tiny_checkpoints import write_target
from tests.tiny_drafters import tiny_drafter_config, write_drafter

MEASURE = ("--prompts", "2", "--tokens", "6")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    model = write_target(folder / "target")
    config = tiny_drafter_config(model, intermediate_size=64, head_dim=16, num_hidden_layers=1, layer_types=None)
    return str(folder / "target"), str(write_drafter(folder / "drafter", config))


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> tuple[int, str, str]:
        try:
            code = cli.main(["quantize", *map(str, arguments)])
        except SystemExit as stop:
            code = int(str(stop.code))
        out, err = capsys.readouterr()
        return code, out, err

    return command


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_drafter_alone(run: Run, tmp_path: Path) -> None:
    source, out = write(tmp_path / "source"), tmp_path / "out"
    code, said, err = run(str(source), "--spec", "w4a32:gs32", "--out", str(out))
    assert (code, err) == (0, "")
    assert said.startswith(f"{out}: 0.2 MB to 0.1 MB; largest error 0.")
    assert len(said.splitlines()) == 1
    assert same(load_drafter(out), load_drafter(source, spec="w4a32:gs32"))
    assert sorted(file.name for file in out.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    card = (out / "README.md").read_text()
    words = [
        "packed for MLX from `source`",
        "w4a32:gs32",
        "| `fc` | w4:gs32 | 0.",
        "quantize PATH/TO/source --spec w4a32:gs32",
    ]
    assert [word for word in words if word not in card] == []
    assert "Acceptance" not in card
    assert str(tmp_path) not in card


def test_progress_as_json(run: Run, tmp_path: Path) -> None:
    source, out = write(tmp_path / "source"), tmp_path / "out"
    code, said, _ = run(str(source), "--out", str(out), "--progress-json")
    *progress, done = lines(said)
    assert code == 0
    assert {line["event"] for line in progress} == {"progress"}
    assert {line["stage"] for line in progress} == {"writing"}
    shares = [line["share"] for line in progress]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert done.keys() == {"event", "path", "bytes", "summary"}
    assert done["event"] == "done"
    assert done["path"] == str(out)
    assert done["bytes"] == sum(f.stat().st_size for f in out.iterdir() if f.name != "README.md")


def test_with_a_target_acceptance_is_told_before_and_after(run: Run, pair: tuple[str, str], tmp_path: Path) -> None:
    model, drafter = pair
    out = tmp_path / "out"
    arguments = (drafter, "--spec", "w8a16:gs32", "--out", str(out), "--target", model, *MEASURE, "--block-size", "3")
    code, said, _ = run(*arguments, "--progress-json")
    stages = list(dict.fromkeys(line["stage"] for line in lines(said)[:-1]))
    assert code == 0
    assert stages[-3:] == ["measuring before", "writing", "measuring after"]
    assert "tokens per cycle 1.0" in lines(said)[-1]["summary"]
    card = (out / "README.md").read_text()
    words = [
        "## Acceptance",
        "with `target` in blocks of 3: 2 of our prompts",
        "| draft 2 stands |",
        "--target PATH/TO/target",
    ]
    assert [word for word in words if word not in card] == []
    assert "| draft 3 stands |" not in card


def test_a_measurement_that_breaks_off_leaves_the_checkpoint(
    run: Run, pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, drafter = pair
    out = tmp_path / "out"
    measure = target.MeasuredTarget.acceptance

    def stops(self: Any, folder: Path, progress: Any) -> Any:
        if folder == out:
            raise KeyboardInterrupt
        return measure(self, folder, progress)

    monkeypatch.setattr(target.MeasuredTarget, "acceptance", stops)
    code, _, _ = run(drafter, "--spec", "w8a16:gs32", "--out", str(out), "--target", model, *MEASURE)
    assert code == cli.EXIT_INTERRUPTED
    assert load_drafter(out).quantization == "w8a16:gs32"
    assert "Error by module" in (out / "README.md").read_text()


def test_a_search_from_the_command_line(
    run: Run, pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Prompt(id="one", kind="chat", messages=({"role": "user", "content": "the stop"},), source="own")
    monkeypatch.setattr(target, "chosen", lambda count: [short])
    model, drafter = pair
    size = (Path(drafter) / "model.safetensors").stat().st_size
    arguments = (drafter, "--spec", "w4a32:gs32", "--target", model, *MEASURE, "--search")
    code, said, _ = run(*arguments, "--out", str(tmp_path / "small"), "--max-size", str(int(0.8 * size)))
    assert code == 0
    assert "module" in said
    assert "self_attn.q_proj" in said
    assert "tokens per cycle unpacked" in said
    assert (tmp_path / "small" / "model.safetensors").stat().st_size <= 0.8 * size
    assert load_drafter(tmp_path / "small").quantization == "mixed"
    card = (tmp_path / "small" / "README.md").read_text()
    assert "by module, a32:gs32" in card
    assert f"--search --max-size {int(0.8 * size)}" in card
    code, said, _ = run(*arguments, "--out", str(tmp_path / "good"), "--min-acceptance", "0.9", "--progress-json")
    assert code == 0
    assert {"recording a text", "searching"} <= {line.get("stage") for line in lines(said)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--spec", "w3"], ["weight bits 3"]),
        (["--spec", "off"], ["--spec off", "the source itself"]),
        (["--max-size", "1GB"], ["add --search"]),
        (["--min-acceptance", "0.9"], ["add --search"]),
        (["--search", "--max-size", "1GB"], ["--target"]),
        (["--search", "--target", "x"], ["--max-size or --min-acceptance"]),
        (["--search", "--target", "x", "--max-size", "big"], ["'big'", "GiB"]),
        (["--search", "--target", "x", "--min-acceptance", "2"], ["2.0", "0.98"]),
        (["--private"], ["--upload"]),
        (["--upload", "a b/c"], ["a b/c"]),
        (["--prompts", "0"], ["prompts 0"]),
        (["--prompts", "1000"], ["prompts 1000", "84"]),
        (["--tokens", "1"], ["tokens 1"]),
        (["--block-size", "5"], ["block size 5", "2 to 4"]),
        (["--block-size", "1"], ["block size 1"]),
    ],
)
def test_bad_arguments_are_told_by_name(arguments: list[str], words: list[str], run: Run, tmp_path: Path) -> None:
    code, said, err = run(str(write(tmp_path / "source")), "--out", str(tmp_path / "out"), *arguments)
    assert (code, said) == (cli.EXIT_USAGE, "")
    assert [word for word in words if word not in err] == []
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_the_folder_one_is_in_and_a_link_are_written_to(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, here, real = str(write(tmp_path / "source")), tmp_path / "here", tmp_path / "real"
    here.mkdir()
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(here)
    for given, folder in ((".", here), (str(tmp_path / "link"), real)):
        code, said, err = run(source, "--out", given)
        assert (code, err) == (0, "")
        assert said.startswith(f"{folder}: ")
        card = (folder / "README.md").read_text()
        assert f"# {folder.name}\n" in card
        assert f"--out {folder.name}\n" in card
    assert sorted(os.listdir(".")) == ["README.md", "config.json", "model.safetensors"]
    assert (tmp_path / "link").is_symlink()
    assert run(source, "--out", str(tmp_path / "link"), "--force")[0] == 0
    assert (tmp_path / "link").is_symlink()


def test_the_command_of_a_card_names_what_a_command_takes(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    assert job._named("owner/name") == "owner/name"
    assert job._named("demo") == "demo"
    assert job._named(str(tmp_path / "demo")) == "PATH/TO/demo"


@pytest.mark.parametrize(("after", "warned"), [(1.89, True), (1.96, False)])
def test_a_choice_that_decodes_worse_than_asked_for_is_told(after: float, warned: bool, tmp_path: Path) -> None:
    source = open_source(str(write(tmp_path / "source")))
    asked = job.Job(drafter="d", out=tmp_path, spec=QuantSpec(), limit=Limit(min_share=0.98))
    before, then = Acceptance(2.0, (), 1, 2), Acceptance(after, (), 1, 2)
    measured = Measured("target", 1, "0", 8, 4, before, then)
    said = job._summary(asked, source, Written(tmp_path, 1, {}, {}), measured)
    assert ("WARNING: decoding keeps 0.9450 of them, less than the 0.98 asked for" in said) == warned


def test_out_must_be_given(run: Run, tmp_path: Path) -> None:
    source = str(write(tmp_path / "source"))
    assert "--out" in run(source)[2]
    code, _, err = run(source, "--out", "")
    assert (code, "--out is empty" in err) == (cli.EXIT_USAGE, True)


def test_a_target_that_does_not_fit_is_told_before_anything_is_written(
    run: Run, pair: tuple[str, str], tmp_path: Path
) -> None:
    source = str(write(tmp_path / "source", DFLASH2))
    code, _, err = run(source, "--out", str(tmp_path / "out"), "--target", pair[0])
    assert code == cli.EXIT_ERROR
    assert "hidden size: drafter 64, target 32" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [("12", 12), ("1.5KB", 1500), ("800mb", 800_000_000), ("1.2 GB", 1_200_000_000), ("2GiB", 2 << 30)],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1TBs", "0", "1e3 x"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="max-size"):
        size_in_bytes(text)


def test_help_imports_no_mlx() -> None:
    code = (
        "import sys; from dflash2_mlx import cli\n"
        "try: cli.main(['quantize', '--help'])\n"
        "except SystemExit: pass\n"
        "print({'mlx', 'mlx_lm', 'rich', 'huggingface_hub'} & {name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert quantize_command.__name__ in cli.COMMANDS["quantize"]
