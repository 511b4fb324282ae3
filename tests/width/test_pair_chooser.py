"""Who chooses the width of a request: modes, block sizes, seeds; and what a controller tells of itself."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx.decode.adaptive import AdaptiveWidth, HeldWidth
from dflash2_mlx.decode.request import Request, make_request
from dflash2_mlx.decode.width import WidthController
from dflash2_mlx.pairs import Pair, load
from dflash2_mlx.text.stream import generate
from tests.running import real_drafter, subject
from tests.tiny_checkpoints import write_target
from tests.tiny_drafters import tiny_drafter_config, write_drafter

PROMPT = [5, 9, 2, 11]


@cache
def _pair(folder: str) -> Pair:
    of = subject("llama")
    return Pair(of.target, real_drafter(Path(folder), of), model_name="tiny")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("drafter"))


@pytest.fixture
def pair(folder: str) -> Pair:
    pair = _pair(folder)
    pair.widths = WidthController(8)
    return pair


def request(pair: Pair, **parameters: Any) -> Request:
    return make_request(PROMPT, vocab_size=pair.target.vocab_size, checkpoint_block_size=pair.block_size, **parameters)


def tuned(pair: Pair, best: int) -> None:
    """Costs by which that width is the best."""
    assert pair.widths is not None
    for width in range(1, 9):
        pair.widths.costs.set(width, 0, 0.010 if width <= best else 0.040)


@pytest.mark.parametrize(
    ("parameters", "width", "words"),
    [
        ({"verify_mode": "off"}, 1, "plain decoding, as asked for"),
        ({"block_size": 1}, 1, "plain decoding, as asked for"),
        ({"block_size": 3}, 3, "block 3, as asked for"),
        ({"verify_mode": "dflash"}, 4, "the best one by measurement"),
        ({"verify_mode": "adaptive"}, 4, "tokens/s expected"),
        ({"verify_mode": "adaptive", "block_size": 3}, 3, "tokens/s expected"),
        ({"verify_mode": "adaptive", "temperature": 1.0}, 4, "tokens/s expected"),
        ({"verify_mode": "adaptive", "temperature": 1.0, "seed": 1}, 8, "a seed was given"),
        ({"verify_mode": "dflash", "temperature": 1.0, "seed": 1}, 8, "a seed was given"),
        ({"verify_mode": "adaptive", "temperature": 1.0, "seed": 1, "block_size": 5}, 5, "a seed was given"),
        ({"verify_mode": "adaptive", "seed": 1}, 4, "tokens/s expected"),
    ],
)
def test_the_width_of_a_request(pair: Pair, parameters: dict[str, Any], width: int, words: str) -> None:
    tuned(pair, best=4)
    chooser = pair.chooser(request(pair, **parameters))
    assert chooser is not None
    assert chooser.choose(100) == width
    assert words in (chooser.reason or "")


def test_a_block_size_is_the_checkpoints_until_others_were_measured(pair: Pair) -> None:
    chooser = pair.chooser(request(pair, verify_mode="dflash"))
    assert chooser is not None
    assert chooser.choose(100) == 8
    assert "not measured yet" in (chooser.reason or "")
    for _ in range(50):
        chooser.cycle_done(8, 0, 100, 0.01)
    again = pair.chooser(request(pair, verify_mode="dflash"))
    assert again is not None
    assert again.choose(100) == 8, "one width alone tells nothing of others"


def test_a_width_that_is_not_exact_here_is_never_chosen(pair: Pair) -> None:
    tuned(pair, best=8)
    assert pair.widths is not None
    assert pair.notes == ()
    pair.widths.avoided = frozenset({7, 8})
    assert "7, 8 is never chosen" in pair.notes[0]
    chooser = AdaptiveWidth(pair.widths, "greedy", 8)
    for depth in range(100, 700):
        width = chooser.choose(depth)
        assert width < 7
        chooser.cycle_done(width, width - 1, depth, 0.01)
    assert pair.widths.best_block("greedy", 8, 100)[0] == 6
    assert WidthController.best_block(fresh(avoided={8}), "greedy", 8, 100)[0] == 7
    asked = pair.chooser(request(pair, block_size=8))
    assert asked is not None
    assert asked.choose(100) == 8, "who asks for it has it, and the note"


def fresh(avoided: set[int]) -> WidthController:
    controller = WidthController(8)
    controller.avoided = frozenset(avoided)
    return controller


def test_a_pair_without_a_drafter_chooses_nothing() -> None:
    plain = Pair(subject("llama").target)
    assert plain.widths is None
    assert plain.chooser(request(plain)) is None


def test_verifying_one_by_one_teaches_nothing(pair: Pair) -> None:
    assert pair.widths is not None
    answer = generate(
        pair, PROMPT, max_tokens=20, verify_mode="adaptive", verify_precision="reference", eos_token_ids=()
    )
    assert answer.stats is not None
    assert "one by one" in (answer.stats.width_reason or "")
    assert answer.stats.block_size == 8
    assert pair.widths.cycles == 0


def test_fixed_requests_teach_the_controller(pair: Pair) -> None:
    assert pair.widths is not None
    generate(pair, PROMPT, max_tokens=24, block_size=3, eos_token_ids=())
    generate(pair, PROMPT, max_tokens=24, verify_mode="off", eos_token_ids=())
    figures = pair.widths.figures()
    assert figures.cycles_by_width[0] > 10
    assert figures.cycles_by_width[2] > 3
    assert pair.widths.costs.anywhere(1)
    assert pair.widths.costs.anywhere(3)
    assert figures.source == "cycles"
    assert set(figures.acceptance) == {"all", "greedy"}


def test_an_adaptive_answer_says_what_it_did(pair: Pair) -> None:
    answer = generate(pair, PROMPT, max_tokens=100, verify_mode="adaptive", eos_token_ids=())
    assert answer.tokens == subject("llama").answer(subject("llama").prompt(1), 0) + plain(pair, 100)
    assert answer.stats is not None
    told = answer.stats.as_dict()
    assert len(told["cycles_by_width"]) >= 3, "cold, it tries some"
    assert told["width_reason"]
    assert told["verify_mode"] == "adaptive"
    assert pair.widths is not None
    assert pair.widths.figures().probes > 0


def plain(pair: Pair, count: int) -> list[int]:
    return generate(pair, PROMPT, max_tokens=count, verify_mode="off", eos_token_ids=()).tokens


def test_the_same_seed_gives_the_same_text_in_every_mode(pair: Pair) -> None:
    for mode in ("adaptive", "dflash"):
        texts = [
            generate(pair, PROMPT, max_tokens=40, temperature=1.0, seed=3, verify_mode=mode, eos_token_ids=()).tokens
            for _ in range(3)
        ]
        assert texts[0] == texts[1] == texts[2]
        tuned(pair, best=3)


def test_a_seed_holds_the_width_that_was_best_when_enough_was_known(pair: Pair) -> None:
    assert pair.widths is not None
    sampled = {"verify_mode": "adaptive", "temperature": 1.0, "seed": 1}
    for width in range(1, 9):
        pair.widths.costs.set(width, 0, 0.010 + 0.001 * width)
    with pair.widths.lock:
        for _ in range(100):
            pair.widths.cycle_done("sampled", 8, 0, 100, None)
    chooser = pair.chooser(request(pair, **sampled))
    assert chooser is not None
    assert chooser.choose(100) == 1, "no draft stands: plain decoding"
    with pair.widths.lock:
        for _ in range(600):
            pair.widths.cycle_done("sampled", 8, 7, 100, None)
    again = pair.chooser(request(pair, **sampled))
    assert again is not None
    assert again.choose(100) == 1, "what is measured later changes no drawing"
    blocks = pair.chooser(request(pair, **{**sampled, "verify_mode": "dflash"}))
    assert blocks is not None
    assert blocks.choose(100) == 2, "mode dflash drafts"
    twin = WidthController(8)
    twin.restore(pair.widths.kept())
    assert twin.pinned == {"sampled": 1}


def test_a_wrong_drafter_is_told_over_several_short_requests(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    assert pair.widths is not None
    for _ in range(4):
        chooser = pair.chooser(request(pair, block_size=4))
        assert chooser is not None
        assert pair.notes == ()
        for _ in range(12):
            chooser.cycle_done(4, 0, 100, None)
    assert "the drafter does not fit" in pair.notes[0]
    assert "only 0 drafts accepted in 48 cycles" in caplog.text
    assert pair.new_stats(4, "dflash").as_dict()["alarm"] == pair.notes[0]
    assert pair.new_stats(1, "off").as_dict()["alarm"] is None


def test_what_a_request_asks_for_is_not_the_controllers_choice(pair: Pair) -> None:
    assert pair.widths is not None
    tuned(pair, best=4)
    generate(pair, PROMPT, max_tokens=5, verify_mode="off", eos_token_ids=())
    generate(pair, PROMPT, max_tokens=5, block_size=3, eos_token_ids=())
    assert pair.widths.latest is None
    best, _ = pair.widths.best_block("greedy", 8, len(PROMPT))  # by what these have just measured
    generate(pair, PROMPT, max_tokens=5, verify_mode="dflash", eos_token_ids=())
    assert pair.widths.latest == best


def test_only_what_has_run_is_counted(pair: Pair) -> None:
    text = plain(pair, 20)
    answer = generate(pair, PROMPT, max_tokens=20, block_size=8, eos_token_ids=(text[0],))
    assert answer.stats is not None
    assert answer.stats.as_dict()["cycles_by_width"] == {}
    answer = generate(pair, PROMPT, max_tokens=20, verify_mode="off", eos_token_ids=())
    assert answer.stats is not None
    assert answer.stats.as_dict()["cycles_by_width"] == {1: 19}


def test_figures_are_read_while_requests_run(pair: Pair) -> None:
    assert pair.widths is not None
    widths, done, wrong = pair.widths, threading.Event(), []

    def look() -> None:
        while not done.is_set():
            figures = widths.figures()
            if not (len(figures.rates) == len(figures.cycles_by_width) == 8 and figures.reason):
                wrong.append(figures)

    looker = threading.Thread(target=look)
    looker.start()
    chooser = AdaptiveWidth(widths, "greedy", 8)
    for depth in range(3000):
        width = chooser.choose(depth)
        chooser.cycle_done(width, width // 2, depth, 0.01 * width)
    done.set()
    looker.join()
    assert not wrong


def test_choices_of_kinds_are_apart(pair: Pair) -> None:
    """Sampled requests are rejected more: their block is narrower."""
    assert pair.widths is not None
    for width in range(1, 9):
        pair.widths.costs.set(width, 0, 0.010 + 0.002 * width)
    with pair.widths.lock:
        for _ in range(300):
            pair.widths.cycle_done("greedy", 8, 7, 100, None)
            pair.widths.cycle_done("sampled", 8, 0, 100, None)
    for kind, best in (("greedy", 8), ("sampled", 1)):
        chooser = AdaptiveWidth(pair.widths, kind, 8)
        widths = [chooser.choose(100) for _ in range(20)]
        assert max(widths, key=widths.count) == best
    acceptance = pair.widths.figures().acceptance
    assert acceptance["greedy"][3] > 0.8 > 0.1 > acceptance["sampled"][3]


def test_held_and_adaptive_are_what_their_names_say(pair: Pair) -> None:
    assert isinstance(pair.chooser(request(pair, block_size=3)), HeldWidth)
    assert isinstance(pair.chooser(request(pair, verify_mode="adaptive")), AdaptiveWidth)


def test_a_loaded_pair_takes_up_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH2_MEASURED", str(tmp_path / "measured"))
    model = write_target(tmp_path / "target")
    write_drafter(tmp_path / "draft", tiny_drafter_config(model))
    stages: list[str] = []
    arguments = (str(tmp_path / "target"), str(tmp_path / "draft"))
    first = load(*arguments, progress=lambda stage, share: stages.append(stage))
    assert first.exactness is not None
    assert first.exactness.verdict in ("equal", "rounding")
    assert "exactness" in stages
    generate(first, PROMPT, max_tokens=120, verify_mode="adaptive", eos_token_ids=())
    assert first.widths is not None
    assert first.widths.store is not None
    stages.clear()
    second = load(*arguments, progress=lambda stage, share: stages.append(stage))
    assert "exactness" not in stages, "it is kept"
    assert second.exactness == first.exactness
    assert second.widths is not None
    assert second.widths.source == "cycles"
    other = load(*arguments, dtype="bfloat16")
    assert other.widths is not None
    assert other.widths.source == "nothing yet", "another dtype is another pair"
