"""Upload to the Hub: only when asked, with what the Hub needs, and its errors told. The Hub is a double."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError, HTTPError

from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_quantize.quantize_command import add_arguments, run
from dflash2_quantize.upload import check_upload, upload
from tests.quantize.subjects import write


class Hub:
    """In place of HfApi: keeps its calls, and fails where it is told to."""

    calls: list[tuple[str, dict[str, Any]]]
    fails: Exception | None = None

    def create_repo(self, repo_id: str, **options: Any) -> Any:
        self.calls.append(("create_repo", {"repo_id": repo_id, **options}))
        if self.fails:
            raise self.fails

        class Url(str):
            repo_id = "somebody/name"

        return Url("https://hub/somebody/name")

    def upload_folder(self, **options: Any) -> None:
        options["files"] = sorted(path.name for path in Path(options["folder_path"]).iterdir())
        self.calls.append(("upload_folder", options))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Hub]:
    class Double(Hub):
        calls: list[tuple[str, dict[str, Any]]] = []  # noqa: RUF012 - of this test

    monkeypatch.setattr(huggingface_hub, "HfApi", Double)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "a token")
    return Double


def quantize(*arguments: str) -> int:
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(list(arguments)))


def test_nothing_is_sent_unless_asked(hub: type[Hub], tmp_path: Path) -> None:
    quantize(str(write(tmp_path / "source")), "--out", str(tmp_path / "out"))
    assert hub.calls == []


@pytest.mark.parametrize("private", [True, False])
def test_the_whole_folder_is_sent(
    private: bool, hub: type[Hub], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--private"] if private else []
    quantize(str(write(tmp_path / "source")), "--out", str(tmp_path / "out"), "--upload", "name", *options)
    (create, created), (send, sent) = hub.calls
    assert (create, send) == ("create_repo", "upload_folder")
    assert created == {"repo_id": "name", "private": private, "exist_ok": True}
    assert sent["repo_id"] == "somebody/name"
    assert sent["folder_path"] == tmp_path / "out"
    assert sent["files"] == ["README.md", "config.json", "model.safetensors"]
    assert "uploaded to name" in capsys.readouterr().out


def refusal() -> HfHubHTTPError:
    response = httpx.Response(403, request=httpx.Request("POST", "https://hub"))
    return HfHubHTTPError("403 Forbidden", response=response)


@pytest.mark.parametrize("fault", [refusal(), OSError("no network"), HTTPError("no route")])
def test_what_fails_is_told_and_the_folder_stays(fault: Exception, hub: type[Hub], tmp_path: Path) -> None:
    hub.fails = fault
    with pytest.raises(DFlashError) as error:
        quantize(str(write(tmp_path / "source")), "--out", str(tmp_path / "out"), "--upload", "somebody/name")
    assert str(fault) in str(error.value)
    assert "somebody/name" in str(error.value)
    assert str(tmp_path / "out") in str(error.value)
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_name_that_cannot_be_is_told_before_any_work(hub: type[Hub]) -> None:
    with pytest.raises(RequestError, match="a//b"):
        check_upload("a//b")
    assert hub.calls == []


def test_nobody_logged_in_is_told_before_any_work(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(RequestError, match="hf auth login"):
        quantize(str(tmp_path / "nothing"), "--out", str(tmp_path / "out"), "--upload", "somebody/name")
    assert hub.calls == []


def test_the_address_is_given(hub: type[Hub], tmp_path: Path) -> None:
    assert upload(tmp_path, "somebody/name", private=False) == "https://hub/somebody/name"
    assert len(hub.calls) == 2
