"""A headless Chromium for tests: pages whose console errors fail the test, screenshots, and servers as processes.

Without Chromium the tests are skipped; with DFLASH2_REQUIRE_BROWSER set they fail (continuous integration).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Playwright, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
ARTEFACTS = Path(os.environ.get("DFLASH2_SCREENSHOTS") or Path(__file__).parent / "artefacts")
REQUIRE = "DFLASH2_REQUIRE_BROWSER"
NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run",
)  # fmt: skip
# Two cores are shared with the server and other tests.
TIMEOUT_MS = 30_000
expect.set_options(timeout=TIMEOUT_MS)


def chromium() -> str:
    """Its path. Skips the test where there is none, or fails it where one is required."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = f"no Chromium ({', '.join(NAMES)}): on Debian apt-get install chromium"
        if os.environ.get(REQUIRE):
            pytest.fail(f"{REQUIRE} is set, and there is {reason}")
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser a module: while it runs, its event loop is this thread's, and `asyncio.run` would be refused."""
    path = chromium()
    with sync_playwright() as playwright:
        yield from _launched(playwright, path)


def _launched(playwright: Playwright, path: str) -> Iterator[Browser]:
    found = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
    yield found
    found.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in a context of its own."""
    with opened(browser) as made:
        yield made


@contextmanager
def opened(browser: Browser, *, dark: bool = False, width: int = 1280, height: int = 900) -> Iterator[Page]:
    """A page that fails the test for errors of its scripts and console, and for what it asks of other hosts."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    context.set_default_timeout(TIMEOUT_MS)
    made = context.new_page()
    faults: list[str] = []
    made.on("console", lambda message: _note(faults, message))
    made.on("pageerror", lambda error: faults.append(f"script: {error}"))
    made.on("request", lambda request: _local(faults, request.url))
    yield made
    context.close()
    assert not faults, faults


def tick(box: Locator, on: bool = True) -> None:
    """Click a checkbox, whose state the server confirms: it is waited for, where `check` would look only once."""
    expect(box).to_be_checked(checked=not on)
    box.click()
    expect(box).to_be_checked(checked=on)


def screenshot(page: Page, name: str, *, whole: bool = True) -> Path:
    """A picture of the whole page among the artefacts, or of what is in sight."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    path = ARTEFACTS / f"{name}.png"
    page.screenshot(path=path, full_page=whole)
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@contextmanager
def process(arguments: Sequence[str], *, ready: str, env: Mapping[str, str] | None = None) -> Iterator[list[str]]:
    """`python ARGUMENTS` until the end of the block; its output up to the line that begins with `ready`."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT, env=dict(os.environ if env is None else env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, bufsize=1,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        try:
            lines: list[str] = []
            for line in child.stdout:
                lines.append(line.rstrip())
                if line.startswith(ready):
                    break
            else:
                pytest.fail(f"{arguments} ended before it was ready:\n" + "\n".join(lines))
            yield lines
        finally:
            child.terminate()
            child.communicate(timeout=20)


def _note(faults: list[str], message: ConsoleMessage) -> None:
    if message.type == "error":
        faults.append(f"console: {message.text}")


def _local(faults: list[str], url: str) -> None:
    if not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")):
        faults.append(f"asked another host: {url}")
