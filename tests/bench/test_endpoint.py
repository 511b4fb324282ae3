"""Servers as backends: what they are asked, what is measured, and how each failure is told."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import uvicorn

from dflash2_mlx.bench.cells import cells
from dflash2_mlx.bench.endpoint import Endpoint
from dflash2_mlx.bench.model import Arm, BenchPrompt, Plan, Sample
from dflash2_mlx.bench.run import run
from dflash2_mlx.bench.streamed import Streamed
from dflash2_mlx.errors import DFlashError, RequestError
from tests.bench.fake_endpoint import DROP, FakeEndpoint, chunk, serving, usage
from tests.server import doubles

KEY = "sk-very-secret"
SERVER = Arm(name="server", backend="endpoint", verify_mode="server")
PROMPT = BenchPrompt(id="p", kind="chat", messages=[{"role": "user", "content": "Hello?"}])


@pytest.fixture
def fake() -> Iterator[FakeEndpoint]:
    with serving() as found:
        yield found


def ask(fake: FakeEndpoint, arm: Arm = SERVER, prompt: BenchPrompt = PROMPT, **options: Any) -> Sample:
    with Endpoint(fake.url, "one", **options) as endpoint:
        return endpoint.sample(arm, prompt, max_tokens=32, seed=5)


def failure(fake: FakeEndpoint, **options: Any) -> str:
    with pytest.raises(DFlashError) as caught:
        ask(fake, **options)
    assert fake.url in str(caught.value)
    assert KEY not in str(caught.value)
    return str(caught.value)


def test_the_request_is_a_streamed_chat_completion(fake: FakeEndpoint) -> None:
    ask(fake, Arm(name="a", verify_mode="server", temperature=0.7), key=KEY)
    path, headers, body = fake.requests[-1]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    (message,) = body.pop("messages")
    assert message["role"] == "user"
    assert re.fullmatch(r"\[[0-9a-f]{8}\]\nHello\?", message["content"])
    assert body == {
        "model": "one",
        "max_tokens": 32,
        "temperature": 0.7,
        "seed": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("arm", "options"),
    [
        (Arm(name="a", verify_mode="off"), {"enabled": False}),
        (Arm(name="a", verify_mode="dflash", block_size=5), {"verify_mode": "dflash", "block_size": 5}),
        (Arm(name="a", verify_mode="adaptive"), {"verify_mode": "adaptive"}),
    ],
)
def test_an_arm_of_our_own_modes_sends_our_own_options(fake: FakeEndpoint, arm: Arm, options: dict[str, Any]) -> None:
    ask(fake, arm)
    assert fake.asked["dflash"] == options


def test_a_sample_has_the_servers_counts_and_our_times(fake: FakeEndpoint) -> None:
    fake.steps = [chunk("a" * 10), chunk("b" * 30, finish="length"), usage(7, 4), "[DONE]"]
    sample = ask(fake)
    assert (sample.prompt_tokens, sample.generation_tokens) == (7, 4)
    assert sample.generation_seconds > 0
    assert sample.prompt_seconds > 0
    assert sample.finish_reason == "length"
    assert (sample.arm, sample.prompt, sample.kind, sample.depth) == ("server", "p", "chat", 0)
    assert sample.tokens_per_cycle is None
    assert sample.note == ""


def test_time_counts_from_the_first_token_also_where_it_came_with_others() -> None:
    answer = Streamed()
    answer.add(chunk(), 1.0)  # the role alone
    answer.add(chunk("a"), 2.0)
    answer.add(chunk("b" * 9), 5.0)
    answer.add(usage(7, 10), 9.0)
    assert (answer.first, answer.last, answer.pieces) == (2.0, 5.0, 2)
    assert answer.seconds(10) == pytest.approx(3.0)
    several = Streamed()
    several.add(chunk("a" * 4), 2.0)
    several.add(chunk("b" * 6), 5.0)
    assert 9 / several.seconds(10) == pytest.approx(6 / 3)  # six tokens came in the three seconds
    assert several.seconds(1) == 0.0
    assert Streamed().seconds(10) == 0.0


def test_the_digest_is_of_the_text_and_the_reasoning(fake: FakeEndpoint) -> None:
    whole = ask(fake).digest
    fake.steps = [chunk("Hel"), chunk("lo there", finish="stop"), usage(7, 2), "[DONE]"]
    assert ask(fake).digest == whole
    fake.steps = [chunk(reasoning="Hel"), chunk("lo there", finish="stop"), usage(7, 2), "[DONE]"]
    assert ask(fake).digest != whole
    assert re.fullmatch("[0-9a-f]{8}:[0-9a-f]{12}", whole)


def test_no_prompt_begins_as_that_of_another_arm_prompt_or_round(fake: FakeEndpoint) -> None:
    """So a prefix cache has nothing to give; a system message is first, so the sign goes there."""
    system = replace(PROMPT, id="q", messages=[{"role": "system", "content": "Be brief."}, *PROMPT.messages])
    with Endpoint(fake.url, "one") as endpoint:
        for arm, prompt, seed in product((SERVER, replace(SERVER, name="b")), (PROMPT, system), (1, 2)):
            endpoint.sample(arm, prompt, max_tokens=8, seed=seed)
        asked = [body["messages"] for path, _, body in fake.requests]
        endpoint.sample(SERVER, PROMPT, max_tokens=8, seed=1)
    assert len({messages[0]["content"][:10] for messages in asked}) == 8
    assert sum(messages[0]["content"].endswith("\nBe brief.") for messages in asked) == 4
    assert all(messages[-1]["content"] == "Hello?" for messages in asked if len(messages) == 2)
    assert fake.asked["messages"] == asked[0]


def test_answers_to_prompts_with_other_signs_are_not_compared(fake: FakeEndpoint) -> None:
    again = replace(SERVER, name="again")
    with Endpoint(fake.url, "one") as endpoint:
        result = run(Plan(arms=[SERVER, again], prompts=[PROMPT]), {"endpoint": endpoint})
    assert [cell.compared_texts for cell in cells(result, "all")] == [0, 0]


def test_a_seed_does_not_hold_a_width_that_is_to_be_chosen(fake: FakeEndpoint) -> None:
    automatic, adaptive = Arm(name="a", temperature=1.0), Arm(name="b", verify_mode="adaptive", temperature=1.0)
    held = [replace(automatic, block_size=5), replace(automatic, temperature=0.0), replace(SERVER, temperature=1.0)]
    for arm, seed in [(automatic, None), (adaptive, None), *((arm, 5) for arm in held)]:
        ask(fake, arm)
        assert fake.asked.get("seed") == seed


def test_each_prompt_has_a_context_of_its_own(fake: FakeEndpoint) -> None:
    contexts = []
    with Endpoint(fake.url, "one") as endpoint:
        for name in ("p", "q"):
            endpoint.sample(SERVER, replace(PROMPT, id=name, depth=400), max_tokens=8, seed=0)
            contexts.append(fake.asked["messages"][0]["content"][11:])
    assert contexts[0][:60] != contexts[1][:60]


def test_reasoning_counts_as_the_first_token(fake: FakeEndpoint) -> None:
    fake.steps = [chunk(reasoning="x" * 8), chunk("y" * 8, finish="stop"), usage(7, 4), "[DONE]"]
    sample = ask(fake)
    assert sample.generation_seconds > 0  # two pieces, so the first one was the reasoning


def test_a_server_without_usage_is_counted_by_pieces_and_that_is_noted(fake: FakeEndpoint) -> None:
    fake.steps = [chunk("a"), chunk("b"), chunk("c", finish="stop"), "[DONE]"]
    sample = ask(fake)
    assert (sample.generation_tokens, sample.prompt_tokens) == (3, 0)
    assert "no usage told" in sample.note


def test_usage_in_every_chunk_is_read_too(fake: FakeEndpoint) -> None:
    figures = {"prompt_tokens": 7, "completion_tokens": 1}
    later = figures | {"completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 3}}
    fake.steps = [chunk("a", usage=figures), chunk("b", finish="stop", usage=later), "[DONE]"]
    sample = ask(fake)
    assert sample.generation_tokens == 6
    assert "3 prompt tokens were cached: its first token is left out" in sample.note
    assert sample.cached_tokens == 3


def test_llama_cpps_timings_stand_in_for_usage(fake: FakeEndpoint) -> None:
    fake.steps = [chunk("a"), chunk("b", finish="stop", timings={"prompt_n": 9, "predicted_n": 5}), "[DONE]"]
    sample = ask(fake)
    assert (sample.prompt_tokens, sample.generation_tokens) == (9, 5)
    assert "usage" not in sample.note


def test_an_answer_in_one_piece_has_no_speed_and_says_so(fake: FakeEndpoint) -> None:
    fake.steps = [chunk("all at once", finish="stop"), usage(7, 30), "[DONE]"]
    sample = ask(fake)
    assert sample.tokens_per_second == 0
    assert "in one piece" in sample.note


def test_an_answer_of_which_most_came_first_has_no_speed_and_says_so(fake: FakeEndpoint) -> None:
    fake.steps = [chunk("a" * 70), chunk("b" * 30, finish="stop"), usage(7, 50), "[DONE]"]
    sample = ask(fake)
    assert sample.tokens_per_second == 0
    assert "more than half in its first piece: no speed" in sample.note
    fake.steps = [chunk("a" * 45), chunk("b" * 55, finish="stop"), usage(7, 50), "[DONE]"]
    assert ask(fake).tokens_per_second > 0


def test_an_empty_answer_is_a_sample(fake: FakeEndpoint) -> None:
    fake.steps = [chunk("", finish="stop"), usage(7, 0), "[DONE]"]
    sample = ask(fake)
    assert (sample.generation_tokens, sample.generation_seconds) == (0, 0.0)


def test_a_stream_that_ends_after_its_finish_reason_is_whole(fake: FakeEndpoint) -> None:
    fake.steps = [chunk("a"), chunk("b", finish="stop"), usage(7, 2)]
    assert ask(fake).generation_tokens == 2


def test_a_depth_is_reached_about_and_the_same_context_given_again(fake: FakeEndpoint) -> None:
    deep = BenchPrompt(id="d", kind="chat", messages=PROMPT.messages, depth=1000)
    fake.steps = [chunk("a"), chunk("b", finish="stop"), usage(1300, 2), "[DONE]"]
    with Endpoint(fake.url, "one") as endpoint:
        sample = endpoint.sample(SERVER, deep, max_tokens=8, seed=0)
        first = fake.asked["messages"][0]["content"]
        endpoint.sample(SERVER, deep, max_tokens=8, seed=0)
    assert first.endswith("\n\nHello?")
    assert first.startswith("[")
    assert 4000 < len(first) < 5000
    assert fake.asked["messages"][0]["content"] == first
    assert "1300 prompt tokens at depth 1000" in sample.note
    assert sample.depth == 1000


def test_cancelling_breaks_an_answer_off(fake: FakeEndpoint) -> None:
    assert ask(fake, cancelled=lambda: True).finish_reason == "cancelled"


def test_facts_tell_no_credentials(fake: FakeEndpoint) -> None:
    url = fake.url.replace("http://", "http://user:geheim@")
    with Endpoint(f"{url}/v1/?token=geheim", "one", key=KEY) as endpoint:
        assert endpoint.facts == {"endpoint": f"{fake.url}/v1", "model": "one", "server": "not told"}
        assert endpoint.connect() == ["one", "two"]
        assert endpoint.facts["server"].strip() == "fake/1"
    assert endpoint.concurrent


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/chat/completions", "/deep/er"])
def test_the_base_url_may_be_given_in_several_ways(fake: FakeEndpoint, path: str) -> None:
    with Endpoint(fake.url + path, "one") as endpoint:
        endpoint.sample(SERVER, PROMPT, max_tokens=8, seed=0)
    expected = "/deep/er" if "deep" in path else "/v1"
    assert fake.requests[-1][0] == f"{expected}/chat/completions"


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://user:geheim@host", "http://", "http://[::1"])
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="no URL of a server") as caught:
        Endpoint(url, "one")
    assert "geheim" not in str(caught.value)


def test_a_model_has_to_be_named() -> None:
    with pytest.raises(RequestError, match="name of the model"):
        Endpoint("http://127.0.0.1:1", " ")


def test_no_server_is_told() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        with Endpoint(url, "one") as endpoint:
            for call in (endpoint.connect, lambda: endpoint.sample(SERVER, PROMPT, max_tokens=8, seed=0)):
                with pytest.raises(DFlashError, match="no server answers there") as caught:
                    call()
                assert url in str(caught.value)


def test_a_missing_or_wrong_key_is_told_without_it(fake: FakeEndpoint) -> None:
    fake.status, fake.body = 401, {"error": {"message": "No API key"}}
    assert "No API key: give the server's API key" in failure(fake)
    fake.body = {"error": {"message": f"Incorrect API key: {KEY}"}}
    wrong = failure(fake, key=KEY)
    assert "the API key is not taken" in wrong
    assert "Incorrect API key: ***" in wrong
    fake.models_status = 401
    with Endpoint(fake.url, "one") as endpoint, pytest.raises(DFlashError, match="status 401"):
        endpoint.connect()


def test_an_unknown_model_is_told_with_those_that_there_are(fake: FakeEndpoint) -> None:
    fake.status, fake.body = 404, {"error": "no such model"}
    text = failure(fake)
    assert "no such model" in text
    assert "'one' was asked for, there are one, two" in text
    fake.models_status, fake.models = 404, "nothing"
    assert "the model 'one'" in failure(fake)


def test_too_many_requests_are_told_with_when_to_come_back(fake: FakeEndpoint) -> None:
    fake.status, fake.body, fake.headers = 429, {"detail": "busy"}, {"Retry-After": "3"}
    text = failure(fake)
    assert "status 429, busy: use a lower concurrency, or try again in 3 s" in text


def test_another_status_is_told_with_the_servers_words(fake: FakeEndpoint) -> None:
    fake.status, fake.body = 500, "<h1>it broke</h1>"
    assert "status 500, <h1>it broke</h1>" in failure(fake)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([chunk("a"), chunk("b"), DROP], "ended after 2 pieces"),
        ([chunk("a"), {"error": {"message": f"out of memory {KEY}"}}], "broke off: out of memory ***"),
        ([chunk("a"), "<html>"], "no JSON object: '<html>'"),
        (["[1]"], "no JSON object"),
        ([{"choices": ["x"]}], "another form"),
        ([{"choices": [{"delta": {"content": 5}}]}], "another form"),
        ([], "ended after 0 pieces"),
    ],
)
def test_a_stream_that_breaks_off_is_told(fake: FakeEndpoint, steps: list[Any], told: str) -> None:
    fake.steps = steps
    assert told in failure(fake, key=KEY)


def test_a_server_that_does_not_answer_in_time_is_told(fake: FakeEndpoint) -> None:
    go = threading.Event()
    fake.steps = [lambda: bool(go.wait(5)), "[DONE]"]
    try:
        assert "no answer in time" in failure(fake, timeout=0.05)
    finally:
        go.set()


def test_several_answers_at_once(fake: FakeEndpoint) -> None:
    together = threading.Barrier(3)
    fake.steps = [chunk("a"), lambda: bool(together.wait(5) + 1), chunk("b", finish="stop"), usage(7, 2), "[DONE]"]
    with Endpoint(fake.url, "one") as endpoint, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(endpoint.sample, SERVER, PROMPT, max_tokens=8, seed=i) for i in range(3)]
        assert [each.result().generation_tokens for each in asked] == [2, 2, 2]


def test_it_is_a_backend_of_a_run(fake: FakeEndpoint) -> None:
    plan = Plan(arms=[SERVER, Arm(name="again", backend="endpoint", verify_mode="server")], prompts=[PROMPT], rounds=2)
    with Endpoint(fake.url, "one") as endpoint:
        result = run(plan, {"endpoint": endpoint})
    assert [sample.arm for sample in result.samples].count("again") == 2
    assert len(result.samples) == 4


def test_our_own_server_tells_engine_block_size_and_tokens_per_cycle() -> None:
    service = doubles.ScriptedService()
    config = uvicorn.Config(doubles.app(service), host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    sock = config.bind_socket()
    sock.listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        with Endpoint(f"http://127.0.0.1:{sock.getsockname()[1]}", "demo") as endpoint:
            sample = endpoint.sample(Arm(name="5", verify_mode="dflash", block_size=5), PROMPT, max_tokens=8, seed=1)
            assert endpoint.connect() == ["demo"]
            endpoint.model = "other"
            with pytest.raises(DFlashError, match="'other' was asked for, there are demo"):
                endpoint.sample(SERVER, PROMPT, max_tokens=8, seed=1)
    finally:
        server.should_exit = True
        thread.join()
        sock.close()
    assert (sample.engine, sample.block_size, sample.tokens_per_cycle) == ("dflash2", 5, 2.0)
    assert (sample.prompt_tokens, sample.generation_tokens, sample.finish_reason) == (7, 2, "stop")
    assert service.inference.parameters["block_size"] == 5
