"""The reference script: command line, faults, pauses and text."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest
from reference.arguments import parse_arguments, stays_alone
from reference.faults import KINDS, BadFault, parse_fault
from reference.pauses import Pauses
from reference.tokenizer import END_OF_TEXT, VOCABULARY_SIZE, corpus_files, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reference.arguments import Arguments


TWO_RANKS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


def _parse(words: str, **environment: str) -> Arguments:
    return parse_arguments(words.split(), environment)


def test_devices_follow_the_launcher() -> None:
    assert _parse("", **TWO_RANKS).devices == 2


@pytest.mark.parametrize("words", ["--local-rank=1", "--local_rank 1"])
def test_the_local_rank_of_torch_distributed_launch_is_accepted(words: str) -> None:
    """It says no more than the variable of that name, which the launcher sets as well."""
    assert _parse(words, **TWO_RANKS) == _parse("", **TWO_RANKS)


@pytest.mark.parametrize(
    ("words", "environment", "alone"),
    [
        ("", {}, True),
        ("--devices 2", {}, False),
        ("--strategy ddp_spawn", {}, False),
        ("", TWO_RANKS, False),
        ("", {"LOCAL_RANK": "0"}, False),
        ("", {"WORLD_SIZE": "2"}, False),
        ("", {"SLURM_NNODES": "2"}, False),
    ],
)
def test_only_a_process_that_nobody_joins_stays_alone(
    words: str, environment: dict[str, str], alone: bool
) -> None:
    assert stays_alone(_parse(words, **environment), environment) == alone


@pytest.mark.parametrize(("asked", "given"), [("", 1), ("--num_workers 3", 3)])
def test_worker_fault_gets_a_worker(asked: str, given: int) -> None:
    words = f"{asked} --inject dataloader_worker@1"
    assert _parse(words, **TWO_RANKS).num_workers == given


def test_save_fault_gets_a_save_at_its_step() -> None:
    assert _parse("--inject slow_save@0:7").save_every == 7


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--inject frozen@1", "'frozen@1' names no fault; use one of rank_stalled, spinning"),
        ("--inject spinning", "'spinning' is not CAUSE@RANK[:STEP]"),
        ("--inject spinning@7", "there is no rank 7 in a world of 1; write a rank from 0 to 0"),
        ("--inject rendezvous@0", "start the script with torchrun"),
        ("--max_steps many", "'many' is not a whole number"),
        ("--max_steps -3", "'-3' is not a whole number"),
        ("--nonsense", "--nonsense"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_2(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _parse(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1
    assert sentence in said


def test_help_describes_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse("--help")
    assert "rank_stalled      waits in training_step" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "spinning", "spinning@", "@1", "spinning@-1", "spinning@1:"])
def test_refusal_lists_the_names(text: str) -> None:
    """Also for text that has no fault's name in it."""
    with pytest.raises(BadFault) as refused:
        parse_fault(text)
    assert all(name in str(refused.value) for name in KINDS)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("logger_init@0:3", "write logger_init@0"),
        ("rendezvous@1:0", "write rendezvous@1"),
        ("straggler@1:1", "write straggler@1:2 or a later step"),
        ("slow_save@1", "write slow_save@0"),
    ],
)
def test_fault_that_cannot_strike_there_says_what_to_write(text: str, instead: str) -> None:
    with pytest.raises(BadFault, match=instead):
        parse_fault(text)


def _of(rank: int) -> Iterator[float]:
    pauses = Pauses(rank)
    return iter(pauses.next_s, None)


def test_every_run_has_the_same_pauses_and_every_rank_its_own() -> None:
    first, again, other = (list(islice(_of(rank), 50)) for rank in (1, 1, 0))
    assert first == again
    assert first != other


def test_tokenizer_is_trained_once_then_read(tmp_path: Path) -> None:
    first = load_tokenizer(tmp_path / "new")
    (file,) = (tmp_path / "new").iterdir()
    written = file.stat().st_mtime_ns
    second = load_tokenizer(tmp_path / "new")
    assert file.stat().st_mtime_ns == written
    assert first.to_str() == second.to_str()


def test_text_survives_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tmp_path)
    text = corpus_files()[-1].read_text() + "Zoë ⇒ 42"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text) / 2
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
