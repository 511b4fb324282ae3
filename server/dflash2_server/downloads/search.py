"""What the Hub has for a query: models that this program can read, and drafters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from dflash2_mlx.drafter.config import is_drafter
from dflash2_mlx.errors import RequestError

from . import drafters, links
from .faults import classify, failure, refuses_token

T = TypeVar("T")

TIMEOUT = 10.0  # seconds, for a whole search
_LONGEST_QUERY = 200
_running = threading.BoundedSemaphore(4)  # a thread of a search that was given up may last
_FOR_ALL = "mlx-community"  # whose models an empty query lists
_TASKS = (None, "text-generation", "image-text-to-text", "any-to-any")
# Bytes of a number in a .safetensors file.
_WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A repository on the Hub. `size` in bytes, where the Hub tells it; `updated` as in ISO 8601."""

    repo_id: str
    downloads: int
    likes: int
    size: int | None
    updated: str | None
    gated: bool
    kind: Literal["model", "drafter"]
    drafter: str | None  # Hub id of the published drafter


async def search(query: str, *, endpoint: str | None = None, token: str | None = None, limit: int = 20) -> list[Found]:
    """Text models in safetensors form, the most downloaded first; popular MLX ones for an empty query.

    A link to a repository is searched by its id. Raises RequestError for a query that is too long, and Failure, with
    the error told apart as for downloads, where the Hub does not answer in ten seconds or refuses.
    """
    text = query.strip()
    if len(text) > _LONGEST_QUERY:
        raise RequestError(f"q has {len(text)} characters: {_LONGEST_QUERY} are enough for a name", param="q")
    if "://" in text:
        text = links.repository(text, endpoint)
    try:
        return await asyncio.wait_for(_aside(lambda: _search(text, endpoint, token, limit)), TIMEOUT)
    except TimeoutError:
        remedy = "check the connection and the endpoint, then search again"
        raise failure("offline", f"the Hub did not answer within {TIMEOUT:.0f} s", remedy) from None


async def _aside(ask: Callable[[], list[Found]]) -> list[Found]:
    """On a thread of its own, that nothing waits for: a slow Hub must neither fill a pool nor hold up the end.

    Raises Failure where as many searches as may are under way.
    """
    if not _running.acquire(blocking=False):
        raise failure("offline", "other searches still wait for the Hub", "search again in a while")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Found]] = loop.create_future()

    def tell(set_it: Callable[[], None]) -> None:
        if not answer.done():
            set_it()

    def run() -> None:
        try:
            found = ask()
            told = partial(tell, lambda: answer.set_result(found))
        except BaseException as error:
            told = partial(tell, partial(answer.set_exception, error))
        finally:
            _running.release()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(told)

    threading.Thread(target=run, name="search", daemon=True).start()
    return await answer


def _search(text: str, endpoint: str | None, token: str | None, limit: int) -> list[Found]:
    try:
        models = _asked(lambda sent: _listed(text, endpoint, sent, limit), token)
    except Exception as error:
        raise classify(error, "the search", token=bool(token)) from error
    return [_found(model) for model in models if _readable(model)][:limit]


def _listed(text: str, endpoint: str | None, token: str | Literal[False] | None, limit: int) -> list[Any]:
    from huggingface_hub import HfApi

    models = HfApi(endpoint=endpoint, token=token).list_models(
        search=text or None,
        author=None if text else _FOR_ALL,
        filter="safetensors",
        sort="downloads",
        limit=2 * limit,  # some are left out
        expand=["config", "downloads", "gated", "lastModified", "likes", "pipeline_tag", "safetensors", "tags"],
    )
    return list(models)


def _asked(question: Callable[[str | Literal[False] | None], T], token: str | None) -> T:
    """The answer; without the token where the Hub refuses it, since most of the Hub is public."""
    try:
        return question(token)
    except Exception as error:
        if not refuses_token(error):
            raise
    return question(False)


def _readable(model: Any) -> bool:
    return _is_drafter(model) or model.pipeline_tag in _TASKS


def _found(model: Any) -> Found:
    drafter = _is_drafter(model)
    return Found(
        repo_id=model.id,
        downloads=model.downloads or 0,
        likes=model.likes or 0,
        size=_size(model.safetensors),
        updated=model.last_modified.isoformat() if model.last_modified else None,
        gated=bool(model.gated),
        kind="drafter" if drafter else "model",
        drafter=None if drafter else drafters.of_name(model.id),
    )


def _is_drafter(model: Any) -> bool:
    """By the config, of which the Hub tells a part, or the tags; a name decides only where it is a published one."""
    config = model.config if isinstance(model.config, Mapping) else {}
    return is_drafter(config) or "dflash" in (model.tags or ()) or drafters.is_named_drafter(model.id)


def _size(safetensors: Any) -> int | None:
    """Bytes of the weights: the Hub counts numbers by type."""
    if safetensors is None:
        return None
    parameters: Mapping[str, int] = safetensors.parameters
    return sum(count * _WIDTHS.get(kind, 1) for kind, count in parameters.items())
