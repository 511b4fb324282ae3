"""Which drafters fit which models, why not, and by what names a drafter is found."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx.demo.paths import drafter_path
from dflash2_mlx.errors import ModelNotFound, RequestError
from dflash2_server.library import families
from dflash2_server.library.library import Library
from dflash2_server.pool.plan import automatic
from tests import tiny_families
from tests.manager import trees
from tests.manager.trees import write_drafter, write_json, write_model, write_repository


@pytest.fixture
def library(tmp_path: Path) -> Library:
    write_model(tmp_path / "target")
    write_model(tmp_path / "wider", trees.TARGET | {"hidden_size": 64, "vocab_size": 100})
    write_drafter(tmp_path / "org" / "fitting")
    write_drafter(tmp_path / "z-broken", rope_theta=None)
    write_drafter(tmp_path / "lonely", hidden_size=48, num_target_layers=9)
    return Library([tmp_path], None)


def test_every_drafter_is_shown_under_a_model_fitting_ones_first(library: Library) -> None:
    found = library.fits(library.get("target"))
    assert found[0].id == "fitting"
    assert {fit.id for fit in found} == {"fitting", "z-broken", "lonely", "demo-drafter"}
    by_id = {fit.id: fit for fit in found}
    assert (by_id["fitting"].fits, by_id["fitting"].repo_id) == (True, "org/fitting")
    assert (by_id["fitting"].engine, by_id["fitting"].block_size) == ("dflash2", 8)
    assert by_id["lonely"].reasons == (
        "hidden size: drafter 48, target 32",
        "number of target layers: drafter 9, target 4",
    )
    assert "rope_theta" in by_id["z-broken"].reasons[0]
    assert [fit.fits for fit in found] == [True, False, False, False]


def test_a_quantised_copy_is_never_chosen_beside_its_source(library: Library, tmp_path: Path) -> None:
    target = library.get("target")
    assert automatic(target, library) == "fitting"
    for name in ("a-copy", "z-copy"):
        write_drafter(tmp_path / name, dflash2_quantized_from="org/fitting")
    library.refresh()
    assert library.get("a-copy").quantized_from == "org/fitting"
    assert automatic(target, library) == "fitting"
    shutil.rmtree(tmp_path / "org")
    library.refresh()
    with pytest.raises(RequestError, match="choose one of a-copy, z-copy"):
        automatic(target, library)
    shutil.rmtree(tmp_path / "a-copy")
    library.refresh()
    assert automatic(target, library) == "z-copy", "it is all that there is"


def test_no_drafter_fits_a_model_that_cannot_be_tapped(tmp_path: Path) -> None:
    write_model(tmp_path / "m", trees.TARGET | {"model_type": "newer", "architectures": ["NewerForCausalLM"]})
    write_drafter(tmp_path / "d")
    library = Library([tmp_path], None)
    fits = library.fits(library.get("m"))
    assert all("has no family 'newer'" in fit.reasons[0] for fit in fits)
    assert library.targets(library.get("d"))[0] == ()


def test_a_drafter_shows_its_targets_or_why_it_has_none(library: Library) -> None:
    assert library.targets(library.get("fitting")) == (("target",), None)
    assert library.targets(library.get("demo-drafter")) == (("demo",), None)
    ids, reason = library.targets(library.get("lonely"))
    assert ids == ()
    assert "hidden size 48, 9 layers and a vocabulary of 256" in (reason or "")
    assert "rope_theta" in (library.targets(library.get("z-broken"))[1] or "")


def test_the_published_drafter_of_a_model_is_known_quietly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sizes = {"hidden_size": 5120, "num_hidden_layers": 64, "vocab_size": 248320}
    write_model(tmp_path / "Qwen3.5-27B-4bit", trees.TARGET | sizes)
    write_model(tmp_path / "renamed", trees.TARGET | sizes)
    write_model(tmp_path / "other")
    library = Library([tmp_path], None)
    with caplog.at_level(logging.WARNING):
        assert library.published(library.get("Qwen3.5-27B-4bit")) == "z-lab/Qwen3.5-27B-DFlash"
        assert library.published(library.get("renamed")) == "incoai/Qwen3.8-27B-DFlash2"
        assert library.published(library.get("other")) is None
        assert library.published(library.get("demo")) is None
        assert library.published(library.get("demo-drafter")) is None
    assert caplog.records == []


def test_names_of_a_drafter(library: Library, tmp_path: Path) -> None:
    fitting = tmp_path / "org" / "fitting"
    for name in ("fitting", "org/fitting", str(fitting)):
        assert library.resolve_drafter(name) == fitting
    assert library.resolve_drafter("demo-drafter") == library.resolve_drafter("demo") == drafter_path()
    outside = write_drafter(tmp_path / "deep" / "down" / "below" / "d")
    assert library.resolve_drafter(str(outside)) == outside
    cached = write_repository(tmp_path / "hub", "org/cached", trees.DRAFTER)
    assert Library([], tmp_path / "hub").resolve_drafter("org/cached") == cached


def test_a_drafter_in_the_home_folder(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    drafter = write_drafter(tmp_path / "home" / "d")
    assert library.resolve_drafter("~/d") == drafter


@pytest.mark.parametrize(
    "name", ["incoai/Qwen3.8-27B-DFlash2", "/no/such", "no-such", "", "..", "~nobody-here/d", "a\0b"]
)
def test_a_drafter_that_is_not_there(name: str, library: Library) -> None:
    with pytest.raises(ModelNotFound, match="download it"):
        library.resolve_drafter(name)


def test_what_is_no_usable_drafter(library: Library, tmp_path: Path) -> None:
    chat = write_model(tmp_path / "a" / "b" / "c" / "chat")
    broken = tmp_path / "a" / "b" / "c" / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    for name, message in (
        ("target", "is a chat model, no drafter"),
        (str(chat), "is a chat model, no drafter"),
        ("z-broken", "rope_theta"),
        (str(broken), "not valid JSON"),
    ):
        with pytest.raises(RequestError, match=message) as raised:
            library.resolve_drafter(name)
        assert raised.value.param == "dflash_draft_model"


@pytest.mark.parametrize("name", [*tiny_families.NAMED, *tiny_families.OTHERS])
def test_every_tested_family_can_be_tapped(name: str) -> None:
    config = (tiny_families.NAMED | tiny_families.OTHERS)[name](16)
    assert families.unsupported(config) is None
    assert families.incompatible(config) is None


@pytest.mark.parametrize(
    ("family", "kind"), [("llama4", "ChunkedKVCache"), ("afm7", "ConcatenateKVCache"), ("llama4_text", None)]
)
def test_unknown_kinds_of_cache_are_named(family: str, kind: str | None) -> None:
    reason = families.incompatible({"model_type": family, "num_hidden_layers": 4})
    assert reason is None if kind is None else f"keeps its state in {kind}" in (reason or "")


def test_no_module_of_a_family_is_imported(tmp_path: Path) -> None:
    """One of them ends the process where a package is not installed."""
    import sys

    config: dict[str, Any] = trees.TARGET | {"model_type": "olmo", "architectures": ["OlmoForCausalLM"]}
    write_json(write_model(tmp_path / "m") / "config.json", config)
    assert Library([tmp_path], None).get("m").problem is None
    assert "mlx_lm.models.olmo" not in sys.modules
