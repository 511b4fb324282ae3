"""What the width controller of a pair knows and does, as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from dflash2_mlx.decode.width_figures import WidthFigures

_LABEL = ("model_name",)
_BY_WIDTH = (*_LABEL, "width")


def width_metrics(model: str, figures: WidthFigures | None) -> Iterator[Metric]:
    """Always the same families in the same order; without a controller (no drafter) only the block size has a value."""
    block = GaugeMetricFamily("dflash2_block_size", "Width of the latest choice; 1 is plain decoding.", labels=_LABEL)
    block.add_metric((model,), 1 if figures is None else figures.width)
    yield block
    yield _gauges(
        "dflash2_cycle_seconds",
        "What a cycle of a width takes at the context depth at hand.",
        model,
        () if figures is None else costs_at_hand(figures),
    )
    yield _gauges(
        "dflash2_expected_tokens_per_second",
        "Tokens that a width is expected to commit, for the kind of the latest request.",
        model,
        () if figures is None else figures.rates,
    )
    cycles = CounterMetricFamily("dflash2_cycles_by_width", "Cycles of a width; 1: plain steps.", labels=_BY_WIDTH)
    for width, count in enumerate(() if figures is None else figures.cycles_by_width, 1):
        cycles.add_metric((model, str(width)), count)
    yield cycles
    switches = CounterMetricFamily("dflash2_width_switches", "Changes of the chosen width.", labels=_LABEL)
    probes = CounterMetricFamily("dflash2_width_probes", "Cycles of another width, to see what it does.", labels=_LABEL)
    if figures is not None:
        switches.add_metric((model,), figures.switches)
        probes.add_metric((model,), figures.probes)
    yield from (switches, probes)


def costs_at_hand(figures: WidthFigures) -> Sequence[float | None]:
    """Seconds by width in the range of depths that the latest choice was made in, else in the nearest below it."""
    floors = sorted(figures.costs)
    if not floors:
        return ()
    below = [floor for floor in floors if floor <= figures.depth]
    return figures.costs[below[-1] if below else floors[0]]


def _gauges(name: str, text: str, model: str, values: Sequence[float | None]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=_BY_WIDTH)
    for width, value in enumerate(values, 1):
        if value is not None:  # not known yet
            family.add_metric((model, str(width)), value)
    return family
