"""One conversation: messages, the caches that hold them, and the turns. Prints nothing, reads no keyboard."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from dflash2_mlx.chat import store
from dflash2_mlx.chat.options import parameter_name, with_defaults
from dflash2_mlx.errors import RequestError
from dflash2_mlx.text.reasoning import Piece, split, splitter_for
from dflash2_mlx.text.template import ChatTemplate, Known, Message

if TYPE_CHECKING:
    from pathlib import Path

    from dflash2_mlx.chat.backend import Backend
    from dflash2_mlx.pairs import Pair


class Session:
    """A conversation with one pair.

    A turn whose answer never began leaves the conversation as it was before; an answer that was
    stopped, or whose consumer was interrupted, is kept as far as it came.
    """

    def __init__(
        self,
        pair: Pair,
        backend: Backend,
        *,
        system: str | None = None,
        reasoning: str | None = None,
        parameters: dict[str, Any] | None = None,
        template_arguments: dict[str, Any] | None = None,
    ) -> None:
        self.messages: list[Message] = []
        self.system = system
        self.parameters = dict(parameters or {})
        self.template_arguments = dict(template_arguments or {})
        self.stats: Any = None  # of the last answer, once there is one
        self.finish_reason: str | None = None
        self._backend = backend
        self._stopped = False
        self.pair = pair
        self._template = ChatTemplate(pair.tokenizer)
        self._forget_caches()
        self.reasoning: str | None = None
        self.set_reasoning(reasoning)

    def adopt(self, pair: Pair) -> list[str]:
        """Go on with another pair; the conversation stays, its caches begin anew.

        Returns a note for each setting that the new pair refuses, which goes back to its default.
        Raises RequestError when the pair's tokenizer has no chat template: the old pair then stays.
        """
        self._template = ChatTemplate(pair.tokenizer)
        self.pair = pair
        self._forget_caches()
        notes = []
        try:
            self.set_reasoning(self.reasoning)
        except RequestError as error:
            self.reasoning = None
            notes.append(str(error))
        given, self.parameters = self.parameters, {}
        for name, value in given.items():
            try:
                self.set_parameter(name, value)
            except RequestError as error:
                notes.append(str(error))
        return notes

    def send(self, text: str, *, progress: Callable[[int, int], None] | None = None) -> Generator[Piece]:
        """Say something and yield the answer as it comes. `progress` hears of (prompt tokens done, all)."""
        yield from self._turn([*self.messages, {"role": "user", "content": text}], progress)

    def retry(self, *, progress: Callable[[int, int], None] | None = None) -> Generator[Piece]:
        """Answer the last message once more; the old answer is dropped when the new one begins."""
        if not self.messages:
            raise RequestError("there is no answer to try again")
        yield from self._turn(self.messages[:-1], progress)

    def stop(self) -> None:
        """End the answer that is being made, after the current cycle. May be called from a signal handler."""
        self._stopped = True

    def undo(self) -> str:
        """Take back the last message and its answer; returns what was said."""
        if not self.messages:
            raise RequestError("there is nothing to take back")
        said: str = self.messages[-2]["content"]
        del self.messages[-2:]
        return said

    def clear(self) -> None:
        """Forget the messages and their caches; system message and parameters stay."""
        self.messages = []
        self.stats = None
        self.finish_reason = None
        self._forget_caches()

    def set_reasoning(self, choice: str | None) -> None:
        """How much the model thinks; None is the template's own way. Refused when the template cannot."""
        self._template.reasoning_arguments(choice)
        self.reasoning = choice

    def set_parameter(self, name: str, value: Any) -> None:
        """Set a parameter of the requests to come; None goes back to the default.

        Raises RequestError for a name or a value that the library refuses: the old value then stays.
        """
        name = parameter_name(name)
        parameters = {key: old for key, old in self.parameters.items() if key != name}
        if value is not None:
            parameters[name] = value
            self._backend.check(self.pair, with_defaults(parameters, self.pair.defaults))
        self.parameters = parameters

    def parameters_in_force(self) -> dict[str, Any]:
        """What the next request will be asked with; the library's own defaults are not among them."""
        return with_defaults(self.parameters, self.pair.defaults)

    def save(self, path: Path) -> None:
        """Write the conversation to a file. Raises RequestError when that cannot be done."""
        saved = {
            "model": self.pair.model_name,
            "drafter": self.pair.drafter_name,
            "system": self.system,
            "reasoning": self.reasoning,
            "parameters": self.parameters,
            "messages": self.messages,
        }
        store.write(path, store.Conversation.model_validate(saved))

    def load(self, path: Path) -> store.Conversation:
        """Go on with a saved conversation, its system message and its parameters, on the pair that is loaded.

        Raises RequestError, and changes nothing, when the file or something in it cannot be used.
        """
        saved = store.read(path)
        self._template.reasoning_arguments(saved.reasoning)
        self._backend.check(self.pair, with_defaults(saved.parameters, self.pair.defaults))
        self.clear()
        self.messages = [message.model_dump(exclude_none=True) for message in saved.messages]
        self.system, self.reasoning, self.parameters = saved.system, saved.reasoning, saved.parameters
        return saved

    def _turn(self, messages: list[Message], progress: Callable[[int, int], None] | None) -> Generator[Piece]:
        """Answer `messages`, whose last one is the user's; the conversation changes with the first step."""
        self._stopped = False
        prompt = self._render(messages)
        known = self._known.get(len(messages) - 2, Known("", "", ()))
        ids = self._template.encode(prompt, known_prompt=known.prompt, known_text=known.answer, known_ids=known.ids)
        splitter = splitter_for(self.pair.tokenizer, prompt)
        steps = self._backend.stream(
            self.pair,
            ids,
            state=self._state,
            progress=progress,
            cancelled=lambda: self._stopped,
            **self.parameters_in_force(),
        )
        text, tokens, finish = "", [], None
        try:
            for step in steps:
                text += step.text
                tokens += step.tokens
                finish, self.stats = step.finish_reason, step.stats
                yield from splitter.feed(step.text)
            yield from splitter.flush()
        finally:
            close = getattr(steps, "close", None)
            if close is not None:
                close()  # now, not at the next garbage collection: the caches must stand at `tokens`
            if tokens or finish == "stop":
                self._keep(messages, prompt, ids, text, tokens, finish or "cancelled")

    def _render(self, messages: list[Message]) -> str:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return self._template.render([*system, *messages], reasoning=self.reasoning, extra=self.template_arguments)

    def _keep(
        self, messages: list[Message], prompt: str, ids: list[int], text: str, tokens: list[int], finish: str
    ) -> None:
        thought, said = split(splitter_for(self.pair.tokenizer, prompt), text)
        answer = {"role": "assistant", "content": said}
        if thought:
            answer["reasoning_content"] = thought
        self.messages = [*messages, answer]
        self.finish_reason = finish
        known = self._template.known(prompt, ids, text, tokens)
        if known is not None:
            self._known[len(messages)] = known

    def _forget_caches(self) -> None:
        self._state = self.pair.new_state()
        # By number of messages: how the prompt of a later turn may begin, and the ids that this text has.
        self._known: dict[int, Known] = {}
