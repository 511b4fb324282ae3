"""The figures of an answer as text: one line, and acceptance by position as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_BAR = 30
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FINISH = {"length": "cut at max_tokens", "cancelled": "stopped"}


def figures_line(stats: Mapping[str, Any], finish_reason: str | None) -> str:
    """One line: tokens and speed of the answer, of the prompt, and how it was decoded."""
    parts = [
        _answer(stats),
        f"{stats['tokens_per_cycle']:.2f} per cycle",
        f"prompt {stats['prompt_tokens']} ({stats['cached_tokens']} kept) at {stats['prompt_tps']:.0f}/s",
        _engine(stats),
        _FINISH.get(finish_reason or "", ""),
        stats["alarm"] or "",
    ]
    return " · ".join(part for part in parts if part)


def stats_lines(stats: Mapping[str, Any]) -> list[str]:
    """All figures of an answer, one a line, then a bar for each drafted position."""
    prompt = f"{stats['prompt_tokens']} tokens, {stats['cached_tokens']} of them kept in the caches"
    quant = "not quantised" if stats["draft_quant"] == "off" else f"at {stats['draft_quant']}"
    block = f"{_widths(stats)}, drafter {quant}"
    lines = [
        f"prompt      {prompt}, {stats['prompt_tps']:.1f}/s",
        f"answer      {_answer(stats)}, {stats['cycles']} cycles",
        f"accepted    {stats['accepted_tokens']} drafts, {stats['tokens_per_cycle']:.2f} tokens per cycle",
        f"engine      {_engine(stats)}, {block}",
        f"memory      {stats['peak_memory_gb']:.2f} GB at the most",
    ]
    if stats.get("width_reason"):
        lines.insert(-1, f"block size  {stats['width_reason']}")
    if stats["alarm"]:
        lines.append(f"warning     {stats['alarm']}")
    return lines + acceptance_bars(stats["acceptance_by_position"])


def acceptance_bars(shares: Sequence[float]) -> list[str]:
    """A bar for each drafted position: in which share of the cycles its draft was accepted."""
    if not shares:
        return []
    return [
        "acceptance by position",
        *(f"{n:>4} {_bar(share)} {share:4.0%}" for n, share in enumerate(shares, 1)),
    ]


def _widths(stats: Mapping[str, Any]) -> str:
    """The block size, or how often each one ran."""
    counts = stats.get("cycles_by_width") or {}
    if len(counts) < 2:
        return f"block size {stats['block_size']}"
    often = sorted(counts.items(), key=lambda item: -item[1])
    return "block sizes " + ", ".join(f"{width} ({count} times)" for width, count in often)


def _bar(share: float) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * _BAR * 8)
    bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return bar.ljust(_BAR, "·")


def _answer(stats: Mapping[str, Any]) -> str:
    """Tokens and their speed, which one token alone does not have."""
    count = stats["generation_tokens"]
    return "1 token" if count == 1 else f"{count} tokens at {stats['generation_tps']:.1f}/s"


def _engine(stats: Mapping[str, Any]) -> str:
    mode = "" if stats["verify_mode"] == "dflash" or stats["engine"] == "plain" else f", verify {stats['verify_mode']}"
    reason = f" (no drafter: {stats['fallback_reason']})" if stats["fallback_reason"] else ""
    return f"{stats['engine']}{mode}{reason}"
