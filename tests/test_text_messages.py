"""A client's chat history in one form: roles, content as parts, calls, thinking in text."""

from __future__ import annotations

from typing import Any

import pytest

from dflash2_mlx.errors import RequestError
from dflash2_mlx.text.folds import forms, one_call_each, short_ids
from dflash2_mlx.text.messages import arguments_object, content_text, prepare
from tests.text_doubles import assistant, call, result, system, user


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ("a", "a"),
        ([], ""),
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "a\nb"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
    ],
)
def test_content_becomes_text(content: Any, text: str) -> None:
    assert content_text(content, "messages[0].content") == text


@pytest.mark.parametrize(
    ("content", "param", "message"),
    [
        (3, "", "must be a text or a list"),
        ({"type": "text", "text": "a"}, "", "must be a text or a list"),
        ([{"type": "image_url", "image_url": {}}], "[0].type", "'image_url': this model reads text only"),
        ([{"type": "text", "text": "a"}, {"type": "input_audio"}], "[1].type", "this model reads text only"),
        ([{"type": "file"}], "[0].type", "this model reads text only"),
        ([{"type": "surprise"}], "[0].type", "'surprise': use parts of the type 'text'"),
        (["a"], "[0].type", "use parts of the type 'text'"),
        ([{"type": "text"}], "[0].text", "must be a text"),
        ([{"type": "text", "text": 3}], "[0].text", "must be a text"),
    ],
)
def test_other_content_is_refused_by_its_place(content: Any, param: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        prepare([user("a"), {"role": "user", "content": content}])
    assert caught.value.param == f"messages[1].content{param}"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([system("")], "messages"),
        ([{"content": "a"}], "messages[0].role"),
        ([{"role": "narrator", "content": "a"}], "messages[0].role"),
        ([user("a"), assistant(None, {"id": "x"})], "messages[1].tool_calls[0].function.name"),
        ([assistant(None, call(), call(""))], "messages[0].tool_calls[1].function.name"),
    ],
)
def test_what_is_wrong_is_named(messages: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        prepare(messages)
    assert caught.value.param == param


def test_leading_system_messages_are_one_and_the_billing_line_is_gone() -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1; cch=12ab;"
    for leading in (
        [system(billing), system("One."), {"role": "developer", "content": "Two."}],
        [system(f"{billing}\nOne.\n\nTwo.")],
    ):
        assert prepare([*leading, user("Hi")]) == [system("One.\n\nTwo."), user("Hi")]
    assert prepare([user(f"{billing}\nHi")]) == [user(f"{billing}\nHi")], "only there"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (assistant("b", reasoning_content="a"), assistant("b", reasoning_content="a")),
        (assistant("b", reasoning="a"), assistant("b", reasoning_content="a")),
        (assistant("b", reasoning_content=None), assistant("b")),
        (assistant("<think>\na\n</think>\n\nb"), assistant("b", reasoning_content="a")),
        (assistant("see <think>a</think>"), assistant("see <think>a</think>")),
        (assistant("<think>a"), assistant("<think>a")),
    ],
)
def test_thinking_is_a_field_of_its_own(message: dict[str, Any], expected: dict[str, Any]) -> None:
    assert prepare([message]) == [expected]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ("*** Begin Patch", {"input": "*** Begin Patch"}),
        ('{"a": ', {"input": '{"a": '}),
        ("[1]", {"input": [1]}),
        ("[" * 100_000, {"input": "[" * 100_000}),
    ],
)
def test_arguments_are_an_object(arguments: Any, expected: dict[str, Any]) -> None:
    assert arguments_object(arguments) == expected


def test_results_have_the_name_of_their_call_where_it_is_known() -> None:
    messages = [assistant(None, call()), result("warm"), result("lost", "call_9"), {"role": "function", "content": "x"}]
    _, known, lost, legacy = prepare(messages)
    assert known == {"role": "tool", "content": "warm", "tool_call_id": "call_1", "name": "get_weather"}
    assert lost == {"role": "tool", "content": "lost", "tool_call_id": "call_9"}
    assert legacy == {"role": "tool", "content": "x"}


def test_preparing_leaves_the_clients_messages_alone() -> None:
    messages = [system("x-anthropic-billing-header: a\nb"), assistant(None, call()), result("warm")]
    before = repr(messages)
    list(forms(prepare(messages)))
    assert repr(messages) == before


def test_there_is_one_form_where_nothing_is_to_fold() -> None:
    assert list(forms([user("a"), assistant("b"), user("c")])) == [[user("a"), assistant("b"), user("c")]]


def test_forms_fold_more_and_more() -> None:
    start = prepare([system("s"), user("a"), result("r", "lost"), system("t"), user("b"), assistant("c")])
    reminder = "<system-reminder>\nt\n</system-reminder>"
    lost = f"<tool_response>\nr\n\n{reminder}\n</tool_response>"
    plain, *folded = forms(start)
    assert plain == start
    assert [[m["role"] for m in form] for form in folded] == [
        ["system", "user", "tool", "user", "assistant"],
        ["system", "user", "user", "user", "assistant"],
        ["system", "user", "assistant"],
        ["user", "assistant"],
    ]
    assert folded[-1][0]["content"] == f"s\n\na\n\n{lost}\n\nb"


def test_one_call_each_keeps_every_call_and_result_in_order() -> None:
    first, second = call(call_id="1"), call("get_time", call_id="2")
    messages = prepare(
        [
            assistant("Look.", first, second, reasoning_content="Hm."),
            result("two", "2"),
            result("one", "1"),
            result("lost", "3"),
            user("So?"),
            assistant(None, first),
            result("again", "1"),
        ]
    )
    found = one_call_each(messages)
    told = [message["content"] or message["tool_calls"][0]["function"]["name"] for message in found]
    assert told == ["Look.", "one", "get_time", "two", "lost", "So?", "get_weather", "again"]
    assert [len(message.get("tool_calls", [])) for message in found] == [1, 0, 1, 0, 0, 0, 1, 0]


def test_short_ids_match_and_differ() -> None:
    messages = prepare([assistant(None, call(call_id="toolu_1"), call(call_id="abcdefgh9")), result("a", "toolu_1")])
    calls, answer = short_ids(messages)
    ids = [one["id"] for one in calls["tool_calls"]]
    assert ids == [answer["tool_call_id"], "abcdefgh9"]
    assert all(len(one) == 9 and one.isalnum() for one in ids)
