"""From what a person pastes to a repository id."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash2_mlx.errors import RequestError
from dflash2_server.downloads.links import repository

_ALNUM = "abcXYZ019"
PART = st.from_regex(rf"[{_ALNUM}]{{1,12}}([-._][{_ALNUM}]{{1,8}}){{0,2}}", fullmatch=True).filter(
    lambda part: not part.endswith(".git") and part not in ("datasets", "spaces", "api", "docs")
)
HOSTS = ["huggingface.co", "hf.co", "www.huggingface.co", "hf-mirror.com", "HuggingFace.co", "hub.example:8080"]


@given(PART, PART)
def test_an_id_stays_what_it_is(owner: str, name: str) -> None:
    assert repository(f"{owner}/{name}") == f"{owner}/{name}"
    assert repository(f"  {owner}/{name}\n") == f"{owner}/{name}"


@given(
    PART,
    PART,
    st.sampled_from(HOSTS),
    st.sampled_from(["https://", "http://", "HTTPS://", ""]),
    st.sampled_from(["", "/", "/tree/main", "/tree/main/", "/blob/main/a/config.json", "/discussions/3"]),
    st.sampled_from(["", "?library=mlx-lm&x=/y", "#top", "?a=b#c"]),
)
def test_every_link_gives_its_id(owner: str, name: str, host: str, scheme: str, rest: str, query: str) -> None:
    link = f"{scheme}{host}/{owner}/{name}{rest}{query}"
    assert repository(link, "https://hub.example:8080") == f"{owner}/{name}"


@given(st.text() | st.text("a./:-%2e\\?#@[] ", max_size=12) | st.from_regex(r"(https://hf\.co/)?[a.%2ef]+/[a.%2f/]+"))
def test_whatever_is_taken_is_a_safe_name(text: str) -> None:
    with suppress(RequestError):
        repo_id = repository(text)
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id, re.ASCII)
        assert not any(part.startswith(".") or ".." in part for part in repo_id.split("/"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no repository id"),
        ("gpt2", "no repository id"),
        ("a/b/c", "no repository id"),
        ("https://huggingface.co/org", "no repository id"),
        ("https://huggingface.co/", "no repository id"),
        ("https://huggingface.co/datasets/org/name", "'datasets' is no model repository"),
        ("https://huggingface.co/spaces/org/name", "'spaces' is no model repository"),
        ("https://huggingface.co/org/name/tree/v2", "the revision 'v2'"),
        ("https://huggingface.co/org/name/blob/refs%2Fpr%2F1/x", "the revision 'refs/pr/1'"),
        ("https://github.com/org/name", "github.com is not the Hub"),
        ("https://huggingface.co.evil.example/org/name", "is not the Hub"),
        ("https://huggingface.co@evil.example/org/name", "evil.example is not the Hub"),
        ("ftp://huggingface.co/org/name", "not ftp"),
        ("file:///etc/passwd", "is not the Hub"),
        ("http://[::1/org/name", "cannot be read as a link"),
        ("../etc", ".."),
        ("org/..", ".."),
        ("https://huggingface.co/org/%2e%2e", ".."),
        ("https://huggingface.co/org/..%2f..%2fetc", "org/../../etc"),
        ("/etc/passwd", "no repository id"),
        ("org/na me", "alphanumeric"),
        ("org/name.git", ".git"),
        (f"org/{'n' * 100}", "96"),
    ],
)
def test_anything_else_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(RequestError) as error:
        repository(text)
    assert says in str(error.value)
    assert error.value.param == "repo_id"
    assert "give owner/name" in str(error.value)
