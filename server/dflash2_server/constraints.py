"""From what a request demands of its answer to one constraint on its tokens: a grammar, a forced call, a budget."""

from __future__ import annotations

from typing import Any

from dflash2_mlx.decode.constraint import Constraint
from dflash2_mlx.pairs import Pair
from dflash2_mlx.text.budget import AfterReasoning, All, ThinkingBudget
from dflash2_mlx.text.grammar import LEAD, Grammar, GrammarFactory, json_schema_grammar
from dflash2_mlx.text.tool_grammar import calls_or_json_grammar, tool_grammar
from dflash2_server.inference import Inference, NamedTool

ANY_OBJECT = {"type": "object"}


class Constraints:
    """Makes the constraints of one pair's requests. `reasoning_end` are the tokens that end reasoning, if any."""

    def __init__(self, pair: Pair, tool_format: str | None) -> None:
        self._pair, self._tool_format = pair, tool_format
        self._factory = GrammarFactory(pair.tokenizer)
        self._harmony = tool_format == "harmony"
        self._starts, self.reasoning_end = _reasoning_tokens(pair.tokenizer, self._harmony)

    def of(self, inference: Inference, *, inside_reasoning: bool) -> Constraint | None:
        """The constraint of one answer, None where it is free; `inside_reasoning`: the prompt has opened it.

        Raises RequestError that names the field which cannot be enforced.
        """
        made: list[Constraint] = []
        grammar = self._grammar(inference)
        if grammar is not None:
            silent = inference.reasoning in ("off", "none")
            made.append(self._after_reasoning(grammar, inside_reasoning, silent))
        # Without reasoning every budget is kept.
        if inference.thinking_budget is not None and self.reasoning_end:
            made.append(
                ThinkingBudget(
                    inference.thinking_budget,
                    self.reasoning_end,
                    inside_reasoning,
                    self._starts,
                    self._pair.target.vocab_size,
                )
            )
        return made[0] if len(made) == 1 else All(made) if made else None

    def _grammar(self, inference: Inference) -> Grammar | None:
        choice = inference.tool_choice
        if inference.tools and (choice == "required" or isinstance(choice, NamedTool)):
            name = choice.name if isinstance(choice, NamedTool) else None
            return tool_grammar(
                self._tool_format,
                inference.tools,
                name,
                inference.parallel_tool_calls,
                token_id=self._factory.token_id,
            )
        if inference.grammar is None:
            return None
        schema = ANY_OBJECT if inference.grammar == "json_object" else inference.grammar
        if inference.tools and choice != "none":
            return calls_or_json_grammar(
                self._tool_format,
                inference.tools,
                schema,
                inference.parallel_tool_calls,
                token_id=self._factory.token_id,
            )
        lead = _harmony_lead(self._factory) if self._harmony else LEAD
        return json_schema_grammar(schema, lead=lead)

    def _after_reasoning(self, grammar: Grammar, inside: bool, silent: bool) -> Constraint:
        tokenizer: Any = self._pair.tokenizer
        size = self._pair.target.vocab_size
        inner = self._factory.constraint(grammar, vocab_size=size)
        if (silent and not inside) or not self.reasoning_end:
            return inner
        return AfterReasoning(
            inner,
            self.reasoning_end,
            inside,
            self._starts,
            vocab_size=size,
            eos_token_ids=tokenizer.eos_token_ids,
        )


def _reasoning_tokens(tokenizer: Any, harmony: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that begin and end reasoning; none where the model does not reason."""
    if harmony:
        start, end = "<|channel|>analysis<|message|>", "<|end|>"
        return tuple(tokenizer.encode(start, add_special_tokens=False)), (tokenizer.convert_tokens_to_ids(end),)
    start_tokens = getattr(tokenizer, "think_start_tokens", None)
    return tuple(start_tokens or ()), tuple(getattr(tokenizer, "think_end_tokens", None) or ())


def _harmony_lead(factory: GrammarFactory) -> str:
    """What gpt-oss writes before its answer proper, with or without reasoning before it."""
    start, channel, message = (f"<[{factory.token_id(f'<|{name}|>')}]>" for name in ("start", "channel", "message"))
    return f'({start} "assistant")? {channel} "final" {message}'
