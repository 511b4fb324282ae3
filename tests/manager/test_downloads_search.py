"""Search on the Hub, and the drafter that goes with a repository."""

from __future__ import annotations

import asyncio
import json

import pytest

from dflash2_mlx.errors import RequestError
from dflash2_server.downloads import drafters
from dflash2_server.downloads import search as module
from dflash2_server.downloads.faults import Failure
from dflash2_server.downloads.search import Found, search
from tests.manager.downloading import TOKEN, hub
from tests.manager.fake_hub import FakeHub, Repo

__all__ = ["hub"]

QWEN = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 2560, "num_hidden_layers": 36, "vocab_size": 151936}
DRAFTER = {"architectures": ["DFlashDraftModel"], "hidden_size": 2560}


@pytest.fixture
def models(hub: FakeHub) -> FakeHub:
    def add(name: str, downloads: int, config: dict[str, object], **values: object) -> None:
        hub.repos[name] = Repo(
            id=name,
            files={"config.json": json.dumps(config).encode()},
            downloads=downloads,
            **values,  # type: ignore[arg-type]
        )

    add("mlx-community/Qwen3-4B-4bit", 500, QWEN)
    add("mlx-community/whisper", 900, {}, pipeline_tag="automatic-speech-recognition")
    add("mlx-community/Llama-3.2-1B", 700, {}, gated=True)
    add("Qwen/Qwen3-4B-GGUF", 800, QWEN, tags=["gguf"])
    add("z-lab/Qwen3-4B-DFlash-b16", 50, DRAFTER, pipeline_tag="feature-extraction")
    return hub


def found(hub: FakeHub, query: str, **values: object) -> list[Found]:
    return asyncio.run(search(query, endpoint=hub.url, **values))  # type: ignore[arg-type]


def test_an_empty_query_lists_what_is_popular(models: FakeHub) -> None:
    assert [each.repo_id for each in found(models, "")] == ["mlx-community/Llama-3.2-1B", "mlx-community/Qwen3-4B-4bit"]


def test_models_and_drafters_are_told_apart(models: FakeHub) -> None:
    model, drafter = found(models, "qwen3-4b")
    assert model == Found(
        repo_id="mlx-community/Qwen3-4B-4bit",
        downloads=500,
        likes=3,
        size=100 * 2 + 50 * 4,
        updated="2026-10-12T08:00:00+00:00",
        gated=False,
        kind="model",
        drafter="z-lab/Qwen3-4B-DFlash-b16",
    )
    assert (drafter.repo_id, drafter.kind, drafter.drafter) == ("z-lab/Qwen3-4B-DFlash-b16", "drafter", None)


def test_a_link_and_its_limit(models: FakeHub) -> None:
    assert [each.repo_id for each in found(models, "https://hf.co/mlx-community/Llama-3.2-1B/tree/main")] == [
        "mlx-community/Llama-3.2-1B"
    ]
    assert found(models, "Llama")[0].gated
    assert len(found(models, "", limit=1)) == 1
    assert found(models, "nothing of that name") == []


def test_a_stale_token_does_not_keep_from_searching(models: FakeHub) -> None:
    assert len(found(models, "qwen3-4b", token=TOKEN)) == 2
    assert [request.authorization is None for request in models.requests] == [False, True]


def test_errors_are_told_apart(models: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="201 characters"):
        found(models, "x" * 201)
    with pytest.raises(RequestError, match="is not the Hub"):
        found(models, "https://example.org/a/b")
    monkeypatch.setattr(module, "TIMEOUT", 0.05)
    models.delay = 0.3
    with pytest.raises(Failure, match="did not answer within") as error:
        found(models, "")
    assert error.value.error.kind == "offline"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(module, "TIMEOUT", 10.0)
    with pytest.raises(Failure, match="HF_HUB_OFFLINE") as error:
        found(models, "")
    assert error.value.error.kind == "offline"


def test_the_published_drafter_of_a_config(models: FakeHub) -> None:
    def ask(name: str) -> str | None:
        return drafters.of_config(json.loads(models.repo(name).files["config.json"]), name)

    assert ask("mlx-community/Qwen3-4B-4bit") == "z-lab/Qwen3-4B-DFlash-b16"
    assert ask("z-lab/Qwen3-4B-DFlash-b16") is None
    assert ask("mlx-community/whisper") is None


@pytest.mark.parametrize(
    ("name", "drafter"),
    [
        ("mlx-community/Qwen3-8B-4bit", "z-lab/Qwen3-8B-DFlash-b16"),
        ("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16"),
        ("mlx-community/Qwen3_8B-4bit", "z-lab/Qwen3-8B-DFlash-b16"),
        ("mlx-community/Qwen3-18B-4bit", None),
        ("mlx-community/Qwen3-0.8B-4bit", None),
        ("mlx-community/Qwen3.8-27B-4bit", "incoai/Qwen3.8-27B-DFlash2"),
        ("mlx-community/Qwen3.5-27B-8bit", "z-lab/Qwen3.5-27B-DFlash"),
        ("mlx-community/gpt-oss-120b-MXFP4", "z-lab/gpt-oss-120b-DFlash"),
        ("mlx-community/Meta-Llama-3.1-8B-Instruct-4bit", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"),
        ("mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit", "z-lab/Qwen3-Coder-30B-A3B-DFlash"),
        ("mlx-community/gemma-3-4b", None),
    ],
)
def test_a_drafter_by_the_name_of_its_target(name: str, drafter: str | None) -> None:
    assert drafters.of_name(name) == drafter
