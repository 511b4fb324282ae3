"""A server that speaks OpenAI's chat completions as a backend: answers are streamed and timed here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from ..errors import DFlashError, RequestError
from ..prompts import long_context
from .depth import with_context, with_nonce
from .model import Arm, BenchPrompt, Sample
from .seeds import filler_seed, nonce, seed_for
from .streamed import Streamed, data_of, error_text, model_names, parse_chunk

_CHAT = "/chat/completions"
_CONNECT_SECONDS = 10.0
# A server's tokenizer is not at hand: contexts are measured out by this, which fits English prose within a few per
# cent for vocabularies of 100,000 to 250,000 tokens. The sample has the server's own count.
_SIGNS_PER_TOKEN = 4.5
_OFF_DEPTH = 0.05  # a prompt that is further from its depth is noted


class Endpoint:
    """Answers with the model `model` of a server at `base_url`, such as http://127.0.0.1:8000/v1; from any thread.

    An arm whose mode is "server" leaves decoding to the server; others send a `dflash` object, which our own server
    knows. Each prompt begins with a few signs that its arm, prompt and round decide, so that no prefix cache makes one
    arm's first token warm. `cancelled` is looked at with every chunk. The key is sent as a bearer token and told
    nowhere. Close it when done. Raises RequestError for a URL or name that cannot be one.
    """

    concurrent = True

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key: str | None = None,
        timeout: float = 600.0,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        url = _checked(base_url)
        if not model.strip():
            raise RequestError(f"{url.host}: give the name of the model that is to answer", param="model")
        self.model = model
        self.url = str(url.copy_with(username=None, password=None))
        self._key, self._cancelled = key, cancelled
        self._server = ""
        self._contexts: dict[tuple[str, int], str] = {}
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
            limits=httpx.Limits(max_connections=None),
            verify=url.scheme == "https",  # plain HTTP, which is not redirected, needs no certificates read
            trust_env=url.host not in ("127.0.0.1", "localhost", "::1"),  # no proxy stands before this machine
        )

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    @property
    def facts(self) -> Mapping[str, str]:
        """URL without credentials, model, and the server's own name once it has answered."""
        return {"endpoint": self.url, "model": self.model, "server": self._server or "not told"}

    def connect(self) -> list[str]:
        """Ask for the server's models, whose names it gives; empty where it has no such list.

        Raises DFlashError where there is no server, or it does not take the key.
        """
        with self._told():
            response = self._client.get("models")
        self._note_server(response)
        if response.status_code in (401, 403):
            raise self._refused(response)
        return model_names(_json(response)) if response.is_success else []

    def sample(self, arm: Arm, prompt: BenchPrompt, *, max_tokens: int, seed: int) -> Sample:
        """One streamed answer. Raises DFlashError that names the URL and what went wrong."""
        body = self._body(arm, prompt, max_tokens, seed)
        answer = Streamed()
        begun = time.perf_counter()
        with self._told(), self._client.stream("POST", _CHAT[1:], json=body) as response:
            self._note_server(response)
            if not response.is_success:
                response.read()
                raise self._refused(response)
            whole = self._read(response, answer)
        if not whole and not answer.finish_reason:
            raise DFlashError(f"{self.url}: the connection ended after {answer.pieces} pieces of the answer")
        return _sample(arm, prompt, answer, begun, nonce(arm, prompt, seed))

    def _body(self, arm: Arm, prompt: BenchPrompt, max_tokens: int, seed: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": with_nonce(with_context(prompt.messages, self._context(prompt)), nonce(arm, prompt, seed)),
            "max_tokens": max_tokens,
            "temperature": arm.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        given = seed_for(arm, seed)
        if given is not None:
            body["seed"] = given
        if arm.verify_mode == "off":
            body["dflash"] = {"enabled": False}
        elif arm.verify_mode != "server":
            width = {} if arm.block_size is None else {"block_size": arm.block_size}
            body["dflash"] = {"verify_mode": arm.verify_mode} | width
        return body

    def _context(self, prompt: BenchPrompt) -> str:
        """What brings a prompt about to its depth; kept, so that all arms and rounds are given the same."""
        key = (prompt.id, prompt.depth)
        if key not in self._contexts:
            own = sum(_tokens(message["content"]) for message in prompt.messages)
            missing = max(0, prompt.depth - own)
            self._contexts[key] = long_context(missing, _counted, seed=filler_seed(prompt)) if missing else ""
        return self._contexts[key]

    def _read(self, response: httpx.Response, answer: Streamed) -> bool:
        """Take the stream in; whether it came to its end."""
        for line in response.iter_lines():
            now = time.perf_counter()
            if self._cancelled():
                answer.finish_reason = "cancelled"
                return True
            data = data_of(line)
            if data == "[DONE]":
                return True
            if data:
                self._add(answer, data, now)
        return False

    def _add(self, answer: Streamed, data: str, now: float) -> None:
        try:
            answer.add(parse_chunk(data), now)
        except DFlashError as error:
            raise DFlashError(f"{self.url}: {self._hidden(str(error))}") from None
        except (AttributeError, TypeError, ValueError):
            raise DFlashError(f"{self.url}: a chunk of another form than chat completions have") from None

    def _note_server(self, response: httpx.Response) -> None:
        self._server = response.headers.get("server", self._server)

    def _refused(self, response: httpx.Response) -> DFlashError:
        """What a status other than 200 means, and what helps."""
        status = response.status_code
        said = self._hidden(error_text(_json(response) or response.text or response.reason_phrase))
        if status in (401, 403):
            advice = "give the server's API key" if self._key is None else "the API key is not taken"
        elif status == 404:
            advice = f"check the URL's path (such as /v1) and the model{self._served()}"
        elif status == 429:
            after = response.headers.get("retry-after")
            advice = "use a lower concurrency" + (f", or try again in {after} s" if after else "")
        else:
            advice = ""
        told = f"{self.url}: status {status}, {said}"
        return DFlashError(f"{told}: {advice}" if advice else told)

    def _served(self) -> str:
        try:
            names = self.connect()
        except DFlashError:
            names = []
        return f": {self.model!r} was asked for, there are {', '.join(names[:12])}" if names else f" {self.model!r}"

    def _hidden(self, text: str) -> str:
        """The text without the key, which some servers repeat."""
        return text.replace(self._key, "***") if self._key else text

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Failures of the connection as DFlashError."""
        try:
            yield
        except httpx.TimeoutException as error:
            what = "no connection" if isinstance(error, httpx.ConnectTimeout) else "no answer"
            raise DFlashError(f"{self.url}: {what} in time; is the model still loading?") from None
        except httpx.ConnectError as error:
            raise DFlashError(f"{self.url}: no server answers there ({error}): start it, or check the URL") from None
        except httpx.HTTPError as error:
            cause = self._hidden(str(error)) or type(error).__name__
            raise DFlashError(f"{self.url}: the connection broke off ({cause})") from None


def _checked(base_url: str) -> httpx.URL:
    """The URL below which `models` and `chat/completions` lie: /v1 where no path is given."""
    try:
        url = httpx.URL(base_url.strip())
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        shown = base_url.rpartition("@")[2]  # without credentials
        raise RequestError(
            f"{shown!r} is no URL of a server: give one such as http://127.0.0.1:8000/v1", param="endpoint"
        )
    path = url.path.rstrip("/").removesuffix(_CHAT)
    return url.copy_with(path=path or "/v1", query=None, fragment=None)


def _counted(text: str) -> Sequence[int]:
    return range(_tokens(text))


def _tokens(text: str) -> int:
    return round(len(text) / _SIGNS_PER_TOKEN)


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _sample(arm: Arm, prompt: BenchPrompt, answer: Streamed, begun: float, of: str) -> Sample:
    """`of` is the nonce of its prompt: answers to prompts that differ in it are not to be compared."""
    counted = answer.generation_tokens
    tokens = answer.pieces if counted is None else counted
    engine = answer.engine
    return Sample(
        arm=arm.name,
        prompt=prompt.id,
        kind=prompt.kind,
        depth=prompt.depth,
        round=0,
        prompt_tokens=answer.prompt_tokens or 0,
        generation_tokens=tokens,
        prompt_seconds=(answer.first or time.perf_counter()) - begun,
        generation_seconds=answer.seconds(tokens),
        tokens_per_cycle=answer.tokens_per_cycle,
        engine=str(engine.get("engine") or ""),
        block_size=engine["block_size"] if isinstance(engine.get("block_size"), int) else None,
        finish_reason=answer.finish_reason,
        digest=f"{of}:{answer.digest}",
        cached_tokens=answer.cached_tokens,
        note="; ".join(_notes(arm, prompt, answer, tokens)),
    )


def _notes(arm: Arm, prompt: BenchPrompt, answer: Streamed, tokens: int) -> Sequence[str]:
    """What a reader of the figures has to know."""
    notes = []
    if answer.generation_tokens is None:
        notes.append("no usage told: pieces counted as tokens")
    if answer.cached_tokens:
        notes.append(f"{answer.cached_tokens} prompt tokens were cached: its first token is left out")
    if tokens > 1 and answer.seconds(tokens) == 0.0:
        late = "in one piece" if answer.pieces < 2 else "more than half in its first piece"
        notes.append(f"the answer came {late}: no speed")
    count = answer.prompt_tokens
    if prompt.depth and count and abs(count - prompt.depth) > _OFF_DEPTH * prompt.depth:
        notes.append(f"{count} prompt tokens at depth {prompt.depth}")
    if arm.asks_for_speculation and answer.engine.get("fallback_reason"):
        notes.append(f"no drafter: {answer.engine['fallback_reason']}")
    return notes
