"""`dflash2-mlx service`: the server at login, by launchd (macOS)."""

from __future__ import annotations

import argparse
import os
import plistlib
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_mlx.settings import ServerSettings, environment_name, read_settings
from dflash2_server import launchd, serve_command
from dflash2_server.listener import base_url
from dflash2_server.serve_flags import flags_of, secrets_of

_NOT_RUNNING = 1


def _launchctl(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["launchctl", *arguments], capture_output=True, text=True, check=False)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the command touches; tests give another."""

    platform: str = sys.platform
    home: Path = field(default_factory=Path.home)
    user: int = field(default_factory=os.getuid)
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    launchctl: launchd.Launchctl = _launchctl
    sleep: Callable[[float], None] = time.sleep
    python: str = sys.executable

    @property
    def plist(self) -> Path:
        return launchd.plist_path(self.home)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("install", "uninstall", "status"),
        help="install: start the server now and at each login, with the flags given here; uninstall: stop it and "
        "forget it; status: whether it runs",
    )
    parser.add_argument(
        "--print", action="store_true", help="with install: print the property list, write and start nothing"
    )
    serve_command.add_arguments(parser)
    parser.usage = "dflash2-mlx service install|uninstall|status [--print] [flags of serve]"
    parser.epilog = "macOS only, but for --print. Keys come from server.json: a property list can be read by others."


def run(args: argparse.Namespace, machine: Machine | None = None) -> int:
    """Raises RequestError for wrong settings and for other systems, DFlashError where launchctl fails."""
    machine = machine or Machine()
    if args.print and args.action != "install":
        raise RequestError("--print goes with install", param="print")
    if args.action == "install":
        return _install(args, machine)
    _macos_only(machine, args)
    return _uninstall(machine) if args.action == "uninstall" else _status(machine)


def _install(args: argparse.Namespace, machine: Machine) -> int:
    settings = _settings_at_login(args)
    plist = launchd.content(machine.python, flags_of(args), machine.home, machine.environment)
    if args.print:
        sys.stdout.write(launchd.encoded(plist).decode())
        return 0
    _macos_only(machine, args)
    for name in ServerSettings.model_fields:
        if machine.environment.get(environment_name(name)):
            print(f"note: {environment_name(name)} is set in this shell, and will not be at login", flush=True)
    _write(machine.plist, launchd.encoded(plist))
    launchd.log_folder(machine.home).mkdir(parents=True, exist_ok=True)
    launchd.load(machine.plist, machine.user, machine.launchctl, machine.sleep)
    print(f"installed: {machine.plist}")
    print(f"serves at {base_url(settings.host, settings.port)}; its log is {plist['StandardErrorPath']}")
    return 0


def _uninstall(machine: Machine) -> int:
    ran = launchd.unload(machine.user, machine.launchctl)
    there = machine.plist.exists()
    machine.plist.unlink(missing_ok=True)
    print(f"removed: {machine.plist}" if ran or there else "it was not installed")
    return 0


def _status(machine: Machine) -> int:
    """0 where it runs."""
    state = launchd.state(machine.user, machine.launchctl)
    print(f"property list  {machine.plist if machine.plist.exists() else 'not installed'}")
    if state is None:
        print("launchd        does not know it")
        return _NOT_RUNNING
    print(f"launchd        {', '.join(f'{name} {value}' for name, value in state.items())}")
    if machine.plist.exists():
        words = plistlib.loads(machine.plist.read_bytes())
        print(f"command        {shlex.join(words['ProgramArguments'])}")
        print(f"log            {words['StandardErrorPath']}")
    return 0 if state.get("state") == "running" else _NOT_RUNNING


def _settings_at_login(args: argparse.Namespace) -> ServerSettings:
    """Checked as they will be then: flags and file, without this shell's variables."""
    if secrets_of(args):
        names = ", ".join(secrets_of(args))
        raise RequestError(
            f"a secret ({names}) does not belong into a property list, which others can read: write it to "
            "server.json with dflash2-mlx config set --global",
            param="api_key",
        )
    settings, notes = read_settings(args, {}, args.config)
    serve_command.check(settings)
    if settings.port == 0:
        raise RequestError("port is 0, a free one each time: clients could not find the server", param="port")
    for note in notes:
        print(f"note: {note}", file=sys.stderr, flush=True)
    return settings


def _macos_only(machine: Machine, args: argparse.Namespace) -> None:
    if machine.platform != "darwin":
        command = shlex.join([machine.python, "-m", "dflash2_mlx.cli", "serve", *flags_of(args)])
        raise RequestError(
            "services are launchd's, on macOS only; --print shows the property list. Here, a unit of systemd "
            f"does it: ExecStart={command}",
            param="action",
        )


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise DFlashError(f"{path} cannot be written: {error}") from None
