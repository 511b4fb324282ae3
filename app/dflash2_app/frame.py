"""What every page has around it: the name, the navigation, what is loaded, and the light or dark switch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nicegui import ui

from dflash2_app import live
from dflash2_app.parts import chip
from dflash2_app.wording import state_chip
from dflash2_server.management import Management, ModelView

PRODUCT = "dflash2-mlx"
PAGES = (
    ("/models", "Models", "apps"),
    ("/downloads", "Downloads", "download"),
    ("/chat", "Chat", "chat_bubble_outline"),
    ("/live", "Live", "show_chart"),
    ("/bench", "Bench", "speed"),
    ("/logs", "Logs", "list_alt"),
    ("/settings", "Settings", "settings"),
)
# Beyond these the header only counts.
CHIPS = 3


@contextmanager
def frame(title: str, manager: Management, *, here: str = "") -> Iterator[None]:
    """The page's content is built inside. `here` is the path that the navigation marks."""
    ui.page_title(f"{title} · {PRODUCT}")
    ui.query(".nicegui-content").classes("page-content")
    with ui.header(elevated=False).classes("top"):
        ui.html('<a class="skip" href="#main">Skip to the content</a>', sanitize=False)
        with ui.element("div").classes("top-line"):
            ui.html(f'<a class="product" href="/">{PRODUCT}</a>', sanitize=False)
            _navigation(here)
            with ui.element("div").classes("top-end"):
                _loaded(manager)
                _theme_switch()
                if manager.settings.api_key:
                    _logout()
    # NiceGUI's layout is a main element already.
    with ui.element("div").classes("main"):
        ui.html('<span id="main" tabindex="-1"></span>', sanitize=False)
        ui.html(f"<h1>{_escaped(title)}</h1>", sanitize=False).classes("page-title")
        yield


def _navigation(here: str) -> None:
    links = "".join(
        f'<a href="{path}"{" aria-current=page" if path == here else ""}>'
        f'<i class="material-icons" aria-hidden="true">{icon}</i><span>{label}</span></a>'
        for path, label, icon in PAGES
    )
    ui.html(f'<nav class="nav" aria-label="Pages">{links}</nav>', sanitize=False).classes("top-nav")


def _loaded(manager: Management) -> None:
    """The models that are loaded, being loaded or failed to load, as links to their settings."""

    def build(views: tuple[ModelView, ...]) -> None:
        if not views:
            chip("nothing loaded", "idle")
        for view in views[:CHIPS]:
            text, tone = state_chip(view)
            with ui.link(target=f"/models/{view.id}").classes("chip-link"):
                chip(view.settings.display_name or view.id, tone, title=f"{view.id}: {text}")
        if len(views) > CHIPS:
            chip(f"+{len(views) - CHIPS}", "idle", title=", ".join(view.id for view in views[CHIPS:]))

    part = live.Part(lambda views: tuple((view.id, state_chip(view)) for view in views), build, classes="loaded")
    part.element.props('aria-label="Loaded models" role=status data-testid=loaded-models')
    live.follow(manager, lambda: part.show(tuple(view for view in manager.models() if view.state != "unloaded")))


def _logout() -> None:
    """Ends the browser's session, for its other pages too once they are loaded again."""
    button = ui.button("Log out", color=None).props("flat no-caps dense data-testid=logout")
    button.on(
        "click",
        js_handler="""async () => {
            const headers = { "Content-Type": "application/json" };
            await fetch("/admin/api/logout", { method: "POST", headers, body: "{}" });
            location.replace("/login");
        }""",
    )


def _theme_switch() -> None:
    """Round through auto, light and dark, without the server."""
    button = ui.button(color=None).props(
        'flat round dense data-theme-switch data-testid=theme-switch aria-label="Colours"'
    )
    with button.classes("theme-switch"):
        for mode, icon in (("auto", "brightness_auto"), ("light", "light_mode"), ("dark", "dark_mode")):
            ui.icon(icon).classes(f"theme-{mode}")
    button.on("click", js_handler="() => dflashTheme.next()")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
