"""The field types that the three protocols share. Nothing is coerced: a number as a text is an error."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from dflash2_mlx.errors import RequestError
from dflash2_server.extensions import DFlashOptions, JsonObject

_MOST_STOPS = 4
_MOST_DIGITS = 10


class RequestModel(BaseModel):
    """Any object of a request: fields that it does not know are ignored, those that it knows are of their type."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


_FORMS: dict[type, str] = {str: "text", list: "list", dict: "object"}


def form(value: Any) -> str | None:
    """Which form a field has that may have several; None: none of them."""
    return _FORMS.get(type(value))


def by_form(others: str) -> Discriminator:
    """Tells a text from the `others`, so that an error names the element at fault."""
    return Discriminator(form, custom_error_type="form", custom_error_message=f"Input should be a text or {others}")


TextOrObject = Annotated[Annotated[str, Tag("text")] | Annotated[JsonObject, Tag("object")], by_form("an object")]


class Part(RequestModel):
    """A part of a message's content, in chat's names (text) or those of responses (input_text, output_text)."""

    type: str
    text: str | None = None
    refusal: str | None = None


TextOrParts = Annotated[Annotated[str, Tag("text")] | Annotated[list[Part], Tag("list")], by_form("a list of parts")]
Stop = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[str], Field(max_length=_MOST_STOPS), Tag("list")],
    by_form(f"a list of up to {_MOST_STOPS} texts"),
]


class SamplingFields(RequestModel):
    """The parameters of sampling, by their names in the runtime, which checks their ranges."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_context_size: int | None = None
    presence_context_size: int | None = None
    frequency_context_size: int | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = Field(default=None, description="bias by token id, the ids as texts")
    stop: Stop | None = None
    dflash: DFlashOptions | None = None


_AS_THEY_ARE = tuple(name for name in SamplingFields.model_fields if name not in ("logit_bias", "stop", "dflash"))


def sampling_parameters(fields: SamplingFields) -> dict[str, Any]:
    """The parameters that a request gives, as `Inference.parameters` wants them."""
    given = {name: getattr(fields, name) for name in _AS_THEY_ARE}
    given["logit_bias"] = _token_bias(fields.logit_bias) if fields.logit_bias else None
    given["stop"] = [fields.stop] if isinstance(fields.stop, str) else fields.stop or None
    own = {} if fields.dflash is None else fields.dflash.parameters()
    return {name: value for name, value in given.items() if value is not None} | own


def _token_bias(bias: dict[str, float]) -> dict[int, float]:
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) <= _MOST_DIGITS):
            raise RequestError(f"logit_bias has the key {key!r:.80}: keys are token ids", param="logit_bias")
    return {int(key): value for key, value in bias.items()}


# What would need eyes or ears, in chat's names and in those of responses.
_OTHER_MEDIA = {
    "image_url", "image", "input_image", "input_audio", "audio", "file", "input_file", "video_url",
}  # fmt: skip
_TEXT_TYPES = {"text", "input_text", "output_text"}


def joined_text(content: str | list[Part], field: str) -> str:
    """The text of a message's content; parts are set apart by a line break, as they may be whole documents.

    Raises RequestError for a part that is not text, its place in the request being `field`[i].
    """
    if isinstance(content, str):
        return content
    return "\n".join(_part_text(part, f"{field}[{i}]") for i, part in enumerate(content))


def _part_text(part: Part, place: str) -> str:
    if part.type in _OTHER_MEDIA:
        raise RequestError(f"{place} is of type {part.type!r}: this model reads text only", param=place)
    if part.type in _TEXT_TYPES and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in _TEXT_TYPES | {"refusal"}:
        key = "refusal" if part.type == "refusal" else "text"
        raise RequestError(f"{place} of type {part.type!r} has no {key}", param=f"{place}.{key}")
    raise RequestError(f"{place} is of the unknown type {part.type!r:.80}: use text parts", param=f"{place}.type")


def refuse(field: str, value: Any, remedy: str) -> None:
    """Raise RequestError for a field that is given and has a meaning that is not served."""
    if value is not None:
        raise RequestError(f"{field} is {value!r:.80}: {remedy}", param=field)


def grammar(kind: str, schema: dict[str, Any] | None, field: str, schema_field: str) -> Any:
    """`Inference.grammar` of an answer format of type `kind`; the fields are where the request names them."""
    if kind == "text":
        return None
    if kind == "json_object":
        return "json_object" if schema is None else schema
    if kind != "json_schema":
        raise RequestError(f"{field}.type is {kind!r:.80}: use text, json_object or json_schema", param=f"{field}.type")
    if schema is None:
        raise RequestError(f"{field}.type is 'json_schema' without a schema: give {schema_field}", param=schema_field)
    return schema
