"""The manager on the real engine with tiny pairs: load, serve, save, reload, evict, unload."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash2_mlx import hub
from dflash2_mlx.errors import DFlashError, EngineBusy, ModelNotFound, RequestError
from dflash2_server.manager import Manager
from tests.manager.managing import answered, ask, end_of, managed, until, write_models

DFLASH = {"dflash_enabled": True, "dflash_draft_model": "drafter"}
FIXED = {**DFLASH, "dflash_verify_mode": "dflash"}  # blocks of one size, whatever they cost on this machine


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path, originals: Path) -> Callable[..., None]:
    def run(test: Callable[[Manager], Awaitable[None]], **settings: Any) -> None:
        async def whole() -> None:
            async with managed(tmp_path, originals, **settings) as manager, asyncio.timeout(60):
                await test(manager)

        asyncio.run(whole())

    return run


def test_load_serve_and_unload(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.save_settings("one", {**FIXED, "dflash_block_size": 5})
        before = mx.get_active_memory()
        view = await manager.load("one")
        assert view.running is not None
        assert (view.state, view.running.state, view.running.engine) == ("ready", "active", "dflash2")
        assert (view.running.block_size, view.running.verify_mode) == (5, "dflash")
        done = await answered(manager, ask("one", 40))
        assert done.engine["block_size"] == 5
        figures = manager.model("one").running.figures  # type: ignore[union-attr]
        assert (figures.generation_tokens, figures.requests) == (40, 1)
        assert figures.cycles > 0
        assert len(figures.acceptance_by_position) == 4
        assert figures.cache_entries == 1
        del done
        freed = await manager.unload("one")
        assert freed.freed >= view.running.memory_bytes
        assert mx.get_active_memory() - before < view.running.memory_bytes / 10
        assert manager.model("one").state == "unloaded"

    run(test)


def test_parts_of_cycles_are_timed_and_the_text_stays(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.save_settings("one", {**FIXED, "dflash_block_size": 4})
        await manager.load("one")
        await answered(manager, ask("one", 120))
        figures = manager.model("one").running.figures  # type: ignore[union-attr]
        assert figures.draft_seconds is not None
        assert figures.verify_seconds is not None
        assert 0 < figures.draft_seconds + figures.verify_seconds < 2 * figures.generation_seconds

    run(test)


def test_a_request_loads_the_model_that_it_names(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        answers = await asyncio.gather(*(answered(manager, ask(name)) for name in ("one", "two", "one")))
        assert [done.completion_tokens for done in answers] == [4, 4, 4]
        assert {entry.id for entry in manager._pool.ready()} == {"one", "two"}
        await manager.save_settings("two", {"model_alias": "gpt-4o", "is_default": True})
        assert manager.service.model("gpt-4o").id == manager.service.model(None).id == "two"
        with pytest.raises(ModelNotFound, match="drafter"):
            await answered(manager, ask("drafter"))
        with pytest.raises(ModelNotFound, match="no model 'none-such'"):
            await answered(manager, ask("none-such"))

    run(test)


def test_without_load_on_request_only_what_is_loaded_is_served(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        with pytest.raises(ModelNotFound, match="load_on_request"):
            await answered(manager, ask("one"))
        assert manager.service.models() == []
        await manager.load("one")
        assert [model.id for model in manager.service.models()] == ["one"]
        await answered(manager, ask("one"))

    run(test, load_on_request=False)


def test_saving_never_cuts_an_answer_and_reloads_when_idle(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.load("one")
        answer = await manager.service.submit(ask("one", 400))
        saved = await manager.save_settings("one", DFLASH)
        assert saved.reload == "when idle"
        assert set(saved.requires_reload) == set(DFLASH)
        assert set(manager.model("one").requires_reload) == set(DFLASH)
        assert manager.model("one").running.engine == "plain"  # type: ignore[union-attr]
        done = await end_of(answer)
        assert (done.completion_tokens, done.finish_reason) == (400, "length")
        del answer
        await until(lambda: not manager.model("one").requires_reload and manager.model("one").state == "ready")
        assert manager.model("one").running.engine == "dflash2"  # type: ignore[union-attr]
        saved = await manager.save_settings("one", {"dflash_enabled": False})
        assert saved.reload == "done"
        assert manager.model("one").running.engine == "plain"  # type: ignore[union-attr]
        assert manager.model("one").settings.dflash_draft_model == "drafter"

    run(test)


def test_settings_that_need_no_reload_are_in_force_at_once(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.save_settings("one", FIXED)
        await manager.load("one")
        saved = await manager.save_settings("one", {"dflash_block_size": 3, "max_tokens": 7})
        assert saved.reload == "none"
        inference = ask("one")
        given = {name: value for name, value in inference.parameters.items() if name != "max_tokens"}
        done = await answered(manager, type(inference)(model="one", prompt=inference.prompt, parameters=given))
        assert (done.completion_tokens, done.engine["block_size"]) == (7, 3)
        own = await answered(manager, ask("one", block_size=4))
        assert own.engine["block_size"] == 4
        await manager.save_settings("one", {"dflash_verify_mode": "off"})
        assert (await answered(manager, ask("one"))).engine["engine"] == "plain"
        view = manager.model("one").running
        assert view is not None
        assert (view.verify_mode, view.block_size) == ("off", 1)

    run(test)


def test_a_long_prompt_is_decoded_plainly_for_that_request_only(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.save_settings("one", {**DFLASH, "dflash_max_ctx": 6, "dflash_verify_mode": "dflash"})
        await manager.load("one")
        short = ask("one")
        long = type(short)(model="one", prompt=[5] * 6, parameters=short.parameters)
        engines = [(await answered(manager, one)).engine for one in (short, long, short)]
        assert [one["engine"] for one in engines] == ["dflash2", "plain", "dflash2"]
        assert [one["fallback_reason"] is None for one in engines] == [True, False, True]

    run(test)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({**DFLASH, "dflash_block_size": 9}, "dflash_block_size"),
        ({"dflash_enabled": True, "dflash_draft_model": "stranger"}, "dflash_draft_model"),
        ({"dflash_draft_quant_weight_bits": 3}, "dflash_draft_quant_weight_bits"),
        ({**DFLASH, "dflash_draft_window_size": 10_000}, "dflash_draft_window_size"),
        ({"dflash_draft_window_size": 1}, "dflash_draft_window_size"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_saved(
    run: Callable[..., None], changes: dict[str, Any], param: str
) -> None:
    async def test(manager: Manager) -> None:
        with pytest.raises(RequestError) as refused:
            await manager.save_settings("one", {"temperature": 0.5, **changes})
        assert refused.value.param == param
        assert manager.model("one").settings.temperature is None

    run(test)


def test_a_failed_drafter_fails_the_load_unless_fallback_is_allowed(
    run: Callable[..., None], originals: Path, tmp_path: Path
) -> None:
    broken = originals / "broken"
    shutil.copytree(originals / "drafter", broken)
    weights = next(broken.glob("*.safetensors"))
    arrays: Any = mx.load(str(weights))
    mx.save_safetensors(str(weights), {name: array for name, array in arrays.items() if "norm" not in name})

    async def test(manager: Manager) -> None:
        await manager.save_settings("one", {"dflash_enabled": True, "dflash_draft_model": "broken"})
        with pytest.raises(DFlashError):
            await manager.load("one")
        view = manager.model("one")
        assert view.state == "failed"
        assert view.error
        assert view.running is None

    async def fallback(manager: Manager) -> None:
        view = await manager.load("one")
        assert view.running is not None
        assert (view.running.state, view.running.engine) == ("fallback", "plain")
        assert "broken" in (view.running.reason or "")
        assert manager.service.model("one").fallback_reason == view.running.reason

    try:
        run(test)
        run(fallback, allow_fallback=True)
    finally:
        shutil.rmtree(broken)


def test_the_least_recently_used_makes_room_but_not_what_is_pinned_or_busy(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.save_settings("one", {"is_pinned": True})
        await manager.load("one")
        await manager.load("two")
        await manager.load("three")
        assert {entry.id for entry in manager._pool.ready()} == {"one", "three"}
        answer = await manager.service.submit(ask("three", 300))
        with pytest.raises(EngineBusy, match="max_models"):
            await manager.load("two")
        assert (await end_of(answer)).completion_tokens == 300
        await manager.load("two")
        assert {entry.id for entry in manager._pool.ready()} == {"one", "two"}

    run(test, max_models=2)


def test_what_does_not_fit_is_refused_with_its_parts_and_can_be_forced(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        told = manager.estimate("one")
        assert told.verdict == "does not fit"
        with pytest.raises(EngineBusy, match=r"does not fit.*target"):
            await manager.load("one")
        assert manager.model("one").state == "failed"
        assert (await manager.load("one", force=True)).state == "ready"

    run(test, memory_limit_gb=1e-6)


def test_unloading_waits_for_the_answer_and_later_requests_load_again(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.load("one")
        answer = await manager.service.submit(ask("one", 300))
        unloading = asyncio.create_task(manager.unload("one"))
        await until(lambda: manager.model("one").state == "unloading")
        late = asyncio.create_task(answered(manager, ask("one")))
        assert (await end_of(answer)).completion_tokens == 300
        del answer
        await unloading
        assert (await late).completion_tokens == 4
        assert manager.model("one").state == "ready"
        with pytest.raises(RequestError, match="unload it first"):
            await manager.delete("one")

    run(test)


def test_answers_go_on_while_another_model_loads(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.load("one")
        answer = await manager.service.submit(ask("one", 300))
        await anext(aiter(answer))
        before = manager.activity()[0].generation_tokens
        await manager.load("two")
        running = manager.activity()
        assert not running or running[0].generation_tokens > before
        assert (await end_of(answer)).completion_tokens == 300

    run(test)


def test_a_load_can_be_stopped(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        entry = manager._pool.entry("one")
        loading = asyncio.create_task(manager.load("one"))
        await until(lambda: entry.task is not None)
        await manager.unload("one")
        with pytest.raises(DFlashError, match="stopped"):
            await loading
        assert (entry.state, entry.error) == ("unloaded", None)
        assert (await manager.load("one")).state == "ready"

    run(test)


def test_idle_models_are_unloaded_by_their_own_limit(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.save_settings("one", {"ttl_seconds": 1})
        await manager.save_settings("two", {"is_pinned": True, "ttl_seconds": 1})
        await manager.load("one")
        await manager.load("two")
        assert (manager.model("one").running.idle_seconds_left or 0) > 0  # type: ignore[union-attr]
        await until(lambda: manager.model("one").state == "unloaded")
        assert manager.model("two").state == "ready"

    run(test)


def test_pinned_and_default_models_are_loaded_at_the_start(tmp_path: Path, originals: Path) -> None:
    stored = {"one": {"is_default": True}, "two": {"is_pinned": True}, "gone": {"is_pinned": True}}
    (tmp_path / "model_settings.json").write_text(json.dumps({"version": 1, "models": stored}))

    async def test() -> None:
        async with managed(tmp_path, originals) as manager:
            await until(lambda: {entry.id for entry in manager._pool.ready()} == {"one", "two"})
            assert manager.service.model(None).id == "one"

    asyncio.run(test())


def test_hidden_models_are_served_and_not_listed(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.save_settings("one", {"is_hidden": True})
        assert "one" not in {model.id for model in manager.service.models()}
        await answered(manager, ask("one"))
        assert "one" not in {model.id for model in manager.service.models()}

    run(test)


def test_cache_settings_come_into_force_at_once(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.load("one")
        await answered(manager, ask("one"))
        assert (await answered(manager, ask("one"))).cached_tokens > 0
        await manager.save_settings("one", {"dflash_in_memory_cache": False})
        assert manager.model("one").running.figures.cache_bytes == 0  # type: ignore[union-attr]
        assert (await answered(manager, ask("one"))).cached_tokens == 0

    run(test)


def test_what_is_not_in_force_is_told(run: Callable[..., None], tmp_path: Path) -> None:
    stored = {"one": {**DFLASH, "dflash_verify_mode": "ddtree", "fancy": 1}}
    (tmp_path / "model_settings.json").write_text(json.dumps({"version": 1, "models": stored}))

    async def test(manager: Manager) -> None:
        running = (await manager.load("one")).running
        assert running is not None
        assert running.verify_mode == "adaptive"
        assert any("ddtree" in note for note in running.notes)
        assert any("fancy" in note for note in running.notes)

    run(test)


def test_live_figures_and_events(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        last = manager.events.last_id
        await manager.load("one")
        await answered(manager, ask("one", 300))
        await until(lambda: any(sample.generation_tps > 0 for sample in manager.history()))
        sample = manager.figures()
        assert sample.weights_bytes == manager.model("one").running.memory_bytes  # type: ignore[union-attr]
        kinds = [event.kind for event in manager.events.since(last)]
        assert {"model", "load", "figures"} <= set(kinds)
        states = [event.data["state"] for event in manager.events.since(last) if event.kind == "model"]
        assert states == ["waiting", "loading", "ready"]

    run(test)


def test_global_settings_come_into_force_where_they_can(run: Callable[..., None], tmp_path: Path) -> None:
    async def test(manager: Manager) -> None:
        told = await manager.save_global_settings({"idle_seconds": 60, "port": 9000})
        settings = {one.name: one for one in told}
        assert (settings["idle_seconds"].value, settings["idle_seconds"].source) == (60, "file")
        assert (settings["port"].value, settings["port"].pending) == (8000, 9000)
        assert manager.settings.idle_seconds == 60
        await manager.save_global_settings({"hf_endpoint": "http://127.0.0.1:9", "hf_token": "hf_abcdef123"})
        assert manager.downloads._endpoint == "http://127.0.0.1:9"
        assert {one.name: one.value for one in manager.global_settings()}["hf_token"] is True
        await manager.save_global_settings({"hf_endpoint": None, "hf_token": None})
        assert json.loads((tmp_path / "server.json").read_text()) == {"idle_seconds": 60, "port": 9000}
        with pytest.raises(RequestError, match="key"):
            await manager.save_global_settings({"host": "0.0.0.0"})
        with pytest.raises(RequestError):
            await manager.save_global_settings({"max_queue": 0})

    run(test)


def test_two_requests_for_two_models_with_room_for_one_are_both_answered(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        async def persistent(name: str) -> None:
            while True:
                try:
                    return await done(name)
                except EngineBusy:
                    await asyncio.sleep(0.05)

        async def done(name: str) -> None:
            assert (await answered(manager, ask(name, 20))).completion_tokens == 20

        await asyncio.gather(persistent("one"), persistent("two"))

    run(test, max_models=1)


def test_a_drafter_that_is_not_there_leaves_the_running_pair_alone(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.save_settings("one", DFLASH)
        await manager.load("one")
        with pytest.raises(ModelNotFound, match="org/none"):
            await manager.save_settings("one", {"dflash_draft_model": "org/none"})
        view = manager.model("one")
        assert view.state == "ready"
        assert view.requires_reload == ("dflash_draft_model",)
        await answered(manager, ask("one"))
        await manager.save_settings("two", {"dflash_enabled": True, "dflash_draft_model": "org/none"})
        with pytest.raises(ModelNotFound):
            await manager.load("two")
        assert manager.model("two").state == "failed"
        assert "org/none" in (manager.model("two").error or "")

    run(test)


def test_a_block_size_is_checked_against_the_automatic_drafter_too(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.save_settings("one", {"dflash_enabled": True})
        await manager.load("one")
        with pytest.raises(RequestError, match="block size is 8"):
            await manager.save_settings("one", {"dflash_block_size": 100})

    run(test)


def test_a_stop_is_no_reason_to_fall_back(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(manager: Manager) -> None:
        entry = manager._pool.entry("one")
        monkeypatch.setattr(manager._pool.engine, "let_others", lambda: entry.stage == "drafter" and entry.stop.set())
        await manager.save_settings("one", DFLASH)
        with pytest.raises(EngineBusy, match="stopped"):
            await manager.load("one")
        assert manager.model("one").state == "unloaded"

    run(test, allow_fallback=True)


def test_an_unload_waits_for_no_load_of_another_model(run: Callable[..., None]) -> None:
    """Short calls go on within a long one."""

    async def test(manager: Manager) -> None:
        await manager.load("one")
        entry, other = manager._pool.entry("one"), manager._pool.entry("two")
        let_others, order = manager._pool.engine.let_others, list[str]()

        def slow() -> None:
            let_others()
            time.sleep(0.01)

        manager._pool.engine.let_others = slow  # type: ignore[method-assign]
        loading = asyncio.create_task(manager.load("two"))
        loading.add_done_callback(lambda _: order.append("loaded"))
        await until(lambda: other.state == "loading")
        await manager.unload("one")
        order.append("unloaded")
        await loading
        assert order == ["unloaded", "loaded"]
        assert entry.state == "unloaded"

    run(test)


def test_verify_mode_off_is_shown_as_what_runs(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.save_settings("one", {**DFLASH, "dflash_verify_mode": "off"})
        running = (await manager.load("one")).running
        assert running is not None
        assert (running.engine, running.state, running.drafter) == ("plain", "off", "drafter")
        assert manager.service.model("one").engine == "plain"

    run(test)


def test_without_a_drafter_on_disk_the_fallback_asks_no_network(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_download", lambda name: pytest.fail(f"{name} was to be downloaded"))

    async def test(manager: Manager) -> None:
        await manager.save_settings("one", {"dflash_enabled": True, "dflash_draft_model": "org/none"})
        running = (await manager.load("one")).running
        assert running is not None
        assert (running.state, running.engine) == ("fallback", "plain")
        assert "org/none" in (running.reason or "")

    run(test, allow_fallback=True)


def test_the_switch_turns_off_what_the_start_has_paired(tmp_path: Path, originals: Path) -> None:
    async def test() -> None:
        async with managed(tmp_path, originals, model="one", draft=str(originals / "drafter")) as manager:
            manager.catalog.started = "one"
            await manager.start()
            running = manager.model("one").running
            assert running is not None
            assert running.engine == "dflash2"

    asyncio.run(test())


def test_an_alias_never_leads_to_another_model(run: Callable[..., None], tmp_path: Path) -> None:
    stored = {"one": {"model_alias": "two"}}
    (tmp_path / "model_settings.json").write_text(json.dumps({"version": 1, "models": stored}))

    async def test(manager: Manager) -> None:
        assert manager.model("two").id == "two"
        assert manager.service.model("two").id == "two"
        await manager.save_settings("two", {"max_tokens": 3})
        assert manager.model("one").settings.max_tokens is None
        with pytest.raises(RequestError, match="name of three"):
            await manager.save_settings("one", {"model_alias": "three"})

    run(test)


@pytest.mark.parametrize(
    "changes", [{"draft_quant": "garbage"}, {"host": "0.0.0.0"}, {"host": 5}, {"max_queue": 0}, {"nothing": 1}]
)
def test_globals_with_which_the_server_could_not_start_are_not_written(
    run: Callable[..., None], tmp_path: Path, changes: dict[str, Any]
) -> None:
    async def test(manager: Manager) -> None:
        await manager.save_global_settings({"idle_seconds": 60})
        before = (tmp_path / "server.json").read_bytes()
        with pytest.raises(RequestError):
            await manager.save_global_settings(changes)
        assert (tmp_path / "server.json").read_bytes() == before
        await manager.save_global_settings({"host": None})

    run(test)


def test_a_deleted_model_is_gone(tmp_path: Path, originals: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(originals, models)

    async def test() -> None:
        async with managed(tmp_path, models) as manager:
            await manager.save_settings("one", DFLASH)
            await manager.load("one")
            with pytest.raises(RequestError, match="drafter of one"):
                await manager.delete("drafter")
            await manager.unload("one")
            assert await manager.delete("one") > 0
            assert not (models / "one").exists()
            with pytest.raises(ModelNotFound):
                manager.model("one")
            assert {view.id for view in manager.models()} == {
                "two",
                "three",
                "drafter",
                "stranger",
                "demo",
                "demo-drafter",
            }

    asyncio.run(test())
