"""The one schema: flags, environment and file, their order, and what they refuse."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_mlx.settings import ServerSettings
from dflash2_mlx.settings import server as settings


@pytest.fixture(autouse=True)
def no_file_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "default_file", lambda: tmp_path / "none" / "server.json")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.json"


def read(
    flags: str = "", environment: dict[str, str] | None = None, file: Path | None = None
) -> tuple[ServerSettings, list[str]]:
    parser = argparse.ArgumentParser()
    settings.add_setting_arguments(parser)
    return settings.read_settings(parser.parse_args(flags.split()), environment or {}, file)


def test_the_defaults_are_the_schemas() -> None:
    found, notes = read()
    assert found == ServerSettings()
    assert notes == []
    assert (found.host, found.model, found.cors_origin, found.api_key) == ("127.0.0.1", None, [], [])


def test_flag_over_environment_over_file_over_default(file: Path) -> None:
    file.write_text(json.dumps({"port": 1, "max_queue": 2, "max_active": 3}))
    found, _ = read("--port 7", {"DFLASH2_PORT": "8", "DFLASH2_MAX_QUEUE": "9"}, file)
    assert (found.port, found.max_queue, found.max_active, found.prefill_step_size) == (7, 9, 3, 2048)


@pytest.mark.parametrize("name", ServerSettings.model_fields)
def test_every_setting_has_a_flag_a_variable_and_a_text(name: str) -> None:
    parser = argparse.ArgumentParser()
    settings.add_setting_arguments(parser)
    (action,) = [action for action in parser._actions if action.dest == name]
    assert f"--{name.replace('_', '-')}" in action.option_strings
    assert action.default is None
    assert action.help
    assert settings.environment_name(name) == f"DFLASH2_{name.upper()}"
    assert ServerSettings.model_fields[name].description in action.help


# A value that is not the default, as text and as the settings hold it.
VALUES: list[tuple[str, str, Any]] = [
    ("model", "org/model", "org/model"),
    ("draft", "none", "none"),
    ("draft_quant", "w4a16:gs64", "w4a16:gs64"),
    ("dtype", "bfloat16", "bfloat16"),
    ("alias", "a,org/b", ["a", "org/b"]),
    ("model_dir", "/models,~/more", ["/models", "~/more"]),
    ("idle_seconds", "600", 600),
    ("max_models", "2", 2),
    ("download_dir", "/models", "/models"),
    ("hf_endpoint", "http://127.0.0.1:9000/", "http://127.0.0.1:9000"),
    ("hf_token", "hf_secret", SecretStr("hf_secret")),
    ("ssd_cache_dir", "/cache", "/cache"),
    ("host", "::1", "::1"),
    ("port", "0", 0),
    ("api_key", "k1,k2", [SecretStr("k1"), SecretStr("k2")]),
    ("allowed_host", "Box.Lan", ["box.lan"]),
    ("cors_origin", "https://A.example/,*", ["https://a.example", "*"]),
    ("max_body_mb", "0.5", 0.5),
    ("max_queue", "1", 1),
    ("max_active", "2", 2),
    ("context_length", "4096", 4096),
    ("max_tokens", "100", 100),
    ("prefill_step_size", "512", 512),
    ("watchdog_seconds", "0", 0.0),
    ("memory_limit_gb", "1.5", 1.5),
    ("cache_gb", "0", 0.0),
    ("snapshot_every", "1000", 1000),
    ("keep_alive_seconds", "2.5", 2.5),
    ("keep_alive_style", "chunk", "chunk"),
    ("reasoning_field", "content", "content"),
    ("log_level", "debug", "debug"),
]


SWITCHES = {"allow_fallback", "no_ui", "hub_cache", "load_on_request"}


def test_the_table_misses_no_setting() -> None:
    assert {name for name, _, _ in VALUES} | SWITCHES == set(ServerSettings.model_fields)


@pytest.mark.parametrize(("name", "text", "value"), VALUES)
def test_every_setting_by_flag_variable_and_file(name: str, text: str, value: Any, file: Path) -> None:
    plain = {"api_key": text.split(","), "hf_token": text}.get(name, value)
    file.write_text(json.dumps({name: plain}))
    flag, variable = settings.flag_name(name), settings.environment_name(name)
    for found, _ in (read(f"{flag} {text}"), read("", {variable: text}), read("", {}, file)):
        assert getattr(found, name) == value
        assert getattr(found, name) != getattr(ServerSettings(), name)


def test_switches() -> None:
    assert read("--allow-fallback")[0].allow_fallback
    assert not read("--no-allow-fallback", {"DFLASH2_ALLOW_FALLBACK": "true"})[0].allow_fallback
    assert read("", {"DFLASH2_ALLOW_FALLBACK": "1"})[0].allow_fallback
    assert not read("--no-hub-cache", {"DFLASH2_LOAD_ON_REQUEST": "no"})[0].hub_cache
    assert not read("", {"DFLASH2_LOAD_ON_REQUEST": "no"})[0].load_on_request
    assert read("--no-ui")[0].no_ui
    assert not read()[0].no_ui


def test_a_list_is_repeated_or_parted_by_commas() -> None:
    assert read("--alias a --alias b,c")[0].alias == ["a", "b", "c"]


def test_a_variable_set_to_nothing_is_not_set() -> None:
    assert read("", {"DFLASH2_PORT": ""})[0].port == 8000


def test_other_variables_are_left_alone() -> None:
    assert read("", {"DFLASH2_BLAS": "bundled", "PORT": "1"}) == (ServerSettings(), [])


def test_unknown_keys_of_the_file_are_named_and_not_in_force(file: Path) -> None:
    file.write_text(json.dumps({"port": 9, "max_quue": 5, "model_config": {}}))
    found, notes = read("", {}, file)
    assert found == ServerSettings(port=9)
    assert [("'max_quue'" in note or "'model_config'" in note, str(file) in note) for note in notes] == [
        (True,) * 2
    ] * 2


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"null", b"\xff\xfe", b'{"port": 1', b'{"a":' * 100_000], ids=range(6)
)
def test_a_damaged_file_is_refused_with_its_path(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    with pytest.raises(RequestError) as raised:
        read("", {}, file)
    assert str(file) in str(raised.value)


def test_a_chosen_file_must_be_there_the_default_need_not(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="no settings file"):
        read("", {}, file)
    with pytest.raises(RequestError, match="cannot be read"):
        read("", {}, file.parent)
    monkeypatch.setattr(settings, "default_file", lambda: file)
    assert read()[0].port == 8000
    file.write_text('{"port": 4}')
    assert read()[0].port == 4


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("port", "65536", "less than or equal to 65535"),
        ("port", "-1", "greater than or equal to 0"),
        ("port", "http", "valid integer"),
        ("port", "80.5", "valid integer"),
        ("dtype", "fp8", "'float32', 'bfloat16' or 'float16'"),
        ("max_queue", "0", "greater than or equal to 1"),
        ("max_active", "65", "less than or equal to 64"),
        ("context_length", "0", "greater than or equal to 1"),
        ("max_body_mb", "0", "greater than 0"),
        ("max_body_mb", "nan", "finite number"),
        ("cache_gb", "inf", "finite number"),
        ("cache_gb", "-1", "greater than or equal to 0"),
        ("keep_alive_style", "none", "'comment' or 'chunk'"),
        ("log_level", "trace", "'debug', 'info', 'warning' or 'error'"),
        ("allow_fallback", "perhaps", "valid boolean"),
        ("allowed_host", "*", "a host name"),
        ("allowed_host", "http://a", "a host name"),
        ("allowed_host", "a:80", "a host name"),
        ("cors_origin", "a.example", "scheme://host"),
        ("cors_origin", "https://a.example/path", "scheme://host"),
        ("cors_origin", "null", "scheme://host"),
        ("idle_seconds", "0", "greater than or equal to 1"),
        ("max_models", "0", "greater than or equal to 1"),
        ("hf_endpoint", "huggingface.co", "https://host"),
        ("hf_endpoint", "https://user:secret@host", "https://host"),
        ("hf_endpoint", "https://host?a=b", "https://host"),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_source_and_what_is_allowed(
    name: str, text: str, allowed: str, file: Path
) -> None:
    file.write_text(json.dumps({name: text}))
    sources = [("", {settings.environment_name(name): text}, None, f"environment, {settings.environment_name(name)}")]
    if name != "allow_fallback":
        sources.append((f"{settings.flag_name(name)}={text}", {}, None, f"flag {settings.flag_name(name)}"))
    for flags, environment, path, source in sources:
        with pytest.raises(RequestError) as raised:
            read(flags, environment, path)
        message = str(raised.value)
        assert raised.value.param == name
        assert all(part in message for part in (name, text, source, allowed)), message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "80"),
        ("port", True),
        ("port", 80.0),
        ("allow_fallback", 1),
        ("allow_fallback", "yes"),
        ("model", 7),
        ("model", ""),
        ("alias", [1]),
        ("max_body_mb", "1"),
        ("context_length", False),
        ("cors_origin", {"a": 1}),
    ],
)
def test_the_file_has_jsons_types(name: str, value: Any, file: Path) -> None:
    file.write_text(json.dumps({name: value}))
    with pytest.raises(RequestError, match=f"^{name} is .*the file {file}"):
        read("", {}, file)


@pytest.mark.parametrize("key", ["a b", "schl\xfcssel", " ", "", " , ", "tab\there"])
def test_a_bad_key_is_refused_and_never_shown(key: str, file: Path) -> None:
    file.write_text(json.dumps({"api_key": key}))
    arguments = argparse.Namespace(api_key=[key])
    for args, path in ((arguments, None), (argparse.Namespace(), file)):
        with pytest.raises(RequestError, match=r"^api_key \(") as raised:
            settings.read_settings(args, {}, path)
        assert not key.strip(" ,") or key not in str(raised.value)


@pytest.mark.parametrize("token", ["a b", "schl\xfcssel", " ", 123456789123, ["a"]])
def test_a_bad_token_is_refused_and_never_shown(token: Any, file: Path) -> None:
    file.write_text(json.dumps({"hf_token": token}))
    with pytest.raises(RequestError, match=r"^hf_token \(") as raised:
        read("", {}, file)
    assert repr(token) not in str(raised.value)


def test_no_key_is_ever_printed() -> None:
    found, _ = read("--api-key hidden-1 --hf-token hidden-3", {"DFLASH2_API_KEY": "hidden-2"})
    assert [key.get_secret_value() for key in found.api_key] == ["hidden-1"]
    assert found.hf_token is not None
    assert found.hf_token.get_secret_value() == "hidden-3"
    shown = f"{found} {found!r} {found.model_dump()} {found.model_dump_json()}"
    assert "hidden" not in shown


def test_a_setting_that_does_not_exist_is_an_error_in_code() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        ServerSettings(max_quue=1)  # type: ignore[call-arg]


def test_sizes_in_bytes() -> None:
    found = ServerSettings(max_body_mb=0.5, cache_gb=1.5)
    assert (found.max_body_bytes, found.cache_bytes) == (524288, 1610612736)


def test_folders_know_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/homes/one")
    found = ServerSettings(model_dir=["~/models", "/m"], download_dir="~", ssd_cache_dir="~nobody-of-that-name/x")
    assert found.model_folders == [Path("/homes/one/models"), Path("/m")]
    assert found.download_folder == Path("/homes/one")
    assert found.ssd_cache_folder == Path("~nobody-of-that-name/x")
    assert (ServerSettings().download_folder, ServerSettings().ssd_cache_folder) == (None, None)


@pytest.mark.parametrize(
    ("draft", "quant", "taken"),
    [
        (None, None, ("auto", None)),
        ("auto", "off", ("auto", None)),
        ("none", "w8", (None, "w8")),
        ("org/drafter", "w4a16:gs64", ("org/drafter", "w4a16:gs64")),
    ],
)
def test_what_load_is_asked_for(draft: str | None, quant: str | None, taken: tuple[str | None, str | None]) -> None:
    found = ServerSettings(draft=draft, draft_quant=quant)
    assert (found.drafter, found.quantize) == taken


def in_force(
    flags: str = "", environment: dict[str, str] | None = None, file: Path | None = None, **more: Any
) -> dict[str, settings.SettingInForce]:
    parser = argparse.ArgumentParser()
    settings.add_setting_arguments(parser)
    found = settings.server_settings_in_force(parser.parse_args(flags.split()), environment or {}, file, **more)
    return {setting.name: setting for setting in found}


def test_each_setting_tells_where_it_comes_from(file: Path) -> None:
    file.write_text(json.dumps({"port": 1, "max_queue": 2, "max_active": 3, "hf_token": "hidden"}))
    found = in_force("--port 7", {"DFLASH2_MAX_QUEUE": "9", "DFLASH2_API_KEY": "hidden"}, file)
    told = {name: (found[name].value, found[name].source) for name in ("port", "max_queue", "max_active", "host")}
    assert told == {
        "port": (7, "flag"),
        "max_queue": (9, "environment"),
        "max_active": (3, "file"),
        "host": ("127.0.0.1", "default"),
    }
    assert list(found) == list(ServerSettings.model_fields)
    assert (found["api_key"].value, found["api_key"].default, found["api_key"].source) == (True, False, "environment")
    assert (found["hf_token"].value, found["hf_token"].source) == (True, "file")
    assert "hidden" not in repr(found)
    assert found["max_active"].default == ServerSettings().max_active
    assert (found["port"].requires_restart, found["idle_seconds"].requires_restart) == (True, False)
    assert all(setting.group and setting.description and not setting.changed for setting in found.values())


def test_what_the_file_has_since_the_start_is_pending(file: Path) -> None:
    file.write_text(json.dumps({"port": 1, "max_active": 3}))
    running, _ = read("--max-queue 5", {}, file)
    file.write_text(json.dumps({"port": 2, "max_queue": 6, "cache_gb": 1.0, "hf_token": "hidden"}))
    found = in_force("--max-queue 5", {}, file, running=running)
    told = {
        name: (setting.value, setting.source, setting.pending) for name, setting in found.items() if setting.changed
    }
    assert told == {
        "port": (1, "file", 2),
        "max_active": (3, "file", 4),
        "cache_gb": (8.0, "default", 1.0),
        "hf_token": (False, "default", True),
    }
    assert (found["max_queue"].value, found["max_queue"].source) == (5, "flag")


def test_writing_keeps_the_rest_of_the_file(file: Path) -> None:
    file.write_text(json.dumps({"port": 9, "of_another_version": {"a": 1}, "max_queue": "wrong", "alias": ["a"]}))
    changed = settings.write_server_settings(
        file, {"port": None, "max_active": 2, "api_key": "k1, k2", "hf_token": "t", "alias": ["a"], "host": "::1"}
    )
    assert changed == ("port", "max_active", "api_key", "hf_token", "host")
    assert json.loads(file.read_text()) == {
        "of_another_version": {"a": 1},
        "max_queue": "wrong",
        "alias": ["a"],
        "max_active": 2,
        "api_key": ["k1", "k2"],
        "hf_token": "t",
        "host": "::1",
    }
    assert file.stat().st_mode & 0o777 == 0o600
    settings.write_server_settings(file, {"of_another_version": None, "max_queue": None})
    assert read("", {}, file) == (
        ServerSettings(max_active=2, api_key=["k1", "k2"], hf_token="t", alias=["a"], host="::1"),
        [],
    )


@pytest.mark.parametrize(
    ("changes", "param", "told"),
    [
        ({"max_queue": 5, "port": "80"}, "port", "valid integer"),
        ({"port": True}, "port", "valid integer"),
        ({"max_quue": 5}, "max_quue", "did you mean 'max_queue'"),
        ({"zzz": None}, "zzz", "no setting"),
        ({"hf_token": "hidden key"}, "hf_token", "printable"),
        ({"api_key": ["hidden key"]}, "api_key", "printable"),
        ({"cache_gb": float("nan")}, "cache_gb", "finite"),
    ],
)
def test_a_wrong_change_is_refused_and_nothing_written(
    changes: dict[str, Any], param: str, told: str, file: Path
) -> None:
    file.write_text('{"max_queue": 4}')
    with pytest.raises(RequestError) as raised:
        settings.write_server_settings(file, changes)
    assert raised.value.param == param
    assert told in str(raised.value)
    assert "hidden" not in str(raised.value)
    assert file.read_text() == '{"max_queue": 4}'


def test_a_damaged_file_is_not_written_over(file: Path) -> None:
    file.write_text('{"api_key": "k"')
    with pytest.raises(RequestError, match="repair it or move it away"):
        settings.write_server_settings(file, {"port": 1})
    assert file.read_text() == '{"api_key": "k"'


def test_the_default_file_is_made_where_none_is(tmp_path: Path) -> None:
    assert settings.write_server_settings(None, {"port": 4, "hub_cache": False}) == ("port", "hub_cache")
    assert read()[0] == ServerSettings(port=4, hub_cache=False)
    assert json.loads((tmp_path / "none" / "server.json").read_text()) == {"port": 4, "hub_cache": False}


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DFlashError, match=r"server\.json cannot be locked"):
        settings.write_server_settings(tmp_path / "file" / "server.json", {"port": 4})


@pytest.mark.parametrize(("name", "text", "value"), VALUES)
def test_a_text_becomes_what_the_file_holds(name: str, text: str, value: Any, file: Path) -> None:
    settings.write_server_settings(file, {name: settings.from_text(name, text)})
    assert getattr(read("", {}, file)[0], name) == value


def test_facts_for_a_form() -> None:
    facts = {fact.name: fact for fact in settings.server_field_facts()}
    assert list(facts) == list(ServerSettings.model_fields)
    kinds = {"port": "int", "cache_gb": "float", "no_ui": "bool", "api_key": "secret", "hf_token": "secret"}
    kinds |= {"model_dir": "list", "cors_origin": "list", "log_level": "choice", "dtype": "choice", "model": "text"}
    assert {name: facts[name].kind for name in kinds} == kinds
    assert facts["dtype"].choices == ("float32", "bfloat16", "float16")
    assert (facts["port"].minimum, facts["port"].maximum, facts["port"].default) == (0, 65535, 8000)
    assert facts["memory_limit_gb"].above_minimum
    assert facts["memory_limit_gb"].nullable
    assert not facts["cache_gb"].above_minimum
    assert facts["port"].reload
    assert not facts["max_models"].reload
