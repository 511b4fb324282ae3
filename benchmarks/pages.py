"""What an open page costs: generation with the Live page open in a headless browser against without, arms alternated.

`python -m benchmarks.pages [--rounds 6] [--tokens 96] [--json FILE]`. It starts `dflash2-mlx serve --model demo` on a
free port and needs Debian's chromium and the extra `test`. Where the browser shares the cores with MLX, leave it one:
`OPENBLAS_NUM_THREADS=1`. It also tells how long the server takes to answer while a long prompt is prefilled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from benchmarks.server import Server

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
PROMPT = "Write a long story about a lighthouse keeper."
SETTLE_SECONDS = 2.0


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def generate(url: str, tokens: int) -> float:
    """Milliseconds of decoding so many tokens."""
    body = {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    return float(post(f"{url}/v1/chat/completions", body)["timings"]["predicted_ms"])


def with_page(browser: Browser, url: str, path: str, run: Callable[[], float]) -> float:
    page = browser.new_page()
    page.goto(url + path)
    page.wait_for_selector("text=Live")
    time.sleep(SETTLE_SECONDS)
    try:
        return run()
    finally:
        page.close()


def page_cost(url: str, rounds: int, tokens: int) -> dict[str, Any]:
    """Time with the page over time without, run next to each other; `control` is a second run without over the first.

    The order of the three changes from round to round.
    """
    page, control = [], []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        generate(url, tokens)
        for i in range(rounds):
            arms = ["none", "page", "again"]
            took = {arm: _timed(browser, url, tokens, arm) for arm in arms[i % 3 :] + arms[: i % 3]}
            page.append(2 * took["page"] / (took["none"] + took["again"]))
            control.append(took["again"] / took["none"])
        browser.close()
    return {"page": _summary(page), "control": _summary(control)}


def _timed(browser: Browser, url: str, tokens: int, arm: str) -> float:
    time.sleep(SETTLE_SECONDS)
    run = partial(generate, url, tokens)
    return with_page(browser, url, "/live", run) if arm == "page" else run()


def _summary(ratios: list[float]) -> dict[str, Any]:
    low, _, high = statistics.quantiles(ratios, n=4)
    return {"median": round(statistics.median(ratios), 3), "quartiles": [round(low, 3), round(high, 3)]}


def answer_times(url: str) -> dict[str, float]:
    """Seconds that `/admin/api/stats` takes while a prompt of some 2,000 tokens is prefilled."""
    body = {"messages": [{"role": "user", "content": "lighthouse " * 1500}], "max_tokens": 1}
    long = threading.Thread(target=post, args=(f"{url}/v1/chat/completions", body))
    long.start()
    time.sleep(0.5)
    times = []
    while long.is_alive():
        begin = time.perf_counter()
        urllib.request.urlopen(f"{url}/admin/api/stats").read()
        times.append(time.perf_counter() - begin)
        time.sleep(0.1)
    return {"count": len(times), "median": statistics.median(times), "worst": max(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    server = Server("demo")
    try:
        result = {
            "page": page_cost(server.url, args.rounds, args.tokens),
            "stats while prefilling": answer_times(server.url),
        }
    finally:
        server.close()
    print(json.dumps(result, indent=2))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
