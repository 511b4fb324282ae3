"""`dflash2-mlx service`: the property list, and what launchctl is asked."""

from __future__ import annotations

import argparse
import plistlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx.cli import command_parser
from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_server import service_command
from dflash2_server.service_command import Machine

PRINTED = """gui/501/dflash2-mlx.serve = {
\tactive count = 1
\tstate = running

\tprogram = /usr/bin/python3
\tpid = 4711
\tlast exit code = (never exited)
\tendpoints = {
\t\tstate = other
\t}
}
"""


class Launchctl:
    """Notes what it is asked. `failing` maps a word to how often it fails, and with what."""

    def __init__(self, failing: dict[str, tuple[int, str]] | None = None, printed: str = PRINTED) -> None:
        self.asked: list[list[str]] = []
        self._failing = failing or {}
        self._printed = printed

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.asked.append(list(arguments))
        word = arguments[0]
        times, message = self._failing.get(word, (0, ""))
        if sum(asked[0] == word for asked in self.asked) <= times:
            return subprocess.CompletedProcess(arguments, 5, "", message)
        return subprocess.CompletedProcess(arguments, 0, self._printed if word == "print" else "", "")


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DFLASH2_API_KEY", raising=False)

    def make(launchctl: Launchctl | None = None, **changes: Any) -> Machine:
        facts: dict[str, Any] = {
            "platform": "darwin", "home": tmp_path, "user": 501, "environment": {}, "sleep": lambda seconds: None,
            "launchctl": launchctl or Launchctl(), "python": "/opt/python/bin/python3",
        }  # fmt: skip
        return Machine(**(facts | changes))

    return make


def given(*words: str) -> argparse.Namespace:
    return command_parser("service", service_command).parse_args(list(words))


def test_install_writes_the_property_list_and_starts_it(mac: Any, tmp_path: Path) -> None:
    launchctl = Launchctl(failing={"bootout": (1, "no such process")})
    machine = mac(launchctl, environment={"HF_HOME": "/big/hf", "HF_TOKEN": "hf_secret", "DFLASH2_API_KEY": "secret"})
    models = tmp_path / "models"
    models.mkdir()
    assert service_command.run(given("install", "--port", "9001", "--model-dir", f"{models},org/name"), machine) == 0
    path = tmp_path / "Library" / "LaunchAgents" / "dflash2-mlx.serve.plist"
    plist = plistlib.loads(path.read_bytes())
    log = str(tmp_path / "Library" / "Logs" / "dflash2-mlx" / "serve.log")
    assert plist == {
        "Label": "dflash2-mlx.serve",
        "ProgramArguments": [
            "/opt/python/bin/python3", "-m", "dflash2_mlx.cli", "serve",
            f"--model-dir={models},org/name", "--port=9001",
        ],
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": 40,
        "ProcessType": "Interactive",
        "WorkingDirectory": str(tmp_path),
        "StandardOutPath": log,
        "StandardErrorPath": log,
        "EnvironmentVariables": {"PYTHONUNBUFFERED": "1", "HF_HOME": "/big/hf"},
    }  # fmt: skip
    assert b"secret" not in path.read_bytes()
    assert launchctl.asked == [["bootout", "gui/501/dflash2-mlx.serve"], ["bootstrap", "gui/501", str(path)]]
    assert Path(log).parent.is_dir()
    assert list(path.parent.iterdir()) == [path]


def test_variables_of_the_shell_are_noted_but_not_their_values(mac: Any, capsys: pytest.CaptureFixture[str]) -> None:
    service_command.run(given("install"), mac(environment={"DFLASH2_API_KEY": "hidden", "DFLASH2_PORT": ""}))
    told = capsys.readouterr().out
    assert "DFLASH2_API_KEY is set in this shell" in told
    assert "hidden" not in told
    assert "DFLASH2_PORT" not in told


def test_a_job_that_is_still_ending_is_asked_for_again(mac: Any) -> None:
    launchctl = Launchctl(failing={"bootstrap": (3, "Operation already in progress")})
    assert service_command.run(given("install"), mac(launchctl)) == 0
    assert [asked[0] for asked in launchctl.asked] == ["bootout", *["bootstrap"] * 4]


def test_what_launchctl_refuses_is_told_in_its_words(mac: Any) -> None:
    launchctl = Launchctl(failing={"bootstrap": (99, "Bootstrap failed: 5: Input/output error\n")})
    with pytest.raises(DFlashError, match="Bootstrap failed: 5: Input/output error"):
        service_command.run(given("install"), mac(launchctl))


def test_print_writes_nothing_on_any_system(mac: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launchctl = Launchctl()
    machine = mac(launchctl, platform="linux")
    assert service_command.run(given("install", "--print", "--no-hub-cache"), machine) == 0
    plist = plistlib.loads(capsys.readouterr().out.encode())
    assert plist["ProgramArguments"][-1] == "--no-hub-cache"
    assert launchctl.asked == []
    assert not (tmp_path / "Library").exists()


@pytest.mark.parametrize("action", ["install", "uninstall", "status"])
def test_other_systems_are_refused_with_the_command(mac: Any, tmp_path: Path, action: str) -> None:
    machine = mac(platform="linux")
    with pytest.raises(RequestError, match=r"macOS only.*ExecStart=/opt/python/bin/python3 -m dflash2_mlx.cli serve"):
        service_command.run(given(action), machine)
    assert not (tmp_path / "Library").exists()


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["install", "--api-key", "k"], "server.json"),
        (["install", "--hf-token", "k"], "server.json"),
        (["install", "--port", "0"], "port is 0"),
        (["install", "--port", "many"], "port"),
        (["install", "--host", "0.0.0.0"], "no key"),
        (["status", "--print"], "--print"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_written(
    mac: Any, tmp_path: Path, words: list[str], match: str
) -> None:
    launchctl = Launchctl()
    with pytest.raises(RequestError, match=match):
        service_command.run(given(*words), mac(launchctl))
    assert launchctl.asked == []
    assert not (tmp_path / "Library").exists()


def test_uninstall_stops_it_and_removes_the_file(mac: Any, capsys: pytest.CaptureFixture[str]) -> None:
    machine = mac()
    service_command.run(given("install"), machine)
    assert service_command.run(given("uninstall"), machine) == 0
    assert not machine.plist.exists()
    gone = mac(Launchctl(failing={"bootout": (9, "no such process")}))
    assert service_command.run(given("uninstall"), gone) == 0
    assert "it was not installed" in capsys.readouterr().out


def test_status_tells_what_launchd_says(mac: Any, capsys: pytest.CaptureFixture[str]) -> None:
    machine = mac()
    service_command.run(given("install", "--port", "9002"), machine)
    capsys.readouterr()
    assert service_command.run(given("status"), machine) == 0
    told = capsys.readouterr().out
    assert "state running, pid 4711, last exit code (never exited)" in told
    assert "--port=9002" in told
    assert "serve.log" in told


def test_status_of_what_does_not_run_is_not_zero(mac: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert service_command.run(given("status"), mac(Launchctl(failing={"print": (9, "not found")}))) == 1
    assert service_command.run(given("status"), mac(Launchctl(printed="\tstate = waiting\n"))) == 1
    assert "not installed" in capsys.readouterr().out
