"""The command line: dispatch, what it imports, exit codes, `generate`. No model: the backend is a double."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from argparse import Namespace
from typing import Any

import pytest

import dflash2_mlx
from dflash2_mlx import cli
from dflash2_mlx.chat import backend, generate_command, options
from dflash2_mlx.errors import CheckpointError, RequestError
from tests.chat_doubles import CHATML, FakeBackend, FakePair, make_tokenizer


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    double = FakeBackend()
    monkeypatch.setattr(backend, "Library", lambda: double)
    return double


def type_in(monkeypatch: pytest.MonkeyPatch, text: str, *, terminal: bool = False) -> None:
    stream = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", stream)


@pytest.mark.parametrize(
    "line",
    [
        ["--help"],
        ["--version"],
        ["generate", "--help"],
        ["chat", "--help"],
        ["train", "--help"],
        ["train", "data", "--help"],
        ["doctor", "--help"],
    ],
)
def test_help_and_version_import_nothing_heavy(line: list[str]) -> None:
    code = (
        "import sys\nfrom dflash2_mlx.cli import main\n"
        f"try:\n    code = main({line!r})\nexcept SystemExit as left:\n    code = left.code\n"
        "heavy = {'mlx', 'mlx_lm', 'transformers', 'rich', 'prompt_toolkit', 'numpy', 'pydantic'}\n"
        "found = heavy & {name.partition('.')[0] for name in sys.modules}\n"
        "print('CODE', code or 0, 'HEAVY', sorted(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("CODE 0 HEAVY []\n"), done.stdout
    assert dflash2_mlx.__version__ in done.stdout or "dflash2-mlx" in done.stdout


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"dflash2-mlx {dflash2_mlx.__version__}\n"


def test_only_the_chosen_commands_module_is_imported() -> None:
    code = (
        "import sys\nfrom dflash2_mlx.cli import main\n"
        "try:\n    main(['generate', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert 'dflash2_mlx.chat.generate_command' in sys.modules\n"
        "assert not {'dflash2_mlx.chat.doctor', 'dflash2_mlx.chat.chat_command'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_without_a_command_the_help_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == cli.EXIT_USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(name in shown.err for name in cli.COMMANDS)


def test_an_unknown_command_names_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["genrate"]) == cli.EXIT_USAGE
    assert capsys.readouterr().err == "dflash2-mlx: error: no command 'genrate': did you mean 'generate'?\n"


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (RequestError("top_p is 3:\n it must be at most 1"), cli.EXIT_USAGE),
        (CheckpointError("no config.json\nin there"), cli.EXIT_ERROR),
        (KeyboardInterrupt(), cli.EXIT_INTERRUPTED),
    ],
)
def test_exit_codes(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: Namespace) -> int:
        raise raised

    monkeypatch.setattr(generate_command, "run", fail)
    assert cli.main(["generate", "hello"]) == code
    message = capsys.readouterr().err
    assert message.count("\n") == (0 if code == cli.EXIT_INTERRUPTED else 1), "one line for the user"
    assert "Traceback" not in message


@pytest.mark.parametrize("wrapped", [False, True])
def test_ctrl_c_while_a_library_is_imported(
    wrapped: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            if wrapped:  # as extension modules do
                raise ImportError(f"{name}: initialization failed") from error
            raise

    monkeypatch.setattr(cli.importlib, "import_module", interrupted)
    assert cli.main(["generate", "hello"]) == cli.EXIT_INTERRUPTED
    assert capsys.readouterr().err == ""


def test_a_library_that_is_missing_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    with pytest.raises(ImportError):
        cli.main(["generate", "hello"])


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: Namespace) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(generate_command, "run", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["generate", "hello"])


def test_a_closed_pipe_is_quiet() -> None:
    code = "import sys; from dflash2_mlx.cli import main; sys.exit(main(sys.argv[1:]))"
    child = subprocess.Popen(
        [sys.executable, "-c", code, "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    child.stdout.close()
    _, errors = child.communicate()
    assert (child.returncode, errors) == (cli.EXIT_BROKEN_PIPE, "")


def test_generate_streams_the_text_alone(fake: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "What is the capital of France?"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("Paris.\n", "")
    tokenizer = make_tokenizer()
    expected = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(fake.calls[0]["prompt"]) == expected


def test_generate_shows_figures_on_a_terminal(
    fake: FakeBackend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(["generate", "hello"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "Paris.\n"
    assert "tokens at 20.0/s · 2.50 per cycle" in shown.err


def test_control_characters_are_shown_not_obeyed_on_a_terminal(
    fake: FakeBackend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers = ["a\x1b]0;title\x07b", "a\x1b]0;title\x07b"]
    assert cli.main(["generate", "hello"]) == 0
    assert capsys.readouterr().out == "a\x1b]0;title\x07b\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["generate", "hello"]) == 0
    assert capsys.readouterr().out == "a␛]0;title␇b\n"


@pytest.mark.parametrize("line", [["generate"], ["generate", "-"]])
def test_generate_reads_stdin(line: list[str], fake: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "two\nlines\n")
    assert cli.main(line) == 0
    assert "user\ntwo\nlines<|im_end|>" in make_tokenizer().decode(fake.calls[0]["prompt"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["generate"], "no prompt"),
        (["generate", "  "], "the prompt is empty"),
        (["generate", "hello", "--logprobs", "2"], "--logprobs is shown only with --json"),
        (["generate", "hello", "--raw", "--system", "x"], "--system needs the chat template"),
        (["generate", "hello", "--raw", "--reasoning", "on"], "--reasoning needs the chat template"),
        (["generate", "hello", "--reasoning", "high"], "the template knows no reasoning"),
        (["generate", "hello", "--temp", "-1"], "temperature is -1.0"),
    ],
)
def test_generate_refuses(
    line: list[str],
    message: str,
    fake: FakeBackend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    type_in(monkeypatch, "", terminal=True)
    assert cli.main(line) == cli.EXIT_USAGE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--logit-bias", "{"], "is not JSON"),
        (["--logit-bias", '{"a": 1}'], "a logit bias maps ids to numbers"),
        (["--chat-template-args", "[1]"], "is not a JSON object"),
        (["--reasoning", "maximal"], "invalid choice"),
        (["--temp", "warm"], "invalid float"),
        (["--tempe", "1"], "unrecognized arguments"),
    ],
)
def test_flags_that_do_not_parse(
    flags: list[str], message: str, fake: FakeBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["generate", "hello", *flags])
    assert left.value.code == cli.EXIT_USAGE
    assert message in capsys.readouterr().err
    assert fake.choices == [], "nothing was loaded"


def test_json_is_one_object(fake: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "hello", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["text", "tokens", "finish_reason", "stats"]
    assert (printed["text"], printed["finish_reason"]) == ("Paris.", "stop")
    assert make_tokenizer().decode(printed["tokens"]) == "Paris.<|im_end|>"
    assert printed["stats"]["acceptance_by_position"] == [0.75, 0.5, 0.25]


def test_json_with_logprobs(fake: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "hello", "--json", "--logprobs", "1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["logprobs"]) == len(printed["tokens"])
    first = {"token": printed["tokens"][0], "text": "P", "logprob": -0.5}
    assert printed["logprobs"][0] == {**first, "top": [first]}
    assert fake.calls[0]["logprobs"] == 1


def test_every_flag_reaches_the_library(fake: FakeBackend) -> None:
    flags: dict[str, Any] = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "seed": 3,
        "repetition_penalty": 1.1,
        "repetition_context_size": 30,
        "presence_penalty": 0.2,
        "presence_context_size": 31,
        "frequency_penalty": 0.3,
        "frequency_context_size": 32,
        "logit_bias": {42: -5.0},
        "block_size": 3,
        "verify_mode": "off",
        "verify_precision": "reference",
        "prefill_step_size": 64,
    }
    line = ["generate", "hello", "--stop", "a", "--stop", "b"]
    for name, value in flags.items():
        flag = "temp" if name == "temperature" else name.replace("_", "-")
        line += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    assert cli.main(line) == 0
    call = fake.calls[0]
    assert {name: call[name] for name in flags} == flags
    assert call["stop"] == ["a", "b"]
    assert {*flags, "stop"} == set(options.REQUEST_PARAMETERS)


def test_defaults_are_the_checkpoints_and_flags_come_first(fake: FakeBackend) -> None:
    fake.pairs["other"] = FakePair(defaults={"temperature": 0.7, "top_p": 0.8, "do_sample": True})
    assert cli.main(["generate", "hello", "--model", "other", "--top-p", "0.5"]) == 0
    assert {key: value for key, value in fake.calls[0].items() if key != "prompt"} == {
        "verify_mode": "adaptive",
        "temperature": 0.7,
        "top_p": 0.5,
    }


def test_the_model_that_is_loaded(fake: FakeBackend) -> None:
    assert cli.main(["generate", "hello"]) == 0
    line = "generate hello --model a/b --draft none --draft-quant w4a16:gs64 --dtype bfloat16"
    assert cli.main(line.split()) == 0
    assert fake.choices == [
        options.ModelChoice("demo", "auto", None, None),
        options.ModelChoice("a/b", None, "w4a16:gs64", "bfloat16"),
    ]


def test_raw_gives_the_prompt_as_it_is(fake: FakeBackend) -> None:
    assert cli.main(["generate", "<|im_start|>user", "--raw"]) == 0
    assert fake.calls[0]["prompt"] == "<|im_start|>user"


def test_system_and_template_arguments(fake: FakeBackend) -> None:
    template = CHATML + "{{ greeting }}"
    fake.pairs["demo"] = FakePair(make_tokenizer(template))
    line = ["generate", "hello", "--system", "Be brief.", "--chat-template-args", '{"greeting": "Well"}']
    assert cli.main(line) == 0
    text = make_tokenizer().decode(fake.calls[0]["prompt"])
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello")
    assert text.endswith("assistant\nWell")


def test_no_chat_template_is_refused_with_the_remedy(fake: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    fake.pairs["demo"] = FakePair(make_tokenizer(None))
    assert cli.main(["generate", "hello"]) == cli.EXIT_USAGE
    assert "no chat template: use `generate --raw`" in capsys.readouterr().err


def test_an_interrupted_generate_keeps_what_was_printed(fake: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answers, fake.interrupt_at = ["abcdefgh"], 2
    assert cli.main(["generate", "hello"]) == cli.EXIT_INTERRUPTED
    assert capsys.readouterr().out == "abcdef"


class NeverLoads:
    """A backend for what must be refused before a model is loaded."""

    def load(self, *_: object) -> object:
        raise AssertionError("the model was loaded")


@pytest.mark.parametrize(
    "flags", [["--verify-mode", "ddtree"], ["--temp", "-1"], ["--stop", ""], ["--max-tokens", "0"], ["--top-p", "2"]]
)
def test_wrong_values_are_refused_before_the_model_is_loaded(flags: list[str]) -> None:
    arguments = cli.command_parser("generate", generate_command).parse_args(["hello", *flags])
    with pytest.raises(RequestError):
        generate_command.run(arguments, NeverLoads())  # type: ignore[arg-type]
