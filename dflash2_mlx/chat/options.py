"""Arguments that the commands share, and what they become: a model to load, and a request's parameters.

Ranges are not checked here: the library refuses wrong values by name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash2_mlx.errors import RequestError

REASONING = ("on", "off", "low", "medium", "high")
DTYPES = ("float32", "bfloat16", "float16")

# Parameters of a request that a flag or `/set` can give; "temp" is mlx-lm's name of the flag.
REQUEST_PARAMETERS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "repetition_context_size",
    "presence_penalty",
    "presence_context_size",
    "frequency_penalty",
    "frequency_context_size",
    "logit_bias",
    "stop",
    "block_size",
    "verify_mode",
    "verify_precision",
    "prefill_step_size",
)
ALIASES = {"temp": "temperature"}
# What a checkpoint's generation_config may decide.
CHECKPOINT_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class ModelChoice:
    """What `load` is asked for; `draft` None is plain decoding, `draft_quant` None keeps the weights."""

    model: str = "demo"
    draft: str | None = "auto"
    draft_quant: str | None = None
    dtype: str | None = None


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="demo", metavar="ID|PATH", help="target model (default: the embedded demo)")
    group.add_argument(
        "--draft",
        default="auto",
        metavar="auto|none|ID|PATH",
        help="drafter: the one known for the model, none (plain decoding), or a given one (default: auto)",
    )
    group.add_argument(
        "--draft-quant",
        default="off",
        metavar="SPEC|off",
        help="quantise the drafter when it is loaded, such as w4a16:gs64 (default: off)",
    )
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        metavar="TYPE",
        help="compute type of the target: float32, bfloat16 or float16",
    )


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("decoding (defaults: the checkpoint's generation_config, then the library's)")
    group.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of one answer")
    group.add_argument("--temp", type=float, metavar="T", help="temperature; 0 is greedy")
    group.add_argument("--top-p", type=float, metavar="P", help="keep the most likely tokens up to this mass")
    group.add_argument("--top-k", type=int, metavar="K", help="keep this many of the most likely tokens; 0 is all")
    group.add_argument("--min-p", type=float, metavar="P", help="drop tokens below this share of the likeliest")
    group.add_argument("--seed", type=int, metavar="N", help="makes sampling repeatable")
    group.add_argument("--repetition-penalty", type=float, metavar="X", help="factor against recent tokens")
    group.add_argument("--repetition-context-size", type=int, metavar="N", help="how many tokens are recent for it")
    group.add_argument("--presence-penalty", type=float, metavar="X", help="taken from tokens that occurred recently")
    group.add_argument("--presence-context-size", type=int, metavar="N", help="how many tokens are recent for it")
    group.add_argument("--frequency-penalty", type=float, metavar="X", help="taken for each recent occurrence")
    group.add_argument("--frequency-context-size", type=int, metavar="N", help="how many tokens are recent for it")
    group.add_argument("--logit-bias", type=logit_bias, metavar="JSON", help='added to logits, such as {"42": -5}')
    group.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        help="end the answer before this text; may be given up to four times",
    )
    group.add_argument(
        "--block-size", type=int, metavar="N", help="rows of a block, anchor included; 1 is plain (default: measured)"
    )
    group.add_argument(
        "--verify-mode",
        metavar="MODE",
        help="adaptive: block sizes follow what is measured, down to plain decoding; dflash: one size; off: plain "
        "(default: adaptive, and dflash with --block-size)",
    )
    group.add_argument(
        "--verify-precision",
        metavar="PRECISION",
        help="fast: a block in one pass; reference: one row at a time, for comparison (default: fast)",
    )
    group.add_argument("--prefill-step-size", type=int, metavar="N", help="prompt tokens of one prefill chunk")


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompt")
    group.add_argument("--system", metavar="TEXT", help="system message")
    group.add_argument(
        "--reasoning",
        choices=REASONING,
        metavar="MODE",
        help="on, off, low, medium or high: passed as the key that the model's chat template knows",
    )
    group.add_argument(
        "--chat-template-args",
        type=json_object,
        metavar="JSON",
        help="further arguments of the chat template",
    )


def model_choice(args: argparse.Namespace) -> ModelChoice:
    return ModelChoice(args.model, draft_name(args.draft), quant_spec(args.draft_quant), args.dtype)


def draft_name(text: str) -> str | None:
    """The drafter as `load` takes it: the word none means no drafter."""
    return None if text == "none" else text


def quant_spec(text: str) -> str | None:
    return None if text == "off" else text


def given_parameters(args: argparse.Namespace) -> dict[str, Any]:
    """The request's parameters that the command line gives, by the library's names."""
    flags = {ALIASES.get(name, name): value for name, value in vars(args).items()}
    return {name: flags[name] for name in REQUEST_PARAMETERS if flags.get(name) is not None}


def with_defaults(given: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """What is passed on: the checkpoint's defaults, overridden by what was given; block sizes by measurement."""
    known = {name: checkpoint[name] for name in CHECKPOINT_DEFAULTS if checkpoint.get(name) is not None}
    mode = {} if given.get("block_size") is not None else {"verify_mode": "adaptive"}
    return {**mode, **known, **given}


def parameter_name(name: str) -> str:
    """The library's name of a parameter written with dashes or in mlx-lm's short form.

    Raises RequestError when there is none of that name.
    """
    plain = name.removeprefix("--").replace("-", "_")
    found = ALIASES.get(plain, plain)
    if found not in REQUEST_PARAMETERS:
        raise RequestError(f"no parameter {name!r}: there are {', '.join(REQUEST_PARAMETERS)}", param=name)
    return found


def parameter_value(name: str, text: str) -> Any:
    """The value of a parameter as it is typed: JSON where it is JSON, else the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if parameter_name(name) != "logit_bias" or not isinstance(value, dict):
        return value
    try:
        return bias_map(value)
    except ValueError as error:
        raise RequestError(str(error), param=name) from None


def logit_bias(text: str) -> dict[int, float]:
    """An argparse type: a JSON object of token ids and what is added to their logits."""
    try:
        return bias_map(json_object(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def bias_map(value: Mapping[str, Any]) -> dict[int, float]:
    """A logit bias read from JSON, whose keys are text. Raises ValueError for other than ids and numbers."""
    try:
        return {int(token): float(bias) for token, bias in value.items()}
    except (TypeError, ValueError):
        raise ValueError('a logit bias maps ids to numbers: {"42": -5}') from None


def json_object(text: str) -> dict[str, Any]:
    """An argparse type: a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value
