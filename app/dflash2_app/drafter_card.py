"""One drafter in the list of models: what it fits, and a quantised copy of it on its way."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui

from dflash2_app import quantize_dialog, quantize_words
from dflash2_app.live import Part
from dflash2_app.model_actions import Actions
from dflash2_app.parts import button, chip, tell, testid
from dflash2_app.wording import size
from dflash2_mlx.errors import DFlashError
from dflash2_server.management import Management, ModelView
from dflash2_server.work import QuantizeJob


class DrafterCard:
    """Built for one view; `show` follows the jobs."""

    def __init__(self, view: ModelView, manager: Management, actions: Actions) -> None:
        self._view, self._manager = view, manager
        self._client = ui.context.client
        self._job: QuantizeJob | None = None
        with ui.element("article").classes("panel model") as element:
            testid(element, f"drafter-{view.id}")
            with ui.element("div").classes("model-head"):
                with ui.element("div").classes("model-name grow"):
                    ui.label(view.id).classes("wrap text-weight-bold")
                    if view.problem:
                        chip("cannot be used", "bad")
                self._build_buttons(actions)
            _facts(view)
            with ui.element("div").classes("line") as self._line:
                self._words = Part[QuantizeJob](quantize_words.job_words, _job_words, classes="grow")
                self._cancel = button(
                    "Cancel", self._cancel_it, name=f"quantize-cancel-{view.id}", kind="outline",
                    title=f"Cancel quantizing {view.id}",
                ).props("dense padding='2px 12px'")  # fmt: skip
            with ui.element("div").classes("bar model-bar") as self._bar:
                self._filled = ui.element("div")
            self._bar.props('role=progressbar aria-label="Quantizing" aria-valuemin=0 aria-valuemax=100')
        self.show(())

    def show(self, jobs: Sequence[QuantizeJob]) -> None:
        job = self._job = quantize_words.job_of(jobs, self._view)
        running = job is not None and not job.ended
        self._line.set_visibility(job is not None)
        self._cancel.set_visibility(running)
        self._bar.set_visibility(running)
        if job is None:
            return
        self._words.show(job)
        share = 100 * (job.share or 0.0)
        self._filled.style(f"width: {share:.0f}%")
        self._bar.props["aria-valuenow"] = round(share)

    def _build_buttons(self, actions: Actions) -> None:
        view = self._view
        with ui.element("div").classes("line"):
            if quantize_words.can_be_quantised(view):
                button(
                    "Quantize …", self._ask, name=f"quantize-{view.id}", title=f"Quantize {view.id}",
                ).props("dense")  # fmt: skip
            if view.deletable:
                button(
                    "Delete …", lambda: actions.delete(view), name=f"delete-{view.id}", color=None,
                    title=f"Delete {view.id} from disk",
                ).props("dense")  # fmt: skip

    def _ask(self) -> None:
        quantize_dialog.ask(self._manager, self._view, self._follow)

    def _follow(self) -> None:
        self.show(self._manager.quantizations.list())

    def _cancel_it(self) -> None:
        if self._job is None:
            return
        try:
            self._manager.quantizations.cancel(self._job.id)
        except DFlashError as error:
            tell(self._client, str(error), bad=True)
        self._follow()


def _facts(view: ModelView) -> None:
    with ui.element("div").classes("model-facts"):
        origin = "part of this program" if view.source == "embedded" else view.repo_id or view.path
        for word in (size(view.size), view.model_type, view.quantization or "not quantised", origin):
            ui.label(word)
    if view.problem:
        ui.label(view.problem).classes("bad-text wrap small")
    elif view.targets:
        ui.label(f"Fits {', '.join(view.targets)}").classes("wrap small tone-good")
    else:
        ui.label(f"Fits no model on disk: {view.targets_reason or 'none has its sizes'}").classes("wrap small soft")


def _job_words(job: QuantizeJob) -> None:
    text, tone = quantize_words.job_words(job)
    shown = ui.label(text).classes(f"small wrap tone-{tone}").props(f"role={'alert' if tone == 'bad' else 'status'}")
    testid(shown, f"quantize-words-{job.drafter}")
