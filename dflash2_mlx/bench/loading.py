"""The backends that a command line names: pairs that share one target, and endpoints. Names first, models later."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from ..chat.options import ModelChoice
from ..errors import RequestError
from .plan import LOCAL

if TYPE_CHECKING:
    from ..pairs import Pair
    from .endpoint import Endpoint


class Draft(NamedTuple):
    """A drafter as `load` takes it, and how it is packed."""

    name: str | None
    quant: str | None


def named_drafts(choice: ModelChoice, drafts: Sequence[str], quants: Sequence[str | None]) -> dict[str, Draft]:
    """The drafter of `choice`, then the others, each under the name of its pair in the plan.

    Without any drafter there is one pair, which decodes plainly. Raises RequestError for a packing that there is not.
    """
    from ..drafter.quantization import parse_spec

    wanted = [Draft(choice.draft, choice.draft_quant)]
    wanted += [Draft(name, choice.draft_quant) for name in drafts]
    wanted += [Draft(choice.draft, quant) for quant in quants]
    for draft in wanted:
        parse_spec(draft.quant)
    kept = [draft for draft in dict.fromkeys(wanted) if draft.name is not None] or wanted[:1]
    if len(kept) == 1:
        return {LOCAL: kept[0]}
    return {_label(draft, kept): draft for draft in kept}


def _label(draft: Draft, among: Sequence[Draft]) -> str:
    """A short name that tells a drafter from the others."""
    name = draft.name or "none"
    short = Path(name).name
    if any(Path(other.name or "").name == short and other.name != name for other in among):
        short = name
    several = len({other.quant for other in among}) > 1
    return f"{short} {draft.quant or 'as it is'}" if several else short


def load_pairs(
    choice: ModelChoice, drafts: dict[str, Draft], progress: Callable[[str, float], None] | None
) -> dict[str, Pair]:
    """The pairs by name. Raises what `load` raises, and RequestError where no drafter is known but one is wanted."""
    from ..pairs import load, with_drafter

    if len(drafts) > 1:
        target = load(choice.model, None, dtype=choice.dtype, progress=progress)
        return {
            name: with_drafter(target, draft.name or "", quantize=draft.quant, progress=progress)
            for name, draft in drafts.items()
        }
    (name, draft), *_ = drafts.items()
    pair = load(choice.model, draft.name, quantize=draft.quant, dtype=choice.dtype, progress=progress)
    if pair.fallback_reason:
        raise RequestError(
            f"there is nothing to compare: {pair.fallback_reason} (--draft none measures plain decoding alone)",
            param="draft",
        )
    return {name: pair}


@dataclass(frozen=True)
class Server:
    """An endpoint that is not asked yet; `key_env` names the variable that has its key."""

    url: str
    model: str | None
    key_env: str | None


def named_servers(urls: Sequence[str], models: Sequence[str], key_envs: Sequence[str]) -> list[Server]:
    """A server for each URL; models and variables of keys are one for all, or one each. Raises RequestError."""
    for flag, values in (("endpoint-model", models), ("endpoint-key-env", key_envs)):
        if len(values) not in (0, 1, len(urls)):
            raise RequestError(
                f"--{flag} is there {len(values)} times: give it once for all, or once for each of "
                f"{len(urls)} --endpoint",
                param=flag,
            )
    for url in urls:
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query:
            raise RequestError(
                f"--endpoint {url.rpartition('@')[2].partition('?')[0]}: no key or password in the address, which "
                "results and lists of processes show: name a variable with --endpoint-key-env",
                param="endpoint",
            )
    for variable in key_envs:
        if not os.environ.get(variable):
            raise RequestError(
                f"--endpoint-key-env {variable}: there is no such variable in the environment", param="endpoint-key-env"
            )
    return [Server(url, _of(models, number), _of(key_envs, number)) for number, url in enumerate(urls)]


def connect(server: Server) -> Endpoint:
    """The endpoint, reached. Its model is the server's first where none is named. Raises DFlashError."""
    from .endpoint import Endpoint

    key = os.environ[server.key_env] if server.key_env else None
    with Endpoint(server.url, server.model or "any", key=key) as probe:
        names = probe.connect()
    model = server.model or (names[0] if names else None)
    if model is None:
        raise RequestError(
            f"{probe.url} does not tell its models: name one with --endpoint-model", param="endpoint-model"
        )
    return Endpoint(server.url, model, key=key)


def server_names(servers: Sequence[Server]) -> dict[str, Server]:
    """A name in the plan for each server: its host and port, and a number where that comes twice."""
    named: dict[str, Server] = {}
    for server in servers:
        base = urlsplit(server.url).netloc or server.url
        base = f"{server.model} at {base}" if server.model else base
        name, number = base, 2
        while name in named:
            name, number = f"{base} ({number})", number + 1
        named[name] = server
    return named


def _of(values: Sequence[str], number: int) -> str | None:
    if not values:
        return None
    return values[0] if len(values) == 1 else values[number]
