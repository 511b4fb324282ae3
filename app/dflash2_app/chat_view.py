"""What a chat shows of its turns. Each part asks its reply for news, and changes only what has changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape

from nicegui import ui

from dflash2_app import answer_words, growing
from dflash2_app.conversation import Reply, Turn
from dflash2_app.parts import tell, testid
from dflash2_app.wording import percent, progress_words
from dflash2_mlx.errors import ModelNotFound
from dflash2_server.management import Management


class ReplyView:
    """One answer: where it stands, thinking, text, error, figures."""

    def __init__(self, manager: Management, reply: Reply) -> None:
        self.reply = reply
        self._manager = manager
        self._shown: tuple[object, ...] = ()
        self._was_thinking: bool | None = None
        with ui.element("div").classes("reply") as self.element:
            self._status = ui.element("div").classes("reply-line").props("role=status data-testid=answer-status")
            with self._status:
                ui.spinner(size="16px")
                self._status_text = ui.label()
            self._thinking = ui.expansion("Thinking …").classes("thinking").props("dense data-testid=thinking")
            with self._thinking:
                self._thoughts = growing.thoughts()
            with ui.element("div").classes("answer").props("data-testid=answer") as self._answer:
                self._text = growing.markdown()
            self._error = ui.label().classes("note note-bad as-is").props("role=alert data-testid=answer-error")
            self._figures = ui.element("div").classes("reply-line").props("data-testid=figures")

    def update(self) -> None:
        reply, words = self.reply, self._words()
        state = (reply.revision, words)
        if state != self._shown:
            self._shown = state
            self._show(words)
        elif reply.running:  # an update that was put off because rendering took long
            self._grow(last=False)

    def _show(self, words: str) -> None:
        reply = self.reply
        self._status.set_visibility(bool(words))
        self._status_text.set_text(words)
        self._grow(last=not reply.running)
        self._thinking.set_visibility(bool(reply.reasoning))
        self._thinking.set_text(answer_words.thinking_title(reply))
        self._fold()
        self._answer.set_visibility(bool(reply.content))
        self._answer.props["aria-busy"] = "true" if reply.running else "false"
        self._error.set_visibility(reply.error is not None)
        self._error.set_text(reply.error or "")
        if not reply.running:
            self._show_figures()

    def _grow(self, *, last: bool) -> None:
        self._thoughts.show(self.reply.reasoning, last=last or self.reply.state == "writing")
        self._text.show(self.reply.content, last=last)

    def _fold(self) -> None:
        """Open when thinking begins, closed when the answer does; in between it is the reader's."""
        thinking = self.reply.state == "thinking"
        if thinking != self._was_thinking:
            self._thinking.set_value(thinking)
            self._was_thinking = thinking

    def _show_figures(self) -> None:
        self._figures.clear()
        reply = self.reply
        facts = answer_words.figures(reply.done) if reply.done else []
        if reply.state == "stopped":
            facts = facts or ["stopped"]
        with self._figures:
            if facts:
                ui.html("".join(f"<span>{escape(fact)}</span>" for fact in facts)).classes("figures-line")
            if reply.content:
                copy_button(json.dumps(reply.content), "Copy the answer", name="copy-answer")

    def _words(self) -> str:
        """Where an answer stands that has no text yet."""
        reply = self.reply
        if reply.state == "loading":
            try:
                return f"{reply.model}: {progress_words(self._manager.model(reply.model))}"
            except ModelNotFound:
                return "loading"
        if reply.state == "waiting":
            return self._waiting()
        return ""

    def _waiting(self) -> str:
        """The prompt's progress, where one request alone can be meant."""
        mine = [request for request in self._manager.activity() if request.model == self.reply.model]
        if len(mine) == 1 and mine[0].phase == "prefill" and mine[0].prompt_tokens:
            done = (mine[0].prompt_done + mine[0].cached_tokens) / mine[0].prompt_tokens
            return f"reading the prompt: {percent(min(1.0, done))} of {mine[0].prompt_tokens} tokens"
        if mine and all(request.phase == "waiting" for request in mine):
            return "waiting for its turn"
        return "waiting for the first token"


class TurnView:
    """A message, its answer and, where asked for, the comparison. `greedy` None: it is not known."""

    def __init__(self, manager: Management, turn: Turn, greedy: Callable[[], bool | None]) -> None:
        self.turn = turn
        self._manager, self._greedy = manager, greedy
        self._other: ReplyView | None = None
        with ui.element("div").classes("turn").props("data-testid=turn") as self.element:
            ui.label(turn.prompt).classes("prompt").props("data-testid=prompt")
            self._place = ui.element("div").classes("reply")
        self._build()

    def update(self) -> None:
        if self.turn.reply is not self._reply.reply:  # answered anew
            self._place.clear()
            self._build()
        self._reply.update()
        if self.turn.other is not None and self._other is None:
            self._build_other(self.turn.other)
        if self._other is not None:
            self._other.update()
            self._compare(self._other.reply)

    def _build(self) -> None:
        self._other, self._compared = None, False
        with self._place:
            self._reply = ReplyView(self._manager, self.turn.reply)

    def _build_other(self, other: Reply) -> None:
        with self._place, ui.element("div").classes("comparison").props("data-testid=comparison"):
            self._table = ui.html("<strong>Once more with speculation off …</strong>")
            with ui.expansion("The answer with speculation off").props("dense").classes("thinking"):
                self._other = ReplyView(self._manager, other)

    def _compare(self, other: Reply) -> None:
        if other.running or self._compared:
            return
        self._compared = True
        if other.state != "done":
            reason = other.error or "stopped"
            self._table.set_content(f"<strong>Not compared</strong>: {escape(reason)}")
            return
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(one)}</td><td>{escape(two)}</td></tr>'
            for name, one, two in answer_words.comparison_rows(self.turn.reply, other)
        )
        said = escape(answer_words.verdict(self.turn.reply, other, greedy=self._greedy()))
        self._table.set_content(
            f"<p><strong>{said}</strong></p><table><thead><tr><th></th><th>with speculation</th>"
            f"<th>speculation off</th></tr></thead><tbody>{rows}</tbody></table>"
        )


def copy_button(source: str, title: str, *, name: str) -> ui.button:
    """Copies what the JavaScript expression `source` gives, within the click, as browsers ask for."""
    made = ui.button(icon="content_copy").props("flat round dense size=sm")
    made.props["aria-label"] = title
    testid(made, name)

    def told(event: object) -> None:
        copied = getattr(event, "args", False)
        tell(made.client, "Copied" if copied else "The browser does not allow it: select and copy it", bad=not copied)

    made.on("click", told, js_handler=f"async () => emit(await dflashCopy({source}))")
    return made
