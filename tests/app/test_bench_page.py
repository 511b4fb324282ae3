"""Bench, block sizes and quantising in a browser, over the fake manager with time that passes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.browser import browser, free_port, opened, page, process, screenshot, tick
from tests.manager.fake_catalog import DRAFTER

__all__ = ["browser", "page"]


@pytest.fixture(scope="module")
def url(browser: Browser) -> Iterator[str]:
    """The pages, the demo pair loaded; twenty of the manager's seconds pass in one."""
    port = free_port()
    arguments = ["-m", "tests.app.fake_server", str(port), "--step-seconds", "0", "--tick-seconds", "0.05"]
    with process(arguments, ready="ready"):
        url = f"http://127.0.0.1:{port}"
        with opened(browser) as page:
            saved = page.request.put(f"{url}/admin/api/models/demo/settings", data={"dflash_enabled": True})
            assert saved.ok
            assert page.request.post(f"{url}/admin/api/models/demo/load", data={}).ok
        yield url


def begin(page: Page, url: str, *, rounds: int) -> None:
    page.goto(f"{url}/bench")
    page.get_by_test_id("bench-rounds").fill(str(rounds))
    page.get_by_test_id("bench-start").click()
    expect(page.get_by_test_id("bench-state")).to_have_text("running")


def test_a_bench_starts_grows_is_the_same_in_another_tab_and_is_cancelled(page: Page, url: str) -> None:
    page.goto(f"{url}/bench")
    expect(page.get_by_test_id("bench-model")).to_contain_text("demo – loaded, with demo-drafter")
    amount = page.get_by_test_id("bench-amount")
    expect(amount).to_contain_text("81 samples: 3 ways of decoding × 9 prompts × 3 rounds")
    tick(page.get_by_test_id("size-5"))
    expect(amount).to_contain_text("135 samples: 5 ways")
    tick(page.get_by_test_id("kind-code"), on=False)
    page.get_by_test_id("bench-rounds").fill("none")
    expect(amount).to_contain_text("no whole number")
    begin(page, url, rounds=20)
    expect(page.get_by_test_id("bench-start")).to_be_disabled()
    progress = page.get_by_test_id("bench-progress")
    expect(progress).to_contain_text(re.compile(r"[1-9]\d* of 540 samples · now .+ left"))
    expect(page.get_by_test_id("plot-bench-speed")).to_have_attribute("aria-label", re.compile("code: plain 2"))
    expect(page.get_by_test_id("plot-bench-ratio").locator("svg path").first).to_be_attached()
    expect(page.get_by_test_id("bench-table")).to_contain_text("too few pairs to tell")
    screenshot(page, "bench-running")
    other = page.context.new_page()
    other.goto(f"{url}/bench")
    expect(other.get_by_test_id("bench-progress")).to_contain_text("of 540 samples")
    other.get_by_test_id("bench-cancel").click()
    other.close()
    expect(page.get_by_test_id("bench-state")).to_have_text("cancelled")
    expect(page.get_by_test_id("bench-cancel")).to_be_hidden()
    expect(page.get_by_test_id("bench-facts")).to_contain_text("Qwen3-4B-DFlash-b16")
    expect(page.get_by_test_id("bench-start")).to_be_enabled()


def test_a_completed_bench_tells_what_it_proves_and_can_be_taken_away(page: Page, url: str) -> None:
    begin(page, url, rounds=3)
    expect(page.get_by_test_id("bench-state")).to_have_text("completed")
    expect(page.get_by_test_id("bench-summary")).to_contain_text("Faster on code, chat.")
    table = page.get_by_test_id("bench-table")
    expect(table.locator("tbody")).to_have_count(3)
    expect(table).to_contain_text("what the others are compared with")
    page.get_by_test_id("bench-by").click()
    page.get_by_role("option", name="Over everything").click()
    expect(table.locator("tbody")).to_have_count(1)
    data = page.request.get(url + str(page.get_by_test_id("bench-json").get_attribute("href")))
    assert data.ok
    assert len(data.json()["samples"]) == 81
    report = page.request.get(url + str(page.get_by_test_id("bench-html").get_attribute("href")))
    assert report.text().startswith("<!DOCTYPE html>")
    screenshot(page, "bench-completed")
    rows = page.get_by_test_id("bench-list").get_by_role("listitem")
    rows.last.get_by_role("button").click()
    expect(page.get_by_test_id("bench-job").get_by_role("heading").first).to_have_text(
        rows.last.get_by_text("demo, ").inner_text()
    )
    expect(rows.last.get_by_role("button")).to_have_attribute("aria-pressed", "true")


def test_what_is_refused_is_said_and_the_form_is_kept(page: Page, url: str) -> None:
    page.goto(f"{url}/bench")
    page.get_by_test_id("bench-rounds").fill("51")
    page.get_by_test_id("bench-start").click()
    fault = page.get_by_test_id("bench-fault")
    expect(fault).to_contain_text("rounds is 51")
    expect(page.get_by_test_id("bench-rounds")).to_have_value("51")
    tick(page.get_by_test_id("size-0"), on=False)
    page.get_by_test_id("bench-start").click()
    expect(fault).to_have_text("Choose a block size.")


def test_boxes_stay_the_same_while_the_form_is_used_and_time_goes_on(page: Page, url: str) -> None:
    """A box that is built anew under a click loses it."""
    page.goto(f"{url}/bench")
    box, amount = page.get_by_test_id("size-5"), page.get_by_test_id("bench-amount")
    box.evaluate("element => { window.kept = element }")
    tick(box)
    page.get_by_test_id("bench-max_tokens").fill("77")
    expect(amount).to_contain_text("of decoding")
    start = page.get_by_test_id("bench-start")
    start.click()
    expect(page.get_by_test_id("bench-progress")).to_contain_text("samples · now")
    page.get_by_test_id("bench-cancel").click()
    expect(start).to_be_enabled()
    assert box.evaluate("element => element === window.kept && element.isConnected")


def test_depths_follow_the_length_of_answers_and_what_cannot_run_is_not_started(page: Page, url: str) -> None:
    page.goto(f"{url}/bench")
    page.get_by_test_id("bench-model").click()
    page.get_by_role("option", name="Qwen3 4B").click()
    expect(page.get_by_test_id("bench-note")).to_contain_text("DFlash is off")
    expect(page.get_by_test_id("bench-start")).to_be_disabled()
    expect(page.get_by_test_id("depth-32768")).to_be_visible()
    page.get_by_test_id("bench-max_tokens").fill("30000")
    expect(page.get_by_test_id("depth-32768")).to_have_count(0)
    expect(page.get_by_test_id("depth-8192")).to_be_visible()
    page.get_by_test_id("bench-prompts_per_kind").fill("13")
    expect(page.get_by_test_id("bench-amount")).to_contain_text("more than the 12")


def test_live_says_which_block_size_runs_and_why(page: Page, url: str) -> None:
    page.goto(f"{url}/live")
    widths = page.get_by_test_id("widths")
    expect(widths.get_by_test_id("width-choice")).to_contain_text("Adaptive: chosen cycle by cycle")
    expect(widths.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"1: \d.*\(in use\)"))
    expect(widths.get_by_test_id("width-table").locator("tbody tr")).to_have_count(2)
    expect(widths.get_by_test_id("width-facts")).to_contain_text("tokens/s expected")
    expect(page.get_by_test_id("exactness")).to_contain_text("within rounding")
    page.goto(f"{url}/models/demo")
    expect(page.get_by_test_id("exactness")).to_contain_text("within rounding")
    expect(page.get_by_test_id("meta-dflash_block_size")).to_contain_text(re.compile(r"automatic, now \d"))


def test_a_drafter_is_quantised_and_appears_in_the_list(page: Page, url: str) -> None:
    page.goto(f"{url}/models")
    page.get_by_test_id(f"quantize-{DRAFTER}").click()
    expect(page.get_by_test_id("quantize-estimate")).to_contain_text("is told once it is written")
    page.get_by_test_id("quantize-bits").click()
    page.get_by_role("option", name="8, nearly as good").click()
    page.get_by_test_id("quantize-name").fill("smaller-DFlash")
    page.get_by_test_id("quantize-start").click()
    words = page.get_by_test_id(f"quantize-words-{DRAFTER}")
    expect(words).to_contain_text("w8a16:gs64 to smaller-DFlash")
    expect(words).to_contain_text("smaller-DFlash is written")
    expect(page.get_by_test_id("drafter-smaller-DFlash")).to_be_visible()
    page.get_by_test_id(f"quantize-{DRAFTER}").click()
    page.get_by_test_id("quantize-name").fill("smaller-DFlash")
    page.get_by_test_id("quantize-start").click()
    expect(page.get_by_test_id("quantize-fault")).to_contain_text("is there already")
    page.get_by_test_id("quantize-name").fill("another-DFlash")
    page.get_by_test_id("quantize-start").click()
    page.get_by_test_id(f"quantize-cancel-{DRAFTER}").click()
    expect(words).to_contain_text("was cancelled")
    expect(page.get_by_test_id("drafter-another-DFlash")).to_have_count(0)


def test_narrow_and_dark_pages_hold_what_they_show(browser: Browser, url: str) -> None:
    with opened(browser, dark=True, width=390, height=800) as page:
        for path in ("bench", "live", "models"):
            page.goto(f"{url}/{path}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            page.wait_for_timeout(400)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            screenshot(page, f"narrow-dark-{path}")
