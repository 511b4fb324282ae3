"""A model's settings: names, values, what is refused, what needs a reload, and that nothing unknown is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash2_mlx.decode.laws import sampling_law
from dflash2_mlx.drafter.quantization import parse_spec
from dflash2_mlx.errors import RequestError
from dflash2_mlx.settings.fields import FieldFacts
from dflash2_mlx.settings.model import (
    ModelSettings,
    changed,
    draft_quant_fields,
    field_facts,
    from_stored,
    needs_reload,
    not_in_force,
    stored,
)

FACTS = {fact.name: fact for fact in field_facts()}

# The table of settings.md: default, what null stands for, label.
DFLASH: dict[str, tuple[Any, Any, str]] = {
    "dflash_enabled": (False, None, "DFlash"),
    "dflash_draft_model": (None, None, "Draft model"),
    "dflash_draft_quant_enabled": (None, False, "Draft quantization"),
    "dflash_draft_quant_weight_bits": (None, 4, "Weight bits"),
    "dflash_draft_quant_activation_bits": (None, 16, "Activation bits"),
    "dflash_draft_quant_group_size": (None, 64, "Group size"),
    "dflash_block_size": (None, None, "Runtime block size"),
    "dflash_verify_mode": (None, "adaptive", "Verify mode"),
    "dflash_verify_precision": (None, "fast", "Verify precision"),
    "dflash_max_ctx": (None, None, "Max context"),
    "dflash_draft_window_size": (None, None, "Draft window size"),
    "dflash_draft_sink_size": (0, None, "Draft sink size"),
    "dflash_in_memory_cache": (True, None, "In-memory cache"),
    "dflash_in_memory_cache_max_entries": (4, None, "In-memory cache max entries"),
    "dflash_in_memory_cache_max_bytes": (8 * 1024**3, None, "In-memory cache size (GiB)"),
    "dflash_ssd_cache": (False, None, "SSD cache"),
    "dflash_ssd_cache_max_bytes": (20 * 1024**3, None, "SSD cache size (GiB)"),
}
OTHERS = [
    "max_context_window",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "enable_thinking",
    "chat_template_kwargs",
    "ttl_seconds",
    "model_alias",
    "is_pinned",
    "is_default",
    "is_hidden",
    "is_favorite",
    "display_name",
    "description",
    "trust_remote_code",
]

# A value that is not the default.
VALUES: dict[str, Any] = {
    "dflash_enabled": True,
    "dflash_draft_model": "incoai/Qwen3.8-27B-DFlash2",
    "dflash_draft_quant_enabled": True,
    "dflash_draft_quant_weight_bits": 8,
    "dflash_draft_quant_activation_bits": 32,
    "dflash_draft_quant_group_size": 128,
    "dflash_block_size": 5,
    "dflash_verify_mode": "off",
    "dflash_verify_precision": "reference",
    "dflash_max_ctx": 32768,
    "dflash_draft_window_size": 2048,
    "dflash_draft_sink_size": 4,
    "dflash_in_memory_cache": False,
    "dflash_in_memory_cache_max_entries": 128,
    "dflash_in_memory_cache_max_bytes": 0,
    "dflash_ssd_cache": True,
    "dflash_ssd_cache_max_bytes": 1,
    "max_context_window": 8192,
    "max_tokens": 100,
    "temperature": 0.0,
    "top_p": 0.9,
    "top_k": 0,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "presence_penalty": -2.0,
    "enable_thinking": False,
    "chat_template_kwargs": {"reasoning_effort": "low", "n": [1, None]},
    "ttl_seconds": 60,
    "model_alias": "gpt-4o",
    "is_pinned": True,
    "is_default": True,
    "is_hidden": True,
    "is_favorite": True,
    "display_name": "Qwen, größer",
    "description": "two\nlines",
}


def test_the_fields_are_those_of_the_contract() -> None:
    assert set(ModelSettings.model_fields) == set(DFLASH) | set(OTHERS)
    assert set(VALUES) == set(ModelSettings.model_fields) - {"trust_remote_code"}


@pytest.mark.parametrize("name", DFLASH)
def test_defaults_and_labels_are_those_of_the_contract(name: str) -> None:
    default, null_means, label = DFLASH[name]
    fact = FACTS[name]
    assert (getattr(ModelSettings(), name), fact.default, fact.null_means, fact.label) == (
        default,
        default,
        null_means,
        label,
    )
    assert fact.nullable == (default is None)
    assert fact.available


@pytest.mark.parametrize("name", VALUES)
def test_every_field_is_set_stored_read_and_cleared(name: str) -> None:
    after = changed(ModelSettings(), {name: VALUES[name]})
    assert getattr(after, name) == VALUES[name] != getattr(ModelSettings(), name)
    assert stored(after) == {name: VALUES[name]}
    assert from_stored(json.loads(json.dumps(stored(after)))) == (after, {})
    cleared = changed(after, {name: None})
    assert cleared == ModelSettings()
    assert stored(cleared) == {}


def test_what_is_set_to_its_default_is_not_stored() -> None:
    after = changed(ModelSettings(), {"dflash_in_memory_cache_max_entries": 4, "dflash_enabled": False})
    assert stored(after) == {}


def test_turning_dflash_off_keeps_the_rest() -> None:
    on = changed(ModelSettings(), {"dflash_enabled": True, "dflash_draft_model": "a/b", "dflash_block_size": 5})
    assert stored(changed(on, {"dflash_enabled": False})) == {"dflash_draft_model": "a/b", "dflash_block_size": 5}


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("dflash_enabled", 1, "boolean"),
        ("dflash_enabled", "true", "boolean"),
        ("dflash_draft_model", "", "a text of one line"),
        ("dflash_draft_model", " a/b", "without spaces around"),
        ("dflash_draft_model", 5, "string"),
        ("dflash_draft_quant_enabled", "on", "boolean"),
        ("dflash_draft_quant_weight_bits", 3, "2, 4 or 8"),
        ("dflash_draft_quant_weight_bits", "4", "2, 4 or 8"),
        ("dflash_draft_quant_weight_bits", True, "2, 4 or 8"),
        ("dflash_draft_quant_activation_bits", 8, "16 or 32"),
        ("dflash_draft_quant_group_size", 16, "32, 64 or 128"),
        ("dflash_block_size", 0, "greater than or equal to 1"),
        ("dflash_block_size", True, "valid integer"),
        ("dflash_block_size", 5.0, "valid integer"),
        ("dflash_block_size", "5", "valid integer"),
        ("dflash_verify_mode", "fast", "'adaptive', 'dflash', 'ddtree' or 'off'"),
        ("dflash_verify_mode", "ddtree", "use adaptive, dflash or off"),
        ("dflash_verify_mode", ["off"], "'adaptive', 'dflash', 'ddtree' or 'off'"),
        ("dflash_max_ctx", -1, "greater than or equal to 1"),
        ("dflash_draft_window_size", 1, "greater than or equal to 2"),
        ("dflash_draft_sink_size", -1, "greater than or equal to 0"),
        ("dflash_in_memory_cache_max_entries", 129, "less than or equal to 128"),
        ("dflash_in_memory_cache_max_entries", 0, "greater than or equal to 1"),
        ("dflash_in_memory_cache_max_bytes", -1, "greater than or equal to 0"),
        ("dflash_in_memory_cache_max_bytes", 10**400, "less than or equal to"),
        ("max_tokens", 0, "greater than or equal to 1"),
        ("temperature", float("nan"), "finite"),
        ("temperature", float("inf"), "finite"),
        ("temperature", -0.1, "greater than or equal to 0"),
        ("temperature", 1e-9, "0 for greedy"),
        ("temperature", True, "valid number"),
        ("temperature", "1", "valid number"),
        ("top_p", 0, "greater than or equal to"),
        ("top_p", 1.5, "less than or equal to 1"),
        ("top_k", -1, "greater than or equal to 0"),
        ("min_p", 2, "less than or equal to 1"),
        ("repetition_penalty", 0, "greater than or equal to"),
        ("presence_penalty", 3, "less than or equal to 2"),
        ("enable_thinking", 0, "boolean"),
        ("chat_template_kwargs", [], "dictionary"),
        ("chat_template_kwargs", {"a": [float("nan")]}, "plain JSON"),
        ("chat_template_kwargs", {"a": "\ud800"}, "plain JSON"),
        ("ttl_seconds", 0, "greater than or equal to 1"),
        ("model_alias", "a\nb", "one line"),
        ("description", "\ud800", "UTF-8"),
        ("trust_remote_code", True, "leave it off"),
        ("dflash_blocksize", 5, "did you mean 'dflash_block_size'"),
        ("zzz", 5, "there is no setting 'zzz'"),
        ("zzz", None, "there is no setting 'zzz'"),
    ],
)
def test_a_wrong_value_is_refused_by_name_with_the_allowed_ones(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(RequestError) as raised:
        changed(ModelSettings(), {"dflash_enabled": True, name: value})
    assert raised.value.param == name
    assert name in str(raised.value)
    assert allowed in str(raised.value)
    assert len(str(raised.value)) < 400
    str(raised.value).encode()


def test_everything_that_is_wrong_is_told_at_once_in_the_order_of_the_changes() -> None:
    with pytest.raises(RequestError) as raised:
        changed(ModelSettings(), {"nope": 1, "temperature": -1, "dflash_block_size": 0, "top_k": 5})
    assert raised.value.param == "nope"
    message = str(raised.value)
    assert message.index("nope") < message.index("temperature is -1") < message.index("dflash_block_size is 0")
    assert "top_k" not in message


def test_the_ssd_cache_needs_the_in_memory_cache() -> None:
    off = changed(ModelSettings(), {"dflash_in_memory_cache": False})
    with pytest.raises(RequestError, match="needs dflash_in_memory_cache") as raised:
        changed(off, {"dflash_ssd_cache": True})
    assert raised.value.param == "dflash_ssd_cache"
    on = changed(off, {"dflash_ssd_cache": True, "dflash_in_memory_cache": True})
    with pytest.raises(RequestError, match="needs dflash_in_memory_cache") as raised:
        changed(on, {"dflash_in_memory_cache": False})
    assert raised.value.param == "dflash_in_memory_cache"
    assert changed(on, {"dflash_in_memory_cache": False, "dflash_ssd_cache": None}) == off


def test_a_mode_that_is_not_there_yet_is_kept_and_not_chosen() -> None:
    imported, faults = from_stored({"dflash_verify_mode": "ddtree", "trust_remote_code": True})
    assert faults == {}
    assert imported.verify_mode == "adaptive"
    after = changed(imported, {"dflash_verify_mode": "ddtree", "trust_remote_code": True, "dflash_block_size": 3})
    assert stored(after) == {"dflash_verify_mode": "ddtree", "trust_remote_code": True, "dflash_block_size": 3}
    with pytest.raises(RequestError, match="use adaptive, dflash or off"):
        changed(ModelSettings(), {"dflash_verify_mode": "ddtree"})
    assert set(not_in_force(after)) == {"dflash_verify_mode", "trust_remote_code"}
    assert "'ddtree', which runs as adaptive" in not_in_force(after)["dflash_verify_mode"]
    assert changed(imported, {"dflash_verify_mode": "off"}).verify_mode == "off"
    assert not_in_force(changed(imported, {"dflash_verify_mode": None, "trust_remote_code": None})) == {}


def test_unknown_keys_are_kept_and_can_be_dropped() -> None:
    foreign = {"specprefill_enabled": True, "model_config": {"a": 1}, "self": None, "draft_quant": 5, "__class__": 2}
    imported, faults = from_stored({"temperature": 0.5} | foreign)
    assert faults == {}
    assert imported.model_extra == foreign
    assert imported.draft_quant is None
    after = changed(imported, {"temperature": None, "top_k": 3, "model_config": {"a": 1}})
    assert stored(after) == {"top_k": 3} | foreign
    assert set(not_in_force(after)) == set(foreign)
    with pytest.raises(RequestError, match="no setting 'model_config'"):
        changed(after, {"model_config": {"a": 2}})
    assert "model_config" not in stored(changed(after, {"model_config": None}))


@pytest.mark.parametrize("entry", [None, 5, [], "text"])
def test_an_entry_that_is_no_object_means_defaults(entry: Any) -> None:
    settings, faults = from_stored(entry)
    assert settings == ModelSettings()
    assert "not a JSON object" in faults[""]


def test_one_wrong_field_loses_no_other() -> None:
    entry = {"dflash_draft_quant_weight_bits": 3, "temperature": float("nan"), "top_k": 5, "odd": float("nan"), "a": 1}
    settings, faults = from_stored(entry | {"dflash_ssd_cache": True, "dflash_in_memory_cache": False, "top_p": None})
    assert stored(settings) == {"top_k": 5, "a": 1, "dflash_in_memory_cache": False}
    assert set(faults) == {"dflash_draft_quant_weight_bits", "temperature", "odd", "dflash_ssd_cache"}
    assert "is 3: input should be 2, 4 or 8" in faults["dflash_draft_quant_weight_bits"]


def settings_of(**values: Any) -> ModelSettings:
    return changed(ModelSettings(), values)


@pytest.mark.parametrize(
    ("before", "after", "reload"),
    [
        ({}, {"dflash_enabled": True, "dflash_draft_model": "a"}, ("dflash_enabled", "dflash_draft_model")),
        ({}, {"dflash_enabled": False, "dflash_draft_model": "a"}, ()),
        ({"dflash_draft_model": "a"}, {"dflash_draft_model": "a", "dflash_enabled": True}, ("dflash_enabled",)),
        ({"dflash_enabled": True}, {"dflash_enabled": True, "dflash_block_size": 3, "temperature": 1}, ()),
        ({"dflash_enabled": True}, {"dflash_enabled": True, "dflash_verify_mode": "off", "top_k": 1}, ()),
        ({"dflash_enabled": True}, {"dflash_enabled": True, "dflash_draft_quant_weight_bits": 8}, ()),
        ({"dflash_enabled": True}, {"dflash_enabled": True, "dflash_draft_quant_enabled": False}, ()),
        (
            {"dflash_enabled": True, "dflash_draft_quant_enabled": True},
            {"dflash_enabled": True, "dflash_draft_quant_enabled": True, "dflash_draft_quant_weight_bits": 4},
            (),
        ),
        (
            {"dflash_enabled": True, "dflash_draft_quant_enabled": True},
            {"dflash_enabled": True, "dflash_draft_quant_enabled": True, "dflash_draft_quant_group_size": 32},
            ("dflash_draft_quant_group_size",),
        ),
        (
            {"dflash_enabled": True},
            {"dflash_enabled": True, "dflash_draft_quant_enabled": True},
            ("dflash_draft_quant_enabled",),
        ),
        (
            {"dflash_enabled": True},
            {"dflash_enabled": True, "dflash_draft_window_size": 64, "dflash_draft_sink_size": 4},
            ("dflash_draft_window_size", "dflash_draft_sink_size"),
        ),
        ({}, {"is_pinned": True, "dflash_in_memory_cache": False, "ttl_seconds": 5, "model_alias": "x"}, ()),
    ],
)
def test_what_needs_a_reload(before: dict[str, Any], after: dict[str, Any], reload: tuple[str, ...]) -> None:
    assert needs_reload(settings_of(**before), settings_of(**after)) == reload
    assert needs_reload(settings_of(**after), settings_of(**before)) == reload
    assert needs_reload(settings_of(**after), settings_of(**after)) == ()


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("w4", "w4a16:gs64"),
        ("w8a32", "w8a32:gs64"),
        ("w2:gs128", "w2a16:gs128"),
        ("w4a16:gs64", "w4a16:gs64"),
        ("off", None),
        ("none", None),
        (None, None),
    ],
)
def test_the_short_form_of_the_drafters_quantisation(short: str | None, long: str | None) -> None:
    after = changed(settings_of(dflash_draft_quant_enabled=True), draft_quant_fields(short))
    assert after.draft_quant == long
    spec = parse_spec(short)
    assert after.draft_quant == (None if spec is None else str(spec))


@pytest.mark.parametrize("short", ["", "w3", "w4a8", "w4:gs16", "4", "w4a16:gs64 ", "w4a16gs64"])
def test_a_wrong_short_form_is_refused(short: str) -> None:
    with pytest.raises(RequestError, match=r"such as w4a16:gs64") as raised:
        draft_quant_fields(short)
    assert raised.value.param == "draft_quant"
    with pytest.raises(RequestError):
        parse_spec(short)


def test_facts_for_a_form() -> None:
    kinds = {name: FACTS[name].kind for name in ModelSettings.model_fields}
    assert kinds["dflash_enabled"] == kinds["dflash_draft_quant_enabled"] == "bool"
    assert kinds["dflash_draft_quant_weight_bits"] == kinds["dflash_verify_mode"] == "choice"
    assert kinds["dflash_in_memory_cache_max_bytes"] == "bytes"
    assert kinds["temperature"] == "float"
    assert kinds["dflash_block_size"] == "int"
    assert kinds["chat_template_kwargs"] == "object"
    assert kinds["dflash_draft_model"] == "text"
    assert FACTS["dflash_draft_quant_weight_bits"].choices == (2, 4, 8)
    assert FACTS["dflash_verify_mode"].choices == ("adaptive", "dflash", "ddtree", "off")
    assert set(FACTS["dflash_verify_mode"].unavailable) == {"ddtree"}
    entries = FACTS["dflash_in_memory_cache_max_entries"]
    assert (entries.minimum, entries.maximum, entries.above_minimum) == (1, 128, False)
    assert (FACTS["trust_remote_code"].available, FACTS["trust_remote_code"].reason is None) == (False, False)
    assert all(fact.label and fact.description and fact.group for fact in FACTS.values())
    assert [FACTS[name].reload for name in ("dflash_enabled", "dflash_block_size", "temperature")] == [
        True,
        False,
        False,
    ]


def value_of(fact: FieldFacts) -> st.SearchStrategy[Any]:
    """Values that the field takes, by its facts alone."""
    if fact.kind == "bool":
        return st.booleans() if fact.available else st.just(fact.default)
    if fact.kind == "choice":
        return st.sampled_from([choice for choice in fact.choices if choice not in fact.unavailable])
    if fact.kind in ("int", "bytes"):
        assert fact.minimum is not None
        assert fact.maximum is not None
        return st.integers(int(fact.minimum), int(fact.maximum))
    if fact.kind == "float":
        return st.floats(fact.minimum, fact.maximum).filter(lambda x: x == 0 or abs(x) >= 1e-6)
    if fact.kind == "object":
        return st.dictionaries(st.text(), JSON, max_size=3)
    return st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
CHANGES = st.fixed_dictionaries({}, optional={name: st.none() | value_of(fact) for name, fact in FACTS.items()})


@given(
    first=CHANGES, second=CHANGES, foreign=st.dictionaries(st.text().map(lambda text: f"x_{text}"), JSON, max_size=3)
)
def test_what_the_facts_allow_is_taken_and_comes_back(
    first: dict[str, Any], second: dict[str, Any], foreign: dict[str, Any]
) -> None:
    for changes in (first, second):
        changes.pop("dflash_in_memory_cache", None)
    before, faults = from_stored(foreign)
    assert faults == {}
    after = changed(changed(before, first), second)
    for name, value in second.items():
        assert getattr(after, name) == (FACTS[name].default if value is None else value)
    assert {name: value for name, value in stored(after).items() if name in foreign} == foreign
    again, faults = from_stored(json.loads(json.dumps(stored(after))))
    assert (again, faults) == (after, {})
    assert stored(again) == stored(after)
    assert changed(after, dict.fromkeys(stored(after))) == ModelSettings()


@given(st.dictionaries(st.sampled_from(list(ModelSettings.model_fields)) | st.text(), JSON, max_size=8))
def test_any_entry_is_read_and_what_is_right_in_it_is_in_force(entry: dict[str, Any]) -> None:
    settings, faults = from_stored(entry)
    for name, value in entry.items():
        if name not in faults and value is not None:
            kept = settings.model_extra[name] if name not in FACTS and settings.model_extra else getattr(settings, name)
            assert kept == value
    assert all(stored(settings)[name] == entry[name] for name in stored(settings))


@given(CHANGES)
def test_the_engine_takes_every_sampling_parameter_that_can_be_saved(changes: dict[str, Any]) -> None:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty")
    sampling_law(vocab_size=100, **{name: changes[name] for name in names if name in changes})
