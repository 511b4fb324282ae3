"""What the terminal asks of the library, in one place, where tests put doubles; mlx comes at first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dflash2_mlx.chat.options import ModelChoice

if TYPE_CHECKING:
    from dflash2_mlx.pairs import Pair

LoadProgress = Callable[[str, float], None]


class Backend(Protocol):
    """Loading, streaming, and checking parameters without running anything."""

    def load(self, choice: ModelChoice, progress: LoadProgress | None) -> Pair: ...

    def stream(self, pair: Pair, prompt: str | list[int], **parameters: Any) -> Iterator[Any]: ...

    def check(self, pair: Pair, parameters: Mapping[str, Any]) -> None: ...


class Library:
    """The backend that runs models."""

    def load(self, choice: ModelChoice, progress: LoadProgress | None) -> Pair:
        from dflash2_mlx.pairs import load

        return load(choice.model, choice.draft, quantize=choice.draft_quant, dtype=choice.dtype, progress=progress)

    def stream(self, pair: Pair, prompt: str | list[int], **parameters: Any) -> Iterator[Any]:
        from dflash2_mlx.text.stream import stream_generate

        return stream_generate(pair, prompt, **parameters)

    def check(self, pair: Pair, parameters: Mapping[str, Any]) -> None:
        """Raises RequestError when the library refuses a parameter."""
        check_parameters(parameters, vocab_size=pair.target.vocab_size, block_size=pair.block_size)


def check_parameters(parameters: Mapping[str, Any], *, vocab_size: int, block_size: int) -> None:
    """Raises RequestError when the library refuses a parameter for a pair of that vocabulary and block size."""
    from dflash2_mlx.decode.request import make_request
    from dflash2_mlx.text.stops import stop_strings

    given = dict(parameters)
    stop_strings(given.pop("stop", None))
    make_request([0], vocab_size=vocab_size, checkpoint_block_size=block_size, **given)
