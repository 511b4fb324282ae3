"""`dflash2-mlx`: finds the command's module, runs it, and turns errors into one line and an exit code.

A command is a word, or two (`train data`). Commands are named as strings and imported when chosen: importing mlx-lm
costs seconds, `--help` must not. A command's module has `add_arguments(parser)` and `run(args) -> int`.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from dflash2_mlx import __version__
from dflash2_mlx._blas import preload
from dflash2_mlx.errors import DFlashError, RequestError

PROGRAM = "dflash2-mlx"

# command: (module, what it does). The order is that of the help.
COMMANDS: dict[str, tuple[str, str]] = {
    "generate": ("dflash2_mlx.chat.generate_command", "Answer one prompt and leave."),
    "chat": ("dflash2_mlx.chat.chat_command", "Talk with a model in the terminal."),
    "serve": ("dflash2_server.serve_command", "Serve OpenAI's and Anthropic's protocols on a local port."),
    "app": ("dflash2_app.app_command", "Open the model manager in a window, with the server behind it."),
    "service": ("dflash2_server.service_command", "Start the server at login (macOS)."),
    "config": ("dflash2_server.config_command", "Show and change the settings of models and of the server."),
    "bench": ("dflash2_mlx.bench.bench_command", "Compare plain and speculative decoding by content and context."),
    "tune": ("dflash2_mlx.bench.tune_command", "Measure what a verify costs by width, for automatic block sizes."),
    "analyze": (
        "dflash2_mlx.analyze.analyze_command",
        "Tell recall, acceptance and what each part of a drafter brings.",
    ),
    "train": ("dflash2_mlx.train.run.command", "Train a drafter for a target, on data of `train data`."),
    "train data": ("dflash2_mlx.train.data.command", "Prepare a target's own text for training a drafter."),
    "quantize": ("dflash2_quantize.quantize_command", "Write a quantised drafter, and tell what that costs."),
    "doctor": ("dflash2_mlx.chat.doctor", "Tell what is installed, the memory, and whether a pair fits."),
}

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _print_anything()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except DFlashError as error:
        return _fail(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it exits: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except (ImportError, SystemError) as error:
        if _was_interrupted(error):
            return EXIT_INTERRUPTED
        raise


def top_parser() -> argparse.ArgumentParser:
    """The parser of what stands before a command: `--help` and `--version`."""
    width = max(map(len, COMMANDS))
    table = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} COMMAND [options]",
        description="Exact speculative decoding with DFlash drafters on MLX.",
        epilog=f"commands:\n{table}\n\n`{PROGRAM} COMMAND --help` tells a command's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    return parser


def command_parser(name: str, module: ModuleType) -> argparse.ArgumentParser:
    """The parser of one command, filled by its module."""
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {name}",
        usage=f"{PROGRAM} {name} [options]",
        description=COMMANDS[name][1],
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser


def _dispatch(arguments: list[str]) -> int:
    name = _command(arguments)
    if name in COMMANDS:
        preload()  # raises for a wrong DFLASH2_BLAS
        module = importlib.import_module(COMMANDS[name][0])
        code = module.run(command_parser(name, module).parse_args(arguments[len(name.split()) :]))
        return int(code)
    parser = top_parser()
    if name and not name.startswith("-"):
        raise RequestError(_unknown(name), param="command")
    if parser.parse_args(arguments).version:
        print(f"{PROGRAM} {__version__}")
        return 0
    parser.print_help(sys.stderr)
    return EXIT_USAGE


def _command(arguments: Sequence[str]) -> str:
    """The command that the arguments begin with: two words where there is one of those, else the first."""
    words = " ".join(arguments[:2])
    return words if words in COMMANDS else next(iter(arguments), "")


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}"
    return f"no command {name!r}: {hint}"


def _fail(error: DFlashError) -> int:
    message = " ".join(str(error).split())
    print(f"{PROGRAM}: error: {message}", file=sys.stderr)
    return EXIT_USAGE if isinstance(error, RequestError) else EXIT_ERROR


def _was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C is behind it: a library that it meets while it is imported may raise an error of its own."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None


def _print_anything() -> None:
    """Let a character that the terminal's encoding lacks come out as `?`, not as an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
