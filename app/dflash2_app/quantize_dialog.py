"""The dialog that asks for a quantised copy of a drafter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui import ui

from dflash2_app import quantize_words as words
from dflash2_app.parts import button, dialog, testid
from dflash2_mlx.errors import DFlashError
from dflash2_server.management import Management, ModelView


def ask(manager: Management, view: ModelView, started: Callable[[], None]) -> None:
    """`started` is called once the work is under way; what is refused is told in the dialog, which stays open."""
    with dialog(f"Quantize {view.id}", name="quantize-dialog") as shown:
        ui.label(
            "Writes a copy with packed matrices, which is read faster. How many of its drafts are accepted, Bench "
            "tells. The target decides greedy answers: in float32 they stay the same, in other types another drafter "
            "can tip one where the two best tokens nearly tie."
        ).classes("wrap")
        with ui.element("div").classes("quantize-choices"):
            bits = _choice("Weight bits", words.BITS, 4, "quantize-bits")
            group = _choice("Group size", words.GROUPS, 64, "quantize-group")
            activation = _choice("Activation bits", words.ACTIVATIONS, 16, "quantize-activation")
        name = ui.input("Name of the copy", placeholder=f"{view.id} with the choice").classes("full-width")
        testid(name.props("outlined dense stack-label autocomplete=off spellcheck=false"), "quantize-name")
        estimate = ui.label().classes("soft small wrap").props("role=status data-testid=quantize-estimate")
        fault = ui.label().classes("bad-text small wrap").props("role=alert data-testid=quantize-fault")
        tensors = words.tensors_of(view)

        def show(_: Any = None) -> None:
            spec = words.spec_of(bits.value, activation.value, group.value)
            estimate.set_text(words.estimate_words(tensors, spec))
            fault.set_text("")

        def act() -> None:
            spec = words.spec_of(bits.value, activation.value, group.value)
            try:
                manager.quantizations.start(view.id, str(spec), (name.value or "").strip() or None)
            except DFlashError as error:
                fault.set_text(str(error))
                return
            shown.close()
            started()

        for control in (bits, group, activation, name):
            control.on_value_change(show)
        show()
        with ui.element("div").classes("dialog-actions"):
            button("Cancel", shown.close, name="quantize-close")
            button("Quantize", act, name="quantize-start", kind="unelevated")


def _choice(label: str, options: dict[int, str], value: int, name: str) -> ui.select:
    made = ui.select(options, value=value, label=label).props("outlined dense options-dense")
    testid(made, name)
    return made
