"""The card: metadata that the Hub reads, what is kept of the source's, and no word of this machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from dflash2_mlx.hub import shown_name
from dflash2_quantize.card import Measured, card, write_card
from dflash2_quantize.checkpoint import Written
from dflash2_quantize.measure import Acceptance
from dflash2_quantize.packing import Packing
from dflash2_quantize.source import Source, open_source
from tests.quantize.subjects import write

COMMAND = ["dflash2-mlx", "quantize", "somebody/drafter", "--out", "my folder"]
BEFORE, AFTER = Acceptance(2.5, (0.9, 0.6), 100, 250), Acceptance(2.25, (0.8, 0.45), 111, 250)
MEASURED = Measured("owner/target", 7, "0123456789ab", 64, 3, BEFORE, AFTER)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    folder = write(tmp_path / "source")
    (folder / "README.md").write_text("---\nlicense: mit\nlanguage: en\nmodel-index: []\nwidget: []\n---\nHello\n")
    return dataclasses.replace(open_source(str(folder)), name="somebody/drafter")


@pytest.fixture
def written(tmp_path: Path) -> Written:
    (tmp_path / "out").mkdir()
    return Written(tmp_path / "out", 50_000, {"fc": Packing(4, 64)}, {"fc": 0.09})


def test_it_says_what_a_user_must_know(source: Source, written: Written) -> None:
    text = card(source, written, "w4a16:gs64", COMMAND, MEASURED)
    words = [
        "# out",
        "from `somebody/drafter`",
        "| packing | none | w4a16:gs64 |",
        f"| size | {source.bytes / 1e6:.1f} MB | 0.1 MB ({50_000 / source.bytes:.0%}) |",
        "quantize somebody/drafter --out 'my folder'",
        "`owner/target` in blocks of 3: 7 of our prompts (digest 0123456789ab), up to 64 tokens each, in 100 and 111",
        "| tokens per cycle | 2.500 | 2.250 |",
        "| draft 1 stands | 0.900 | 0.800 |",
        "| draft 2 stands | 0.600 | 0.450 |",
        "| `fc` | w4:gs64 | 0.0900 |",
    ]
    assert [word for word in words if word not in text] == []


def test_the_hub_reads_its_metadata(source: Source, written: Written) -> None:
    write_card(source, written, "w4a16:gs64", COMMAND, None)
    data = ModelCard.load(written.folder / "README.md").data.to_dict()
    assert data == {
        "license": "mit",
        "language": "en",
        "base_model": "somebody/drafter",
        "base_model_relation": "quantized",
        "library_name": "mlx",
        "tags": ["mlx", "dflash", "speculative-decoding"],
    }


@pytest.mark.parametrize("readme", [None, "no metadata", "---\n: : :\n- x\n---\n", "---\n- a list\n---\n", "\udcff"])
def test_a_source_without_metadata(readme: str | None, source: Source, written: Written) -> None:
    file = source.folder / "README.md"
    file.unlink()
    if readme is not None:
        file.write_bytes(readme.encode("utf-8", "surrogateescape"))
    local = dataclasses.replace(source, name=str(source.folder))
    write_card(local, written, "w4a16:gs64", COMMAND, None)
    data = ModelCard.load(written.folder / "README.md").data.to_dict()
    assert data.keys() == {"library_name", "tags"}


def test_a_path_is_shown_by_its_last_part(tmp_path: Path) -> None:
    (tmp_path / "a" / "drafter").mkdir(parents=True)
    assert shown_name(str(tmp_path / "a" / "drafter")) == "drafter"
    assert shown_name("owner/name") == "owner/name"
    assert shown_name("demo") == "demo"
