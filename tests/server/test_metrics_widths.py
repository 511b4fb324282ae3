"""The width controller in /metrics, of a pair that has run and of one without a drafter."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dflash2_mlx.decode.width_figures import WidthFigures
from dflash2_server.width_metrics import costs_at_hand
from tests.manager.managing import answered, ask, managed, write_models


def figures(**changes: object) -> WidthFigures:
    given = {
        "block_size": 3,
        "width": 2,
        "reason": "block 2",
        "depth": 5000,
        "rates": (10.0, None, 14.0),
        "costs": {0: (0.1, 0.2, 0.3), 4096: (0.2, None, 0.5), 8192: (0.4, 0.5, 0.6)},
        "acceptance": {"all": (0.8, 0.5)},
        "cycles_by_width": (1, 2, 3),
        "switches": 4,
        "probes": 5,
        "source": "cycles",
    }
    return WidthFigures(**{**given, **changes})  # type: ignore[arg-type]


def test_costs_are_those_of_the_depth_at_hand() -> None:
    assert costs_at_hand(figures()) == (0.2, None, 0.5)
    assert costs_at_hand(figures(depth=100)) == (0.1, 0.2, 0.3)
    assert costs_at_hand(figures(depth=10, costs={4096: (0.2, None, 0.5)})) == (0.2, None, 0.5)
    assert costs_at_hand(figures(costs={})) == ()


def test_pairs_with_and_without_a_drafter(tmp_path: Path) -> None:
    async def run() -> tuple[str, WidthFigures]:
        (tmp_path / "models").mkdir()
        write_models(tmp_path / "models")
        async with managed(tmp_path, tmp_path / "models") as manager, asyncio.timeout(60):
            await manager.save_settings("one", {"dflash_enabled": True, "dflash_draft_model": "drafter"})
            await answered(manager, ask("one", 40))
            await answered(manager, ask("two", 4))
            widths = manager.model("one").running.widths  # type: ignore[union-attr]
            assert widths is not None
            assert manager.model("two").running.widths is None  # type: ignore[union-attr]
            return manager.service.metrics(), widths

    text, widths = asyncio.run(run())
    values = {
        (sample.name, sample.labels["model_name"], sample.labels.get("width")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "model_name" in sample.labels
    }
    assert sum(widths.cycles_by_width) > 0
    for width, count in enumerate(widths.cycles_by_width, 1):
        assert values["dflash2_cycles_by_width_total", "one", str(width)] == count
    assert values["dflash2_block_size", "one", None] == widths.width
    assert values["dflash2_width_switches_total", "one", None] == widths.switches
    assert values["dflash2_width_probes_total", "one", None] == widths.probes
    known = {str(width): rate for width, rate in enumerate(widths.rates, 1) if rate is not None}
    shown = {
        width: value
        for (name, model, width), value in values.items()
        if name == "dflash2_expected_tokens_per_second" and model == "one"
    }
    assert shown == known
    assert values["dflash2_block_size", "two", None] == 1
    assert not [key for key in values if key[1] == "two" and key[2] is not None]
