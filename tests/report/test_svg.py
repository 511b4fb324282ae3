"""Drawings: well-formed, whole, and with gaps where values are missing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import inf, nan
from xml.etree import ElementTree as ET

import pytest

from dflash2_mlx.report.blocks import Heatmap, Plot, Series
from dflash2_mlx.report.svg import svg
from dflash2_mlx.report.svg_parts import COLOURS, cut, width_of, wrapped
from tests.report.samples import NASTY, bars, heat, lines, nasty

NS = "{http://www.w3.org/2000/svg}"


def parsed(block: Plot | Heatmap, **options: object) -> ET.Element:
    return ET.fromstring(svg(block, **options))  # type: ignore[arg-type]


def texts(root: ET.Element) -> list[str]:
    return ["".join(found.itertext()) for found in root.iter(f"{NS}text")]


def tips(root: ET.Element) -> list[str]:
    return [found.text or "" for found in root.iter(f"{NS}title")]


def numbers(root: ET.Element) -> list[float]:
    """All coordinates in the drawing."""
    names = ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height", "d", "points")
    found = [value for node in root.iter() for name, value in node.attrib.items() if name in names]
    return [float(part) for value in found for part in re.findall(r"[^\s,MLZ]+", value)]


def test_a_drawing_says_what_it_is() -> None:
    root = parsed(lines())
    assert root.tag == f"{NS}svg"
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == "Speed by depth: tokens per second by tokens of plain, block 5"
    assert tips(root)[0] == "Speed by depth"
    assert {"Speed by depth", "plain", "block 5", "tokens", "tokens per second"} <= set(texts(root))
    assert "Speed by depth" not in texts(parsed(lines(), titled=False))


def test_a_line_is_broken_where_a_value_is_missing() -> None:
    root = parsed(lines())
    strokes = [node.attrib["d"] for node in root.iter(f"{NS}path") if node.attrib.get("fill") == "none"]
    # plain in one stroke of four points; block 5 in one of two, its last point alone
    assert sorted(stroke.count(" L") for stroke in strokes) == [1, 3]
    assert "block 5, 4: 5 (4 to 6)" in tips(root)
    assert not any(tip.startswith("block 5, 3") for tip in tips(root))


def test_the_spread_is_a_band_or_a_whisker_where_a_point_stands_alone() -> None:
    root = parsed(lines())
    bands = [node for node in root.iter(f"{NS}path") if node.attrib.get("fill-opacity") == "0.16"]
    assert [band.attrib["d"].count("L") for band in bands] == [3]
    alone = [node for node in root.iter(f"{NS}line") if node.attrib.get("stroke") == COLOURS[1]]
    assert any(node.attrib["x1"] == node.attrib["x2"] for node in alone)


def test_a_missing_bar_leaves_its_place_empty() -> None:
    tooltips = tips(parsed(bars()))
    assert [tip for tip in tooltips if tip.startswith("plain")] == ["plain, code: 1", "plain, chat: 1.1"]
    assert "block 5, prose: 0.9 (0.8 to 1)" in tooltips
    assert "baseline 1" in tooltips


def test_bars_go_up_and_down_from_zero() -> None:
    plot = Plot(title="", x_label="", y_label="", kind="bars", series=[Series(name="s", x=["a", "b"], y=[1, -1])])
    boxes = [node for node in parsed(plot).iter(f"{NS}rect") if list(node)]
    up, down = boxes
    assert float(up.attrib["y"]) + float(up.attrib["height"]) == pytest.approx(float(down.attrib["y"]), abs=0.02)


def test_a_baseline_beyond_the_axis_is_not_drawn() -> None:
    assert "baseline 100" in tips(parsed(lines(baseline=100.0)))  # the axis is extended to it
    assert "baseline 1" not in tips(parsed(lines(baseline=1.0, y_from=2.0)))


@pytest.mark.parametrize("kind", ["lines", "bars"])
@pytest.mark.parametrize(
    "series",
    [
        (),
        (Series(name="", x=[], y=[]),),
        (Series(name="a", x=[1, 2], y=[None, None]),),
        (Series(name="a", x=[1, 2], y=[nan, inf]),),
    ],
)
def test_a_plot_of_nothing_says_so(kind: str, series: tuple[Series, ...]) -> None:
    assert "no data" in texts(parsed(lines(kind=kind, series=series, baseline=1.0)))


@pytest.mark.parametrize("kind", ["lines", "bars"])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([3], [2.5]),
        ([1, 2], [1e300, -1e300]),
        ([1, 2], [5e-324, 1e-300]),
        ([1, 2], [7.0, 7.0]),
        ([1e-9, 1e9], [1.0, 2.0]),
        ([0, 0], [1.0, nan]),
        ([nan, 2], [1.0, 2.0]),
        ([1e16, 1e16 + 2], [1e16, 1e16 + 2]),
        (["a", 1, "a"], [1, 2, 3]),
        (list(range(500)), [float(i) for i in range(500)]),
    ],
)
def test_every_coordinate_is_a_number_within_the_drawing(kind: str, x: list[float | str], y: list[float]) -> None:
    series = (Series(name="a", x=x, y=y, low=y, high=y),)
    for width in (350.0, 680.0):
        root = parsed(lines(kind=kind, series=series), width=width)
        height = float(root.attrib["height"])
        assert "no data" not in texts(root)
        assert all(-20 <= number <= max(width, height) + 1 for number in numbers(root))


def test_texts_are_escaped_and_what_xml_forbids_is_replaced() -> None:
    for block in nasty().blocks:
        if isinstance(block, Plot | Heatmap):
            root = parsed(block)
            assert tips(root)[0] == NASTY.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")
            assert {node.tag for node in root.iter()}.isdisjoint({f"{NS}b"})


def test_powers_of_two_get_a_logarithmic_axis_marked_where_the_points_are() -> None:
    depths = [512, 1024, 2048, 4096, 8192, 16384, 32768]
    root = parsed(lines(series=(Series(name="", x=depths, y=[1.0] * 7),)))
    assert {f"{depth:,}" for depth in depths} <= set(texts(root))
    places = [float(node.attrib["cx"]) for node in root.iter(f"{NS}circle")]
    steps = [b - a for a, b in pairwise(places)]
    assert max(steps) - min(steps) < 0.1


def test_marks_of_the_x_axis_do_not_overlap() -> None:
    depths = [1000, 1001, 1002, 40_000]
    root = parsed(lines(series=(Series(name="", x=depths, y=[1.0] * 4),)), width=350)
    marks = [n for n in root.iter(f"{NS}text") if n.attrib.get("text-anchor") == "middle" and "," in (n.text or "")]
    assert [mark.text for mark in marks] == ["1,000", "40,000"]


def test_names_that_do_not_fit_are_turned_and_cut() -> None:
    long = [f"layers.{i}.self_attn.q_proj.weight" for i in range(6)]
    root = parsed(bars(series=(Series(name="a", x=long, y=[1.0] * 6),)), width=350)
    turned = [node for node in root.iter(f"{NS}g") if "rotate" in node.attrib.get("transform", "")]
    assert len(turned) == 6
    assert texts(turned[0])[0].endswith("…")
    assert set(long) <= set(tips(root))


def test_a_heatmap_tells_its_numbers_and_leaves_empty_what_is_none() -> None:
    root = parsed(heat())
    assert {"0.10", "1.00", "layer 0", "layer 1", "a", "b"} <= set(texts(root))
    boxes = [node for node in root.iter(f"{NS}rect") if list(node)]
    assert [box.attrib["fill"] for box in boxes] == [COLOURS[0], "none", COLOURS[0], "none"]
    shades = [float(box.attrib["fill-opacity"]) for box in boxes if box.attrib["fill"] != "none"]
    assert shades[0] < shades[1]


@pytest.mark.parametrize("values", [[], [[]], [[nan, None]], [[3.0, 3.0], [3.0]]])
def test_a_heatmap_of_nothing_or_of_one_value_is_drawn(values: list[list[float | None]]) -> None:
    root = parsed(Heatmap(title="t", rows=["a", "b"], columns=["c", "d"], values=values))
    assert ("no data" in texts(root)) == (3.0 not in [v for row in values for v in row])


def test_drawings_are_the_same_each_time() -> None:
    for block in (lines(), bars(), heat()):
        assert svg(block) == svg(block)


@pytest.mark.parametrize("ground", ["#ffffff", "#1d2328", "#14181c"])
def test_the_colours_stand_out_from_light_and_dark(ground: str) -> None:
    for colour in COLOURS:
        darker, lighter = sorted((luminance(colour), luminance(ground)))
        assert (lighter + 0.05) / (darker + 0.05) >= 3, colour


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_texts_are_cut_and_wrapped_to_their_room() -> None:
    assert cut("short", 100) == "short"
    assert cut("much too long a text", 60).endswith("…")
    assert width_of(cut("much too long a text", 60)) <= 60
    words = wrapped("one two three four five six seven", 90, 12)
    assert len(words) > 1
    assert all(width_of(line) <= 90 for line in words)
    assert " ".join(words) == "one two three four five six seven"


def fills(root: ET.Element) -> set[str]:
    return {value for node in root.iter() for name, value in node.attrib.items() if name in ("fill", "stroke")}


@pytest.mark.parametrize("make", [lines, bars])
def test_a_series_has_the_colour_and_marker_that_it_is_given(make: Callable[..., Plot]) -> None:
    series = Series(name="a", x=[1, 2], y=[1.0, 2.0], low=[0.5, 1.5], high=[1.5, 2.5], colour=2)
    root = parsed(make(series=(series,)))
    assert COLOURS[2] in fills(root)
    assert COLOURS[0] not in fills(root)
    alone = parsed(make(series=(replace(series, colour=None),)))
    assert COLOURS[0] in fills(alone)
    if make is lines:
        assert list(root.iter(f"{NS}polygon"))
        assert not list(root.iter(f"{NS}circle"))


def test_a_long_name_that_stands_level_is_cut_to_its_band() -> None:
    long = "a kind of content with a name that is far too long for the whole of any axis in the world of plots " * 2
    root = parsed(bars(title="", series=(Series(name="s", x=[long, "b"], y=[1.0, 2.0]),)))
    assert not [node for node in root.iter(f"{NS}g") if "rotate" in node.attrib.get("transform", "")]
    (shown,) = [words for words in texts(root) if words.startswith("a kind")]
    assert shown.endswith("…")
    assert width_of(shown) < 680 / 2
    assert long in tips(root)
