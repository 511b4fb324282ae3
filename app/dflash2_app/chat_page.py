"""The page Chat: model, conversation, composer. The conversation itself is kept in the server, for each browser tab."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from nicegui import Client, app, ui
from nicegui.events import GenericEventArguments, ValueChangeEventArguments

from dflash2_app import live
from dflash2_app.chat_view import TurnView
from dflash2_app.conversation import Chat, Chats
from dflash2_app.parts import button, tell, testid
from dflash2_app.wording import state_chip
from dflash2_mlx.errors import DFlashError, ModelNotFound
from dflash2_server.management import Management, ModelView

HERE = Path(__file__).parent
# A stream reads as one; GrowingText slows down where this costs too much.
REFRESH_SECONDS = 0.1
_STORED_AS = "dflash2_chats"
# Enter sends; an input method's Enter only ends its composition.
_ENTER = """(event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  emit(event.target.value);
}"""


def content(manager: Management) -> None:
    ui.add_css(HERE / "chat.css")
    ui.add_head_html(f"<script>{(HERE / 'chat.js').read_text('utf-8')}</script>")
    with ui.element("div").classes("chat") as place:
        ui.label("Connecting …").classes("soft")

    def start() -> None:
        """The tab is known only once its socket is there."""
        chats = chats_of_tab(manager)
        place.clear()
        with place:
            ChatPage(manager, chats)

    ui.timer(0, start, once=True)


def chats_of_tab(manager: Management) -> Chats:
    tab = ui.context.client.tab_id
    stored = app.storage.tab.get(_STORED_AS)
    if isinstance(stored, Chats):
        return stored
    chats = Chats(manager, seen=lambda: any(client.tab_id == tab for client in Client.instances.values()))
    app.storage.tab[_STORED_AS] = chats
    return chats


class ChatPage:
    """The elements of one page over the chats of its tab."""

    def __init__(self, manager: Management, chats: Chats) -> None:
        self.manager, self.chats = manager, chats
        self._shown: Chat | None = None
        self._views: list[TurnView] = []
        self._empty: ui.element | None = None
        self._build_top()
        self._turns = ui.element("div").classes("turns").props('role=log aria-label="Conversation" data-testid=turns')
        self._build_composer()
        live.follow(manager, self._show_models)
        ui.timer(REFRESH_SECONDS, self._refresh)
        ui.run_javascript(f"dflashFollowEnd(getHtmlElement({self._turns.id}))")

    # what there is

    def _build_top(self) -> None:
        with ui.element("div").classes("chat-top"):
            self._models = ui.select({}, label="Model", on_change=self._choose).props("outlined dense options-dense")
            testid(self._models, "chat-model")
            self._compare = ui.switch("Compare with speculation off", on_change=self._keep_options)
            testid(self._compare, "compare")
            ui.space()
            self._earlier = ui.button("Earlier chats", icon="history").props("flat no-caps dense data-testid=earlier")
            with self._earlier:
                self._menu = ui.menu()
            button("New chat", self._new, name="new-chat", icon="add", kind="outline")
        with ui.expansion("System prompt and sampling", icon="tune").props("dense data-testid=chat-options"):
            self._build_options()

    def _build_options(self) -> None:
        with ui.element("div").classes("chat-options"):
            self._system = ui.textarea("System prompt", on_change=self._keep_options).props("outlined autogrow rows=2")
            self._system.classes("wide").props("data-testid=system")
            self._temperature = ui.number("Temperature", min=0, max=100, step=0.1, on_change=self._keep_options)
            self._temperature.props('outlined dense clearable placeholder="the model\'s" stack-label')
            self._max_tokens = ui.number("Max tokens", min=1, step=1, precision=0, on_change=self._keep_options)
            self._max_tokens.props('outlined dense clearable placeholder="the model\'s" stack-label')
        testid(self._temperature, "temperature")
        testid(self._max_tokens, "max-tokens")

    def _build_composer(self) -> None:
        with ui.element("div").classes("composer"):
            with ui.element("div").classes("composer-box"):
                self._input = ui.textarea(placeholder="Message", on_change=self._keep_draft)
                self._input.props('autogrow borderless dense rows=1 autofocus aria-label="Message" data-testid=message')
                self._input.on("keydown", self._send_event, js_handler=_ENTER)
                self._send_button = ui.button(icon="arrow_upward", on_click=lambda: self._send(self._input.value))
                self._send_button.props('round dense unelevated aria-label="Send" data-testid=send')
                self._stop_button = ui.button(icon="stop", on_click=self._stop)
                self._stop_button.props('round dense unelevated aria-label="Stop" data-testid=stop')
            with ui.element("div").classes("line"):
                ui.label("Enter sends, Shift+Enter is a new line, Escape stops.").classes("composer-hint grow")
                self._again = button("Answer again", self._regenerate, name="again", icon="refresh").props("dense")

    # what is shown

    def _refresh(self) -> None:
        chat = self.chats.current
        if chat is not self._shown:
            self._show_chat()
        self._sync_turns()
        for view in self._views:
            view.update()
        running = chat.running
        self._stop_button.set_visibility(running)
        self._send_button.set_visibility(not running)
        self._again.set_visibility(bool(chat.turns) and not running)

    def _show_chat(self) -> None:
        """Everything of another chat, or of this one on a new page."""
        self._shown = chat = self.chats.current
        self._turns.clear()
        self._views = []
        self._empty = None
        self._input.set_value(chat.draft)
        options = replace(chat.options)  # setting one field keeps what the others still hold
        self._compare.set_value(options.compare)
        self._system.set_value(options.system)
        self._temperature.set_value(options.temperature)
        self._max_tokens.set_value(options.max_tokens)
        chat.options = options
        self._show_models()
        self._show_earlier()

    def _sync_turns(self) -> None:
        turns = self.chats.current.turns
        with self._turns:
            if not turns and self._empty is None:
                self._empty = _nothing_yet(bool(self._models.options))
            if turns and self._empty is not None:
                self._empty.delete()
                self._empty = None
            for turn in turns[len(self._views) :]:
                self._views.append(TurnView(self.manager, turn, self._greedy))

    def _show_models(self) -> None:
        """Loaded ones first; those that a message would load, if it may."""
        options = self.chats.current.options
        views = models_to_choose(self.manager)
        labels = {view.id: _label(view) for view in views}
        if options.model not in labels:
            options.model = next(iter(labels), None)
        if labels != self._models.options or options.model != self._models.value:
            self._models.set_options(labels, value=options.model)

    def _show_earlier(self) -> None:
        self._earlier.set_visibility(bool(self.chats.earlier))
        self._menu.clear()
        with self._menu:
            for chat in self.chats.earlier:
                ui.menu_item(chat.title, on_click=lambda chat=chat: self.chats.open(chat))

    def _greedy(self) -> bool | None:
        options = self.chats.current.options
        temperature = options.temperature
        if temperature is None and options.model is not None:
            try:
                temperature = self.manager.model(options.model).settings.temperature
            except ModelNotFound:
                return None
        return None if temperature is None else temperature == 0

    # what the user does

    async def _send_event(self, event: GenericEventArguments) -> None:
        self._send(str(event.args))

    def _send(self, text: str | None) -> None:
        try:
            self.chats.current.send(text or "")
        except DFlashError as error:
            tell(self._input.client, str(error), bad=True)
            return
        self._input.set_value("")
        self._refresh()

    async def _stop(self) -> None:
        await self.chats.current.stop()

    def _regenerate(self) -> None:
        try:
            self.chats.current.again()
        except DFlashError as error:
            tell(self._input.client, str(error), bad=True)
        self._refresh()

    def _new(self) -> None:
        self.chats.new()
        self._refresh()
        self._input.run_method("focus")

    def _choose(self, event: ValueChangeEventArguments[Any]) -> None:
        if event.value is not None:
            self.chats.current.options.model = event.value

    def _keep_options(self) -> None:
        """What the fields hold goes with the next message."""
        if self._shown is not self.chats.current:
            return  # the fields are about to show another chat
        options = self.chats.current.options
        options.compare = bool(self._compare.value)
        options.system = self._system.value or ""
        options.temperature = self._temperature.value
        options.max_tokens = None if self._max_tokens.value is None else int(self._max_tokens.value)

    def _keep_draft(self, event: ValueChangeEventArguments[Any]) -> None:
        self.chats.current.draft = event.value or ""


def models_to_choose(manager: Management) -> list[ModelView]:
    """Loaded ones first, then those that a message would load, where it may."""
    models = [view for view in manager.models() if view.kind == "model" and view.problem is None]
    ready = [view for view in models if view.state == "ready"]
    rest = [view for view in models if view.state != "ready"]
    return [*ready, *(rest if manager.settings.load_on_request else [])]


def _label(view: ModelView) -> str:
    return f"{view.settings.display_name or view.id} – {state_chip(view)[0]}"


def _nothing_yet(models: bool) -> ui.element:
    with ui.element("div").classes("chat-empty").props("data-testid=chat-empty") as place:
        if models:
            ui.label("Ask something. A model that is not loaded yet is loaded first.")
        else:
            ui.label("There is no model to talk to.")
            ui.link("Download one", "/downloads")
            ui.label("or").classes("soft")
            ui.link("load one", "/models")
    return place
