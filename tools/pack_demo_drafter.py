"""Packs a bfloat16 drafter checkpoint at 4 bits, codebooks included, for `dflash2_mlx/demo/drafter/`.

    python tools/pack_demo_drafter.py CHECKPOINT_FOLDER OUTPUT_FOLDER

Packed are the matrices of attention, MLP and `fc`, and the selector's two codebooks. Norms, convolutions and
the selector's projection stay in bfloat16, as they do when the runtime quantises a drafter at load.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import cast

import mlx.core as mx

GROUP_SIZE = 64
BITS = 4

_MATRICES = re.compile(r"(fc|layers\.\d+\.(self_attn\.[qkvo]|mlp\.(gate|up|down))_proj)\.weight")
_CODEBOOKS = re.compile(r"candidate_selector\.(predecessor|successor)_codebook(\.weight)?")


def packed(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """The checkpoint's tensors, each chosen one replaced by `.weight` (uint32), `.scales` and `.biases`."""
    result: dict[str, mx.array] = {}
    for name, tensor in weights.items():
        if _MATRICES.fullmatch(name) or _CODEBOOKS.fullmatch(name):
            module = name.removesuffix(".weight")
            weight, scales, biases = mx.quantize(tensor, group_size=GROUP_SIZE, bits=BITS)
            result |= {f"{module}.weight": weight, f"{module}.scales": scales, f"{module}.biases": biases}
        else:
            result[name] = tensor
    return result


def relative_error(weights: dict[str, mx.array], result: dict[str, mx.array]) -> float:
    """The root mean square error of the packed tensors over their root mean square."""
    error, size = mx.array(0.0), mx.array(0.0)
    for module in (name.removesuffix(".scales") for name in result if name.endswith(".scales")):
        original = weights.get(f"{module}.weight", weights.get(module))
        assert original is not None, module
        weight, scales, biases = (result[f"{module}.{kind}"] for kind in ("weight", "scales", "biases"))
        restored = mx.dequantize(weight, scales, biases, group_size=GROUP_SIZE, bits=BITS)
        wanted = original.astype(mx.float32)
        error = error + mx.square(restored.astype(mx.float32) - wanted).sum()
        size = size + mx.square(wanted).sum()
    return cast(float, mx.sqrt(error / size).item())


def main() -> None:
    """Read the checkpoint, write config.json and model.safetensors, print the size and the error."""
    parser = argparse.ArgumentParser(description="Pack a bfloat16 drafter checkpoint at 4 bits.")
    parser.add_argument("checkpoint", type=Path, help="folder with config.json and model.safetensors")
    parser.add_argument("output", type=Path, help="folder to write into")
    arguments = parser.parse_args()

    weights = mx.load(str(arguments.checkpoint / "model.safetensors"))
    assert isinstance(weights, dict)
    result = packed(weights)
    config = json.loads((arguments.checkpoint / "config.json").read_text(encoding="utf-8"))
    config["quantization"] = {"group_size": GROUP_SIZE, "bits": BITS}

    arguments.output.mkdir(parents=True, exist_ok=True)
    file = arguments.output / "model.safetensors"
    mx.save_safetensors(str(file), result, metadata={"format": "mlx"})
    (arguments.output / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    print(
        f"{len(weights)} tensors to {len(result)}, {file.stat().st_size / 1e6:.2f} MB, "
        f"relative error of the packed weights {relative_error(weights, result):.3f}"
    )


if __name__ == "__main__":
    main()
