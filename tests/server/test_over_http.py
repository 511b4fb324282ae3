"""The whole server in a process of its own: real clients, many at once, clients that leave, and the server's end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

ROOT = Path(__file__).parents[2]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OPENAI_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
WAIT = 60


class Process:
    """A scripted server on a port of its own choice, or on a given one."""

    def __init__(self, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.scripted_server", str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        self.url = ""
        for line in self.process.stdout:
            found = re.search(r"ready on (http://\S+)", line)
            if found:
                self.url = found[1]
                break
        assert self.url, "the server did not start"

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        code = self.process.wait(WAIT)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def metric(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics").text
        found = [line for line in text.splitlines() if line.startswith(name)]
        return float(found[0].rsplit(" ", 1)[1]) if found else 0.0


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    process = Process()
    yield process
    assert process.stop() == 0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_openais_client_with_a_tool(server: Process) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x")
    messages = [{"role": "user", "content": "How is the weather?"}]
    with client.chat.completions.stream(model="any", messages=messages, tools=[OPENAI_TOOL]) as stream:  # type: ignore[arg-type,list-item]
        answer = stream.get_final_completion().choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content == "I will look."
    (call,) = answer.message.tool_calls or []
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages += [answer.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    again = client.chat.completions.create(model="any", messages=messages, tools=[OPENAI_TOOL])  # type: ignore[arg-type,list-item]
    assert again.choices[0].message.content == "The tool said: sunny."
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) > 0.8 * again.usage.prompt_tokens


def test_openais_responses_with_a_tool(server: Process) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x")
    tool = {"type": "function", "name": "get_weather", "parameters": WEATHER}
    first = client.responses.create(model="any", input="How is the weather?", tools=[tool])  # type: ignore[list-item]
    call = next(item for item in first.output if item.type == "function_call")
    history = [
        {"role": "user", "content": "How is the weather?"},
        *(item.model_dump() for item in first.output),
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    second = client.responses.create(model="any", input=history, tools=[tool])  # type: ignore[arg-type,list-item]
    assert second.output_text == "The tool said: sunny."


def test_anthropics_client_with_a_tool(server: Process) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key="x")
    tool = {"name": "get_weather", "input_schema": WEATHER}
    messages = [{"role": "user", "content": "How is the weather?"}]
    with client.messages.stream(model="any", max_tokens=200, messages=messages, tools=[tool]) as stream:  # type: ignore[arg-type,list-item]
        answer = stream.get_final_message()
    assert answer.stop_reason == "tool_use"
    use = next(block for block in answer.content if block.type == "tool_use")
    assert use.input == {"city": "Paris"}
    messages += [
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},  # type: ignore[dict-item]
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]},  # type: ignore[dict-item]
    ]
    again = client.messages.create(model="any", max_tokens=200, messages=messages, tools=[tool])  # type: ignore[arg-type,list-item]
    assert "".join(block.text for block in again.content if block.type == "text") == "The tool said: sunny."
    assert (again.usage.cache_read_input_tokens or 0) > again.usage.input_tokens


def test_two_hundred_requests_of_sixteen_clients(server: Process) -> None:
    async def ask(client: httpx.AsyncClient, number: int) -> None:
        word = f"w{number}x"
        body = {"messages": [{"role": "user", "content": f"echo: {word}"}], "stream": number % 2 == 0}
        response = await client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200
        if body["stream"]:
            chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
            text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
            reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
            assert [reason for reason in reasons if reason] == ["stop"]
            assert len({chunk["id"] for chunk in chunks}) == 1
        else:
            text = response.json()["choices"][0]["message"]["content"]
        assert text == f"{word} " * 3

    async def client(mine: range) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=WAIT) as http:
            for number in mine:
                await ask(http, number)

    async def everybody() -> None:
        await asyncio.gather(*(client(range(i, 200, 16)) for i in range(16)))

    before = server.metric('dflash2_requests_total{model_name="scripted",reason="stop"}')
    asyncio.run(everybody())
    assert server.metric('dflash2_requests_total{model_name="scripted",reason="stop"}') - before == 200
    assert server.metric("dflash2_requests_running") == server.metric("dflash2_requests_waiting") == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Talk at length"}]}),
        ("/v1/responses", {"input": "Talk at length"}),
        ("/v1/messages", {"max_tokens": 9000, "messages": [{"role": "user", "content": "Talk at length"}]}),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_its_request(
    path: str, body: dict[str, object], stream: bool, server: Process
) -> None:
    cancelled = 'dflash2_requests_total{model_name="scripted",reason="cancelled"}'
    before = server.metric(cancelled)
    with httpx.Client(base_url=server.url, timeout=2 if stream else 0.7) as client:
        if stream:
            with client.stream("POST", path, json={**body, "stream": True}) as response:
                next(response.iter_bytes())
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(path, json=body)
    until(lambda: server.metric(cancelled) == before + 1)
    assert server.metric("dflash2_requests_running") == 0


def test_a_stopped_server_ends_its_streams_with_an_error_and_a_killed_one_starts_again() -> None:
    process = Process()
    body = {"messages": [{"role": "user", "content": "Talk at length"}], "stream": True}
    with httpx.stream("POST", f"{process.url}/v1/chat/completions", json=body, timeout=WAIT) as response:
        lines = response.iter_lines()
        for line in lines:
            if '"content":' in line:
                break
        process.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line.startswith("data: ")]
    assert "shutting down" in rest[-2]
    assert rest[-1] == "data: [DONE]"
    assert process.stop() == 0
    killed = Process()
    killed.stop(signal.SIGKILL)
    again = Process(killed.port)
    assert httpx.get(f"{again.url}/ready").status_code == 200
    assert again.stop() == 0
