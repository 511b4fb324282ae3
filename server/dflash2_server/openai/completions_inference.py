"""From a completion request to the Inference that answers it. Pure; whatever is not served is refused by name."""

from __future__ import annotations

from dflash2_mlx.errors import RequestError
from dflash2_server.inference import Inference
from dflash2_server.openai.fields import refuse, sampling_parameters
from dflash2_server.openai.schemas_completions import CompletionRequest

# OpenAI's; chat has none.
_DEFAULT_MAX_TOKENS = 16


def completion_inference(request: CompletionRequest) -> Inference:
    """Raises RequestError; its param is the field at fault."""
    for name in ("n", "best_of"):
        if (value := getattr(request, name)) != 1:
            refuse(name, value, "one answer a request is served, send the request again for another")
    refuse("echo", request.echo or None, "put the prompt before the answer yourself")
    refuse("suffix", request.suffix or None, "text is only continued, not inserted")
    parameters = sampling_parameters(request)
    parameters["max_tokens"] = _DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if request.logprobs is not None:
        parameters["logprobs"] = request.logprobs
    return Inference(model=request.model, prompt=one_prompt(request.prompt), parameters=parameters)


def one_prompt(prompt: str | list[str | int | list[int]]) -> str | list[int]:
    """The text or the token ids of the only prompt. Raises RequestError where there are several, or none."""
    if isinstance(prompt, str):
        return prompt
    ids = [token for token in prompt if isinstance(token, int)]
    if ids and len(ids) == len(prompt):
        return ids
    if ids:
        raise RequestError("prompt mixes token ids with other things: give one text or one list of ids", param="prompt")
    if len(prompt) != 1:
        raise RequestError(f"prompt has {len(prompt)} prompts: give exactly one a request", param="prompt")
    only = prompt[0]
    assert not isinstance(only, int)
    return only
