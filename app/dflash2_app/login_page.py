"""Login: a page of its own, without scripts that would need a key."""

from __future__ import annotations

from fastapi import FastAPI


def register(app: FastAPI) -> None:
    pass
