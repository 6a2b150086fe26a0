"""Facts that are written as text can be read again, also by several threads at once."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from lightning_hangcheck.model import verdict
from lightning_hangcheck.model.evidence import Frame, Gap


@pytest.mark.parametrize(
    "frame",
    [
        Frame("training_step", "/home/me/train.py", 88),
        Frame("<module>", "<ipython-input-3-ab12>", 1),
        Frame("Outer.step (inner)", "/data/a:b.py", 7),
    ],
)
def test_a_frame_that_was_written_is_read_again(frame: Frame) -> None:
    assert Frame.parse(str(frame)) == frame


@pytest.mark.parametrize("text", ["", "main", "main (train.py)", "main (train.py:x)", "(a:1)"])
def test_what_is_no_frame_is_none(text: str) -> None:
    assert Frame.parse(text) is None


def test_a_gap_and_its_remedy_are_one_sentence_in_the_verdict_only() -> None:
    gap = Gap("stack of pid 7", 3, "it belongs to user id 7", "stack", "run as that user")
    told = {"what": "stack of pid 7", "rank": 3, "why": "it belongs to user id 7; run as that user"}
    assert msgspec.to_builtins(verdict.Gap.of(gap)) == told
    assert msgspec.convert(msgspec.to_builtins(gap), Gap) == gap


def test_a_gap_that_was_saved_before_gaps_had_a_kind_reads_the_same() -> None:
    saved = b'{"what": "stack of pid 7", "rank": 3, "why": "it is protected; run as root"}'
    assert msgspec.json.decode(saved, type=Gap).reason == "it is protected; run as root"


AT_ONCE = """
import sys, threading

sys.setswitchinterval(1e-6)
from lightning_hangcheck.nodes.encoding import pack, read_judgement, read_word
from lightning_hangcheck.nodes.word import VERSION, Judgement, Word

word, judgement = Word(version=VERSION, node=0, stamp=1), Judgement(version=VERSION, stamp=1)
told = {read_word: pack(word), read_judgement: pack(judgement)}
gate = threading.Barrier(4)


def read(work):
    gate.wait()
    work(told[work])


threads = [threading.Thread(target=read, args=(work,)) for work in (*told, *told)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_facts_that_are_first_read_by_several_threads_at_once_are_read() -> None:
    """msgspec alone reads a null pointer then, and a sidecar that hears other nodes was gone."""
    ended = subprocess.run([sys.executable, "-c", AT_ONCE], check=False, timeout=120)
    assert ended.returncode == 0
