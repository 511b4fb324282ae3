"""The queue of downloads as rows that are built once and then changed in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nicegui import ui

from dflash2_app.live import Part
from dflash2_app.model_card import settings_path
from dflash2_app.parts import button, chip, testid
from dflash2_app.wording import Tone, percent, rate, seconds, size
from dflash2_server.downloads.task import Task

Act = Callable[[str, Task], None]


def state_words(task: Task) -> tuple[str, Tone]:
    """A task that waits to try again says so."""
    if task.state == "downloading" and task.error is not None:
        return "waiting to try again", "warn"
    tones: dict[str, Tone] = {
        "queued": "idle", "downloading": "busy", "completed": "good", "failed": "bad", "cancelled": "idle",
    }  # fmt: skip
    return task.state, tones[task.state]


def share(task: Task) -> float | None:
    """0 to 1; None before the size is known."""
    if task.state == "completed":
        return 1.0
    if not task.total_bytes:
        return None
    return min(1.0, task.done_bytes / task.total_bytes)


def progress(task: Task) -> str:
    """1.2 GB of 2.3 GB · 52 % · 40 MB/s · 28 s left."""
    if task.total_bytes is None:
        done = f"{size(task.done_bytes)} so far" if task.done_bytes else "size not known yet"
        return done if task.state != "queued" else "waits for its turn"
    if task.state == "completed":
        return size(task.total_bytes)
    words = [f"{size(task.done_bytes)} of {size(task.total_bytes)}", percent(share(task) or 0.0)]
    if task.state == "downloading" and task.error is None:
        words.append(rate(task.rate))
        words.append(f"{seconds(task.seconds_left)} left" if task.seconds_left is not None else "time left unknown")
    return " · ".join(words)


def actions(task: Task) -> tuple[str, ...]:
    """What can be done with it."""
    if not task.ended:
        return ("cancel",)
    return ("remove",) if task.state == "completed" else ("retry", "remove")


class TaskRow:
    def __init__(self, task: Task, act: Act) -> None:
        self._act = act
        with ui.element("article").classes("panel model") as self.element:
            testid(self.element, f"task-{task.repo_id}")
            with ui.element("div").classes("model-head"):
                self._name = Part(_name_key, _name, classes="model-name grow")
                self._buttons = ui.element("div").classes("line")
            self._progress = ui.label().classes("soft small numbers wrap")
            testid(self._progress, f"progress-{task.repo_id}")
            self._words = Part(lambda shown: (shown.error, shown.note), _words)
            with ui.element("div").classes("bar model-bar") as self._bar:
                self._filled = ui.element("div")
            self._bar.props("role=progressbar aria-valuemin=0 aria-valuemax=100")
            self._bar.props["aria-label"] = f"Download of {task.repo_id}"
        self._shown_actions: tuple[str, ...] = ()
        self._task = task
        self.show(task)

    def show(self, task: Task) -> None:
        self._name.show(task)
        self._words.show(task)
        self._progress.set_text(progress(task))
        self._show_buttons(task)
        done = share(task)
        self._bar.set_visibility(not task.ended)
        self._filled.style(f"width: {100 * (done or 0):.1f}%")
        self._bar.props["aria-valuenow"] = round(100 * (done or 0))

    def _do(self, name: str) -> None:
        self._act(name, self._task)

    def _show_buttons(self, task: Task) -> None:
        """Built again only where others are needed; each acts on the task as it is then."""
        wanted = actions(task)
        self._task = task
        if wanted == self._shown_actions:
            return
        self._shown_actions = wanted
        self._buttons.clear()
        with self._buttons:
            for name in wanted:
                button(
                    name.capitalize(), partial(self._do, name), name=f"{name}-{task.repo_id}",
                    kind="outline", title=f"{name.capitalize()} the download of {task.repo_id}",
                ).props("dense padding='2px 12px'")  # fmt: skip


def _name_key(task: Task) -> object:
    return task.repo_id, state_words(task)


def _name(task: Task) -> None:
    leaf = task.repo_id.rsplit("/", 1)[-1]
    if task.state == "completed":
        ui.link(task.repo_id, settings_path(leaf)).classes("model-title wrap")
    else:
        ui.label(task.repo_id).classes("wrap text-weight-bold")
    text, tone = state_words(task)
    testid(chip(text, tone), f"task-state-{task.repo_id}")


def _words(task: Task) -> None:
    if task.error is not None:
        kind = "note-warn" if not task.ended else "note-bad"
        with ui.element("div").classes(f"note {kind} small wrap").props("role=alert"):
            testid(ui.label(f"{task.error.message}. What helps: {task.error.remedy}."), f"task-error-{task.repo_id}")
    if task.note:
        ui.label(task.note).classes("soft small wrap")
