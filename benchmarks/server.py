"""The server against the library: streaming over HTTP, first tokens from the prefix cache, cached shares, text layer.

`python benchmarks/server.py [--model demo] [--rounds 5] [--json FILE]`. It starts `dflash2-mlx serve` on a free port;
the in-process arm runs here, in turns with it, so that each round compares two neighbours in time. Ratios count,
absolute times do not travel.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dflash2_mlx  # first: it chooses the BLAS that mlx will use

QUESTIONS = (
    "Explain how a bicycle stays upright, step by step.",
    "Write a Python function that merges two sorted lists.",
    "Tell the story of a lighthouse keeper and a storm.",
)
WORDS = "The committee reviewed item {i}: the bridge, the budget of {n} and the report were approved after a debate. "
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file of the project and gives its lines.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


class Server:
    """`dflash2-mlx serve` in a process of its own."""

    def __init__(self, model: str, *flags: str) -> None:
        command = [sys.executable, "-m", "dflash2_mlx.cli", "serve", "--model", model, "--port", "0", *flags]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = next(found[0] for line in self._process.stdout if (found := re.search(r"http://[\d.]+:\d+", line)))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def chat(url: str, messages: Sequence[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A streamed answer: text, seconds to the first text, seconds from there, and the figures of the last chunk."""
    import httpx

    body = {"messages": messages, "stream": True, "temperature": 0, "stream_options": {"include_usage": True}, **fields}
    start, first, text, last = time.perf_counter(), None, "", {}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=900) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            last = json.loads(line[6:])
            for choice in last["choices"]:
                piece = choice["delta"].get("content") or ""
                if piece and first is None:
                    first = time.perf_counter()
                text += piece
    end = time.perf_counter()
    return {"text": text, "first": (first or end) - start, "rest": end - (first or end), **last}


def streaming(url: str, pair: Any, rounds: int, tokens: int) -> dict[str, Any]:
    """Tokens per second after the first, over HTTP and in process, in turns; the ratio of each round."""
    from dflash2_mlx import stream_generate
    from dflash2_mlx.text.template import ChatTemplate

    template = ChatTemplate(pair.tokenizer)

    def in_process(question: str) -> float:
        ids = template.encode(template.render([{"role": "user", "content": question}]))
        first, count = 0.0, 0
        for step in stream_generate(pair, ids, max_tokens=tokens, temperature=0.0):
            first = first or time.perf_counter()
            count += len(step.tokens)
        return (count - 1) / (time.perf_counter() - first)

    def over_http(question: str) -> float:
        answer = chat(url, [{"role": "user", "content": question}], max_tokens=tokens)
        return float((answer["usage"]["completion_tokens"] - 1) / answer["rest"])

    ratios, rates = [], []
    for number in range(-1, rounds):  # the first round warms up
        for question in QUESTIONS:
            arms: list[Callable[[str], float]] = [in_process, over_http]
            figures = {arm.__name__: arm(question) for arm in (arms if number % 2 else arms[::-1])}
            if number >= 0:
                ratios.append(figures["over_http"] / figures["in_process"])
                rates.append(figures["over_http"])
    return {
        "http/in-process, median": round(statistics.median(ratios), 3),
        "quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)],
        "http tokens/s, median": round(statistics.median(rates), 1),
        "pairs": len(ratios),
    }


def first_tokens(
    url: str, encode: Callable[[str], list[int]], sizes: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """Seconds to the first token of a prompt that is new, and of the same with another question at its end."""
    rows = []
    for size in sizes:
        cold, warm, share = [], [], []
        for number in range(rounds):
            text = prose(size, encode, seed=1000 * size + number)
            for seconds, question in ((cold, "Who approved it?"), (warm, "What was the budget?")):
                messages = [{"role": "system", "content": text}, {"role": "user", "content": question}]
                answer = chat(url, messages, max_tokens=2)
                seconds.append(answer["first"])
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            share.append(cached / answer["usage"]["prompt_tokens"])
        rows.append(
            {
                "prompt tokens": answer["usage"]["prompt_tokens"],
                "cold, s": round(statistics.median(cold), 3),
                "cached, s": round(statistics.median(warm), 3),
                "times faster": round(statistics.median(cold) / statistics.median(warm), 1),
                "cached share": round(min(share), 4),
            }
        )
    return rows


def agent_chat(url: str, turns: int, tokens: int) -> dict[str, Any]:
    """Shares of prompt tokens from the cache over a growing chat with tools, its first turn cold."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a coding agent. " + "".join(sentences(60, seed=7))},
        {"role": "user", "content": "Find out what the project does."},
    ]
    cached, prompt = [], []
    for turn in range(turns):
        answer = chat(url, messages, tools=[TOOL], max_tokens=tokens)
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        prompt.append(answer["usage"]["prompt_tokens"])
        call = {"name": "read_file", "arguments": json.dumps({"path": f"src/part_{turn}.py"})}
        messages += [
            {
                "role": "assistant",
                "content": answer["text"],
                "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": "".join(sentences(2, seed=turn))},
        ]
    return {
        "cached share after the first turn": round(sum(cached[1:]) / sum(prompt[1:]), 4),
        "cached share, first turn included": round(sum(cached) / sum(prompt), 4),
        "prompt tokens by turn": prompt,
        "cached by turn": cached,
    }


def text_layer(pair: Any, sizes: Sequence[int]) -> dict[str, Any]:
    """Milliseconds to build a prompt, and microseconds a token to turn an answer into events."""
    from dflash2_mlx.text.answer import answer_parser
    from dflash2_mlx.text.detokenise import Detokeniser
    from dflash2_mlx.text.prompt import build_prompt
    from dflash2_mlx.text.template import ChatTemplate

    template = ChatTemplate(pair.tokenizer)
    build = {}
    for size in sizes:
        text = prose(size, lambda text: list(pair.tokenizer.encode(text)), seed=size)
        messages = [{"role": "system", "content": text}, {"role": "user", "content": "Go on."}]
        times = []
        for number in range(7):
            start = time.perf_counter()
            build_prompt(template, [*messages, {"role": "user", "content": str(number)}], [TOOL])
            times.append(1000 * (time.perf_counter() - start))
        build[size] = round(statistics.median(times), 1)
    ids = list(pair.tokenizer.encode("".join(sentences(40, seed=3))))
    start = time.perf_counter()
    detokeniser = Detokeniser(pair.tokenizer)
    parser = answer_parser(pair.tokenizer, "", tools=[TOOL], calls=template.tool_format)
    for token in ids:
        parser.feed(detokeniser.add([token]))
    each = 1e6 * (time.perf_counter() - start) / len(ids)
    return {"build a prompt, ms by tokens": build, "answer, microseconds a token": round(each, 1)}


def sentences(count: int, *, seed: int) -> Iterator[str]:
    """Prose that differs by seed, so that prompts of different rounds share nothing."""
    for i in range(count):
        yield WORDS.format(i=seed * 7919 + i, n=(seed + 3) * (i + 11))


def prose(tokens: int, encode: Callable[[str], list[int]], *, seed: int) -> str:
    """Text of about so many tokens."""
    each = len(encode("".join(sentences(20, seed=seed)))) / 20
    return "".join(sentences(max(1, round(tokens / each)), seed=seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--sizes", type=int, nargs="*", default=[4096, 16384])
    parser.add_argument("--size-rounds", type=int, default=2)
    parser.add_argument("--skip", nargs="*", default=[], choices=["streaming", "first", "agent", "text"])
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    pair = dflash2_mlx.load(args.model)
    result: dict[str, Any] = {}
    server = Server(args.model, "--context-length", "40000")
    try:
        if "streaming" not in args.skip:
            _tell(result, "streaming", streaming(server.url, pair, args.rounds, args.tokens))
        if "agent" not in args.skip:
            _tell(result, "agent chat", agent_chat(server.url, 10, 48))
        if "text" not in args.skip:
            _tell(result, "text layer", text_layer(pair, args.sizes))
        if "first" not in args.skip:
            encode = pair.tokenizer.encode
            _tell(result, "first token", first_tokens(server.url, encode, args.sizes, args.size_rounds))
    finally:
        server.close()
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)


def _tell(result: dict[str, Any], name: str, figures: Any) -> None:
    result[name] = figures
    print(f"{name}: {json.dumps(figures, indent=2)}", flush=True)


if __name__ == "__main__":
    main()
