"""The chat loop: reads a line, obeys a command or lets the model answer."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash2_mlx.chat import commands
from dflash2_mlx.chat.figures import figures_line, stats_lines
from dflash2_mlx.chat.keyboard import interrupts, no_echo
from dflash2_mlx.chat.options import REASONING, ModelChoice, draft_name, parameter_name, parameter_value
from dflash2_mlx.chat.progress import loading
from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_mlx.text.reasoning import Piece

if TYPE_CHECKING:
    from dflash2_mlx.chat.backend import Backend
    from dflash2_mlx.chat.reader import Reader
    from dflash2_mlx.chat.render import Screen
    from dflash2_mlx.chat.session import Session


class Repl:
    """Ties a conversation to a reader and a screen."""

    def __init__(self, session: Session, choice: ModelChoice, backend: Backend, reader: Reader, screen: Screen) -> None:
        self.session = session
        self._choice = choice
        self._backend = backend
        self._reader = reader
        self._screen = screen
        self._unsent = ""  # offered again at the next prompt: nothing that was typed is lost to an error
        self._orders: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/clear": self._clear,
            "/system": self._system,
            "/think": self._think,
            "/set": self._set,
            "/model": self._model,
            "/draft": self._draft,
            "/stats": self._stats,
            "/retry": self._retry,
            "/undo": self._undo,
            "/save": self._save,
            "/load": self._load,
        }

    def run(self) -> None:
        """Until /bye or the end of the input."""
        self._screen.note([describe(self.session), "/help lists the commands, Ctrl-D leaves."])
        while True:
            unsent, self._unsent = self._unsent, ""
            try:
                line = self._reader.read(unsent)
            except EOFError:
                return
            except KeyboardInterrupt:
                self._screen.note("Ctrl-D or /bye leaves.")
                continue
            if line.strip() and not self.handle(line):
                return

    def handle(self, line: str) -> bool:
        """Obey or answer one line; False when it was /bye."""
        what = commands.parse(line)
        try:
            if isinstance(what, commands.Said):
                self._say(what.text, line)
            elif what.name == "/bye":
                return False
            else:
                self._orders[what.name](what.rest)
        except DFlashError as error:
            self._screen.error(" ".join(str(error).split()))
        except (RuntimeError, MemoryError) as error:  # of MLX, such as a device out of memory: the conversation stays
            self._screen.error(f"{type(error).__name__}: {' '.join(str(error).split())}")
        return True

    def _say(self, text: str, line: str) -> None:
        def turn(progress: Callable[[int, int], None]) -> Generator[Piece]:
            return self.session.send(text, progress=progress)

        self._unsent = line
        if self._show(turn):
            self._unsent = ""

    def _show(self, turn: Callable[[Callable[[int, int], None]], Generator[Piece]]) -> bool:
        """Stream one answer, then its figures; whether an answer began.

        The first Ctrl-C ends it after the current cycle, a second one at once.
        """
        before = self.session.messages
        with (
            interrupts(self.session.stop),
            no_echo(),
            self._screen.answer() as answer,
            suppress(KeyboardInterrupt),
            closing(turn(answer.waiting)) as pieces,
        ):
            for piece in pieces:
                answer.feed(piece)
        if self.session.messages is before:
            self._screen.note("stopped before the answer began")
            return False
        self._screen.note(figures_line(self.session.stats.as_dict(), self.session.finish_reason))
        return True

    def _help(self, _: str) -> None:
        self._screen.note(commands.help_lines())

    def _clear(self, _: str) -> None:
        self.session.clear()
        self._screen.note("the conversation is forgotten")

    def _system(self, text: str) -> None:
        if text:
            self.session.system = None if text == "none" else text
        self._screen.note(f"system message: {self.session.system or 'none'}")

    def _think(self, choice: str) -> None:
        if choice and choice not in (*REASONING, "default"):
            raise RequestError(f"/think {choice}: it takes {', '.join(REASONING)} or default", param="reasoning")
        if choice:
            self.session.set_reasoning(None if choice == "default" else choice)
        self._screen.note(f"thinking: {self.session.reasoning or 'as the model does by default'}")

    def _set(self, rest: str) -> None:
        name, *value = rest.split(maxsplit=1) or [""]
        if value:
            self.session.set_parameter(name, None if value[0] == "default" else parameter_value(name, value[0]))
        force = self.session.parameters_in_force()
        shown = {parameter_name(name): force.get(parameter_name(name), "default")} if name else force
        self._screen.note(
            [f"{key} = {number}" for key, number in shown.items()] or "all parameters are at their defaults"
        )

    def _model(self, name: str) -> None:
        if name:
            self._swap(replace(self._choice, model=name, draft="auto"))
        self._screen.note(describe(self.session))

    def _draft(self, name: str) -> None:
        if name:
            self._swap(replace(self._choice, draft=draft_name(name)))
        self._screen.note(describe(self.session))

    def _swap(self, choice: ModelChoice) -> None:
        """Load another pair. The old one stays until the new one is there, and when it does not come."""
        try:
            with no_echo(), loading() as progress:
                pair = self._backend.load(choice, progress)
            notes = self.session.adopt(pair)
        except KeyboardInterrupt:
            self._screen.error("loading was stopped; the pair stays as it was")
        except Exception as error:  # a checkpoint may fail in any library below: the conversation must not be lost
            reason = str(error) if isinstance(error, DFlashError) else f"{type(error).__name__}: {error}"
            self._screen.error(f"could not load it: {' '.join(reason.split())}. The pair stays as it was.")
        else:
            self._choice = choice
            self._screen.note(notes)

    def _stats(self, _: str) -> None:
        if self.session.stats is None:
            raise RequestError("there are no figures before the first answer")
        self._screen.note(stats_lines(self.session.stats.as_dict()))

    def _retry(self, _: str) -> None:
        self._show(lambda progress: self.session.retry(progress=progress))

    def _undo(self, _: str) -> None:
        self._screen.note(f"taken back: {self.session.undo().splitlines()[0][:60]}")

    def _save(self, path: str) -> None:
        self.session.save(_path(path))
        self._screen.note(f"saved to {path}")

    def _load(self, path: str) -> None:
        saved = self.session.load(_path(path))
        turns = len(saved.messages) // 2
        other = f"; it was held with {saved.model}" if saved.model != self.session.pair.model_name else ""
        self._screen.note(f"{path}: {turns} turn{'s' * (turns != 1)}{other}")


def describe(session: Session) -> str:
    """One line: the pair and how it decodes."""
    pair = session.pair
    drafter = f"drafter {pair.drafter_name}" if pair.drafter_name else "no drafter"
    block = f", blocks up to {pair.block_size}" if pair.engine != "plain" else ""
    reason = f" ({pair.fallback_reason})" if pair.fallback_reason else ""
    return f"target {pair.model_name}, {drafter}: {pair.engine}{block}{reason}"


def _path(text: str) -> Path:
    if not text:
        raise RequestError("which file? write its path after the command", param="path")
    return Path(text).expanduser()
