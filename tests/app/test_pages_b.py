"""Chat, Live and Logs in a browser, over the fake manager."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.browser import browser, free_port, opened, page, process, screenshot
from tests.manager.fake_catalog import DAMAGED, LOAD_ERROR, TARGET

__all__ = ["browser", "page"]


@pytest.fixture(scope="module")
def url(browser: Browser) -> Iterator[str]:
    """The pages; `browser` first, so that nothing is started where there is none."""
    port = free_port()
    with process(["-m", "tests.app.scripted_pages", str(port)], ready="ready"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def held(page: Page, url: str) -> Iterator[None]:
    """Loads and thinking answers wait within the block."""
    assert page.request.get(f"{url}/test/hold").ok
    try:
        yield
    finally:
        page.request.get(f"{url}/test/release")


def ask(page: Page, text: str) -> None:
    box = page.get_by_test_id("message")
    box.fill(text)
    box.press("Enter")
    expect(page.get_by_test_id("prompt").last).to_have_text(text)


def idle(page: Page) -> None:
    expect(page.get_by_test_id("send")).to_be_visible()


def choose(page: Page, model: str) -> None:
    page.get_by_test_id("chat-model").click()
    page.get_by_role("option", name=re.compile(model)).click()


def test_an_answer_streams_with_its_thoughts_folded_away_and_its_figures(page: Page, url: str) -> None:
    page.goto(f"{url}/chat")
    expect(page.get_by_test_id("chat-empty")).to_be_visible()
    thinking = page.get_by_test_id("thinking")
    with held(page, url):
        ask(page, "think about it")
        expect(thinking.get_by_text("First one thing.")).to_be_visible()
        expect(thinking).to_contain_text("Thinking …")
        expect(page.get_by_test_id("stop")).to_be_visible()
    expect(page.get_by_test_id("answer")).to_have_text("Then it.")
    expect(thinking.get_by_text("First one thing.")).to_be_hidden()
    expect(thinking).to_contain_text(re.compile(r"Thought for \d\.\d s, 12 tokens"))
    figures = page.get_by_test_id("figures")
    for fact in ("128 tokens", "64.0 tok/s", "3.10 tokens per cycle", "84 of 140 drafts accepted", "ended by itself"):
        expect(figures).to_contain_text(fact)
    expect(figures).to_contain_text("5 of 7 prompt tokens cached")
    expect(figures).to_contain_text("dflash2, block size 5")
    thinking.get_by_role("button").click()
    expect(thinking.get_by_text("First one thing.")).to_be_visible()
    screenshot(page, "chat-thoughts", whole=False)


def test_enter_sends_shift_enter_is_a_line_and_escape_stops(page: Page, url: str) -> None:
    page.goto(f"{url}/chat")
    box = page.get_by_test_id("message")
    expect(box).to_be_focused()
    box.type("slow one")
    box.press("Shift+Enter")
    box.type("second line")
    expect(box).to_have_value("slow one\nsecond line")
    box.press("Enter")
    expect(page.get_by_test_id("prompt")).to_have_text("slow one\nsecond line")
    expect(box).to_have_value("")
    answer = page.get_by_test_id("answer")
    expect(answer).to_contain_text("word5 ")
    box.fill("not yet")
    box.press("Enter")
    expect(page.get_by_text("stop it first")).to_be_visible()
    expect(box).to_have_value("not yet")
    page.keyboard.press("Escape")
    idle(page)
    expect(page.get_by_test_id("figures")).to_contain_text("stopped")
    stopped = answer.inner_text()
    page.wait_for_timeout(300)
    assert answer.inner_text() == stopped
    expect(page.get_by_test_id("prompt")).to_have_count(1)


def test_a_conversation_outlives_a_reload_also_in_the_middle_of_an_answer(page: Page, url: str) -> None:
    page.goto(f"{url}/chat")
    ask(page, "slow please")
    expect(page.get_by_test_id("answer")).to_contain_text("word3 ")
    page.get_by_test_id("message").fill("a draft")
    page.wait_for_timeout(200)
    page.reload()
    expect(page.get_by_test_id("prompt")).to_have_text("slow please")
    expect(page.get_by_test_id("message")).to_have_value("a draft")
    seen = len(page.get_by_test_id("answer").inner_text())
    page.goto(f"{url}/live")
    page.goto(f"{url}/chat")
    expect(page.get_by_test_id("stop")).to_be_visible()
    assert len(page.get_by_test_id("answer").inner_text()) >= seen
    page.get_by_test_id("stop").click()
    idle(page)


def test_a_lost_connection_loses_nothing(page: Page, url: str) -> None:
    page.goto(f"{url}/chat")
    ask(page, "slow please")
    expect(page.get_by_test_id("answer")).to_contain_text("word2 ")
    page.evaluate("window.socket.io.engine.close()")
    expect(page.get_by_test_id("answer")).to_contain_text("word40 ")
    page.keyboard.press("Escape")
    idle(page)
    assert " ".join(page.get_by_test_id("answer").inner_text().split()[:41]).endswith("word39 word40")


def test_what_a_model_writes_is_shown_and_not_run(page: Page, url: str) -> None:
    page.goto(f"{url}/chat")
    ask(page, "unsafe")
    answer = page.get_by_test_id("answer")
    expect(answer).to_contain_text("<script>window.stolen = 1</script>")
    expect(answer.locator("img, script")).to_have_count(0)
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.locator("td").first).to_have_text("1")
    expect(answer.get_by_role("link")).to_have_count(2)
    with page.expect_popup() as popup:
        page.route("**/*", lambda route: route.abort())
        page.context.route("https://example.org/**", lambda route: route.fulfill(body="elsewhere"))
        answer.get_by_role("link", name="a link").click()
    popup.value.close()
    assert page.url == f"{url}/chat"
    assert page.evaluate("window.stolen") is None


def test_errors_stand_in_place_and_the_text_is_kept(page: Page, url: str) -> None:
    page.goto(f"{url}/chat")
    ask(page, "break it")
    expect(page.get_by_test_id("answer-error")).to_have_text("the queue is full: try again")
    expect(page.get_by_test_id("answer")).to_have_text("Half of")
    choose(page, DAMAGED)
    with held(page, url):
        ask(page, "think about the damaged one")
        expect(page.get_by_test_id("answer-status").last).to_contain_text("loading target")
    expect(page.get_by_test_id("answer-error").last).to_have_text(LOAD_ERROR)
    expect(page.get_by_test_id("prompt").last).to_have_text("think about the damaged one")
    screenshot(page, "chat-errors", whole=False)
    choose(page, "demo")
    page.get_by_test_id("again").click()
    expect(page.get_by_test_id("answer").last).to_have_text("Then it.")
    expect(page.get_by_test_id("prompt")).to_have_count(2)


def test_a_model_is_loaded_for_a_message(page: Page, url: str) -> None:
    page.goto(f"{url}/chat")
    expect(page.get_by_test_id("chat-model").locator("input, span").first).to_contain_text("demo – ready")
    choose(page, "Qwen3 4B")
    with held(page, url):
        ask(page, "hello")
        expect(page.get_by_test_id("answer-status")).to_contain_text(f"{TARGET}: loading target")
    expect(page.get_by_test_id("answer")).to_contain_text("Seen: user: hello")


def test_options_go_with_the_next_message(page: Page, url: str) -> None:
    page.goto(f"{url}/chat")
    page.get_by_test_id("chat-options").get_by_role("button").first.click()
    page.get_by_test_id("system").fill("Be brief.")
    page.get_by_test_id("temperature").fill("0.7")
    page.get_by_test_id("max-tokens").fill("12")
    ask(page, "hello")
    expect(page.get_by_test_id("answer")).to_contain_text("Seen: system: Be brief. / user: hello;")
    expect(page.get_by_test_id("answer")).to_contain_text("'temperature': 0.7, 'max_tokens': 12")
    idle(page)
    page.get_by_test_id("new-chat").click()
    expect(page.get_by_test_id("chat-empty")).to_be_visible()
    expect(page.get_by_test_id("temperature")).to_have_value("0.7")
    page.get_by_test_id("earlier").click()
    page.get_by_role("menuitem", name="hello").or_(page.get_by_text("hello", exact=True)).first.click()
    expect(page.get_by_test_id("prompt")).to_have_text("hello")


def test_an_answer_is_compared_with_speculation_off(page: Page, url: str) -> None:
    page.goto(f"{url}/chat")
    page.get_by_test_id("compare").click()
    ask(page, "fork")
    comparison = page.get_by_test_id("comparison")
    expect(comparison).to_contain_text("2.50 times the speed. The texts differ from character 18 on")
    for words in ("with speculation", "speculation off", "64.0", "25.6", "3.10", "1.00"):
        expect(comparison).to_contain_text(words)
    comparison.get_by_role("button").first.click()
    expect(comparison.get_by_test_id("answer")).to_have_text("The same, then that.")
    ask(page, "think")
    expect(comparison.last).to_contain_text("The texts are equal.")
    screenshot(page, "chat-comparison", whole=False)


def test_a_long_answer_is_followed_until_the_reader_scrolls_away(page: Page, url: str) -> None:
    page.goto(f"{url}/chat")
    ask(page, "long one")
    answer = page.get_by_test_id("answer")
    expect(answer).to_contain_text("Paragraph 12")
    idle(page)
    assert answer.locator("p").count() == 12
    end = "() => Math.abs(innerHeight + scrollY - document.documentElement.scrollHeight) < 5"
    page.wait_for_function(end)
    page.mouse.move(400, 400)
    page.mouse.wheel(0, -600)
    page.wait_for_function("() => innerHeight + scrollY < document.documentElement.scrollHeight - 300")
    before = page.evaluate("scrollY")
    ask(page, "slow please")
    expect(answer.last).to_contain_text("word9 ")
    assert page.evaluate("scrollY") == before
    page.keyboard.press("Escape")
    idle(page)


def test_an_answer_is_copied_as_markdown(page: Page, url: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{url}/chat")
    ask(page, "unsafe")
    page.get_by_test_id("copy-answer").click()
    expect(page.get_by_text("Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("<script>window.stolen = 1</script>")
    assert "**bold**" in copied


def test_live_shows_a_pair_and_moves_with_a_new_sample(page: Page, url: str) -> None:
    page.goto(f"{url}/live")
    pair = page.get_by_test_id("pair").filter(has_text="demo").first
    expect(pair).to_contain_text(re.compile(r"dflash2, block size automatic, now \d, adaptive"))
    expect(pair.get_by_test_id("acceptance").get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"Accepted drafts by position: 1: \d+ %, 2: \d+ %")
    )
    expect(pair.get_by_test_id("cycle-time")).to_contain_text("verify")
    expect(page.get_by_test_id("memory")).to_contain_text("weights")
    expect(page.get_by_test_id("plot-speed")).to_have_attribute("aria-label", re.compile(r"Now: answers \d+"))
    expect(page.get_by_test_id("plot-speed").locator("svg path").first).to_be_attached()
    expect(page.get_by_test_id("plot-cycles")).to_have_attribute("aria-label", re.compile(r"Now: \d\.\d\d"))
    expect(page.get_by_test_id("requests").locator("tbody tr")).not_to_have_count(0)
    before = pair.get_by_test_id("pair-facts").inner_text()
    other = page.context.new_page()
    other.goto(f"{url}/chat")
    ask(other, "tick")
    other.close()
    expect(pair.get_by_test_id("pair-facts")).not_to_have_text(before)
    screenshot(page, "live")


def test_live_sends_nothing_while_nothing_is_new(page: Page, url: str) -> None:
    frames: list[str] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda data: frames.append(str(data))))
    page.goto(f"{url}/live")
    expect(page.get_by_test_id("plot-speed")).to_have_attribute("aria-label", re.compile("Now"))
    page.wait_for_timeout(500)
    seen = len([frame for frame in frames if "update" in frame])
    page.wait_for_timeout(2200)
    assert len([frame for frame in frames if "update" in frame]) == seen


def test_logs_by_level_and_text_paused_and_with_versions(page: Page, url: str) -> None:
    page.goto(f"{url}/logs")
    log = page.get_by_test_id("log")
    expect(log).to_contain_text("INFO dflash2_server.manager: 5 models, 3 drafters in 2 folders")
    page.get_by_test_id("log-level").click()
    page.get_by_role("option", name="warnings and errors").click()
    expect(log).not_to_contain_text("5 models")
    expect(log).to_contain_text("2.1 GB of disk are left")
    page.get_by_test_id("log-text").fill("no such line")
    expect(page.get_by_test_id("log-empty")).to_be_visible()
    page.get_by_test_id("log-text").fill("DISK")
    expect(log).to_contain_text("2.1 GB of disk are left")
    versions = page.get_by_test_id("versions")
    for name in ("dflash2-mlx", "mlx-lm", "python", "system", "device"):
        expect(versions).to_contain_text(name)
    screenshot(page, "logs")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_light_and_dark_as_the_system_says(browser: Browser, url: str, dark: bool) -> None:
    with opened(browser, dark=dark) as page:
        shade = "dark" if dark else "light"
        page.goto(f"{url}/chat")
        ask(page, "unsafe")
        idle(page)
        screenshot(page, f"chat-{shade}", whole=False)
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", background)[:3])) < 100) is dark
        page.goto(f"{url}/live")
        expect(page.get_by_test_id("plot-speed").locator("svg text").first).to_be_attached()
        fill = page.evaluate("getComputedStyle(document.querySelector('[data-testid=plot-speed] svg text')).fill")
        assert (min(map(int, re.findall(r"\d+", fill)[:3])) > 120) is dark
        screenshot(page, f"live-{shade}")


def test_a_narrow_page_does_not_scroll_sideways(browser: Browser, url: str) -> None:
    with opened(browser, width=390, height=800) as page:
        for path in ("chat", "live", "logs"):
            page.goto(f"{url}/{path}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            page.wait_for_timeout(400)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            screenshot(page, f"narrow-{path}", whole=path != "chat")
