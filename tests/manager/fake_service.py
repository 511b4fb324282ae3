"""A service over the fake manager's models: it answers with a little Markdown, in pieces, and can be stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dflash2_mlx.errors import ModelNotFound
from dflash2_server.inference import Inference, ModelInfo, Text
from tests.server.doubles import TIMINGS, ScriptedAnswer, ScriptedService, Step, done

if TYPE_CHECKING:
    from tests.manager.doubles import FakeManager

THOUGHT = "The user wants a short answer with some code. "
ANSWER = """**Speculative decoding** lets a small drafter propose tokens that the target checks at once:

1. propose a block,
2. verify it in one pass,
3. keep what the target agrees with.

```python
def accept(drafts, target):
    return [d for d, t in zip(drafts, target) if d == t]
```
"""


class FakeService(ScriptedService):
    """`events`, where a test sets them, come instead of the Markdown. `pause` is in seconds, between two pieces."""

    def __init__(self, manager: FakeManager) -> None:
        super().__init__(self._answer)
        self._manager = manager
        self.pause = 0.0

    async def submit(self, inference: Inference) -> ScriptedAnswer:
        view = self._view(inference.model)
        if view.state != "ready":
            await self._manager.load(view.id)
        return await super().submit(inference)

    def models(self) -> list[ModelInfo]:
        views = self._manager.models()
        return [self._info(view) for view in views if view.kind == "model" and not view.settings.is_hidden]

    def model(self, name: str | None) -> ModelInfo:
        return self._info(self._view(name))

    def _view(self, name: str | None) -> Any:
        if name is not None:
            view = self._manager.model(name)
            if view.kind == "drafter":
                raise ModelNotFound(f"{name!r} is a drafter, not a model")
            return view
        views = [view for view in self._manager.models() if view.kind == "model"]
        return next((view for view in views if view.settings.is_default or view.state == "ready"), views[0])

    def _info(self, view: Any) -> ModelInfo:
        running = view.running
        return ModelInfo(
            id=view.id,
            created=1_760_000_000,
            context_length=view.context_length,
            engine=running.engine if running else "plain",
            block_size=running.block_size if running else 1,
            drafter=running.drafter if running else None,
            fallback_reason=running.reason if running else None,
            aliases=tuple(name for name in (view.repo_id, view.settings.model_alias) if name),
        )

    def _answer(self, inference: Inference) -> list[Step]:
        info = self.model(inference.model)
        plain = info.engine == "plain" or inference.parameters.get("verify_mode") == "off"
        steps: list[Step] = []
        pieces = [("reasoning", THOUGHT[i : i + 8]) for i in range(0, len(THOUGHT), 8)]
        pieces += [("content", ANSWER[i : i + 12]) for i in range(0, len(ANSWER), 12)]
        for kind, piece in pieces:
            steps += [Text(kind, piece)]  # type: ignore[arg-type]
            steps += [self.pause * (2.5 if plain else 1.0)] if self.pause else []
        tokens = len(pieces) * 3
        timings = TIMINGS | {
            "predicted_n": tokens,
            "predicted_ms": tokens * (40.0 if plain else 15.0),
            "predicted_per_second": 25.0 if plain else 66.7,
            "draft_n": 0 if plain else tokens * 2,
            "draft_n_accepted": 0 if plain else int(tokens * 0.62),
            "tokens_per_cycle": 1.0 if plain else 2.66,
        }
        engine = {
            "engine": "plain" if plain else info.engine,
            "block_size": 1 if plain else info.block_size,
            "verify_mode": "off" if plain else "dflash",
            "draft_quant": None,
            "fallback_reason": None,
        }
        return [*steps, done(completion_tokens=tokens, reasoning_tokens=18, timings=timings, engine=engine)]
