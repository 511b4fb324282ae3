"""`dflash2-mlx config`: the same settings, the same rules and the same files as everywhere else."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx import cli
from dflash2_mlx.settings import server
from dflash2_mlx.settings.model import ModelSettings
from dflash2_mlx.settings.store import ModelSettingsStore, default_path
from dflash2_server import config_command, config_text
from tests.test_model_settings import VALUES

MODEL = "Qwen3.8-27B-4bit"
CLI = Path(__file__).resolve().parents[1] / "docs" / "cli.md"


@pytest.fixture(autouse=True)
def no_files_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "default_file", lambda: tmp_path / "config" / "server.json")
    monkeypatch.setattr(config_command, "default_file", lambda: tmp_path / "config" / "server.json")
    for name in server.ServerSettings.model_fields:
        monkeypatch.delenv(server.environment_name(name), raising=False)


@pytest.fixture
def config(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert cli.main(["config", *shlex.split(words)]) == code
        out, err = capsys.readouterr()
        assert not (code and out)
        return err if code else out

    return run


def test_the_flow_of_the_contract(config: Any) -> None:
    told = config(
        f"set mlx-community/{MODEL} dflash_enabled=true dflash_draft_model=incoai/Qwen3.8-27B-DFlash2 "
        "dflash_draft_quant_enabled=on dflash_block_size=5 dflash_verify_mode=dflash"
    )
    assert str(default_path()) in told
    assert "dflash_block_size           null -> 5\n" in told
    assert "next look; after a reload: dflash_enabled, dflash_draft_model, dflash_draft_quant_enabled\n" in told
    found = ModelSettingsStore().get(MODEL)
    assert (found.dflash_enabled, found.dflash_block_size, found.draft_quant) == (True, 5, "w4a16:gs64")
    assert config(f"get {MODEL} dflash_draft_model") == "incoai/Qwen3.8-27B-DFlash2\n"
    assert config(f"get org/{MODEL} draft_quant") == "w4a16:gs64\n"
    assert config(f"get {MODEL}").splitlines()[0] == "dflash_enabled=true"
    assert "nothing has changed" in config(f"set {MODEL} dflash_block_size=5")
    assert "reload" not in config(f"set {MODEL} dflash_block_size=4")


@pytest.mark.parametrize("name", VALUES)
def test_every_field_round_trips_as_text(name: str, config: Any) -> None:
    value = VALUES[name] if name != "description" else "one line"
    text = value if isinstance(value, str) else json.dumps(value)
    config(f"set m {shlex.quote(f'{name}={text}')}")
    assert getattr(ModelSettingsStore().get("m"), name) == value
    assert config(f"get m {name}") == f"{text}\n"
    assert json.loads(config(f"get m {name} --json")) == value
    assert json.loads(config("get m --json")) == {name: value}
    assert json.loads(config("list m --json"))["models"]["m"][name] == value
    assert f"  {name} " in config("list m")
    config(f"set m {name}={'null' if len(name) % 2 else ''}")
    assert ModelSettingsStore().all() == {}
    assert config("get m") == "nothing is set\n"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("1073741824", 1 << 30),
        ("8GiB", 8 << 30),
        ("1.5gib", 3 << 29),
        ("512 MiB", 1 << 29),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: str, number: int, config: Any) -> None:
    config(f"set m {shlex.quote(f'dflash_in_memory_cache_max_bytes={text}')}")
    assert ModelSettingsStore().get("m").dflash_in_memory_cache_max_bytes == number


@pytest.mark.parametrize(
    ("short", "fields"),
    [
        ("w8a32:gs128", (True, 8, 32, 128)),
        ("w4", (True, 4, None, None)),
        ("off", (False, 2, None, None)),
        ("", (False, 2, None, None)),
    ],
)
def test_the_short_form_sets_four_fields(short: str, fields: tuple[Any, ...], config: Any) -> None:
    config("set m draft_quant=w2")
    config(f"set m draft_quant={short}")
    found = ModelSettingsStore().get("m")
    names = ("enabled", "weight_bits", "activation_bits", "group_size")
    assert tuple(getattr(found, f"dflash_draft_quant_{name}") for name in names) == fields
    assert config("get m draft_quant") == f"{found.draft_quant or 'off'}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("set", "name the MODEL"),
        ("set temperature=1", "name the MODEL"),
        ("set m", "name at least one FIELD=VALUE"),
        ("set m top_k", "'top_k' is no FIELD=VALUE"),
        ("set m =5", "'=5' is no FIELD=VALUE"),
        ("set m top_k=1 top_k=2", "top_k is given twice"),
        ("set m top_k=5 tpo_p=0.5", "there is no setting 'tpo_p': did you mean 'top_p'"),
        ("set m top_k=5 temperature=-1 min_p=7", "temperature is -1.0"),
        ("set m top_k=5 temperature=-1 min_p=7", "min_p is 7.0"),
        ("set m top_k=five", "top_k is 'five': input should be a valid integer"),
        ("set m temperature=nan", "finite"),
        ("set m dflash_enabled=maybe", "dflash_enabled is 'maybe': input should be a valid boolean"),
        ("set m dflash_draft_quant_weight_bits=3", "dflash_draft_quant_weight_bits is '3': input should be 2, 4 or 8"),
        ("set m dflash_verify_mode=ddtree", "use adaptive, dflash or off"),
        ("set m dflash_in_memory_cache_max_bytes=8GB", "valid integer"),
        ("set m chat_template_kwargs={a}", "chat_template_kwargs is '{a}'"),
        ("set m dflash_ssd_cache=on dflash_in_memory_cache=off", "needs dflash_in_memory_cache"),
        ("set m draft_quant=w3", "such as w4a16:gs64"),
        ("get", "name a MODEL"),
        ("get m top_k top_p", "name a MODEL"),
        ("get m topk", "did you mean 'top_k'"),
        ("list m n", "name one MODEL, not 2"),
        ("list --global port", "use get for one"),
        ("import", "name one FILE"),
        ("import a b", "name one FILE"),
        ("import none.json", "there is no file none.json"),
        ("set --global", "name at least one"),
        ("set --global prot=3 port=x", "did you mean 'port'"),
        ("set --global prot=3 port=x", "port is 'x': Input should be a valid integer"),
        ("set --global 'hf_token=hidden token'", "hf_token: a key has"),
        ("get --global prot", "did you mean 'port'"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_saved(words: str, told: str, config: Any) -> None:
    config("set m top_k=3")
    before = default_path().read_bytes()
    error = config(words, code=2)
    assert told in error
    assert "hidden" not in error
    assert default_path().read_bytes() == before
    assert not server.default_file().exists()


def test_an_unknown_action_is_an_error_of_use(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["config"], ["config", "show"]):
        with pytest.raises(SystemExit) as raised:
            cli.main(words)
        assert raised.value.code == 2
        assert "get" in capsys.readouterr().err


def test_list_shows_every_model_what_is_ignored_and_what_is_wrong(
    config: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nothing is set for any model" in config("list")
    default_path().parent.mkdir()
    default_path().write_text(
        json.dumps({"models": {"a": {"top_k": 5, "odd": [1], "top_p": 7}, "b": {"dflash_verify_mode": "ddtree"}}})
    )
    found = config("list")
    assert found.startswith(f"file: {default_path()}\n")
    assert "\na\n  top_k  5\nUnknown to this program, kept and ignored\n  odd  [1]\n" in found
    assert "\nb\n  dflash_verify_mode  ddtree\n" in found
    told = config("list b")
    assert "NOT IN FORCE: dflash_verify_mode is 'ddtree', which runs as adaptive" in told
    assert "ddtree (not yet)" in told
    assert cli.main(["config", "list"]) == 0
    assert "note: " in (err := capsys.readouterr().err)
    assert "top_p is 7" in err
    document = json.loads(config("list --json"))
    assert document["models"] == {"a": {"top_k": 5, "odd": [1]}, "b": {"dflash_verify_mode": "ddtree"}}
    assert len(document["problems"]) == 1
    config("set a odd=")
    assert json.loads(config("list --json"))["models"]["a"] == {"top_k": 5}


def test_list_of_a_model_names_every_field_and_what_null_means(config: Any) -> None:
    found = config("list m")
    rows = {line.split()[0]: line for line in found.splitlines() if line.startswith("  ")}
    assert set(rows) == set(ModelSettings.model_fields)
    assert "null (4) " in rows["dflash_draft_quant_weight_bits"]
    assert rows["dflash_draft_quant_weight_bits"].endswith("Weight bits: 2, 4, 8")
    assert "  8GiB " in rows["dflash_in_memory_cache_max_bytes"]
    assert rows["dflash_in_memory_cache_max_entries"].endswith("1 to 128")
    assert len({line.index(line.split()[1]) for line in rows.values()}) == 1, "the values stand below each other"


def test_import(config: Any, tmp_path: Path) -> None:
    source = tmp_path / "omlx.json"
    source.write_text(
        json.dumps({"version": 1, "models": {MODEL: {"dflash_block_size": 5, "foreign": 1, "top_k": -1}}})
    )
    told = config(f"import {source}")
    assert f"imported into {default_path()}" in told
    assert f"{MODEL}  1 fields: dflash_block_size" in told
    assert "kept and ignored: 'foreign'" in told
    assert "top_k is -1" in told
    assert ModelSettingsStore().get(MODEL).dflash_block_size == 5
    source.write_text('{"models": {}}')
    assert "names no model" in config(f"import {source}")
    source.write_text("{")
    assert "is damaged, nothing was imported" in config(f"import {source}", code=2)


def test_another_file(config: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    config(f"set m top_k=5 --file {other}")
    assert config(f"get --file {other} m top_k") == "5\n"
    assert not default_path().exists()
    config(f"set --global --file {other}.server port=9")
    assert config(f"get --global --file {other}.server port") == "9\n"
    assert str(other) in config(f"list --file {other}")


def test_the_servers_settings(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = config("set --global port=9 'api_key=hidden-1,hidden-2' alias=a,b max_models=null hub_cache=off")
    assert f"saved in {server.default_file()}" in told
    assert "changed: port, api_key, alias, hub_cache; in force when the server is started again" in told
    assert json.loads(server.default_file().read_text()) == {
        "port": 9,
        "api_key": ["hidden-1", "hidden-2"],
        "alias": ["a", "b"],
        "hub_cache": False,
    }
    monkeypatch.setenv("DFLASH2_MAX_QUEUE", "7")
    assert config("get --global port") == "9\n"
    assert config("get --global api_key") == "set\n"
    assert config("get --global hf_token") == "not set\n"
    assert config("get --global alias") == "a, b\n"
    assert json.loads(config("get --global alias --json")) == ["a", "b"]
    table = config("list --global")
    rows = {line.split()[0]: line.split() for line in table.splitlines() if line.startswith("  ")}
    assert set(rows) == set(server.ServerSettings.model_fields)
    assert (rows["port"][1:3], rows["max_queue"][1:3]) == (["9", "file"], ["7", "environment"])
    document = json.loads(config("list --global --json"))
    assert document["settings"]["port"] == {"value": 9, "source": "file", "default": 8000}
    assert document["settings"]["api_key"]["value"] is True
    assert "hidden" not in f"{told}{table}{document}{config('get --global')}"
    assert "changed: port;" in config("set --global port=")
    assert "nothing has changed" in config("set --global port=")
    assert config("get --global port") == "8000\n"


def test_values_that_hold_lines_or_controls_stay_in_their_line() -> None:
    assert config_text.text_of("a\nb\x1b[31m") == '"a\\nb\\u001b[31m"'
    assert config_text.text_of(["a", "\x1b"]) == '["a", "\\u001b"]'
    assert config_text.aligned([]) == []


def test_every_option_of_every_action_is_documented() -> None:
    parser = cli.command_parser("config", config_command)
    (actions,) = [entry for entry in parser._actions if isinstance(entry, argparse._SubParsersAction)]
    section = CLI.read_text(encoding="utf-8").split("\n## config\n")[1].split("\n## ")[0]
    assert set(actions.choices) == {"get", "set", "list", "import"}
    for name, part in actions.choices.items():
        assert f"config {name} " in section
        for entry in part._actions:
            assert entry.help
            assert all(flag in section for flag in entry.option_strings if flag not in ("-h", "--help"))
