"""The page Downloads: a repository by its name, the queue, and a search of the Hub."""

from __future__ import annotations

from nicegui import ui

from dflash2_app import live
from dflash2_app.download_rows import TaskRow
from dflash2_app.hub_results import results
from dflash2_app.parts import button, tell, testid
from dflash2_mlx.errors import DFlashError
from dflash2_server.downloads import search as hub
from dflash2_server.downloads.task import Task
from dflash2_server.management import Management


def content(manager: Management) -> None:
    page = _Downloads(manager)
    live.follow(manager, page.show)


class _Downloads:
    def __init__(self, manager: Management) -> None:
        self._manager = manager
        self._client = ui.context.client
        self._rows: dict[str, TaskRow] = {}
        self._searches = 0
        self._build_adding()
        ui.label("Queue").classes("section-title").props("role=heading aria-level=2")
        self._empty = ui.label("Nothing is being downloaded.").classes("soft").props("data-testid=queue-empty")
        self._queue = ui.element("div").classes("stack").props("data-testid=queue")
        self._build_search()

    def show(self) -> None:
        tasks = self._manager.downloads.tasks()
        for gone in self._rows.keys() - {task.id for task in tasks}:
            self._rows.pop(gone).element.delete()
        for task in tasks:
            if task.id in self._rows:
                self._rows[task.id].show(task)
            else:
                with self._queue:
                    self._rows[task.id] = TaskRow(task, self._act)
        ids = [task.id for task in tasks]
        if ids != list(self._rows):
            self._rows = {name: self._rows[name] for name in ids}
            for index, row in enumerate(self._rows.values()):
                row.element.move(self._queue, index)
        self._empty.set_visibility(not tasks)

    def _build_adding(self) -> None:
        with ui.element("section").classes("panel stack"):
            with ui.element("div").classes("line"):
                self._repo = ui.input("Repository or link", placeholder="mlx-community/Qwen3-4B-4bit")
                self._repo.props("outlined dense autocomplete=off spellcheck=false").classes("grow repo-field")
                testid(self._repo, "repo")
                self._repo.on("keydown.enter", self._add_typed)
                button("Download", self._add_typed, name="add", icon="download", kind="unelevated")
            self._with_drafter = ui.switch("With its published drafter", value=True).props("dense")
            testid(self._with_drafter, "with-drafter")
            self._fault = ui.label().classes("bad-text small wrap").props("role=alert data-testid=repo-error")
            self._fault.set_visibility(False)
            where = self._manager.settings.download_dir or "the Hub cache"
            ui.label(f"Downloads go to {where}. What is interrupted is gone on with.").classes("soft small wrap")

    def _build_search(self) -> None:
        ui.label("Search the Hub").classes("section-title").props("role=heading aria-level=2")
        with ui.element("div").classes("line tools"):
            self._query = ui.input(placeholder="Qwen3 4bit").classes("grow search")
            self._query.props('outlined dense clearable type=search aria-label="Search the Hub"')
            testid(self._query, "hub-query")
            self._query.on("keydown.enter", self._search)
            button("Search", self._search, name="hub-search", icon="search", kind="outline")
            ui.label("An empty search lists popular MLX models.").classes("soft small")
        self._found = ui.element("div").props('role=region aria-label="Found" aria-live=polite data-testid=found')

    def _add_typed(self) -> None:
        """A wrong one stays in the field, with what is wrong with it."""
        text = (self._repo.value or "").strip()
        fault = self._add(text, self._with_drafter.value) if text else "Name a repository, as owner/name, or its link."
        self._fault.set_text(fault or "")
        self._fault.set_visibility(bool(fault))
        if not fault:
            self._repo.value = ""

    def _add(self, repo: str, with_drafter: bool) -> str | None:
        """What is wrong with it, if anything is."""
        try:
            self._manager.downloads.add(repo, with_drafter=with_drafter)
        except DFlashError as error:
            return str(error)
        self.show()
        return None

    def _add_found(self, repo: str, with_drafter: bool) -> None:
        fault = self._add(repo, with_drafter)
        tell(self._client, fault or f"{repo} is queued", bad=bool(fault))

    def _act(self, name: str, task: Task) -> None:
        downloads = self._manager.downloads
        try:
            {"cancel": downloads.cancel, "retry": downloads.retry, "remove": downloads.remove}[name](task.id)
        except DFlashError as error:
            tell(self._client, str(error), bad=True)
        self.show()

    async def _search(self) -> None:
        """The answer to the latest search is shown; those to earlier ones may come late."""
        self._searches += 1
        mine = self._searches
        self._tell_found("Searching …", bad=False)
        settings = self._manager.settings
        token = settings.hf_token.get_secret_value() if settings.hf_token else None
        try:
            found = await hub.search(self._query.value or "", endpoint=settings.hf_endpoint, token=token)
        except DFlashError as error:
            if mine == self._searches:
                self._tell_found(str(error), bad=True)
            return
        if mine != self._searches or self._client.is_deleted:
            return
        there = {view.repo_id for view in self._manager.models() if view.repo_id}
        self._found.clear()
        with self._found:
            results(found, there, self._add_found)

    def _tell_found(self, text: str, *, bad: bool) -> None:
        if self._client.is_deleted:
            return
        self._found.clear()
        with self._found:
            shown = ui.label(text).classes("note note-bad wrap" if bad else "soft")
            shown.props("data-testid=search-error" if bad else "data-testid=searching")
