"""The disk tier: what comes back is what left, in another process too; what is wrong costs a file, never a request."""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash2_mlx.engine import ssd_cache, ssd_file
from dflash2_mlx.engine.prefix_cache import PrefixCache
from dflash2_mlx.engine.prefix_limits import CacheLimits
from dflash2_mlx.engine.ssd_cache import fingerprint_of, pair_folder, remove_files
from dflash2_mlx.engine.ssd_file import Damaged, load, pack, read_header, save
from dflash2_mlx.engine.ssd_writer import Writer
from dflash2_mlx.engine.worker import Engine, EngineOptions
from dflash2_mlx.pairs import Pair
from tests import tiny
from tests.engine.ssd_running import (
    BEFORE_END,
    BORDER,
    CASES,
    HEAD,
    SINK,
    Case,
    first_prompt,
    make_pair,
    next_prompt,
    opened,
    plain_pair,
)
from tests.engine.test_prefix_cache import DENSE, HYBRID, ROOM, SLIDING, Run, cold

PLAIN_ANSWER = 11  # tokens of an answer that the caches hold: all but the last


@pytest.fixture(scope="session")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafters")


@pytest.fixture(scope="session")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the file of one conversation, of the plain dense pair."""
    folder = tmp_path_factory.mktemp("left") / "ssd"
    left_by(plain_pair(DENSE), folder)
    return folder


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "ssd"


def saved(folder: Path, pair: Pair) -> list[Path]:
    return sorted(pair_folder(folder, pair.model_name).glob("*.safetensors"))


def left_by(pair: Pair, files: Path, prompt: list[int] | None = None, **limits: int) -> list[int]:
    """A conversation that has left a file: the answer."""
    cache = opened(pair, files, **limits)
    run = Run(cache, pair, prompt or first_prompt(), borders={BORDER})
    cache.close()
    return run.tokens


def id_of(case: Case) -> str:
    return "-".join([case[0], case[1], *case[2]])


# --- what comes back ------------------------------------------------------------------------------------------------


def test_another_process_goes_on_where_this_one_ended(files: Path, drafters: Path, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "server")])}
    command = [sys.executable, "-m", "tests.engine.ssd_running", str(files), str(drafters)]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment, timeout=120)
    for case in CASES:
        pair = make_pair(case, drafters)
        cache = opened(pair, files)
        assert (cache.figures_of(pair).ssd_entries, cache.figures_of(pair).ssd_dropped) == (1, 0), case
        fresh = cold(pair, first_prompt())
        prompt = next_prompt(fresh.tokens)
        run, again = Run(cache, pair, prompt), cold(pair, prompt)
        assert run.cached == HEAD + PLAIN_ANSWER, case
        assert (run.tokens, run.drafts, run.accepted) == (again.tokens, again.drafts, again.accepted), case
        assert cache.figures_of(pair).ssd_hits == 1, case
        assert Run(cache, pair, prompt).cached > HEAD
        assert cache.figures_of(pair).ssd_hits == 1, "the second time it is in RAM"


def test_control_other_values_in_a_file_give_another_answer(files: Path) -> None:
    """With a checksum that is right again: the comparison above sees what is read."""
    pair = plain_pair(DENSE)
    prompt = next_prompt(left_by(pair, files))
    (path,) = saved(files, pair)
    header, tree = read_header(path), load(path)
    wrong = [(end, tuple((keys[..., ::-1, :], values) for keys, values in rows), mark) for end, rows, mark in tree]
    save(path, pack(header.tokens, header.marks, wrong), header.fingerprint)
    run = Run(opened(pair, files), pair, prompt)
    assert run.cached == HEAD + PLAIN_ANSWER
    assert run.tokens != cold(pair, prompt).tokens


@pytest.mark.parametrize("case", [(DENSE, "dflash2", {}), (HYBRID, "dflash2", {}), (HYBRID, "dflash", {})], ids=id_of)
def test_a_branch_inside_a_file_is_taken_up(case: Case, files: Path, drafters: Path) -> None:
    """Where the template words the end anew: at the marks before the end."""
    pair = make_pair(case, drafters)
    left_by(pair, files)
    for cut, expected in ((HEAD - 3, BEFORE_END), (BEFORE_END - 3, BORDER)):
        prompt = [*first_prompt()[:cut], *tiny.random_prompt(30, seed=4)]
        run, again = Run(opened(pair, files), pair, prompt), cold(pair, prompt)
        assert run.cached == expected
        assert (run.tokens, run.drafts, run.accepted) == (again.tokens, again.drafts, again.accepted)


def test_what_is_evicted_comes_back_beside_what_is_there(files: Path, drafters: Path) -> None:
    """RAM knows the head of a file: only the rest is placed, below it."""
    pair = make_pair((HYBRID, "dflash2", {}), drafters)
    cache = opened(pair, files, max_entries=1)
    tokens = Run(cache, pair, first_prompt(), borders={40}).tokens
    other = [*first_prompt()[:40], *tiny.random_prompt(60, seed=3)]
    Run(cache, pair, other)
    assert cache.drain(20)
    figures = cache.figures_of(pair)
    assert (figures.entries, figures.ssd_writes, figures.ssd_entries) == (1, 1, 1)
    prompt = next_prompt(tokens)
    assert cache.restore(pair, other).known == len(other) - 1
    run, again = Run(cache, pair, prompt), cold(pair, prompt)
    assert run.cached == HEAD + PLAIN_ANSWER
    assert (run.tokens, run.drafts) == (again.tokens, again.drafts)


@pytest.mark.parametrize("kind", [DENSE, HYBRID])
def test_the_marks_before_the_end_reach_the_disk_before_they_are_forgotten(kind: str, files: Path) -> None:
    """Bytes are given back mark by mark: a file with the last state alone would serve no reworded turn."""
    pair = plain_pair(kind)
    cache = opened(pair, files)
    Run(cache, pair, first_prompt(), borders={BORDER})
    cache.set_limits(pair, CacheLimits(ssd_bytes=1 << 30, max_bytes=cache.figures_of(pair).nbytes))
    for seed in (1, 2):
        Run(cache, pair, tiny.random_prompt(HEAD, seed=seed))
    assert cache.drain(20)
    assert cache.figures_of(pair).evictions > 2
    assert cache.figures_of(pair).ssd_entries == 2, "one file a conversation"
    reworded = [*first_prompt()[: HEAD - 3], *tiny.random_prompt(20, seed=5)]
    assert Run(opened(pair, files), pair, reworded).cached == (HEAD - 3 if kind == DENSE else BEFORE_END)
    cache.close()


def test_a_longer_conversation_takes_the_place_of_its_beginning(files: Path) -> None:
    for kind in (DENSE, SLIDING):
        pair = plain_pair(kind)
        answer = left_by(pair, files)
        left_by(pair, files, next_prompt(answer))
        (path,) = saved(files, pair)
        assert len(read_header(path).tokens) == len(next_prompt(answer)) + PLAIN_ANSWER
        left_by(pair, files)  # known already
        assert saved(files, pair) == [path]


def test_a_file_is_read_only_where_it_is_worth_it(files: Path) -> None:
    pair = plain_pair(DENSE)
    left_by(pair, files)
    for shared, worth in ((ssd_cache.WORTH, True), (ssd_cache.WORTH - 1, False)):
        cache = opened(pair, files)
        prompt = [*first_prompt()[:shared], *tiny.random_prompt(10, seed=2)]
        assert (len(cache.restore(pair, prompt).state.tokens) == shared) is worth
        assert cache.figures_of(pair).ssd_hits == int(worth)


def test_a_conversation_that_is_still_being_written_is_waited_for(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And meanwhile no request waits for the disk."""
    pair, gate = plain_pair(DENSE), threading.Event()

    def slow(*args: Any) -> int:
        assert gate.wait(60)
        return save(*args)

    monkeypatch.setattr(ssd_cache, "save", slow)
    cache = opened(pair, files, max_entries=1)
    Run(cache, pair, first_prompt())
    Run(cache, pair, tiny.random_prompt(40, seed=9))  # evicts it
    assert not cache.drain(0)
    assert saved(files, pair) == []
    threading.Timer(0.2, gate.set).start()
    assert Run(cache, pair, first_prompt()).cached == HEAD - 1
    cache.close()


# --- limits ---------------------------------------------------------------------------------------------------------


def test_the_oldest_used_go_first(files: Path) -> None:
    pair = plain_pair(DENSE)
    prompts = [tiny.random_prompt(HEAD, seed=seed) for seed in range(4)]
    left_by(pair, files, prompts[0])
    size = saved(files, pair)[0].stat().st_size
    for i, prompt in enumerate(prompts[1:3], start=1):
        left_by(pair, files, prompt)
        for path in saved(files, pair):
            os.utime(path, (i, i)) if path.stat().st_mtime > 1000 else None
    os.utime(next(path for path in saved(files, pair) if path.stat().st_mtime <= 1), (1, 1))
    cache = opened(pair, files, ssd_bytes=round(3.5 * size))
    assert Run(cache, pair, prompts[0]).cached > 0  # so that the second is the oldest
    Run(cache, pair, prompts[3])
    cache.close()
    kept = {read_header(path).tokens[:HEAD] for path in saved(files, pair)}
    assert kept == {tuple(prompts[i]) for i in (0, 2, 3)}
    assert sum(path.stat().st_size for path in saved(files, pair)) <= 3.5 * size
    small = opened(pair, files, ssd_bytes=size // 2)
    assert saved(files, pair) == []
    assert small.figures_of(pair).ssd_bytes == 0


def test_off_leaves_nothing_on_disk_and_other_pairs_alone(files: Path) -> None:
    a, b = plain_pair(DENSE), plain_pair(HYBRID)
    for pair in (a, b):
        left_by(pair, files)
    cache = opened(a, files)
    cache.set_limits(a, CacheLimits(ssd_bytes=0))
    assert saved(files, a) == []
    Run(cache, a, first_prompt())
    cache.close()
    assert saved(files, a) == []
    assert len(saved(files, b)) == 1
    remove_files(files, b.model_name)
    assert saved(files, b) == []


def test_a_pair_without_identity_or_folder_says_so(files: Path) -> None:
    pair = Pair(plain_pair(DENSE).target)
    assert fingerprint_of(pair) is None
    assert "not loaded from folders" in str(opened(pair, files).figures_of(pair).ssd_error)
    cache = PrefixCache(ROOM)
    cache.set_limits(plain_pair(DENSE), CacheLimits(ssd_bytes=1000))
    assert "no folder" in str(cache.figures.ssd_error)


# --- what goes wrong ------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def flip(path: Path) -> None:
    """One bit of the content."""
    content = bytearray(path.read_bytes())
    content[-1000] ^= 4
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 5000)


def lies(path: Path) -> None:
    """A header that claims more tokens than there are rows."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header["__metadata__"]
    metadata["tokens"] = json.dumps([*json.loads(metadata["tokens"]), 1])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def gone(path: Path) -> None:
    path.unlink()


def told_otherwise(path: Path) -> None:
    """Another token in the header, of the same length: whole rows under a wrong name."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    tokens = json.loads(header["__metadata__"]["tokens"])
    header["__metadata__"]["tokens"] = json.dumps([*tokens[:-1], (tokens[-1] + 1) % 10])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


@pytest.mark.parametrize("damage", [cut, flip, empty, garbage, lies, gone, told_otherwise])
@pytest.mark.parametrize("when", ["before the scan", "after it"])
def test_a_damaged_file_is_dropped_and_counted(damage: Any, when: str, files: Path, left: Path) -> None:
    shutil.copytree(left, files)
    pair = plain_pair(DENSE)
    (path,) = saved(files, pair)
    cache = opened(pair, files) if when == "after it" else None
    damage(path)
    cache = cache or opened(pair, files)
    restored = cache.restore(pair, first_prompt())
    assert (restored.state.tokens, restored.known) == ([], 0)
    Run(cache, pair, first_prompt(), max_tokens=1)
    figures = cache.figures_of(pair)
    assert figures.ssd_dropped == (0 if damage is gone and when == "before the scan" else 1)
    assert (figures.ssd_hits, figures.ssd_error) == (0, None)
    assert not path.exists()
    cache.close()
    assert len(saved(files, pair)) == 1, "and it is written anew"


def test_what_is_no_file_costs_nothing(files: Path, left: Path) -> None:
    shutil.copytree(left, files)
    pair = plain_pair(DENSE)
    (path,) = saved(files, pair)
    (path.parent / "x.safetensors").mkdir()
    figures = opened(pair, files).figures_of(pair)
    assert (figures.ssd_entries, figures.ssd_error) == (1, None)


def test_files_of_another_pair_or_version_are_dropped(
    files: Path, drafters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair((DENSE, "dflash2", {}), drafters)
    other = make_pair((DENSE, "dflash2", SINK), drafters)
    other.model_name = pair.model_name
    assert fingerprint_of(pair) != fingerprint_of(other)
    left_by(pair, files)
    assert opened(other, files).figures_of(other).ssd_dropped == 1
    assert saved(files, pair) == []
    left_by(pair, files)
    monkeypatch.setattr(ssd_file, "VERSION", "another")
    assert opened(pair, files).figures_of(pair).ssd_dropped == 1


def test_a_file_of_other_shapes_or_kinds_is_dropped_at_the_restore(files: Path) -> None:
    """Whatever the fingerprint says."""
    for kind, theirs in ((DENSE, HYBRID), (HYBRID, SLIDING), (SLIDING, DENSE)):
        pair, foreign = plain_pair(kind), plain_pair(theirs)
        foreign.model_name = pair.model_name
        left_by(foreign, files)
        (path,) = saved(files, pair)
        header, tree = read_header(path), load(path)
        save(path, pack(header.tokens, header.marks, tree), str(fingerprint_of(pair)))
        cache = opened(pair, files)
        run = Run(cache, pair, first_prompt())
        assert (run.cached, run.tokens) == (0, cold(pair, first_prompt()).tokens)
        assert cache.figures_of(pair).ssd_dropped == 1
        remove_files(files, pair.model_name)


def test_a_half_of_the_dtype_is_not_taken(files: Path) -> None:
    pair = plain_pair(DENSE)
    left_by(pair, files)
    (path,) = saved(files, pair)
    header, tree = read_header(path), load(path)
    half = [(end, tuple((keys.astype(mx.float16), values) for keys, values in rows), mark) for end, rows, mark in tree]
    save(path, pack(header.tokens, header.marks, half), header.fingerprint)
    cache = opened(pair, files)
    assert Run(cache, pair, first_prompt()).cached == 0
    assert cache.figures_of(pair).ssd_dropped == 1


def test_a_full_disk_turns_the_tier_off_until_its_settings_change(
    files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = plain_pair(DENSE)
    cache = opened(pair, files, max_entries=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        for seed in range(3):
            Run(cache, pair, tiny.random_prompt(HEAD, seed=seed), max_tokens=2)
            assert cache.drain(20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot be written" in str(cache.figures_of(pair).ssd_error)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    assert list(pair_folder(files, pair.model_name).iterdir()) == [], "no unfinished file stays"
    Run(cache, pair, tiny.random_prompt(HEAD, seed=5), max_tokens=2)
    assert cache.figures_of(pair).ssd_writes == 0
    cache.set_limits(pair, CacheLimits(ssd_bytes=1 << 30, max_entries=1))
    assert cache.figures_of(pair).ssd_error is None
    cache.close()
    assert len(saved(files, pair)) == 1


def test_a_folder_that_cannot_be_made_is_told(files: Path) -> None:
    files.write_text("a file, no folder")
    pair = plain_pair(DENSE)
    cache = opened(pair, files, max_entries=1)
    for seed in range(2):
        assert Run(cache, pair, tiny.random_prompt(60, seed=seed), max_tokens=2).tokens
    assert cache.drain(20)
    assert "cannot be written" in str(cache.figures_of(pair).ssd_error)
    cache.close()


# --- the parts ------------------------------------------------------------------------------------------------------


def test_a_file_gives_back_every_kind_of_leaf(tmp_path: Path) -> None:
    arrays = [mx.arange(6, dtype=mx.float32).reshape(2, 3).T, mx.array([True, False]), mx.array(7), mx.zeros((2, 0))]
    arrays.append(mx.arange(4).astype(mx.bfloat16))
    tree = (1, None, True, 0.5, "x", [arrays[0], (arrays[1],)], {"a": arrays[2], "b": {}}, (), arrays[3], arrays[4])
    path = tmp_path / "f.safetensors"
    packed = pack([1, 2], [2], tree)
    written = threading.Thread(target=save, args=(path, packed, "mine"))
    written.start()
    written.join()
    header = read_header(path)
    assert (header.tokens, header.marks, header.fingerprint) == ((1, 2), (2,), "mine")
    assert header.nbytes == path.stat().st_size
    back = load(path)
    assert back[:5] == tree[:5]
    assert isinstance(back[5][1], tuple)
    for ours, theirs in zip((back[5][0], back[5][1][0], back[6]["a"], back[8], back[9]), arrays, strict=True):
        assert ours.dtype == theirs.dtype
        assert mx.array_equal(ours, theirs)
    with pytest.raises(TypeError, match="object"):
        pack([1], [], object())
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(Damaged, match="bytes"):
        read_header(path)


def test_the_writer_works_in_order_and_ends() -> None:
    writer, done, gate = Writer(), list[int](), threading.Event()
    assert writer.drain(0)
    writer.add(5, lambda: done.append(int(gate.wait(20))))
    writer.add(6, lambda: done.append(2))
    assert writer.pending == 11
    assert not writer.drain(0.01)
    gate.set()
    assert writer.drain(20)
    assert (done, writer.pending) == ([1, 2], 0)
    writer.add(1, lambda: done.append(3))
    assert writer.drain(20)
    assert done[-1] == 3


def test_unloading_and_closing_write_what_is_in_ram(files: Path) -> None:
    engine = Engine(EngineOptions(ssd_folder=files))
    engine.start()

    def serve() -> Pair:
        pair = plain_pair_of_its_own()
        engine.cache.set_limits(pair, CacheLimits(ssd_bytes=1 << 30))
        Run(engine.cache, pair, first_prompt())
        return pair

    pair = engine.call(serve).result(60)
    engine.unload(pair).result(60)
    assert len(saved(files, pair)) == 1
    assert engine.cache.figures.nbytes == 0

    def again() -> int:
        pair = plain_pair_of_its_own()
        engine.cache.set_limits(pair, CacheLimits(ssd_bytes=1 << 30))
        Run(engine.cache, pair, tiny.random_prompt(40, seed=3))
        return Run(engine.cache, pair, first_prompt()).cached

    assert engine.call(again).result(60) == HEAD - 1
    engine.close()
    assert len(saved(files, pair)) == 2


def plain_pair_of_its_own() -> Pair:
    """On the thread that calls."""
    from tests.running import Subject

    return Pair(Subject(tiny.build(DENSE), tiny.build(DENSE)).target, model_name="own", identity="own")
