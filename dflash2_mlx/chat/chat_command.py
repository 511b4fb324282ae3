"""`dflash2-mlx chat`: loads a pair and starts the loop."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from dflash2_mlx.chat import options

if TYPE_CHECKING:
    from dflash2_mlx.chat.backend import Backend


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model_arguments(parser)
    options.add_prompt_arguments(parser)
    options.add_sampling_arguments(parser)


def run(args: argparse.Namespace, backend: Backend | None = None) -> int:
    from dflash2_mlx.chat.backend import Library
    from dflash2_mlx.chat.keyboard import no_echo
    from dflash2_mlx.chat.progress import loading
    from dflash2_mlx.chat.reader import PlainReader, TerminalReader
    from dflash2_mlx.chat.render import screen
    from dflash2_mlx.chat.repl import Repl
    from dflash2_mlx.chat.session import Session

    backend = backend or Library()
    choice = options.model_choice(args)
    with no_echo(), loading() as progress:
        pair = backend.load(choice, progress)
    session = Session(
        pair,
        backend,
        system=args.system,
        reasoning=args.reasoning,
        parameters=options.given_parameters(args),
        template_arguments=args.chat_template_args,
    )
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    Repl(session, choice, backend, TerminalReader() if terminal else PlainReader(), screen()).run()
    return 0
