"""The model card of a quantised drafter: where it comes from, how it was made, what that costs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from huggingface_hub.repocard import metadata_load

from dflash2_mlx.errors import CheckpointError
from dflash2_mlx.hub import is_hub_id, shown_name

from .checkpoint import Written
from .measure import Acceptance
from .source import Source

# Of the source's card: what holds for a derived model too.
_KEPT = ("license", "license_name", "license_link", "language", "base_model")


@dataclass(frozen=True)
class Measured:
    """Acceptance of the source and of what was written, with `target`, on so many prompts of up to `tokens` tokens."""

    target: str
    prompts: int
    digest: str  # of the prompts
    tokens: int
    block_size: int
    before: Acceptance
    after: Acceptance


def write_card(source: Source, written: Written, spec: str, command: Sequence[str], measured: Measured | None) -> None:
    """Write README.md into the written folder."""
    text = card(source, written, spec, command, measured)
    try:
        (written.folder / "README.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint is in {written.folder}, but its card cannot be written: {error}"
        ) from None


def card(source: Source, written: Written, spec: str, command: Sequence[str], measured: Measured | None) -> str:
    """The card's text, metadata first."""
    parts = [
        _front_matter(source),
        f"# {written.folder.name}",
        f"A DFlash drafter, packed for MLX from `{shown_name(source.name)}`.",
        _table(("", "source", "packed"), _facts(source, written, spec)),
        f"Made with\n\n```\n{shlex.join(command)}\n```",
    ]
    if measured:
        parts += ["## Acceptance", _acceptance(measured)]
    parts += ["## Error by module", _errors(written)]
    return "\n\n".join(parts) + "\n"


def _facts(source: Source, written: Written, spec: str) -> list[tuple[str, ...]]:
    ratio = written.bytes / source.bytes
    return [
        ("packing", _packing(source.raw), spec),
        ("size", f"{source.bytes / 1e6:,.1f} MB", f"{written.bytes / 1e6:,.1f} MB ({ratio:.0%})"),
    ]


def _packing(raw: dict[str, Any]) -> str:
    known = raw.get("quantization")
    return f"w{known.get('bits')}:gs{known.get('group_size')}" if isinstance(known, dict) else "none"


def _acceptance(measured: Measured) -> str:
    rows = [("tokens per cycle", f"{measured.before.tokens_per_cycle:.3f}", f"{measured.after.tokens_per_cycle:.3f}")]
    positions = zip(measured.before.by_position, measured.after.by_position, strict=False)
    rows += [(f"draft {i} stands", f"{a:.3f}", f"{b:.3f}") for i, (a, b) in enumerate(positions, start=1)]
    how = (
        f"Greedy decoding with `{measured.target}` in blocks of {measured.block_size}: "
        f"{measured.prompts} of our prompts (digest {measured.digest}), up to {measured.tokens} tokens each, "
        f"in {measured.before.cycles} and {measured.after.cycles} cycles."
    )
    return f"{how}\n\n{_table(('', 'source', 'packed'), rows)}"


def _errors(written: Written) -> str:
    what = "Root mean square of the change over that of the weight. Other modules are as in the source."
    rows = [(f"`{path}`", str(packing), f"{written.errors[path]:.4f}") for path, packing in written.plan.items()]
    return f"{what}\n\n{_table(('module', 'packing', 'error'), rows)}" if rows else "No module was packed here."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _front_matter(source: Source) -> str:
    own = _metadata(source.folder / "README.md")
    data: dict[str, Any] = {key: own[key] for key in _KEPT if key in own}
    if is_hub_id(source.name):
        data |= {"base_model": source.name, "base_model_relation": "quantized"}
    data |= {"library_name": "mlx", "tags": ["mlx", "dflash", "speculative-decoding"]}
    return f"---\n{ModelCardData(**data).to_yaml().strip()}\n---"


def _metadata(card: Path) -> dict[str, Any]:
    try:
        return metadata_load(card) or {}
    except Exception:  # none, or one whose YAML is at fault: the parser's errors are not the Hub library's own
        return {}
