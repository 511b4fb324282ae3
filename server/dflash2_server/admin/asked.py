"""What the routes take from a request: the manager, a model by its name, an object without a schema."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Depends, Request
from pydantic import BaseModel, ConfigDict

from dflash2_mlx.errors import ModelNotFound
from dflash2_server.management import Management, ModelView

PREFIX = "/admin/api"


async def _manager(request: Request) -> Management:
    manager: Management = request.app.state.manager
    return manager


Manager = Annotated[Management, Depends(_manager)]
# Any subset of settings: which there are, and their values, is checked by what saves them.
Changes = Annotated[dict[str, Any], Body(description="Any subset of the settings; null clears one.")]


class Options(BaseModel):
    """A body of few fields: another field, or a value of another type, is refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


def named(manager: Management, name: str) -> ModelView:
    """The model or drafter of that id, repository id or alias, looked up among those that are listed.

    A name is no path here, whatever it holds: what is done to the model is done by the id of the view. Raises
    ModelNotFound.
    """
    if not name:
        raise ModelNotFound("no model is named: GET /admin/api/models lists them")
    return manager.model(name)
