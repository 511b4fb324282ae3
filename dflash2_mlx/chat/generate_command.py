"""`dflash2-mlx generate`: one prompt, its answer on stdout, nothing else there."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dflash2_mlx.chat import options
from dflash2_mlx.chat.figures import figures_line
from dflash2_mlx.chat.progress import loading
from dflash2_mlx.chat.visible import visible
from dflash2_mlx.errors import RequestError

if TYPE_CHECKING:
    from dflash2_mlx.chat.backend import Backend
    from dflash2_mlx.pairs import Pair


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [options] [PROMPT|-]"
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt; - or none reads it from stdin")
    options.add_model_arguments(parser)
    options.add_prompt_arguments(parser)
    parser.add_argument("--raw", action="store_true", help="give the prompt to the model as it is, without template")
    options.add_sampling_arguments(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of streaming the text")
    group.add_argument(
        "--logprobs",
        type=int,
        metavar="N",
        help="with --json: log probabilities, of N alternatives too (0: none)",
    )


def run(args: argparse.Namespace, backend: Backend | None = None) -> int:
    """Raises RequestError for bad input, before the model is loaded where that can be told."""
    _check(args)
    prompt = read_prompt(args.prompt)
    check_values(options.given_parameters(args))
    if backend is None:
        from dflash2_mlx.chat.backend import Library

        backend = Library()
    with loading() as progress:
        pair = backend.load(options.model_choice(args), progress)
    parameters = options.with_defaults(options.given_parameters(args), pair.defaults)
    if args.logprobs is not None:
        parameters["logprobs"] = args.logprobs
    steps = backend.stream(pair, prompt if args.raw else _templated(args, pair, prompt), **parameters)
    if args.json:
        print(json.dumps(_collect(steps, pair.tokenizer, args.logprobs is not None), ensure_ascii=False))
    else:
        _print(steps)
    return 0


def read_prompt(given: str | None) -> str:
    """The prompt of the command line or of stdin. Raises RequestError when there is none."""
    if given is not None and given != "-":
        text = given.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # bytes that were no UTF-8
    elif given is None and sys.stdin.isatty():
        raise RequestError("no prompt: give one, or pipe one in", param="prompt")
    else:
        text = sys.stdin.buffer.read().decode("utf-8", "replace").removesuffix("\n")
    if not text.strip():
        raise RequestError("the prompt is empty", param="prompt")
    return text


def check_values(parameters: dict[str, Any]) -> None:
    """Refuse what no pair would take; what depends on the pair is checked once it is loaded."""
    from dflash2_mlx.chat.backend import check_parameters

    check_parameters(parameters, vocab_size=1 << 31, block_size=max(2, parameters.get("block_size") or 2))


def _check(args: argparse.Namespace) -> None:
    if args.logprobs is not None and not args.json:
        raise RequestError("--logprobs is shown only with --json", param="logprobs")
    if args.raw:
        for flag in ("system", "reasoning", "chat_template_args"):
            if getattr(args, flag) is not None:
                raise RequestError(
                    f"--{flag.replace('_', '-')} needs the chat template, which --raw leaves out", param=flag
                )


def _templated(args: argparse.Namespace, pair: Pair, prompt: str) -> list[int]:
    from dflash2_mlx.text.template import ChatTemplate

    template = ChatTemplate(pair.tokenizer)
    messages = [{"role": "user", "content": prompt}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": args.system})
    return template.encode(template.render(messages, reasoning=args.reasoning, extra=args.chat_template_args))


def _print(steps: Iterator[Any]) -> None:
    show = visible if sys.stdout.isatty() else str
    step = None
    for step in steps:
        sys.stdout.write(show(step.text))
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
    if step is not None and sys.stderr.isatty():
        print(figures_line(step.stats.as_dict(), step.finish_reason), file=sys.stderr)


def _collect(steps: Iterator[Any], tokenizer: Any, with_logprobs: bool) -> dict[str, Any]:
    text, tokens, logprobs, finish, stats = "", [], [], None, {}
    for step in steps:
        text += step.text
        tokens += step.tokens
        logprobs += [_logprob(entry, tokenizer) for entry in step.logprobs or []]
        finish, stats = step.finish_reason, step.stats.as_dict()
    shown = {"logprobs": logprobs} if with_logprobs else {}
    return {"text": text, "tokens": tokens, "finish_reason": finish, **shown, "stats": stats}


def _logprob(entry: Any, tokenizer: Any) -> dict[str, Any]:
    return {
        **_alternative(entry.token, entry.logprob, tokenizer),
        "top": [_alternative(token, logprob, tokenizer) for token, logprob in entry.top],
    }


def _alternative(token: int, logprob: float, tokenizer: Any) -> dict[str, Any]:
    """JSON has no infinity: what a filter or a bias excludes is null."""
    return {
        "token": token,
        "text": tokenizer.decode([token]),
        "logprob": logprob if logprob > float("-inf") else None,
    }
