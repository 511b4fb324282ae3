"""The kept lines of the log: filters, bounds, and no secret in any of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from dflash2_server.logs import HIDDEN, LOGGERS, LogBuffer, Redactor


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("dflash2_server.test_logs")
    found.setLevel(logging.DEBUG)
    yield found
    found.setLevel(logging.NOTSET)


@pytest.fixture
def buffer(logger: logging.Logger) -> Iterator[LogBuffer]:
    made = LogBuffer(secrets=["s3cret-key-of-mine", "abc", ""])
    logger.addHandler(made)
    yield made
    logger.removeHandler(made)


def messages(buffer: LogBuffer, *args: object, **options: object) -> list[str]:
    return [entry.message for entry in buffer.entries(*args, **options)]  # type: ignore[arg-type]


def test_lines_with_their_facts(buffer: LogBuffer, logger: logging.Logger) -> None:
    logger.warning("%d models", 3)
    logger.debug("more")
    first, second = buffer.entries()
    assert (first.number, first.level, first.name, first.message) == (1, "WARNING", logger.name, "3 models")
    assert second.number == 2
    assert second.time >= first.time > 1e9


def test_filters(buffer: LogBuffer, logger: logging.Logger) -> None:
    logger.debug("one")
    logger.info("two Loaded")
    logger.log(25, "two and a half")
    logger.error("three loaded")
    assert messages(buffer, "info") == ["two Loaded", "two and a half", "three loaded"]
    assert messages(buffer, "WARNING") == ["three loaded"]
    assert messages(buffer, text="LOADED") == ["two Loaded", "three loaded"]
    assert messages(buffer, text="test_LOGS", limit=2) == ["two and a half", "three loaded"]
    assert messages(buffer, after=3) == ["three loaded"]
    assert messages(buffer, limit=0) == []


def test_an_unknown_level_is_named(buffer: LogBuffer) -> None:
    with pytest.raises(ValueError, match=r"'loud'.*debug, info"):
        buffer.entries("loud")


def test_it_keeps_so_many_and_counts_on(logger: logging.Logger) -> None:
    buffer = LogBuffer(keep=3)
    logger.addHandler(buffer)
    try:
        for number in range(10):
            logger.info("line %d", number)
    finally:
        logger.removeHandler(buffer)
    assert [(entry.number, entry.message) for entry in buffer.entries()] == [
        (8, "line 7"),
        (9, "line 8"),
        (10, "line 9"),
    ]


SECRETS = [
    ("the key is s3cret-key-of-mine.", "s3cret-key-of-mine", "the key is"),
    ("abc", "abc", ""),
    ("token hf_AbCdEf0123456789", "hf_AbCdEf0123456789", "token"),
    ("Authorization: Bearer sk-1234", "sk-1234", "Bearer"),
    ("{'authorization': 'bearer sk-1234'}", "sk-1234", "bearer"),
    ("x-api-key: sk-1234", "sk-1234", "x-api-key"),
    ("(b'x-api-key', b'sk-1234')", "sk-1234", "x-api-key"),
    ("GET /x?api_key=sk-1234&limit=5", "sk-1234", "limit=5"),
    ('{"hf_token": "sk-1234", "port": 8000}', "sk-1234", '"port": 8000'),
    ("https://user:pa55word@mirror.example/x", "pa55word", "mirror.example/x"),
]


@pytest.mark.parametrize(("line", "secret", "kept"), SECRETS)
def test_secrets_are_hidden_and_the_rest_stays(
    line: str, secret: str, kept: str, buffer: LogBuffer, logger: logging.Logger
) -> None:
    logger.info("%s", line)
    (message,) = messages(buffer)
    assert secret not in message
    assert HIDDEN in message
    assert kept in message


def test_a_secret_in_a_traceback_is_hidden(buffer: LogBuffer, logger: logging.Logger) -> None:
    try:
        raise RuntimeError("asked with s3cret-key-of-mine")
    except RuntimeError:
        logger.exception("it failed")
    (message,) = messages(buffer)
    assert "RuntimeError: asked with [hidden]" in message
    assert "s3cret" not in message


@pytest.mark.parametrize(
    "line",
    ["abcdef and xabc", "max_tokens: 7, cached tokens 3", "the drafter hf_hub", "2.3 GB freed, 4 tokens a cycle"],
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert Redactor(["abc"])(line) == line


def test_a_secret_that_is_set_later_is_hidden_too() -> None:
    redact = Redactor()
    assert redact("new-secret-value") == "new-secret-value"
    redact.add("new-secret-value")
    assert redact("new-secret-value") == HIDDEN


def test_a_record_that_cannot_be_formatted_ends_nothing(
    buffer: LogBuffer, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.info("%d", "no number")
    logger.info("after")
    assert messages(buffer) == ["after"]


def test_it_hears_the_programs_loggers_until_it_is_detached() -> None:
    buffer = LogBuffer()
    buffer.attach()
    try:
        for name in LOGGERS:
            logging.getLogger(f"{name}.part").error("from %s", name)
    finally:
        buffer.detach()
    logging.getLogger(LOGGERS[0]).error("too late")
    assert messages(buffer) == [f"from {name}" for name in LOGGERS]


def test_threads_that_log_while_it_is_read(buffer: LogBuffer, logger: logging.Logger) -> None:
    def write() -> None:
        for number in range(300):
            logger.info("%d", number)

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        read = buffer.entries(limit=2000)
        assert [entry.number for entry in read] == list(range(1, len(read) + 1))
    assert len(buffer.entries(limit=2000)) == 900
