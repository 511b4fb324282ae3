"""Every setting of a model, from the form through the API into the file and back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dflash2_app import form_values
from dflash2_mlx.settings.fields import FieldFacts
from dflash2_mlx.settings.model import ModelSettings, field_facts
from dflash2_server.app import create_app
from tests.manager.managing import managed, write_models
from tests.server.doubles import BASE_URL, httpx

PATH = "/admin/api/models/one/settings"
# What is set where the kind of a field does not say it.
VALUES: dict[str, Any] = {
    "dflash_draft_model": "drafter",
    "chat_template_kwargs": {"enable_thinking": False, "depth": [1, 2]},
    "dflash_ssd_cache_max_bytes": 3 << 30,
    "dflash_in_memory_cache_max_bytes": 1 << 29,
    "dflash_block_size": 5,
    "dflash_draft_window_size": 8,
}


def another(facts: FieldFacts) -> Any:
    """A value that may be set and is not the default."""
    if facts.name in VALUES:
        return VALUES[facts.name]
    if facts.kind == "bool":
        return not facts.default
    if facts.kind == "choice":
        means = facts.default if facts.default is not None else facts.null_means
        return next(c for c in facts.choices if str(c) not in facts.unavailable and c != means)
    if facts.kind == "int":
        return int(facts.minimum or 0) + 4
    return 0.5 if facts.kind == "float" else "some words"


def test_every_field_goes_from_the_form_into_the_file_and_back(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_models(models)
    every = {facts.name: another(facts) for facts in field_facts() if facts.available}
    assert set(ModelSettings.model_fields) - set(every) == {"trust_remote_code"}
    # The SSD cache cannot be on without the other one.
    alone = {"dflash_in_memory_cache": every.pop("dflash_in_memory_cache")}

    async def test() -> None:
        async with managed(tmp_path, models) as manager:
            app = create_app(manager.service, manager.settings, manager)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=BASE_URL) as client:
                for wanted in (every, alone):
                    await _round_trip(client, tmp_path / "model_settings.json", wanted)

    asyncio.run(test())


async def _round_trip(client: Any, file: Path, wanted: dict[str, Any]) -> None:
    fields = [facts for facts in field_facts() if facts.name in wanted]
    typed = {facts.name: form_values.typed_of(facts, wanted[facts.name]) for facts in fields}
    assert {f.name: form_values.change_of(f, f.default, typed[f.name]) for f in fields} == wanted
    answer = await client.put(PATH, json=wanted)
    assert answer.status_code == 200, answer.text
    assert json.loads(file.read_text())["models"]["one"] == wanted
    told = (await client.get(PATH)).json()
    assert told["settings"] == wanted
    assert {facts.name: form_values.typed_of(facts, told["effective"][facts.name]) for facts in fields} == typed
    await client.put(PATH, json=dict.fromkeys(wanted))
    assert (await client.get(PATH)).json()["settings"] == {}


@pytest.mark.parametrize("facts", field_facts(), ids=lambda facts: facts.name)
def test_a_default_that_is_not_touched_is_no_change(facts: FieldFacts) -> None:
    assert (
        form_values.change_of(facts, facts.default, form_values.typed_of(facts, facts.default)) is form_values.UNCHANGED
    )
