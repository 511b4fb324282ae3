"""The page Login, by itself: whoever has no session may load this page and nothing else, so it needs nothing else."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

# The page runs its own script and asks its own server, and does nothing else.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def register(app: FastAPI) -> None:
    """At /login; `?next=` names the path to go on to, on this server only."""
    text = (Path(__file__).parent / "login.html").read_text("utf-8")

    @app.get("/login", include_in_schema=False)
    def login() -> HTMLResponse:
        headers = {"Cache-Control": "no-store", "Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
        return HTMLResponse(text, headers=headers)
