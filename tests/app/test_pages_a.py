"""The pages Models, Downloads and Settings: what they say, what forms send, and that every page is served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

try:
    import httpx2 as httpx
except ModuleNotFoundError:
    import httpx  # type: ignore[no-redef]

from dflash2_app import download_rows, form_bar, hub_results, live, model_words, settings_page, wording
from dflash2_app.draft_picker import choices
from dflash2_app.form_values import GIB, UNCHANGED, Wrong, change_of, limits, shown, typed_of, value_of
from dflash2_app.model_card import settings_path
from dflash2_app.settings_form import saved_words
from dflash2_mlx.settings.fields import FieldFacts
from dflash2_mlx.settings.model import ModelSettings, changed, field_facts
from dflash2_mlx.settings.server import SettingInForce
from dflash2_server.downloads.search import Found
from dflash2_server.downloads.task import Task, TaskError
from dflash2_server.management import Estimate, ModelView, Saved, Unloaded
from tests.app.browser import free_port, process
from tests.manager import fake_catalog as catalog
from tests.manager.doubles import FakeManager

FACTS = {facts.name: facts for facts in field_facts()}


def view_of(name: str, **changes: Any) -> ModelView:
    found = next(view for view in catalog.views() if view.id == name)
    settings = ModelSettings(**changes.pop("settings", {}))
    return replace(found, settings=settings, **changes)


# figures in words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (None, "–"), (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (2_263_000_000, "2.26 GB"),
        (999_999_999, "1000 MB"), (22_800_000_000, "22.8 GB"), (228_000_000_000, "228 GB"), (1.5e12, "1.50 TB"),
    ],
)  # fmt: skip
def test_sizes_have_three_digits(count: float | None, words: str) -> None:
    assert wording.size(count) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (None, "–"), (0, "0 s"), (59.4, "59 s"), (60, "1 min"), (3590, "1 h"), (4800, "1 h 20 min"),
        (90_000, "1 d 1 h"), (-3, "0 s"),
    ],
)  # fmt: skip
def test_times_left(count: float | None, words: str) -> None:
    assert wording.seconds(count) == words


def test_a_rate_of_nothing_is_unknown() -> None:
    assert (wording.rate(0), wording.rate(40_000_000)) == ("–", "40.0 MB/s")


# what the rows say


def test_the_state_of_a_model_with_its_tone_and_reason() -> None:
    view = view_of(catalog.TARGET)
    assert wording.state_chip(view) == ("not loaded", "idle")
    assert wording.state_chip(replace(view, state="loading", stage="target", share=0.4))[0] == "loading target 40 %"
    failed = replace(view, state="failed", error="no weights")
    assert (wording.state_chip(failed), wording.reason(failed)) == (("failed", "bad"), "no weights")
    damaged = replace(view, problem="config.json is no JSON")
    assert (wording.state_chip(damaged)[1], wording.reason(damaged)) == ("bad", "config.json is no JSON")


def test_what_is_said_of_dflash() -> None:
    on = {"dflash_enabled": True}
    assert "drafters on disk that fit: " + catalog.DRAFTER in model_words.dflash(view_of(catalog.TARGET)).text
    assert model_words.dflash(view_of(catalog.TARGET, settings=on)).tone == "good"
    assert model_words.dflash(view_of(catalog.LONELY, settings=on)).tone == "warn"
    assert "cannot" not in model_words.dflash(view_of(catalog.PLAIN)).text
    assert "mamba" in model_words.dflash(view_of(catalog.PLAIN)).text
    chosen = on | {"dflash_draft_model": f"z-lab/{catalog.DRAFTER}"}
    assert "block size 16" in model_words.dflash(view_of(catalog.TARGET, settings=chosen)).text


def test_the_published_drafter_is_offered_only_where_it_is_missing() -> None:
    assert model_words.missing_drafter(view_of(catalog.TARGET)) is None
    missing = view_of(catalog.TARGET, drafters=())
    assert model_words.missing_drafter(missing) == f"z-lab/{catalog.DRAFTER}"
    assert model_words.missing_drafter(replace(missing, dflash_compatible=False)) is None


def test_the_drafters_that_can_be_chosen_and_those_that_cannot() -> None:
    offered = choices(view_of(catalog.TARGET))
    assert [choice.value for choice in offered] == ["", f"z-lab/{catalog.DRAFTER}", None]
    assert "hidden size" in offered[-1].words
    assert choices(view_of(catalog.TARGET, drafters=()))[-1].value == f"z-lab/{catalog.DRAFTER}"


def test_an_estimate_names_what_goes_first() -> None:
    told = Estimate(
        target_bytes=4 * 10**9, drafter_bytes=10**9, cache_bytes=10**9, context=4096, available=5 * 10**9,
        verdict="does not fit", evicts=("demo",),
    )  # fmt: skip
    said = model_words.estimate_line(told)
    assert said == ("needs about 6.00 GB of 5.00 GB free: does not fit; unloads demo first", "bad")


def test_unloading_says_what_was_freed() -> None:
    assert model_words.unloaded_words("demo", Unloaded(before=3 * 10**9, after=10**9)) == (
        "demo is unloaded: 2.00 GB freed, 1.00 GB still held"
    )


@pytest.mark.parametrize(
    ("text", "choice", "found"),
    [
        ("", "all", True), ("qwen 4b", "all", True), ("qwen llama", "all", False), ("QWEN", "loaded", False),
        ("the fast one", "all", True), ("", "dflash", True), ("", "favorite", False),
    ],
)  # fmt: skip
def test_search_looks_for_every_word(text: str, choice: Any, found: bool) -> None:
    view = view_of(catalog.TARGET, settings={"description": "The fast one", "dflash_enabled": True})
    assert model_words.matches(view, text, choice) is found


def test_a_path_holds_any_id() -> None:
    assert settings_path("a b#c") == "/models/a%20b%23c"


# forms


@pytest.mark.parametrize("name", sorted(FACTS))
def test_what_is_shown_is_what_is_saved(name: str) -> None:
    """Nothing that the user has not touched is ever a change."""
    samples = {"int": 7, "float": 0.1, "text": "word", "object": {"a": [1, None]}, "bytes": 3 * GIB + 1}
    facts = FACTS[name]
    values = [facts.default, *facts.choices, *([True, False] if facts.kind == "bool" else [])]
    for value in [*values, *([samples[facts.kind]] if facts.kind in samples else [])]:
        assert change_of(facts, value, typed_of(facts, value)) is UNCHANGED


@pytest.mark.parametrize(
    ("name", "saved", "typed", "change"),
    [
        ("dflash_enabled", False, True, True),
        ("dflash_enabled", True, False, None),
        ("dflash_draft_quant_enabled", None, False, UNCHANGED),
        ("dflash_draft_quant_enabled", None, True, True),
        ("dflash_draft_quant_weight_bits", None, "8", 8),
        ("dflash_draft_quant_weight_bits", 8, "4", None),
        ("dflash_block_size", None, " 5 ", 5),
        ("dflash_block_size", 5, "", None),
        ("dflash_verify_mode", None, "off", "off"),
        ("dflash_verify_mode", "adaptive", "dflash", "dflash"),
        ("dflash_max_ctx", None, "32 768", 32768),
        ("dflash_in_memory_cache_max_bytes", 8 << 30, "0.5", 1 << 29),
        ("dflash_in_memory_cache_max_bytes", 1 << 29, "8", None),
        ("dflash_in_memory_cache_max_bytes", 1 << 29, "", None),
        ("enable_thinking", None, "off", False),
        ("enable_thinking", False, "", None),
        ("temperature", None, "0", 0.0),
        ("chat_template_kwargs", None, '{"x": 1}', {"x": 1}),
        ("display_name", None, "  ", UNCHANGED),
    ],
)
def test_what_a_field_sends(name: str, saved: Any, typed: Any, change: Any) -> None:
    sent = change_of(FACTS[name], saved, typed)
    assert sent == change
    assert type(sent) is type(change)
    if change is not UNCHANGED:
        changed(ModelSettings(**{name: saved}) if saved is not None else ModelSettings(), {name: sent})


@pytest.mark.parametrize(
    ("name", "typed", "words"),
    [
        ("dflash_block_size", "5x", "no whole number"), ("temperature", "0,5", "with a point"),
        ("temperature", "nan", "finite"), ("chat_template_kwargs", "[1]", "no JSON object"),
        ("chat_template_kwargs", "{", "no JSON"),
    ],
)  # fmt: skip
def test_what_is_no_value_is_told_apart(name: str, typed: str, words: str) -> None:
    with pytest.raises(Wrong, match=words):
        value_of(FACTS[name], typed)


def test_lists_and_secrets_of_the_server() -> None:
    folders = FieldFacts(name="model_dir", label="", description="", group="", kind="list", default=[])
    assert change_of(folders, [], "/a\n\n ~/b ") == ["/a", "~/b"]
    assert change_of(folders, ["/a"], "") is None
    secret = FieldFacts(name="hf_token", label="", description="", group="", kind="secret", nullable=True)
    assert (typed_of(secret, True), change_of(secret, True, "")) == ("", UNCHANGED)
    assert change_of(secret, True, "hf_new") == "hf_new"


def test_defaults_and_limits_in_words() -> None:
    assert shown(FACTS["dflash_in_memory_cache_max_bytes"], 8 << 30) == "8 GiB"
    assert shown(FACTS["dflash_draft_quant_weight_bits"], None) == "4"
    assert shown(FACTS["dflash_block_size"], None) == "automatic"
    assert shown(FACTS["dflash_max_ctx"], None) == "empty"
    assert limits(FACTS["dflash_in_memory_cache_max_entries"]) == "1 to 128"
    assert limits(FACTS["dflash_block_size"]) == "at least 1"


def test_unsaved_changes_are_named() -> None:
    assert form_bar.unsaved_words([]) == "No unsaved changes"
    assert form_bar.unsaved_words(["DFlash"]) == "1 unsaved change: DFlash"
    assert form_bar.unsaved_words(list("abcdef")).endswith("a, b, c, d and 2 more")


def test_saving_says_whether_the_model_was_reloaded() -> None:
    saved = Saved(settings=ModelSettings(), changed=("dflash_enabled",), requires_reload=(), reload="done")
    assert "reloaded" in saved_words(saved)
    assert "when its requests have ended" in saved_words(replace(saved, reload="when idle"))
    assert "nothing" in saved_words(replace(saved, changed=()))


def test_where_a_setting_of_the_server_comes_from() -> None:
    port = FieldFacts(name="port", label="", description="", group="", kind="int", default=8000)
    setting = SettingInForce(name="port", value=8001, default=8000, source="flag", requires_restart=True)
    assert "--port" in settings_page.source_words(port, setting)
    waiting = replace(setting, source="file", pending=8002, changed=True)
    assert "in force now 8001, after a restart 8002" in settings_page.source_words(port, waiting)
    secret = FieldFacts(name="api_key", label="", description="", group="", kind="secret")
    told = SettingInForce(name="api_key", value=True, default=None, source="environment", requires_restart=True)
    assert settings_page.source_words(secret, told).startswith("set, from the environment, DFLASH2_API_KEY")


# downloads


def test_a_download_in_words() -> None:
    task = Task(id="t", repo_id="o/m")
    assert (download_rows.progress(task), download_rows.share(task)) == ("waits for its turn", None)
    moving = replace(
        task, state="downloading", total_bytes=2_000_000_000, done_bytes=500_000_000, rate=1e7, seconds_left=150.0
    )
    assert download_rows.progress(moving) == "500 MB of 2.00 GB · 25 % · 10.0 MB/s · 2 min left"
    again = replace(moving, error=TaskError(kind="offline", message="no network", remedy="wait"))
    assert download_rows.state_words(again) == ("waiting to try again", "warn")
    assert "left" not in download_rows.progress(again)


@pytest.mark.parametrize(
    ("state", "acts"),
    [
        ("queued", ("cancel",)), ("downloading", ("cancel",)), ("completed", ("remove",)),
        ("failed", ("retry", "remove")), ("cancelled", ("retry", "remove")),
    ],
)  # fmt: skip
def test_what_can_be_done_with_a_download(state: Any, acts: tuple[str, ...]) -> None:
    assert download_rows.actions(Task(id="t", repo_id="o/m", state=state)) == acts


def test_a_result_without_a_size_says_so() -> None:
    found = Found(
        repo_id="o/m", downloads=12_000, likes=3, size=None, updated="2026-10-12T08:00:00+00:00", gated=False,
        kind="model", drafter=None,
    )  # fmt: skip
    assert hub_results.facts(found) == ("size unknown", "12\u202f000 downloads", "3 likes", "updated 2026-10-12")


# following


def test_news_come_with_events_and_at_the_latest_after_a_while() -> None:
    manager, now = FakeManager(), [0.0]
    news = live.News(manager, lambda: now[0])
    assert not news.came()
    manager.events.publish("model", {"id": "demo", "state": "ready"})
    assert news.came()
    assert not news.came()
    now[0] = live.LATEST_SECONDS
    assert news.came()
    assert not news.came()


# served


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    with process(["-m", "tests.app.fake_server", str(port), "--tick-seconds", "0"], ready="ready"):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/", "Models"), ("/models", "Models"), (f"/models/{catalog.TARGET}", f"Settings of {catalog.TARGET}"),
        ("/models/org/none", "Settings of org/none"), ("/downloads", "Downloads"), ("/settings", "Settings"),
        ("/chat", "Chat"), ("/live", "Live"), ("/bench", "Bench"), ("/logs", "Logs"), ("/login", "Login"),
    ],
)  # fmt: skip
def test_every_page_is_served_and_needs_nothing_from_elsewhere(url: str, path: str, title: str) -> None:
    answer = httpx.get(url + path)
    assert answer.status_code == 200
    assert f"<title>{title} · dflash2-mlx</title>" in answer.text
    for mark in ('src="http', 'href="http', "@import url(http", 'src="//'):
        assert mark not in answer.text


def test_what_is_no_page_is_not_found(url: str) -> None:
    assert httpx.get(f"{url}/nothing-here").status_code == 404


def test_a_model_that_is_not_there_is_said_in_the_page(url: str) -> None:
    assert "no model &#39;org/none&#39;" in httpx.get(f"{url}/models/org/none").text.replace("'", "&#39;")


def test_the_login_page_runs_nothing_but_its_own(url: str) -> None:
    assert "default-src 'none'" in httpx.get(f"{url}/login").headers["content-security-policy"]
