"""`dflash2-mlx bench`: plan, load, measure, report. Everything that can be refused is, before a model is loaded."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from dflash2_mlx.chat import options
from dflash2_mlx.errors import RequestError

if TYPE_CHECKING:
    from dflash2_mlx.bench.loading import Draft, Server
    from dflash2_mlx.bench.model import Plan, Result
    from dflash2_mlx.bench.run import Backend
    from dflash2_mlx.prompts import Prompt

_INTERRUPTED = 130  # as cli.EXIT_INTERRUPTED, which is above


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model_arguments(parser)
    parser.set_defaults(model=None)  # with an endpoint, a model of this machine is measured only when it is named
    _add_arms(parser)
    _add_prompts(parser)
    _add_measuring(parser)
    _add_endpoints(parser)
    group = parser.add_argument_group("output (a table in the terminal always)")
    group.add_argument("--json", metavar="FILE", help="write all samples, with what they stand on")
    group.add_argument("--html", metavar="FILE", help="write a report with plots; FILE.md writes Markdown")


def _add_arms(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is compared (plain decoding always is)")
    group.add_argument(
        "--block-sizes", default="auto", metavar="LIST", help="block sizes, such as 3,5,8,auto (default: auto)"
    )
    group.add_argument(
        "--verify-modes", default="dflash", metavar="LIST", help="of dflash, adaptive and off (default: dflash)"
    )
    group.add_argument(
        "--compare-draft", action="append", default=[], metavar="ID|PATH", help="a further drafter; may be repeated"
    )
    group.add_argument(
        "--compare-draft-quant",
        action="append",
        default=[],
        metavar="SPEC|off",
        help="the drafter at a further quantisation; may be repeated",
    )
    group.add_argument("--temps", default="0", metavar="LIST", help="temperatures, such as 0,1 (default: 0)")
    group.add_argument(
        "--control", action="store_true", help="measure the baseline twice: what comparing a thing with itself gives"
    )


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    group.add_argument("--kinds", metavar="LIST", help="kinds of content, such as code,chat (default: all)")
    group.add_argument("--prompts-per-kind", type=int, metavar="N", help="prompts of each kind, or of a set")
    group.add_argument("--set", metavar="LIST", help="of gsm8k, math500, humaneval, mbpp and mtbench, from the Hub")
    group.add_argument("--prompts", metavar="FILE", help="JSON Lines with `prompt` or `messages`, or the rows of a set")
    group.add_argument(
        "--depths", default="0", metavar="LIST", help="tokens of context before an answer; 0: the prompt (default: 0)"
    )


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measuring")
    group.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer (default: 128)")
    group.add_argument("--rounds", type=int, metavar="N", help="how often all is run (default: 3)")
    group.add_argument("--cool-down", type=float, default=0.0, metavar="S", help="seconds of rest before each answer")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of sampling; all arms share it (default: 0)")
    group.add_argument("--quick", action="store_true", help="few short answers: a first look")


def _add_endpoints(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("servers (with these, a model of this machine only where --model names one)")
    group.add_argument(
        "--endpoint",
        action="append",
        default=[],
        metavar="URL",
        help="an OpenAI-compatible server; may be repeated, the first is the baseline",
    )
    group.add_argument(
        "--endpoint-model", action="append", default=[], metavar="NAME", help="its model (default: its first)"
    )
    group.add_argument(
        "--endpoint-key-env", action="append", default=[], metavar="VAR", help="environment variable that has its key"
    )
    group.add_argument(
        "--endpoint-dflash",
        action="store_true",
        help="the endpoint is this program's server: compare plain and speculative decoding there",
    )
    group.add_argument(
        "--concurrency", type=int, default=1, metavar="N", help="requests in flight, endpoints only (default: 1)"
    )


def run(args: argparse.Namespace) -> int:
    """Raises RequestError for what cannot be measured; 130 after Ctrl-C, with what was there."""
    from dflash2_mlx.bench.choices import checked_files, chosen_prompts
    from dflash2_mlx.bench.loading import server_names

    files = checked_files(args)
    servers = server_names(_servers(args))
    drafts = _drafts(args) if args.model or not servers else {}
    prompts = chosen_prompts(args)
    plan = _plan(args, prompts, drafts, list(servers))
    with ExitStack() as stack:
        result = _measured(args, plan, prompts, _backends(args, plan, drafts, servers, stack))
    _report(args, result)
    for path in files:
        print(f"written: {path}", file=sys.stderr)
    if result.extra.get("ended") == "interrupted":
        return _INTERRUPTED
    return 1 if result.cancelled else 0


def _servers(args: argparse.Namespace) -> list[Server]:
    from dflash2_mlx.bench.loading import named_servers

    servers = named_servers(args.endpoint, args.endpoint_model, args.endpoint_key_env)
    if not servers and (args.endpoint_model or args.endpoint_key_env or args.endpoint_dflash):
        raise RequestError("a server is meant, but none is named: add --endpoint URL", param="endpoint")
    return servers


def _drafts(args: argparse.Namespace) -> dict[str, Draft]:
    from dflash2_mlx.bench.loading import named_drafts

    args.model = args.model or "demo"
    if args.concurrency != 1:
        raise RequestError(
            f"--concurrency is {args.concurrency}, but a model of this machine answers one request at a time here: "
            "start `dflash2-mlx serve` and measure it with --endpoint",
            param="concurrency",
        )
    if "none" in args.compare_draft:
        raise RequestError("--compare-draft none: plain decoding is measured anyway", param="compare-draft")
    quants = [options.quant_spec(spec) for spec in args.compare_draft_quant]
    return named_drafts(options.model_choice(args), args.compare_draft, quants)


def _plan(args: argparse.Namespace, prompts: list[Prompt], drafts: dict[str, Draft], servers: list[str]) -> Plan:
    from dflash2_mlx.bench.choices import QUICK, USUAL, block_size, listed
    from dflash2_mlx.bench.plan import make_plan

    modes = listed(args.verify_modes, "verify-modes", str)
    sizes = listed(args.block_sizes, "block-sizes", block_size)
    if all(draft.name is None for draft in drafts.values()) and drafts and sizes == [None]:
        modes = ["off"]
    usual = QUICK if args.quick else USUAL
    speculating_servers = servers if args.endpoint_dflash else []
    return make_plan(
        prompts,
        block_sizes=sizes,
        verify_modes=modes,
        temperatures=listed(args.temps, "temps", float),
        depths=listed(args.depths, "depths", int),
        pairs=[*drafts, *speculating_servers],
        endpoints=[name for name in servers if name not in speculating_servers],
        control=args.control,
        max_tokens=usual["max_tokens"] if args.max_tokens is None else args.max_tokens,
        rounds=usual["rounds"] if args.rounds is None else args.rounds,
        cool_down=args.cool_down,
        concurrency=args.concurrency,
        seed=args.seed,
    )


def _backends(
    args: argparse.Namespace, plan: Plan, drafts: dict[str, Draft], servers: dict[str, Server], stack: ExitStack
) -> dict[str, Backend]:
    """Servers are asked first: one that is not there costs no loading."""
    from dflash2_mlx.bench.loading import connect, load_pairs
    from dflash2_mlx.chat.progress import loading

    backends: dict[str, Backend] = {name: stack.enter_context(connect(server)) for name, server in servers.items()}
    if not drafts:
        return backends
    from dflash2_mlx.bench.local import LocalPair

    with loading() as progress:
        pairs = load_pairs(options.model_choice(args), drafts, progress)
    deepest = max(plan.prompts, key=lambda prompt: prompt.depth)
    for name, pair in pairs.items():
        local = LocalPair(pair)
        for arm in plan.arms:
            if arm.backend == name:
                local.check(arm, deepest, plan.max_tokens)
        backends[name] = local
    return backends


def _measured(args: argparse.Namespace, plan: Plan, prompts: list[Prompt], backends: dict[str, Backend]) -> Result:
    from dflash2_mlx.bench import run as bench
    from dflash2_mlx.bench.facts import command_fact, machine_facts, prompt_facts
    from dflash2_mlx.bench.progress import measuring

    facts = {**machine_facts(), **prompt_facts(prompts), **command_fact(sys.argv[1:])}
    with measuring(len(plan.arms)) as progress:
        return bench.run(plan, backends, facts=facts, progress=progress)


def _report(args: argparse.Namespace, result: Result) -> None:
    """Files first, since a terminal may be gone; the terminal even so, where a file cannot be written."""
    from pathlib import Path

    from dflash2_mlx.bench.blocks import report
    from dflash2_mlx.bench.results import as_dict
    from dflash2_mlx.report.files import write_report
    from dflash2_mlx.report.terminal import show
    from dflash2_mlx.report.whole import write_whole

    made = report(result)
    try:
        if args.json:
            text = json.dumps(as_dict(result), indent=1, ensure_ascii=False, allow_nan=False)
            write_whole(Path(args.json).expanduser(), text + "\n")
        if args.html:
            write_report(made, Path(args.html).expanduser())
    finally:
        show(made)
