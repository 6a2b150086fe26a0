"""Whether a phase runs again, decided once for all ranks of the job."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn

import msgspec

from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.rendezvous.peer_group import find_peer_group
from lightning_hangcheck.hooks.rendezvous.rendezvous import join_rendezvous
from lightning_hangcheck.ledger.decision import Decision, PhaseDone, question
from lightning_hangcheck.ledger.prices import Prices, read_prices
from lightning_hangcheck.model.decoders import json_decoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.recorder.lifecycle import Recorder
    from lightning_hangcheck.settings import Settings

NEEDS_A_PERSON = 3
TOLD_BY = "HANGCHECK_IF_DONE=reuse or HANGCHECK_IF_DONE=rerun answers it"
_ANSWERS: dict[str, Literal["run", "reuse"]] = {"reuse": "reuse", "rerun": "run"}


class Word(msgspec.Struct, frozen=True):
    """What the first rank decided, for all.

    Attributes:
        act: ``stop``: a person must be asked. ``refuse``: it must not run twice.
        remedy: Of a refusal.
    """

    act: Literal["run", "reuse", "stop", "refuse"]
    why: str
    remedy: str = ""


def agree(name: str, recorder: Recorder, time_limit: float, decide: Callable[[], Decision]) -> Word:
    """Let the first rank decide, and every rank do the same.

    Args:
        name: Of the phase.
        recorder: Of this process.
        time_limit: Seconds that ranks wait for each other.
        decide: Asked of the first rank only.

    Returns:
        ``run`` or ``reuse``, with the reason. All run where ranks cannot meet, or where it cannot
        be decided: one rank that left the work out would leave the others waiting.

    Raises:
        PhaseDone: On every rank: it must not run twice.
        SystemExit: On every rank, code 3: a person must be asked, and nobody is there to answer.
        MeetingFailed: Ranks did not come in time.
    """
    peers = find_peer_group(recorder)
    if peers is None and (recorder.identity.world_size or 1) > 1:
        return Word("run", "the ranks cannot meet to agree")
    first = peers is None or peers.index == 0
    payload = b""
    if first:
        alone = peers is None or (peers.size or 1) == 1
        decided = partial(_decided, decide, recorder.settings, alone=alone)
        payload = attempt(f"deciding about phase {name}", decided) or UNDECIDED
    if peers is not None:
        payload = join_rendezvous(f"phase {name}", time_limit, payload, peers).get(0, payload)
    word = json_decoder(Word).decode(payload)
    if word.act == "refuse":
        raise PhaseDone(word.why, word.remedy)
    if word.act == "stop":
        _stop(word, says=first)
    return word


UNDECIDED = msgspec.json.encode(Word("run", "it could not be decided"))


def _decided(decide: Callable[[], Decision], settings: Settings, *, alone: bool) -> bytes:
    return msgspec.json.encode(_word(decide, settings, alone=alone))


def _word(decide: Callable[[], Decision], settings: Settings, *, alone: bool) -> Word:
    try:
        decision = decide()
    except PhaseDone as error:
        return Word("refuse", str(error.args[0]), error.remedy)
    if decision.act != "ask":
        return Word(decision.act, decision.why)
    told = _ANSWERS.get(settings.if_done)
    if told is not None:
        return Word(told, f"{decision.why}; HANGCHECK_IF_DONE={settings.if_done}")
    prices = attempt("reading HANGCHECK_PRICE", partial(read_prices, [settings.price or ""]))
    asked = question(decision, prices or Prices())
    if alone and sys.stdin is not None and sys.stdin.isatty():
        return _ask(asked, decision.why)
    return Word("stop", asked)


def _ask(asked: str, why: str) -> Word:
    """Ask the person at the terminal until one of the two words comes; no answer is a stop."""
    sys.stderr.write(f"{asked}\n")
    for answer in iter(partial(_answer, "reuse or rerun? "), None):
        if answer in _ANSWERS:
            return Word(_ANSWERS[answer], f"{why}; a person said {answer}")
    return Word("stop", asked)


def _answer(prompt: str) -> str | None:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip().lower() if line else None


def _stop(word: Word, *, says: bool) -> NoReturn:
    if says:
        sys.stderr.write(f"{word.why}\n  nobody is here to answer; {TOLD_BY}\n")
    raise SystemExit(NEEDS_A_PERSON)
