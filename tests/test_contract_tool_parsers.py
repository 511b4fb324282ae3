"""What the text layer relies on in mlx-lm's tool parsers and in transformers' chat templates.

Every failure begins with "mlx-lm no longer …" (or "transformers …"): the promise that changed, not our code.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from mlx_lm import tokenizer_utils, tool_parsers
from transformers import PreTrainedTokenizerBase

from dflash2_mlx.text.template import RESERVED
from tests.text_doubles import STRICT, make_tokenizer, tool

NAMES = sorted(module.name for module in pkgutil.iter_modules(tool_parsers.__path__))
TOOLS = [tool("f", x={"type": "string"})]


def module_of(name: str) -> Any:
    return importlib.import_module(f"mlx_lm.tool_parsers.{name}")


@pytest.mark.parametrize("name", NAMES)
def test_a_parser_has_markers_and_takes_text_and_tools(name: str) -> None:
    module = module_of(name)
    message = f"mlx-lm's tool parser {name} no longer has"
    assert isinstance(module.tool_call_start, str), f"{message} a start marker"
    assert module.tool_call_start, f"{message} a start marker"
    assert isinstance(module.tool_call_end, str), f"{message} an end marker, which may be empty"
    assert len(inspect.signature(module.parse_tool_call).parameters) == 2, f"{message} (text, tools)"


ONE = {"name": "f", "arguments": {"x": "a"}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("json_tools", '{"name": "f", "arguments": {"x": "a"}}'),
        ("qwen3_coder", "<function=f>\n<parameter=x>\na\n</parameter>\n</function>"),
        ("mistral", 'f[ARGS]{"x": "a"}'),
        ("pythonic", '[f(x="a")]'),
        ("gemma4", 'call:f{x:<|"|>a<|"|>}'),
        ("glm47", "f<arg_key>x</arg_key><arg_value>a</arg_value>"),
        ("minimax_m2", '<invoke name="f"><parameter name="x">a</parameter></invoke>'),
        ("muse_spark", '<atem:invoke name="f"><atem:parameter name="x">a</atem:parameter></atem:invoke>'),
        ("minicpm5", '"f"><param name="x">a</param>'),
        ("longcat", "f<longcat_arg_key>x</longcat_arg_key><longcat_arg_value>a</longcat_arg_value>"),
        ("function_gemma", "call:f{x:<escape>a<escape>}"),
    ],
)
def test_a_parser_reads_what_stands_between_the_markers(name: str, text: str) -> None:
    assert module_of(name).parse_tool_call(text, TOOLS) == ONE, f"mlx-lm no longer reads a call of {name}"


def test_several_calls_are_a_list() -> None:
    found = module_of("pythonic").parse_tool_call('[f(x="a"), f(x="a")]', TOOLS)
    assert found == [ONE, ONE], "mlx-lm no longer gives several calls as a list"
    found = module_of("mistral").parse_tool_call('f[ARGS]{"x": "a"}[TOOL_CALLS]f[ARGS]{"x": "a"}', TOOLS)
    assert found == [ONE, ONE], "mlx-lm no longer reads several calls without end markers"


@pytest.mark.parametrize("name", ["qwen3_coder", "glm47", "laguna", "minimax_m2", "minicpm5", "longcat"])
def test_an_argument_that_is_said_to_be_a_string_is_left_as_it_is_written(name: str) -> None:
    text = {
        "qwen3_coder": "<function=f>\n<parameter=x>\n007\n</parameter>\n</function>",
        "minimax_m2": '<invoke name="f"><parameter name="x">007</parameter></invoke>',
        "minicpm5": '"f"><param name="x">007</param>',
        "longcat": "f<longcat_arg_key>x</longcat_arg_key><longcat_arg_value>007</longcat_arg_value>",
    }.get(name, "f<arg_key>x</arg_key><arg_value>007</arg_value>")
    found = module_of(name).parse_tool_call(text, TOOLS)
    assert found["arguments"] == {"x": "007"}, f"mlx-lm's {name} no longer leaves strings alone"


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("json_tools", '{"name": "f", "arguments": {"x": "a]})"}}'),
        ("qwen3_coder", "<function=f>\n<parameter=x>\na\n</parameter>\n<parameter=y>\nb\n</parameter>\n</function>"),
        ("mistral", 'f[ARGS]{"x": "a", "y": [{"z": 1}]}'),
        ("pythonic", '[f(x="a", y=[1, 2], z="b)")]'),
        ("gemma4", 'call:f{x:<|"|>a<|"|>,y:{z:1}}'),
    ],
)
def test_no_beginning_of_a_call_is_taken_for_a_whole_one(name: str, whole: str) -> None:
    parse = module_of(name).parse_tool_call
    complete = parse(whole, None)
    for end in range(1, len(whole)):
        try:
            found = parse(whole[:end], None)
        except Exception:  # whatever it raises
            continue
        assert found == complete, (
            f"mlx-lm's {name} now takes {whole[:end]!r} for a call: ToolFormat.proves_whole is wrong"
        )


def test_a_loaded_tokenizer_names_its_parser(tmp_path: Path) -> None:
    inner = make_tokenizer(STRICT)._tokenizer
    inner.save_pretrained(tmp_path)
    loaded = tokenizer_utils.load(tmp_path)
    message = "mlx-lm's load no longer {}"
    assert loaded.init_kwargs["tool_parser_type"] == "qwen3_coder", message.format("infers and names the tool parser")
    assert loaded.has_tool_calling, message.format("sets has_tool_calling")
    assert loaded.tool_parser is module_of("qwen3_coder").parse_tool_call, message.format("gives the parser")
    assert (loaded.tool_call_start, loaded.tool_call_end) == ("<tool_call>", "</tool_call>"), message.format("marks")
    assert loaded.response_transitions == {}, message.format("has response_transitions")
    assert loaded.structural_markers == (), message.format("has structural_markers")
    assert (loaded.think_start, loaded.think_end) == ("<think>", "</think>"), message.format("finds thinking tokens")


def test_a_response_format_tells_states_and_markers() -> None:
    from mlx_lm.chat_templates.muse_spark import RESPONSE_FORMAT

    message = "mlx-lm no longer describes a response format by its initial state and transitions"
    assert RESPONSE_FORMAT["initial_state"] == "header", message
    targets = {state for edges in RESPONSE_FORMAT["transitions"].values() for _, state in edges}
    assert targets == {"reasoning", "normal", "tool", "header"}, message


def test_no_option_of_the_chat_template_is_open_to_requests() -> None:
    options = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
    assert options - {"self", "documents", "kwargs"} <= RESERVED, "transformers has a new option: reserve it"


def test_tojson_leaves_letters_alone() -> None:
    tokenizer = make_tokenizer("{{ tools | tojson }}{% for m in messages %}{{ m | tojson }}{% endfor %}")
    text = tokenizer.apply_chat_template([{"role": "user", "content": "\ufdd0ä<"}], tokenize=False)
    assert json.dumps("\ufdd0ä<", ensure_ascii=False) in text, "transformers no longer leaves letters in JSON alone"
