"""The chat as a user sees it: line editor (through a pipe), loop and commands, what is drawn. No model."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from dflash2_mlx import cli
from dflash2_mlx.chat import backend as backend_module
from dflash2_mlx.chat import commands
from dflash2_mlx.chat.keyboard import no_echo
from dflash2_mlx.chat.options import ModelChoice
from dflash2_mlx.chat.reader import CommandCompleter, PlainReader, TerminalReader, history_on_disk
from dflash2_mlx.chat.render import (
    PlainScreen,
    TerminalScreen,
    finished_markdown,
    finished_thinking,
)
from dflash2_mlx.chat.repl import Repl
from dflash2_mlx.chat.session import Session
from dflash2_mlx.errors import ModelNotFound
from dflash2_mlx.text.reasoning import Piece
from tests.chat_doubles import THINKING, FakeBackend, FakePair, make_tokenizer

ENTER, ALT_ENTER, UP, CTRL_C, CTRL_D = "\r", "\x1b\r", "\x1b[A", "\x03", "\x04"


def paste(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


# --- the line editor --------------------------------------------------------------------------------------


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe:
        yield pipe


def editor(keyboard: PipeInput, history: Any = None) -> TerminalReader:
    return TerminalReader(history or InMemoryHistory(), terminal_input=keyboard, output=DummyOutput())


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ("hello" + ENTER, commands.Said("hello")),
        ("/clear" + ENTER, commands.Ordered("/clear", "")),
        ("one" + ALT_ENTER + "two" + ENTER, commands.Said("one\ntwo")),
        ('"""one' + ENTER + "two" + ENTER + '"""' + ENTER, commands.Said("one\ntwo")),
        ('"""/clear"""' + ENTER, commands.Said("/clear")),
        (paste("/clear") + ENTER, commands.Said("/clear")),
        (paste("/clear\r\n/undo\n") + ENTER, commands.Said("/clear\n/undo")),
        ("  " + paste("/clear") + ENTER, commands.Said("  /clear")),
        (paste("/cl") + "ear" + ENTER, commands.Said("/clear")),
        (paste('"""doc"""\nx = 1') + ENTER, commands.Said('"""doc"""\nx = 1')),
        ("/load " + paste("talk.json") + ENTER, commands.Ordered("/load", "talk.json")),
        (paste("x") + "\x7f" + "/clear" + ENTER, commands.Ordered("/clear", "")),
    ],
)
def test_what_is_typed_or_pasted(keys: str, what: object, keyboard: PipeInput) -> None:
    keyboard.send_text(keys)
    assert commands.parse(editor(keyboard).read()) == what


def test_pasted_text_is_still_text_when_it_is_recalled(keyboard: PipeInput, tmp_path: Path) -> None:
    history = FileHistory(str(tmp_path / "history"))
    keyboard.send_text(paste("/clear") + ENTER)
    editor(keyboard, history).read()
    keyboard.send_text(UP + ENTER)
    recalled = editor(keyboard, FileHistory(str(tmp_path / "history"))).read()
    assert commands.parse(recalled) == commands.Said("/clear")


def test_the_control_a_typed_command_is_recalled_as_one(keyboard: PipeInput) -> None:
    history = InMemoryHistory()
    keyboard.send_text("/clear" + ENTER)
    editor(keyboard, history).read()
    keyboard.send_text(UP + ENTER)
    assert commands.parse(editor(keyboard, history).read()) == commands.Ordered("/clear", "")


def test_tab_completes_commands_only() -> None:
    def offered(typed: str) -> list[str]:
        document = Document(typed)
        return [done.text for done in CommandCompleter().get_completions(document, CompleteEvent())]

    assert offered("/s") == ["/system", "/set", "/stats", "/save"]
    assert offered("see /s") == offered("") == []


@pytest.mark.parametrize(("key", "error"), [(CTRL_C, KeyboardInterrupt), (CTRL_D, EOFError)])
def test_keys_that_leave_the_line(key: str, error: type[BaseException], keyboard: PipeInput) -> None:
    keyboard.send_text(key)
    with pytest.raises(error):
        editor(keyboard).read()


def test_an_unsent_line_is_offered_again(keyboard: PipeInput) -> None:
    keyboard.send_text("!" + ENTER)
    assert editor(keyboard).read("hello") == "hello!"


def test_history_is_private_and_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_state_dir", lambda name: str(tmp_path / name))
    assert isinstance(history_on_disk(), FileHistory)
    assert (tmp_path / "dflash2-mlx" / "chat_history").stat().st_mode & 0o077 == 0
    (tmp_path / "file").touch()
    monkeypatch.setattr("platformdirs.user_state_dir", lambda name: str(tmp_path / "file" / name))
    assert isinstance(history_on_disk(), InMemoryHistory)


def test_plain_lines() -> None:
    reader = PlainReader(io.StringIO('one\n"""two\nthree"""\n\n"""never closed'))
    assert [commands.parse(reader.read()) for _ in range(4)] == [
        commands.Said("one"),
        commands.Said("two\nthree"),
        commands.Said(""),
        commands.Said("never closed"),
    ]
    with pytest.raises(EOFError):
        reader.read()


# --- the loop ---------------------------------------------------------------------------------------------


class Script:
    """A reader that types lines; an exception among them is raised."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self.lines = list(lines)
        self.offered: list[str] = []

    def read(self, default: str = "") -> str:
        self.offered.append(default)
        line = self.lines.pop(0) if self.lines else EOFError
        if isinstance(line, str):
            return line
        raise line


class Talk:
    """A loop with doubles all around; `shown` is stdout, `notes` what the chat itself says."""

    def __init__(self, backend: FakeBackend | None = None, pair: FakePair | None = None) -> None:
        self.backend = backend or FakeBackend()
        self.out, self.err = io.StringIO(), io.StringIO()
        self.session: Any = Session(pair or FakePair(), self.backend)  # type: ignore[arg-type]

    def type(self, *lines: str | type[BaseException]) -> Script:
        script = Script(*lines)
        screen = PlainScreen(self.out, self.err)
        Repl(self.session, ModelChoice(), self.backend, script, screen).run()  # type: ignore[arg-type]
        return script

    @property
    def notes(self) -> str:
        return self.err.getvalue()

    @property
    def said(self) -> list[str]:
        return [message["content"] for message in self.session.messages]


def test_a_conversation() -> None:
    talk = Talk(FakeBackend(["one", "two"]))
    script = talk.type("a", "", "b", "/bye", "never read")
    assert talk.out.getvalue() == "one\ntwo\n"
    assert talk.said == ["a", "one", "b", "two"]
    assert script.lines == ["never read"]
    assert talk.notes.count(" per cycle") == 2, "one line of figures after each answer"
    assert "target demo, drafter demo-drafter: dflash2, blocks up to 4" in talk.notes


def test_a_conversation_through_the_line_editor(keyboard: PipeInput) -> None:
    talk = Talk(FakeBackend(["one", "two", "three"]))
    keyboard.send_text("a" + ENTER + paste("/undo") + ENTER + "c" + CTRL_C + "/undo" + ENTER)
    keyboard.send_text('"""b' + ENTER + 'b"""' + ENTER + CTRL_D)
    Repl(talk.session, ModelChoice(), talk.backend, editor(keyboard), PlainScreen(talk.out, talk.err)).run()
    assert talk.said == ["a", "one", "b\nb", "three"]


def test_typing_ahead_is_not_echoed(monkeypatch: pytest.MonkeyPatch) -> None:
    import pty
    import termios

    leader, follower = pty.openpty()

    def echoes() -> bool:
        return bool(termios.tcgetattr(follower)[3] & termios.ECHO)

    with open(follower, encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        with suppress(KeyboardInterrupt), no_echo():
            assert not echoes()
            raise KeyboardInterrupt
        assert echoes()
    os.close(leader)


def test_ctrl_c_at_the_prompt_stays_and_ctrl_d_leaves() -> None:
    talk = Talk(FakeBackend(["one"]))
    talk.type(KeyboardInterrupt, "a", EOFError, "never read")
    assert talk.said == ["a", "one"]
    assert "Ctrl-D or /bye leaves" in talk.notes


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_stops_the_answer_and_the_talk_goes_on(times: int) -> None:
    class Impatient(FakeBackend):
        """Presses Ctrl-C while the second step is made: once is polite, twice is at once."""

        def _raise_at(self, step: int) -> None:
            if step == 1 and len(self.calls) == 1:
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    talk = Talk(Impatient(["abcdefghi", "next"]))
    talk.type("a", "b")
    assert talk.said == ["a", "abc", "b", "next"]
    assert "· stopped" in talk.notes
    assert signal.getsignal(signal.SIGINT) is before


def test_a_refused_turn_is_offered_again() -> None:
    backend = FakeBackend(["one"])
    talk = Talk(backend)
    talk.session.parameters = {"temperature": -1}
    script = talk.type("a", "/set temp 0", "a")
    assert script.offered == ["", "a", "", ""]
    assert "temperature is -1" in talk.notes
    assert talk.said == ["a", "one"]


def test_ctrl_c_before_the_answer_offers_the_line_again() -> None:
    talk = Talk(FakeBackend(["one"], interrupt_at=0))
    script = talk.type("a")
    assert script.offered == ["", "a"]
    assert "stopped before the answer began" in talk.notes
    assert talk.said == []


def test_help_clear_undo_retry() -> None:
    talk = Talk(FakeBackend(["one", "two", "three"]))
    talk.type("/help", "a", "b", "/undo", "/retry", "/clear", "/undo", "/retry")
    assert "/think [on|off|low|medium|high|default]" in talk.notes
    assert talk.out.getvalue() == "one\ntwo\nthree\n"
    assert "taken back: b" in talk.notes
    assert talk.said == []
    assert "there is nothing to take back" in talk.notes
    assert "there is no answer to try again" in talk.notes


def test_system_and_think() -> None:
    talk = Talk(pair=FakePair(make_tokenizer(THINKING)))
    talk.type("/system Be brief.", "/system", "/think off", "/think loud", "/think high")
    assert talk.notes.count("system message: Be brief.") == 2
    assert talk.session.reasoning == "off"
    assert "/think loud: it takes on, off" in talk.notes
    assert "it can only be on or off" in talk.notes
    talk.type("/system none", "/think default")
    assert (talk.session.system, talk.session.reasoning) == (None, None)


def test_set() -> None:
    talk = Talk(pair=FakePair(defaults={"top_p": 0.9}))
    talk.type("/set", "/set temp 0.5", "/set stop ###", '/set logit-bias {"4": 2}', '/set logit_bias {"x": 2}')
    assert "top_p = 0.9" in talk.notes
    assert talk.session.parameters == {"temperature": 0.5, "stop": "###", "logit_bias": {4: 2.0}}
    assert "a logit bias maps ids to numbers" in talk.notes
    talk.type("/set temp warm", "/set warmth 3", "/set temp default", "/set seed")
    assert "temperature is 'warm'" in talk.notes
    assert "no parameter 'warmth'" in talk.notes
    assert "seed = default" in talk.notes
    assert "temperature" not in talk.session.parameters


def test_stats() -> None:
    talk = Talk()
    talk.type("/stats", "a", "/stats")
    assert "no figures before the first answer" in talk.notes
    assert "acceptance by position" in talk.notes
    assert "   1 ██████████████████████▌·······  75%" in talk.notes


def test_model_and_draft_keep_the_conversation() -> None:
    talk = Talk(FakeBackend(["one", "two"]))
    talk.type("a", "/model other", "/draft none", "/draft", "b")
    assert talk.backend.choices == [ModelChoice("other", "auto"), ModelChoice("other", None)]
    assert talk.session.pair.model_name == "other"
    assert talk.said == ["a", "one", "b", "two"]
    assert "one" in make_tokenizer().decode(talk.backend.calls[1]["prompt"])


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ModelNotFound("no folder 'other'"), "could not load it: no folder 'other'."),
        (MemoryError("out of memory"), "could not load it: MemoryError: out of memory."),
        (FakePair(make_tokenizer(None)), "no chat template"),
    ],
)
def test_a_failed_load_keeps_the_old_pair_and_says_so(failure: Any, reason: str) -> None:
    talk = Talk(FakeBackend(["one", "two"], pairs={"other": failure}))
    old = talk.session.pair
    talk.type("a", "/model other", "b", "/draft none")
    assert reason in talk.notes
    assert "stays as it was" in talk.notes
    assert talk.said == ["a", "one", "b", "two"]
    assert talk.backend.choices[-1] == ModelChoice("demo", None), "the failed choice is forgotten"
    assert old.model_name == "demo"


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    Talk(FakeBackend(["one"])).type("a", f"/save {path}", "/save")
    talk = Talk(FakeBackend(["two"]), FakePair(model_name="other"))
    talk.type(f"/load {path}", "b", "/load absent.json")
    assert talk.said == ["a", "one", "b", "two"]
    assert "1 turn; it was held with demo" in talk.notes
    assert "cannot read absent.json" in talk.notes


@pytest.mark.parametrize("line", ["/cleared", "/Clear", "please /clear", "/clear now", "/etc/hosts says?"])
def test_what_is_no_command_is_said(line: str) -> None:
    talk = Talk()
    talk.type(line)
    assert talk.said == [line, "Paris."]


def test_plain_thinking_stands_between_tags() -> None:
    talk = Talk(FakeBackend(["<think>\nhm\n</think>\n\nyes"]), FakePair(make_tokenizer(THINKING)))
    talk.type("a")
    assert talk.out.getvalue() == "<think>\nhm\n</think>\n\nyes\n"


def test_the_command_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    double = FakeBackend(["one", "two"])
    monkeypatch.setattr(backend_module, "Library", lambda: double)
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n/set temp 0.5\nb\n"))
    assert cli.main(["chat", "--system", "Be brief.", "--seed", "3"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "one\ntwo\n"
    assert "\x1b" not in shown.out + shown.err
    assert [(call.get("seed"), call.get("temperature")) for call in double.calls] == [(3, None), (3, 0.5)]


# --- what is drawn ----------------------------------------------------------------------------------------


def screen_after(written: str, height: int = 12) -> list[str]:
    """The lines that a terminal of `height` rows has shown and shows: a small emulator of what rich sends."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|.|\n", written, re.DOTALL):
        if token == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r":
            column = 0
        elif token.startswith("\x1b["):
            if token.endswith("A"):
                row -= int(token[2:-1] or 1)
                assert row >= max(0, len(lines) - height), "the cursor cannot leave the screen"
            elif token == "\x1b[2K":
                lines[row] = ""
        elif not token.startswith("\x1b"):
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def draw(pieces: list[Piece], monkeypatch: pytest.MonkeyPatch, *, height: int = 12) -> tuple[list[str], str]:
    """Every piece is drawn as if time had passed. Returns the screen and what was written."""
    ticks = iter(range(10**6))
    monkeypatch.setattr("dflash2_mlx.chat.render.time.monotonic", lambda: float(next(ticks) * 1000))
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, height=height, color_system=None, highlight=False)
    with TerminalScreen(console).answer() as answer:
        for piece in pieces:
            answer.feed(piece)
    return screen_after(out.getvalue(), height), out.getvalue()


def pieces_of(text: str, size: int = 5) -> list[Piece]:
    return [Piece("answer", text[i : i + size]) for i in range(0, len(text), size)]


LONG = "\n\n".join(f"Paragraph {n} has *some* words." for n in range(40))


def test_a_long_answer_is_drawn_once_whole_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = draw(pieces_of(LONG), monkeypatch)
    assert [line for line in lines if line] == [f"Paragraph {n} has some words." for n in range(40)]


def test_drawing_costs_the_same_at_the_end_as_at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [len(draw(pieces_of(LONG[: len(LONG) * part // 4]), monkeypatch)[1]) for part in (1, 2, 4)]
    assert sizes[2] < 4.6 * sizes[0], "linear: finished blocks are not drawn again"


def test_a_block_longer_than_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "```python\n" + "\n".join(f"line_{n} = {n}" for n in range(50)) + "\n```\n\nDone."
    lines, _ = draw(pieces_of(code, 17), monkeypatch)
    found = [line.strip() for line in lines if line.strip()]
    assert found == [*(f"line_{n} = {n}" for n in range(50)), "Done."]


def test_thinking_comes_before_the_answer_and_keeps_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [Piece("thinking", t) for t in ("\nfirst\n", "\nsec", "ond\nthird\n")] + pieces_of("\n\nThe *answer*.")
    lines, written = draw(pieces, monkeypatch)
    assert [line for line in lines if line] == ["  first", "  second", "  third", "The answer."]
    assert "\x1b[?25h" in written, "the cursor is shown again"


def test_html_and_control_characters_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, written = draw(pieces_of("<div>a</div> and <b>b</b>\n\n\x1b]0;title\x07 end"), monkeypatch)
    assert lines[0] == "<div>a</div> and <b>b</b>"
    assert "␛]0;title␇ end" in "\n".join(lines)
    assert "\x1b]0" not in written


def test_the_screen_is_left_in_order_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, height=12, color_system=None)
    with suppress(KeyboardInterrupt), TerminalScreen(console).answer() as answer:
        answer.waiting(10, 100)
        answer.feed(Piece("answer", "partial *text*"))
        raise KeyboardInterrupt
    assert [line for line in screen_after(out.getvalue()) if line] == ["partial text"]
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("", ""),
        ("one", ""),
        ("one\n\ntwo", ""),
        ("one\n\ntwo\n", "one\n\n"),
        ("- a\n\n- b\n", ""),
        ("- a\n\nb\n", "- a\n\n"),
        ("1. a\n\n2", ""),
        ("```\na\n\nb\n", ""),
        ("```\na\n```\nb\n", "```\na\n```\n"),
        ("a\u2028b\n\nc\n", "a\u2028b\n\n"),
    ],
)
def test_which_markdown_is_finished(text: str, finished: str) -> None:
    assert text[: finished_markdown(text)] == finished


@pytest.mark.parametrize(
    ("text", "finished"), [("", ""), ("a", ""), ("a\n", ""), ("a\nb", "a\n"), ("a\n\nb\n\n", "a\n\n")]
)
def test_which_thinking_is_finished(text: str, finished: str) -> None:
    assert text[: finished_thinking(text)] == finished
