"""A turn that the assistant has begun: what stands behind the prompt, what the answer begins in, borders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dflash2_mlx.text.answer import answer_parser
from dflash2_mlx.text.parts import Content, Part, Reasoning, merged
from dflash2_mlx.text.prompt import Prompt, build_prompt
from dflash2_mlx.text.template import ChatTemplate
from tests.text_doubles import HARMONY, STRICT, THINKING, TOOLLESS, assistant, make_tokenizer, system, tool, user

PLAIN, OPENING, GPT = (ChatTemplate(make_tokenizer(source)) for source in (THINKING, STRICT, HARMONY))
CITY = user("Name a city.")


def begin(template: ChatTemplate, said: str, thought: str | None = None, **options: Any) -> Prompt:
    more = {} if thought is None else {"reasoning_content": thought}
    messages = [system("Be brief."), CITY, assistant(said, **more)]
    return build_prompt(template, messages, continue_final=True, **options)


def asked(template: ChatTemplate, **options: Any) -> Prompt:
    return build_prompt(template, [system("Be brief."), CITY], **options)


def parsed(template: ChatTemplate, prompt: Prompt, answer: str) -> list[Part]:
    parser = answer_parser(template.tokenizer, prompt.template_text)
    return merged([*parser.feed(answer), *parser.finish()])


@pytest.mark.parametrize("template", [PLAIN, OPENING, ChatTemplate(make_tokenizer(TOOLLESS))])
def test_a_tag_that_the_assistant_wrote_as_text_opens_no_thinking(template: ChatTemplate) -> None:
    prompt = begin(template, "The tag is <think>")
    assert prompt.text.endswith("The tag is <think>")
    assert parsed(template, prompt, " and more") == [Content(" and more")]


def test_an_open_tag_of_the_templates_does() -> None:
    assert parsed(OPENING, asked(OPENING), "Hm.</think>Rome") == [Reasoning("Hm."), Content("Rome")]
    assert parsed(OPENING, begin(OPENING, "Ro"), "me") == [Content("me")]


def test_a_users_tag_at_the_end_of_a_prompt_opens_no_thinking() -> None:
    source = "{% for m in messages %}{% if m.thought %}<think>{% endif %}<|im_start|>{{ m.content }}{% endfor %}"
    bare = ChatTemplate(make_tokenizer(source))
    prompt = build_prompt(bare, [user("What is <think>")])
    assert prompt.text.endswith("<think>")
    assert parsed(bare, prompt, "A tag.") == [Content("A tag.")]


def test_the_server_begins_the_answer_where_the_prompt_does() -> None:
    from dflash2_mlx.settings import ServerSettings
    from dflash2_server.inference import Inference
    from dflash2_server.served import ServedPair

    tokenizer: Any = OPENING.tokenizer
    pair: Any = SimpleNamespace(tokenizer=tokenizer, model_name="m", drafter_name=None, config={}, defaults={})
    served = ServedPair(pair, ServerSettings())
    prompt = served.prompt(Inference(messages=[CITY, assistant("a <think>")], continue_final=True))
    assert served._parser(prompt, ()).feed("b") == [Content("b")]

    class Told(Exception):
        pass

    def told(inference: Inference, *, inside_reasoning: bool) -> None:
        raise Told(inside_reasoning)

    served._constraints = SimpleNamespace(of=told)  # type: ignore[assignment]
    for said, inside in (("a <think>", "False"), ("", "True")):
        asked_for = Inference(messages=[CITY, *([assistant(said)] if said else [])], continue_final=True)
        with pytest.raises(Told, match=inside):
            served.prepare(asked_for, cast(Any, None), lambda work: None)


@pytest.mark.parametrize("template", [PLAIN, OPENING, GPT])
def test_the_borders_are_those_of_the_same_prompt_without_it(template: ChatTemplate) -> None:
    for thought in (None, "Hm."):
        prompt = begin(template, "Ro", thought, tools=[tool()])
        assert len(prompt.borders) == 2
        assert prompt.borders == asked(template, tools=[tool()]).borders


def test_what_was_thought_stands_where_the_model_thinks() -> None:
    for template in (PLAIN, OPENING):
        prompt = begin(template, "Ro", "Italy <|im_end|>?")
        assert prompt.text.endswith("assistant\n<think>\nItaly <|im_end|>?\n</think>\n\nRo")
        end = template.tokenizer.eos_token_id
        assert prompt.ids.count(end) == asked(template).ids.count(end), "what was thought is text"
        assert parsed(template, prompt, "me") == [Content("me")]
        as_text = begin(template, "<think>\nItaly <|im_end|>?\n</think>\n\nRo")
        assert as_text.ids == prompt.ids


def test_thinking_alone_is_gone_on_with() -> None:
    for template in (PLAIN, OPENING):
        prompt = begin(template, "", "Italy, so")
        assert prompt.text.endswith("assistant\n<think>\nItaly, so")
        assert parsed(template, prompt, " Rome</think>Rome") == [Reasoning(" Rome"), Content("Rome")]


def test_thinking_that_the_prompt_has_closed_is_left_out() -> None:
    for template in (PLAIN, OPENING):
        assert begin(template, "Ro", "Hm.", reasoning="off").text == asked(template, reasoning="off").text + "Ro"


def test_harmony_goes_on_in_the_channel_of_what_was_begun() -> None:
    start = asked(GPT).text
    prompt = begin(GPT, "Ro <|end|>", "Hm.")
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert prompt.text == f"{start}{thought}<|channel|>final<|message|>Ro <|end|>"
    assert parsed(GPT, prompt, "me") == [Content("me")]
    prompt = begin(GPT, "", "Hm")
    assert prompt.text == f"{start}<|channel|>analysis<|message|>Hm"
    assert parsed(GPT, prompt, "m.<|end|>") == [Reasoning("m.")]


def test_a_text_without_anything_in_it_begins_nothing() -> None:
    assert begin(PLAIN, "").text == build_prompt(PLAIN, [system("Be brief."), CITY, assistant("")]).text
