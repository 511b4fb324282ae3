"""The engine's counts for Prometheus: vLLM's names for speculation, our own for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import mlx.core as mx
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dflash2_mlx.decode.width_figures import WidthFigures
from dflash2_mlx.engine.totals import Totals
from dflash2_mlx.engine.worker import Engine
from dflash2_server.served import ServedPair
from dflash2_server.width_metrics import width_metrics

_LABEL = ("model_name",)


class EngineCollector(Collector):
    """Reads an engine at every scrape; nothing is counted twice. What a pair has done goes with the pair."""

    def __init__(self, engine: Engine, served: Sequence[ServedPair]) -> None:
        self._engine, self._served = engine, served

    def collect(self) -> Iterator[Metric]:
        pairs = [
            _PairMetrics(
                pair.name,
                self._engine.totals_of(pair.pair),
                pair.pair.widths.figures() if pair.pair.widths is not None else None,
            )
            for pair in self._served
        ]
        for families in zip(*(pair.collect() for pair in pairs), strict=True):
            for other in families[1:]:
                families[0].samples += other.samples
            yield families[0]
        yield from self._queue()
        yield from self._memory()

    def _queue(self) -> Iterator[Metric]:
        running, waiting = self._engine.load
        yield _gauge("dflash2_requests_running", "Requests that take turns.", running)
        yield _gauge("dflash2_requests_waiting", "Requests that wait.", waiting)
        refused = self._engine.totals.refused
        yield _counter("dflash2_requests_refused", "Requests refused since the queue was full.", refused)
        ready, _ = self._engine.readiness()
        yield _gauge("dflash2_ready", "Whether requests are served.", int(ready))

    def _memory(self) -> Iterator[Metric]:
        figures = self._engine.cache.figures
        yield _gauge("dflash2_prefix_cache_bytes", "Bytes of kept prefixes.", figures.nbytes)
        yield _gauge("dflash2_prefix_cache_limit_bytes", "Most bytes of kept prefixes.", self._engine.cache.limit)
        yield _gauge("dflash2_prefix_cache_marks", "Points to take a conversation up at.", figures.marks)
        yield _counter("dflash2_prefix_cache_hits", "Requests that took a prefix up.", figures.hits)
        yield _counter("dflash2_prefix_cache_misses", "Requests that began from nothing.", figures.misses)
        yield _counter("dflash2_prefix_cache_evictions", "Prefixes and marks that were forgotten.", figures.evictions)
        yield _gauge("dflash2_memory_active_bytes", "Memory in use by MLX.", mx.get_active_memory())
        yield _gauge("dflash2_memory_buffers_bytes", "Unused buffers that MLX keeps.", mx.get_cache_memory())


class _PairMetrics:
    """The families of one pair, always the same ones in the same order."""

    def __init__(self, model: str, totals: Totals, widths: WidthFigures | None) -> None:
        self._model, self._totals, self._widths = model, totals, widths

    def collect(self) -> Iterator[Metric]:
        yield from self._speculation()
        yield from width_metrics(self._model, self._widths)
        yield from self._requests()

    def _speculation(self) -> Iterator[Metric]:
        totals = self._totals
        yield self._counter("vllm:spec_decode_num_drafts", "Blocks that were drafted and verified.", totals.cycles)
        yield self._counter("vllm:spec_decode_num_draft_tokens", "Tokens that were drafted.", totals.drafted_tokens)
        yield self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Drafted tokens that stood.", totals.accepted_tokens
        )
        by_position = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens that stood, by position in the block.",
            labels=(*_LABEL, "position"),
        )
        for position, count in enumerate(totals.accepted_by_position):
            by_position.add_metric((self._model, str(position)), count)
        yield by_position
        yield self._counter("dflash2_dropped_blocks", "Blocks whose drafts were not finite.", totals.dropped_blocks)

    def _requests(self) -> Iterator[Metric]:
        totals = self._totals
        ended = CounterMetricFamily("dflash2_requests", "Requests that ended, by reason.", labels=(*_LABEL, "reason"))
        for reason, count in sorted(totals.by_reason.items()):
            ended.add_metric((self._model, reason), count)
        yield ended
        yield self._counter("dflash2_queue_seconds", "Time that requests have waited for a turn.", totals.queue_seconds)
        yield self._counter("dflash2_prompt_tokens", "Prompt tokens, cached ones included.", totals.prompt_tokens)
        yield self._counter("dflash2_cached_tokens", "Prompt tokens from the prefix cache.", totals.cached_tokens)
        yield self._counter("dflash2_generation_tokens", "Generated tokens.", totals.generation_tokens)
        yield self._counter(
            "dflash2_prompt_seconds", "Time until first tokens, from the first turn.", totals.prompt_seconds
        )
        yield self._counter("dflash2_generation_seconds", "Time from first to last tokens.", totals.generation_seconds)

    def _counter(self, name: str, text: str, value: float) -> Metric:
        return _with_value(CounterMetricFamily(name, text, labels=_LABEL), (self._model,), value)


def _counter(name: str, text: str, value: float) -> Metric:
    return _with_value(CounterMetricFamily(name, text, labels=()), (), value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return _with_value(GaugeMetricFamily(name, text, labels=()), (), value)


def _with_value(family: CounterMetricFamily | GaugeMetricFamily, labels: Iterable[str], value: float) -> Metric:
    family.add_metric(tuple(labels), value)
    return family


def metrics_text(engine: Engine, served: Sequence[ServedPair]) -> str:
    """Prometheus text, version 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(engine, served))
    return generate_latest(registry).decode()
