"""One loaded pair as it is served: its template, its limits, and how a request becomes a job for the engine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash2_mlx.engine.job import Job
from dflash2_mlx.errors import PromptTooLong, RequestError
from dflash2_mlx.pairs import Pair
from dflash2_mlx.settings import ServerSettings
from dflash2_mlx.settings.model import ModelSettings
from dflash2_mlx.text.answer import answer_parser
from dflash2_mlx.text.parts import Parser
from dflash2_mlx.text.prompt import Prompt, build_prompt
from dflash2_mlx.text.reasoning import thinking_markers
from dflash2_mlx.text.stream import TextRun
from dflash2_mlx.text.template import ChatTemplate
from dflash2_server.answer import RunningAnswer, WholeText
from dflash2_server.constraints import Constraints
from dflash2_server.inference import Inference, ModelInfo
from dflash2_server.known_texts import KnownTexts

# The fields of a model's settings that are parameters of a request by the same name.
_SAMPLING = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
)  # fmt: skip

Later = Callable[[Callable[[], None]], None]


@dataclass(frozen=True)
class Prepared:
    """A checked request: `answer` listens to `job`."""

    job: Job
    answer: RunningAnswer


class ServedPair:
    """A pair with what its requests share."""

    def __init__(
        self,
        pair: Pair,
        settings: ServerSettings,
        *,
        name: str | None = None,
        model_settings: ModelSettings | None = None,
        names: Sequence[str] = (),
        drafter: str | None = None,
    ) -> None:
        """`name` is its id, `names` are others that it answers to, `drafter` is the drafter's id.

        Raises RequestError for a wrong block size.
        """
        self.drafter = drafter or (pair.drafter_name and model_id(pair.drafter_name))
        self.pair = pair
        self.name = name or model_id(pair.model_name)
        self.names = (self.name, pair.model_name, *names)
        self.model_settings = model_settings or ModelSettings()  # may be changed while it runs
        self.created = int(time.time())
        self._settings = settings
        if self.model_settings.dflash_block_size is not None and pair.drafter is not None:
            check_block_size(self.model_settings, pair.block_size)
        self._tokenizer: Any = pair.tokenizer
        self._template = ChatTemplate(pair.tokenizer) if getattr(pair.tokenizer, "has_chat_template", False) else None
        self._constraints = Constraints(pair, self._template.tool_format.name if self._template else None)
        self._known = KnownTexts()

    @property
    def context_length(self) -> int | None:
        """Most tokens of prompt and answer."""
        return self.model_settings.max_context_window or self._settings.context_length or context_length(self.pair)

    @property
    def most(self) -> int:
        """The widest block of requests that name none; 1 is plain decoding."""
        if self.pair.drafter is None or self.verify_mode == "off":
            return 1
        return self.model_settings.dflash_block_size or self.pair.block_size

    @property
    def is_automatic(self) -> bool:
        """Whether measurement chooses the block size of requests that name none."""
        automatic = self.verify_mode == "adaptive" or self.model_settings.dflash_block_size is None
        return automatic and self.most > 1

    @property
    def block_size(self) -> int:
        """In force for requests that name none: that of the latest cycle where it is automatic."""
        widths = self.pair.widths
        latest = widths.latest if widths is not None and self.is_automatic else None
        return self.most if latest is None else min(latest, self.most)

    @property
    def engine(self) -> str:
        """In force for requests that name none: plain, dflash or dflash2."""
        return "plain" if self.most == 1 else self.pair.engine

    @property
    def verify_mode(self) -> str:
        """In force for requests that name none."""
        return "off" if self.pair.drafter is None else self.model_settings.verify_mode

    @property
    def info(self) -> ModelInfo:
        pair = self.pair
        alias = self.model_settings.model_alias
        return ModelInfo(
            id=self.name,
            created=self.created,
            context_length=self.context_length,
            engine=self.engine,
            block_size=self.block_size,
            automatic=self.is_automatic,
            drafter=self.drafter,
            fallback_reason=pair.fallback_reason,
            aliases=(alias,) if alias else (),
        )

    def uses(self, *names: str | None) -> bool:
        """Whether its model or its drafter was loaded by one of the names: folders or repository ids."""
        return any(name in (self.pair.model_name, self.pair.drafter_name) for name in names if name is not None)

    def prompt(self, inference: Inference) -> Prompt:
        """The prompt of a request: slow for a long one, and free of the models. Raises RequestError."""
        inference = self._with_defaults(inference)
        if inference.prompt is not None:
            return self._raw_prompt(inference.prompt)
        if self._template is None:
            raise RequestError(f"{self.name} has no chat template: use /v1/completions", param="model")
        return build_prompt(
            self._template,
            inference.messages or (),
            self.tools(inference),
            reasoning=inference.reasoning,
            extra=inference.template_arguments,
            known=self._known,
            continue_final=inference.continue_final,
        )

    def prepare(self, inference: Inference, loop: asyncio.AbstractEventLoop, later: Later) -> Prepared:
        """The job of a request, and its answer, which gives its events on `loop`. Raises RequestError.

        What remains to be done at the answer's end is given to `later`, since it may take a while.
        """
        inference = self._with_defaults(inference)
        prompt = self.prompt(inference)
        chat = inference.prompt is None
        inside = chat and prompt.template_text.rstrip().endswith(thinking_markers(self._tokenizer)[0])
        run = TextRun(
            self.pair,
            prompt.ids,
            constraint=self._constraints.of(inference, inside_reasoning=inside),
            prefill_step_size=self._settings.prefill_step_size,
            **self._parameters(inference.parameters, len(prompt.ids)),
        )
        tools = self.tools(inference)
        answer = RunningAnswer(
            run,
            self._parser(prompt, tools) if chat else WholeText(),
            loop,
            single_call=bool(tools) and not inference.parallel_tool_calls,
            reasoning_end=self._constraints.reasoning_end,
            token_text=lambda token: str(self._tokenizer.decode([token])),
            finished=lambda text, tokens: later(lambda: self._remember(prompt, text, tokens)),
        )
        job = Job(self.pair, run.request, answer, borders=frozenset(prompt.borders))
        if self._is_past_max_ctx(len(prompt.ids)):
            most = self.model_settings.dflash_max_ctx
            job.stats.fallback_reason = f"the prompt has {len(prompt.ids)} tokens: from {most} on it is decoded plainly"
        return Prepared(job, answer)

    def _with_defaults(self, inference: Inference) -> Inference:
        """What the request leaves open, by the model's settings."""
        mine = self.model_settings
        arguments = {**(mine.chat_template_kwargs or {}), **inference.template_arguments}
        reasoning = inference.reasoning
        if reasoning is None and mine.enable_thinking is not None and "enable_thinking" not in arguments:
            reasoning = "on" if mine.enable_thinking else "off"
        return replace(inference, template_arguments=arguments, reasoning=reasoning)

    def _is_past_max_ctx(self, prompt_tokens: int) -> bool:
        most = self.model_settings.dflash_max_ctx
        return self.pair.drafter is not None and most is not None and prompt_tokens >= most

    def tools(self, inference: Inference) -> Sequence[Mapping[str, Any]]:
        """The tools that the model is told of: none where it must not call any."""
        return () if inference.tool_choice == "none" else inference.tools

    def _parser(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]]) -> Parser:
        assert self._template is not None, "a chat has a template"
        return answer_parser(self._tokenizer, prompt.template_text, tools=tools, calls=self._template.tool_format)

    def _raw_prompt(self, prompt: str | Sequence[int]) -> Prompt:
        ids = list(self._tokenizer.encode(prompt)) if isinstance(prompt, str) else list(prompt)
        return Prompt(prompt if isinstance(prompt, str) else "", ids, ())

    def _parameters(self, given: Mapping[str, Any], prompt_tokens: int) -> dict[str, Any]:
        """The checkpoint's sampling defaults, the model's settings over them, the request's own over both.

        Beside that a limit that the context has room for, and plain decoding past `dflash_max_ctx`.
        """
        parameters = {**self.pair.defaults, **self._model_parameters(), **given}
        if "block_size" in given and "verify_mode" not in given and parameters.get("verify_mode") == "adaptive":
            parameters["verify_mode"] = "dflash"  # who names a block size wants that one
        if self._is_past_max_ctx(prompt_tokens):
            parameters["verify_mode"] = "off"
        wanted = parameters.get("max_tokens", self._settings.max_tokens)
        if self.context_length is not None:
            room = self.context_length - prompt_tokens
            if room <= 0:
                raise PromptTooLong(
                    f"prompt is too long: {prompt_tokens} tokens > {self.context_length - 1} maximum (the context of "
                    f"{self.name} is {self.context_length}): shorten it",
                    param="messages",
                )
            # What is no number, or below one, goes on as it is: the runtime refuses it by name.
            wanted = room if wanted is None else min(wanted, room) if type(wanted) is int else wanted
        if wanted is not None:
            parameters["max_tokens"] = wanted
        return parameters

    def _model_parameters(self) -> dict[str, Any]:
        mine = self.model_settings
        found = {name: value for name in _SAMPLING if (value := getattr(mine, name)) is not None}
        if self.pair.drafter is not None:
            found["verify_mode"] = self.verify_mode
            if mine.dflash_verify_precision is not None:
                found["verify_precision"] = mine.dflash_verify_precision
            if mine.dflash_block_size is not None:
                found["block_size"] = mine.dflash_block_size
        return found

    def _remember(self, prompt: Prompt, text: str, tokens: Sequence[int]) -> None:
        if self._template is None or not prompt.marked:
            return  # the prompts that no template makes are not looked up either
        known = self._template.known(prompt.marked, prompt.ids, text, tokens)
        if known is not None:
            self._known.remember(known)


def check_block_size(settings: ModelSettings, most: int) -> None:
    """Raises RequestError where the runtime block size is larger than the drafter's checkpoint allows."""
    wanted = settings.dflash_block_size
    if wanted is not None and wanted > most:
        raise RequestError(
            f"dflash_block_size is {wanted}: the drafter's block size is {most}, choose 1 to {most} or leave it empty",
            param="dflash_block_size",
        )


def model_id(name: str) -> str:
    """How a model is called over the wire: a Hub id as it is, a folder by its last name, never by its path."""
    return Path(name).expanduser().resolve().name if os.path.isdir(os.path.expanduser(name)) else name


def context_length(pair: Pair) -> int | None:
    """The most positions that a model's config allows; None where it does not tell."""
    nested = pair.config.get("text_config")
    config = nested if isinstance(nested, Mapping) else pair.config
    length = config.get("max_position_embeddings") or config.get("model_max_length")
    return int(length) if length else None
