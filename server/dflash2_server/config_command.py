"""`dflash2-mlx config`: the settings of models (model_settings.json) and of the server (server.json)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dflash2_mlx.errors import RequestError
from dflash2_mlx.settings.model import ModelSettings, needs_reload, no_such_field, stored
from dflash2_mlx.settings.server import (
    SettingInForce,
    default_file,
    from_text,
    is_secret,
    server_settings_in_force,
    write_server_settings,
)
from dflash2_mlx.settings.store import ModelSettingsStore, default_path
from dflash2_server import config_text as text

_ACTIONS = "get|set|list|import"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} {_ACTIONS} [options] ..."
    parser.epilog = (
        "With --global in place of MODEL, get, set and list are about the server's settings (server.json). "
        "An empty VALUE, or null, clears a field. `config ACTION --help` tells an action's options."
    )
    actions = parser.add_subparsers(
        dest="action", metavar=_ACTIONS, required=True, prog=parser.prog, help="what to do:"
    )
    get = _action(actions, "get", "MODEL [FIELD]", "print what is set for a model, or one field", run_get)
    put = _action(
        actions, "set", "MODEL FIELD=VALUE ...", "change fields of a model: all that are named, or none", run_set
    )
    show = _action(actions, "list", "[MODEL]", "print the settings of all models, or every field of one", run_list)
    take = _action(actions, "import", "FILE", "take over an oMLX model_settings.json as it is", run_import)
    for part in (get, put, show):
        part.add_argument("--global", dest="server", action="store_true", help="the server's settings, not a model's")
    for part in (get, show):
        part.add_argument("--json", action="store_true", help="print JSON")
    for part in (get, put, show, take):
        part.add_argument(
            "--file", type=Path, metavar="FILE", help="settings file (default: the one in the user's config folder)"
        )


def run(args: argparse.Namespace) -> int:
    """Raises RequestError for wrong fields and values, DFlashError for files that cannot be read or written."""
    args.act(args)
    return 0


def run_get(args: argparse.Namespace) -> None:
    if args.server:
        found = {setting.name: _told(setting) for setting in _server(args)}
        name = _at_most_one(args.words, "FIELD")
        _print_values(found, name, args.json)
        return
    if not 1 <= len(args.words) <= 2:
        raise RequestError("name a MODEL, and a FIELD where only that is wanted", param="model")
    store = _store(args)
    settings = store.get(_model(store, args.words[0]))
    name = args.words[1] if len(args.words) == 2 else None
    if name == text.SHORT_FORM:
        print(settings.draft_quant or "off")
        return
    _print_values(stored(settings) if name is None else settings.model_dump(), name, args.json)


def run_set(args: argparse.Namespace) -> None:
    if args.server:
        _set_server(args)
        return
    if not args.words or "=" in args.words[0]:
        raise RequestError("name the MODEL before its FIELD=VALUE, or --global", param="model")
    store = _store(args)
    model = _model(store, args.words[0])
    before = store.get(model)
    after = store.put(model, text.model_changes(text.assignments(args.words[1:])))
    print(f"saved in {store.path}")
    print("\n".join(_differences(before, after) or ["nothing has changed"]))
    reload = needs_reload(before, after)
    if before != after:
        print(
            "a running server takes it up at its next look"
            + (f"; after a reload: {', '.join(reload)}" if reload else "")
        )


def run_list(args: argparse.Namespace) -> None:
    name = _at_most_one(args.words, "MODEL")
    if args.server:
        if name is not None:
            raise RequestError(f"--global lists all settings, not {name!r}: use get for one", param="model")
        _list_server(args)
        return
    store = _store(args)
    if args.json:
        models = {model: stored(found) for model, found in store.all().items()}
        chosen = models if name is None else {_model(store, name): store.get(_model(store, name)).model_dump()}
        _print_json({"file": str(store.path), "models": chosen, "problems": store.problems})
        return
    print(f"file: {store.path}")
    if name is not None:
        print("\n".join(["", _model(store, name), "", *text.every_field(store.get(_model(store, name)))]))
        return
    for model, found in store.all().items():
        known = {key: value for key, value in stored(found).items() if key in ModelSettings.model_fields}
        rows = [(key, text.text_of(value)) for key, value in known.items()]
        print("\n".join(["", model, *text.aligned(rows, "  "), *text.unknown_keys(found)[1:]]))
    if not store.all():
        print("nothing is set for any model")


def run_import(args: argparse.Namespace) -> None:
    if len(args.words) != 1:
        raise RequestError("name one FILE to import", param="file")
    store = _store(args)
    report = store.import_file(Path(args.words[0]))
    print(f"imported into {store.path}")
    rows = [(model, f"{len(fields)} fields: {', '.join(fields)}") for model, fields in report.imported.items()]
    print("\n".join([*text.aligned(rows, "  "), *report.notes] or ["the file names no model"]))


def _action(
    actions: Any, name: str, words: str, description: str, act: Callable[[argparse.Namespace], None]
) -> argparse.ArgumentParser:
    """One action's parser. Words stay a list: what they are depends on --global."""
    part: argparse.ArgumentParser = actions.add_parser(
        name, help=description, description=f"{description[:1].upper()}{description[1:]}.", allow_abbrev=False
    )
    part.usage = f"{part.prog} [options] {words}"
    part.add_argument("words", nargs="*", metavar=words, help="a model's id, a field, a file: as the action takes it")
    part.set_defaults(act=act)
    return part


def _store(args: argparse.Namespace) -> ModelSettingsStore:
    store = ModelSettingsStore(default_path() if args.file is None else args.file)
    for problem in store.problems:
        print(f"note: {problem}", file=sys.stderr)
    return store


def _model(store: ModelSettingsStore, name: str) -> str:
    """A model's id: the folder's name, also where a repository id is typed."""
    known = store.all()
    return name if name in known or "/" not in name else name.rstrip("/").rpartition("/")[2]


def _at_most_one(words: Sequence[str], what: str) -> str | None:
    if len(words) > 1:
        raise RequestError(f"name one {what}, not {len(words)}", param=what.lower())
    return words[0] if words else None


def _print_values(values: dict[str, Any], name: str | None, as_json: bool) -> None:
    """All of them as they are typed for `set`, or one alone."""
    if name is not None and name not in values:
        raise no_such_field(name, values)
    if as_json:
        _print_json(values if name is None else values[name])
    elif name is not None:
        print(text.text_of(values[name]))
    else:
        print("\n".join(f"{key}={text.text_of(value)}" for key, value in values.items()) or "nothing is set")


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _differences(before: ModelSettings, after: ModelSettings) -> list[str]:
    old, new = before.model_dump(), after.model_dump()
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return text.aligned(
        [(f"  {name}", f"{text.text_of(old.get(name))} -> {text.text_of(new.get(name))}") for name in names]
    )


def _server(args: argparse.Namespace) -> list[SettingInForce]:
    return server_settings_in_force(argparse.Namespace(), os.environ, args.file)


def _told(setting: SettingInForce) -> Any:
    return ("set" if setting.value else "not set") if is_secret(setting.name) else setting.value


def _list_server(args: argparse.Namespace) -> None:
    path = default_file() if args.file is None else args.file
    found = _server(args)
    if args.json:
        settings = {one.name: {"value": one.value, "source": one.source, "default": one.default} for one in found}
        _print_json({"file": str(path), "settings": settings})
        return
    print(f"file: {path}")
    rows = text.aligned([(one.name, text.text_of(_told(one)), one.source, one.description) for one in found], "  ")
    groups = dict.fromkeys(one.group for one in found)
    for group in groups:
        print("\n".join(["", group, *(row for row, one in zip(rows, found, strict=True) if one.group == group)]))


def _set_server(args: argparse.Namespace) -> None:
    changes: dict[str, Any] = {}
    wrong: list[RequestError] = []
    for name, value in text.assignments(args.words).items():
        try:
            changes[name] = None if text.is_nothing(value) else from_text(name, value)
        except RequestError as error:
            wrong.append(error)
    if wrong:
        raise RequestError("; ".join(map(str, wrong)), param=wrong[0].param)
    path = default_file() if args.file is None else args.file
    changed = write_server_settings(path, changes)
    print(f"saved in {path}")
    print(
        f"changed: {', '.join(changed)}; in force when the server is started again"
        if changed
        else "nothing has changed"
    )
