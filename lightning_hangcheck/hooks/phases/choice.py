"""Whether a phase runs again, decided once for all ranks of the job."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.rendezvous.peer_group import find_peer_group
from lightning_hangcheck.hooks.rendezvous.rendezvous import join_rendezvous
from lightning_hangcheck.ledger.spending import Prices, read_prices
from lightning_hangcheck.ledger.story import Decision, PhaseDone, question
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.decoders import json_decoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.recorder.lifecycle import Recorder
    from lightning_hangcheck.settings import Settings

NEEDS_A_PERSON = 3
REUSABLE = "HANGCHECK_IF_DONE=reuse or HANGCHECK_IF_DONE=rerun answers it"
NOT_REUSABLE = "HANGCHECK_IF_DONE=rerun runs all of them, HANGCHECK_IF_DONE=reuse only this one"


class Word(msgspec.Struct, frozen=True):
    """What the first rank decided, for all.

    Attributes:
        act: ``stop``: a person must be asked, or said so. ``refuse``: it must not run twice.
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
        if first:
            sys.stderr.write(word.why)
        raise SystemExit(NEEDS_A_PERSON)
    return word


UNDECIDED = msgspec.json.encode(Word("run", "it could not be decided"))


def _decided(decide: Callable[[], Decision], settings: Settings, *, alone: bool) -> bytes:
    return encode(_word(decide, settings, alone=alone))


def _word(decide: Callable[[], Decision], settings: Settings, *, alone: bool) -> Word:
    try:
        decision = decide()
    except PhaseDone as error:
        return Word("refuse", str(error.args[0]), error.remedy)
    if decision.act != "ask":
        return Word(decision.act, decision.why)
    if settings.if_done != "ask":
        reuses = settings.if_done == "reuse" and decision.reusable
        why = f"{decision.why}; HANGCHECK_IF_DONE={settings.if_done}"
        return Word("reuse" if reuses else "run", why)
    prices = attempt("reading HANGCHECK_PRICE", partial(read_prices, [settings.price or ""]))
    asked = question(decision, prices or Prices())
    if alone and sys.stdin is not None and sys.stdin.isatty():
        return _ask(asked, decision)
    answers = REUSABLE if decision.reusable else NOT_REUSABLE
    return Word("stop", f"{asked}\n  nobody is here to answer; {answers}\n")


def _ask(asked: str, decision: Decision) -> Word:
    """Ask the person at the terminal until one of the words comes; no answer is a stop."""
    sys.stderr.write(f"{asked}\n")
    prompt = "reuse, rerun or stop? " if decision.reusable else "rerun or stop? "
    for answer in iter(partial(_answer, prompt), None):
        why = f"{decision.why}; a person said {answer}"
        if answer == "rerun":
            return Word("run", why)
        if answer == "reuse" and decision.reusable:
            return Word("reuse", why)
        if answer == "stop":
            break
    return Word("stop", "")


def _answer(prompt: str) -> str | None:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip().lower() if line else None
