"""From an empty machine to a chat with speculation, in a browser, over the real server and a Hub of our own."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.agreeing_pair import agreeing_pair
from tests.app.browser import browser, opened, process, screenshot
from tests.manager.fake_hub import DRAFTER, TARGET, FakeHub

__all__ = ["browser"]

MODEL, DRAFT = TARGET.partition("/")[2], DRAFTER.partition("/")[2]
# As settings.md's flow has them; only the drafter's name is another. The verify mode dflash is what null means here.
WANTED = {
    "dflash_enabled": True,
    "dflash_draft_model": DRAFTER,
    "dflash_draft_quant_enabled": True,
    "dflash_block_size": 5,
    "dflash_verify_mode": "dflash",
}


@dataclass
class Machine:
    """A machine with nothing on it, and a server that runs there."""

    url: str
    folder: Path

    @property
    def saved(self) -> dict[str, object]:
        """What the settings file has of the model."""
        path = self.folder / "config" / "dflash2-mlx" / "model_settings.json"
        found: dict[str, object] = json.loads(path.read_text())["models"].get(MODEL, {})
        return found


@pytest.fixture
def machine(browser: Browser, tmp_path: Path) -> Iterator[Machine]:
    given = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "DFLASH2_", "XDG_"))}
    folders = {
        "HOME": "home", "XDG_CONFIG_HOME": "config", "XDG_CACHE_HOME": "cache", "XDG_STATE_HOME": "state",
        "XDG_DATA_HOME": "data", "HF_HOME": "hf",
    }  # fmt: skip
    places = {name: str(tmp_path / folder) for name, folder in folders.items()}
    with FakeHub(agreeing_pair()) as hub:
        hub.repo(DRAFTER).tags += ["dflash", f"base_model:{TARGET}"]
        env = {**given, **places, "DFLASH2_HF_ENDPOINT": hub.url, "PYTHONUNBUFFERED": "1"}
        with process(["-m", "dflash2_mlx.cli", "serve", "--port", "0"], ready="ready", env=env) as lines:
            found = re.search(r"http://127\.0\.0\.1:\d+", "\n".join(lines))
            assert found, lines
            yield Machine(found[0], tmp_path)


def download(page: Page, machine: Machine) -> None:
    page.goto(f"{machine.url}/downloads")
    for repo in (TARGET, DRAFTER):
        page.get_by_test_id("repo").fill(repo)
        page.get_by_test_id("repo").press("Enter")
        expect(page.get_by_test_id(f"task-state-{repo}")).to_have_text("completed")
    screenshot(page, "e2e-2-downloaded")


def set_fields(page: Page, machine: Machine) -> None:
    page.goto(f"{machine.url}/models")
    page.get_by_test_id(f"settings-{MODEL}").click()
    page.get_by_test_id("field-dflash_enabled").click()
    page.get_by_test_id("choose-drafter").click()
    page.get_by_test_id(f"draft-{DRAFTER}").click()
    page.get_by_test_id("field-dflash_draft_quant_enabled").click()
    page.get_by_test_id("field-dflash_block_size").fill("5")
    mode = page.get_by_test_id("field-dflash_verify_mode-dflash")
    mode.click()
    expect(mode).to_have_attribute("aria-checked", "true")
    screenshot(page, "e2e-3-fields")
    page.get_by_test_id("save").click()
    expect(page.get_by_test_id("save-result")).to_have_text("Saved.")
    assert machine.saved == WANTED
    answer = page.request.get(f"{machine.url}/admin/api/models/{MODEL}/settings")
    assert WANTED.items() <= answer.json()["settings"].items()
    page.reload()
    expect(page.get_by_test_id("field-dflash_draft_model")).to_have_value(DRAFTER)
    expect(page.get_by_test_id("field-dflash_block_size")).to_have_value("5")


def load(page: Page) -> None:
    page.get_by_test_id("panel-load").click()
    expect(page.get_by_test_id("panel-state")).to_have_text("ready")
    screenshot(page, "e2e-4-loaded")


def chat(page: Page, machine: Machine, text: str) -> None:
    page.goto(f"{machine.url}/chat")
    box = page.get_by_test_id("message")
    box.fill(text)
    box.press("Enter")
    expect(page.get_by_test_id("prompt").last).to_have_text(text)
    expect(page.get_by_test_id("figures").last).to_contain_text("tokens per cycle")


def test_from_nothing_to_a_chat_with_speculation_and_back(browser: Browser, machine: Machine) -> None:
    with opened(browser) as page:
        page.goto(machine.url)
        expect(page.get_by_test_id("empty")).to_be_visible()
        screenshot(page, "e2e-1-empty")
        download(page, machine)
        set_fields(page, machine)
        load(page)
        page.goto(f"{machine.url}/live")
        expect(page.get_by_test_id("acceptance")).to_contain_text("No drafts were verified yet")
        page.goto(f"{machine.url}/chat")
        page.get_by_test_id("chat-options").get_by_role("button").first.click()
        page.get_by_test_id("max-tokens").fill("60")
        page.get_by_test_id("temperature").fill("0")
        page.get_by_test_id("compare").click()
        chat(page, machine, "Hello")
        figures = page.get_by_test_id("figures").first
        expect(figures).to_contain_text("60 tokens")
        expect(figures).to_contain_text("dflash2, block size 5, dflash")
        expect(figures).to_contain_text(re.compile(r"[1-9]\d* of \d+ drafts accepted"))
        expect(page.get_by_test_id("comparison")).to_contain_text("The texts are equal.")
        screenshot(page, "e2e-5-chat", whole=False)

        page.goto(f"{machine.url}/live")
        acceptance = page.get_by_test_id("acceptance").get_by_role("img")
        expect(acceptance).to_have_attribute("aria-label", re.compile(r"1: [1-9]\d* %, 2: .*4: \d+ %"))
        expect(page.get_by_test_id("pair")).to_contain_text("dflash2, block size 5, dflash")
        screenshot(page, "e2e-6-live")

        page.goto(f"{machine.url}/models/{MODEL}")
        page.get_by_test_id("field-dflash_block_size").fill("3")
        page.get_by_test_id("save").click()
        expect(page.get_by_test_id("save-result")).to_contain_text("Saved")
        assert machine.saved["dflash_block_size"] == 3
        chat(page, machine, "Again")
        expect(page.get_by_test_id("figures").nth(2)).to_contain_text("block size 3")
        screenshot(page, "e2e-7-block-size", whole=False)

        page.goto(f"{machine.url}/models")
        page.get_by_test_id(f"unload-{MODEL}").click()
        expect(page.get_by_test_id(f"state-{MODEL}")).to_have_text("not loaded")
        screenshot(page, "e2e-8-unloaded")
        page.get_by_test_id(f"more-{MODEL}").click()
        page.get_by_test_id(f"delete-{MODEL}").click()
        page.get_by_test_id("delete-confirm").fill(MODEL)
        page.get_by_test_id("delete-sure").click()
        expect(page.get_by_test_id(f"model-{MODEL}")).to_have_count(0)
        expect(page.get_by_test_id("empty")).to_be_visible()
        screenshot(page, "e2e-9-deleted")
        assert not list((machine.folder / "hf").rglob("Tiny-Llama-4bit*/**/*.safetensors"))
