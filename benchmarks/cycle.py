"""Cycles per second and tokens per cycle: this engine, the reference (`dflash` 0.1.0) and plain mlx-lm, alternated.

    python benchmarks/cycle.py [--pair demo|tiny] [--blocks 1,3,5,8] [--temps 0,1] [--rounds 5] [--tokens 96] [--json F]
    python benchmarks/cycle.py --count        # graph operations and host syncs of a cycle
    python benchmarks/cycle.py --prefill      # peak memory of prefill with and without a drafter

Every round runs each arm once, in an order that rotates; medians and ratios are over rounds of one process. The
reference needs `pip install --no-deps dflash`. Tokens per cycle of the arms are comparable at temperature 0 only.
"""

# ruff: noqa: I001
from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dflash2_mlx  # noqa: F401  (before mlx: it loads the BLAS)
import mlx.core as mx
from dflash2_mlx import Pair, stream_generate
from dflash2_mlx.decode.cycle import Cycle, Keys
from dflash2_mlx.decode.prefill import prefill
from dflash2_mlx.decode.request import make_request
from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.propose import Proposal
from dflash2_mlx.target.adapter import Target

PROMPT = "Write a short explanation of how a bicycle stays upright, then list five facts about bicycles."
TINY_TARGET = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": 1024,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


@dataclass
class Arm:
    """One way to decode: its name and a function from (block, temperature) to [(seconds, tokens)] by cycle."""

    name: str
    run: Callable[[int, float], list[tuple[float, int]]]
    speculative: bool


class Bench:
    """Both engines on weights of their own copy, so that neither sees the other's taps."""

    def __init__(self, kind: str, tokens: int) -> None:
        self.tokens = tokens
        self.folder, self.pair, self.model = (_demo if kind == "demo" else _tiny)()
        tokenizer = self.pair.tokenizer
        assert tokenizer is not None
        self.tokenizer = tokenizer
        if kind == "demo":
            message = [{"role": "user", "content": PROMPT}]
            self.prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True)
        else:
            self.prompt = [(7 * i) % 1000 for i in range(48)]
        self.reference = self._load_reference()

    def _load_reference(self) -> Any:
        import dflash.model_mlx as reference

        with patch.object(reference, "snapshot_download", lambda path, **_: str(path)):
            draft = reference.load_draft(str(self.folder))
        draft.set_dtype(self.pair.target.dtype)
        return draft

    def arms(self) -> list[Arm]:
        return [
            Arm("ours", self._ours, True),
            Arm("reference", self._reference, True),
            Arm("mlx-lm", self._mlx_lm, False),
        ]

    def _ours(self, block: int, temperature: float) -> list[tuple[float, int]]:
        steps = stream_generate(
            self.pair, self.prompt, max_tokens=self.tokens, temperature=temperature, block_size=block, seed=1,
            ignore_eos=True,
        )  # fmt: skip
        return _timed(len(step.tokens) for step in steps)

    def _reference(self, block: int, temperature: float) -> list[tuple[float, int]]:
        import dflash.model_mlx as reference

        mx.random.seed(1)
        steps = reference.stream_generate(
            self.model, self.reference, _Endless(self.tokenizer), mx.array(self.prompt), block_size=block,
            max_tokens=self.tokens, temperature=temperature,
        )  # fmt: skip
        return _timed(len(step.tokens) for step in steps if step.tokens)

    def _mlx_lm(self, block: int, temperature: float) -> list[tuple[float, int]]:
        from mlx_lm import stream_generate as plain
        from mlx_lm.sample_utils import make_sampler

        tokenizer = _Endless(self.tokenizer)
        steps = plain(
            self.model, tokenizer, self.prompt, max_tokens=self.tokens, sampler=make_sampler(temperature)
        )  # fmt: skip
        return _timed(1 for _ in steps)


def _Endless(tokenizer: Any) -> Any:  # noqa: N802
    """A tokenizer without end tokens, so that every arm makes as many tokens."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    wrapper = TokenizerWrapper(tokenizer._tokenizer, type(tokenizer.detokenizer))
    wrapper.eos_token_ids = set()
    return wrapper


def _timed(counts: Iterator[int]) -> list[tuple[float, int]]:
    """Seconds and tokens of every step after the first, which includes the prefill."""
    out: list[tuple[float, int]] = []
    next(counts)
    last = time.perf_counter()
    for count in counts:
        now = time.perf_counter()
        out.append((now - last, count))
        last = now
    return out


def _demo() -> tuple[Path, Pair, Any]:
    """The embedded target in float32 with its drafter as published; the packaged one is packed at 4 bits."""
    from mlx_lm.utils import dequantize_model, load_model, load_tokenizer

    from dflash2_mlx.demo.paths import drafter_path, target_path

    folder = Path(tempfile.mkdtemp())
    _unpack(drafter_path(), folder)
    models = []
    for _ in range(2):
        models.append(dequantize_model(load_model(target_path())[0]))
        mx.eval(models[-1].parameters())
    tokenizer = load_tokenizer(target_path())
    return folder, Pair(Target(models[0]), load_drafter(folder, dtype="float32"), tokenizer), models[1]


def _unpack(packed: Path, folder: Path) -> None:
    """Write a packed drafter as a plain float32 checkpoint, which is all that the reference reads."""
    config = json.loads((packed / "config.json").read_text())
    bits = {k: config["quantization"][k] for k in ("bits", "group_size")}
    weights: dict[str, mx.array] = mx.load(str(packed / "model.safetensors"))  # type: ignore[assignment]
    plain: dict[str, mx.array] = {}
    for name, value in weights.items():
        base = name.removesuffix(".weight")
        if f"{base}.scales" in weights and name.endswith(".weight"):
            full = mx.dequantize(value, weights[f"{base}.scales"], weights[f"{base}.biases"], **bits)
            plain[base if base.endswith("codebook") else name] = full.astype(mx.float32)
        elif not name.endswith((".scales", ".biases")):
            plain[name] = value.astype(mx.float32)
    del config["quantization"]
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), plain)


def _tiny() -> tuple[Path, Pair, Any]:
    """A random target and drafter so small that all is overhead; the vocabulary is the head of the demo's."""
    from mlx_lm.models import llama
    from mlx_lm.utils import load_tokenizer

    from dflash2_mlx.demo.paths import target_path
    from tests.tiny_drafters import tiny_drafter_config, write_drafter

    models = []
    for _ in range(2):
        mx.random.seed(3)
        models.append(llama.Model(llama.ModelArgs.from_dict(TINY_TARGET)))
        mx.eval(models[-1].parameters())
    layer_types = ["sliding_attention"] * 5
    config = tiny_drafter_config(
        models[0],
        layer_types=layer_types,
        num_hidden_layers=5,
        sliding_window=512,
        block_size=8,
        selector_top_k=16,
    )
    folder = write_drafter(Path(tempfile.mkdtemp()) / "tiny", config)
    pair = Pair(Target(models[0]), load_drafter(folder, dtype="float32"), load_tokenizer(target_path()))
    return folder, pair, models[1]


def compare(bench: Bench, blocks: list[int], temps: list[float], rounds: int) -> list[dict[str, Any]]:
    """Rows of medians and of ratios to the other arms, pair by pair of rounds."""
    rows = []
    for temperature in temps:
        for block in blocks:
            arms = [arm for arm in bench.arms() if arm.speculative == (block > 1) or arm.name == "ours"]
            rates: dict[str, list[float]] = {arm.name: [] for arm in arms}
            lengths: dict[str, list[float]] = {arm.name: [] for arm in arms}
            for arm in arms:
                arm.run(block, temperature)  # warm-up
            for turn in range(rounds):
                for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
                    steps = arm.run(block, temperature)
                    seconds = statistics.median(s for s, _ in steps)
                    rates[arm.name].append(1 / seconds)
                    lengths[arm.name].append(sum(n for _, n in steps[:-1]) / max(1, len(steps) - 1))
            other = arms[1].name
            ratio = statistics.median(a / b for a, b in zip(rates["ours"], rates[other], strict=True))
            row: dict[str, Any] = {
                "temperature": temperature,
                "block": block,
                "ours / " + other: round(ratio, 3),
            }
            for arm in arms:
                row[f"{arm.name} cycles/s"] = round(statistics.median(rates[arm.name]), 2)
                row[f"{arm.name} tokens/cycle"] = round(statistics.median(lengths[arm.name]), 3)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def count_operations(arrays: list[mx.array]) -> int:
    """Operations in the graph behind `arrays` that have not been evaluated yet."""
    dot = io.StringIO()
    mx.export_to_dot(dot, *arrays)
    return dot.getvalue().count("shape=rectangle")


def count(bench: Bench, block: int) -> dict[str, float]:
    """Operations of a draft (context rows of the last cycle included) and of what follows it, in both engines."""
    out: dict[str, float] = {}
    for temperature in (0.0, 1.0):
        out[f"draft, ours, temperature {temperature:g}"] = _count_draft(bench, block, temperature)
        out[f"draft, reference, temperature {temperature:g}"] = _count_reference(bench, block, temperature)
        out[f"verify and accept, ours, temperature {temperature:g}"] = _count_rest(bench, block, temperature)
        out[f"host syncs a cycle, ours, temperature {temperature:g}"] = _count_syncs(bench, block, temperature)
    tokens = mx.array([list(range(block))])
    out["verify alone (mlx-lm's forward)"] = count_operations([bench.model(tokens, bench.pair.target.new_cache())])
    return out


def _taps(bench: Bench, rows: int) -> list[mx.array]:
    taps = [mx.random.normal((1, rows, bench.pair.target.hidden_size)) for _ in bench.reference.config.target_layer_ids]
    mx.eval(taps)
    return taps


def _count_draft(bench: Bench, block: int, temperature: float) -> int:
    drafter, taps, anchor = bench.pair.drafter, _taps(bench, 40), mx.array([5])
    assert drafter is not None
    context = drafter.new_context()
    context.append([tap[:, :36] for tap in taps], 0)
    mx.eval(context.arrays(), anchor)
    context.append([tap[:, 36:] for tap in taps], 36)
    key = mx.random.key(0)
    proposal = drafter.propose(bench.pair.target, context, anchor, block, temperature=temperature, key=key)
    drafted = [array for array in (proposal.tokens, proposal.law, proposal.finite) if array is not None]
    return count_operations([*drafted, *context.arrays()])


def _count_reference(bench: Bench, block: int, temperature: float) -> int:
    import dflash.model_mlx as reference

    draft, hidden = bench.reference, mx.concatenate(_taps(bench, 40), axis=-1)
    draft.bind(bench.model)
    caches = reference.make_prompt_cache(draft)
    mask = draft.config.mask_token_id
    mx.eval(draft.hidden_states(mx.array([[5, mask]]), hidden[:, :36], caches), [cache.state for cache in caches])
    tokens, _, law = draft.propose(
        mx.array([[5] + [mask] * (block - 1)]), hidden[:, 36:], caches, temperature, logits_start=1
    )
    return count_operations([tokens] if law is None else [tokens, law])


def _count_rest(bench: Bench, block: int, temperature: float) -> int:
    pair = bench.pair
    state = pair.new_state()
    request = make_request(
        bench.prompt, vocab_size=pair.target.vocab_size, checkpoint_block_size=block, temperature=temperature, seed=1
    )
    list(prefill(pair.target, state, request))
    assert pair.drafter is not None
    with patch.object(mx, "async_eval", lambda *arrays: None):
        cycle = Cycle(pair.target, pair.drafter, state, request, Keys(1))
        with patch.object(cycle, "_propose", lambda *_: _given(block, temperature)):
            launched = cycle.launch(5)
    return count_operations([launched.outcome])


def _count_syncs(bench: Bench, block: int, temperature: float) -> float:
    """Calls that wait for the device, by cycle, after the first."""
    waits = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            nonlocal waits
            waits += 1
            return function(*arguments, **keywords)

        return wrapper

    steps = stream_generate(
        bench.pair, bench.prompt, max_tokens=40, temperature=temperature, block_size=block, seed=1, ignore_eos=True
    )
    next(steps)
    with (
        patch.object(mx.array, "tolist", counted(mx.array.tolist)),
        patch.object(mx.array, "item", counted(mx.array.item)),
        patch.object(mx, "eval", counted(mx.eval)),
        patch.object(mx, "synchronize", counted(mx.synchronize)),
    ):
        cycles = sum(1 for _ in steps)
    return waits / cycles


def _given(block: int, temperature: float) -> Proposal:
    tokens, law = mx.arange(block - 1), mx.ones((block - 1, 16)) / 16
    candidates, finite = mx.arange((block - 1) * 16).reshape(-1, 16), mx.array(True)
    mx.eval(tokens, law, candidates, finite)
    return Proposal(tokens, candidates, law, finite) if temperature else Proposal(tokens, None, None, finite)


def measure_prefill(bench: Bench, lengths: list[int]) -> list[dict[str, float]]:
    """Peak memory in MB above what is loaded, of prefill with a drafter and without."""
    rows = []
    for length in lengths:
        prompt = [(7 * i) % 1000 for i in range(length)]
        request = make_request(prompt, vocab_size=bench.pair.target.vocab_size, checkpoint_block_size=8)
        row: dict[str, float] = {"prompt": length}
        for name, drafter in (("plain", None), ("with drafter", bench.pair.drafter)):
            state = DecodeState(bench.pair.target, drafter)
            mx.clear_cache()
            mx.reset_peak_memory()
            before, start = mx.get_active_memory(), time.perf_counter()
            list(prefill(bench.pair.target, state, request))
            row[f"{name}, MB"] = round((mx.get_peak_memory() - before) / 1e6, 1)
            row[f"{name}, s"] = round(time.perf_counter() - start, 2)
            del state
        row["peak ratio, weights included"] = round(
            (row["with drafter, MB"] + before / 1e6) / (row["plain, MB"] + before / 1e6), 3
        )
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=["demo", "tiny"], default="tiny")
    parser.add_argument("--blocks", default="1,3,5,8")
    parser.add_argument("--temps", default="0,1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--prefill", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bench = Bench(options.pair, options.tokens)
    result: Any
    if options.count:
        result = count(bench, 8)
        print(json.dumps(result, indent=2))
    elif options.prefill:
        result = measure_prefill(bench, [512, 2049, 4097])
    else:
        blocks = [int(b) for b in options.blocks.split(",")]
        temps = [float(t) for t in options.temps.split(",")]
        result = compare(bench, blocks, temps, options.rounds)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
