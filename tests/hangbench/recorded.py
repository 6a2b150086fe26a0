"""Cases that were really seen: of each program of the corpus what the sidecar had judged.

`scripts/hangbench --record FILE` writes them. Kept of each run are the first suspicion and the last
alarm; of a healthy one the first suspicion and its end. The truth of each lies beside its program.
"""

from __future__ import annotations

import lzma
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from hangbench.bench import Truth, any_of, truth_of
from hangbench.scoring import ALARMS, functions_named

from lightning_hangcheck.model.case import Case
from lightning_hangcheck.model.verdict import Verdict, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FOLDER = Path(__file__).parent / "recordings"
LENGTH = 4
"""Bytes before each recording that say how long it is, the highest first."""


class Recording(msgspec.Struct, frozen=True, array_like=True):
    """One case of one run of a program of the corpus, and what the run's own sidecar called it."""

    program: str
    kind: VerdictKind
    case: Case

    @property
    def truth(self) -> Truth:
        """What is right about its program."""
        return truth_of(self.program)


@cache
def recordings() -> tuple[Recording, ...]:
    """Read all recordings."""
    decoder = msgspec.msgpack.Decoder(Recording)
    found: list[Recording] = []
    for file in sorted(FOLDER.glob("*.msgpack.xz")):
        data, at = lzma.decompress(file.read_bytes()), 0
        while at < len(data):
            begin = at + LENGTH
            at = begin + int.from_bytes(data[at:begin], "big")
            found.append(decoder.decode(data[begin:at]))
    return tuple(found)


SHOWN = (
    *("barrier_in_prepare_data", "groups_in_different_order", "receive_without_send"),
    *("uneven_ddp_batches", "worker_stuck", "missing_rank", "peer_at_wrong_port"),
    *("stopped_by_signal", "logger_stalls", "endless_loop", "killed", "healthy_straggler"),
)
"""Programs whose last recording is saved and shown in every form: one of each kind."""


def case_of_program(program: str) -> Case:
    """Return the last case that was recorded of a program of the corpus."""
    return [one.case for one in recordings() if one.program == program][-1]


def record(programs: Iterable[str], folder: Path, file: Path) -> int:
    """Write what runs of the corpus left behind as recordings, and return how many these are.

    Args:
        programs: Of the corpus.
        folder: With a folder for each of them, as `scripts/hangbench --keep` leaves it.
        file: To write to; its name ends in ``.msgpack.xz``.
    """
    encode = msgspec.msgpack.Encoder().encode
    told = [encode(one) for name in programs for one in _of_run(name, folder / name / "run")]
    data = b"".join(len(one).to_bytes(LENGTH, "big") + one for one in told)
    file.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    return len(told)


def _of_run(program: str, run_dir: Path) -> Iterator[Recording]:
    numbers = sorted(int(file.stem) for file in (run_dir / "verdicts").glob("*.json"))
    files = [(run_dir / f"verdicts/{n}.json", run_dir / f"evidence/{n}/case.json") for n in numbers]
    told = [(_verdict(file).verdict, case) for file, case in files if case.exists()]
    suspected = [pair for pair in told if pair[0] == "suspect"][:1]
    alarms = [pair for pair in told if pair[0] in ALARMS][-1:]
    ends = told[-1:] if truth_of(program).healthy else []
    chosen: Sequence[tuple[VerdictKind, Path]] = [*dict.fromkeys((*suspected, *alarms, *ends))]
    for kind, case in chosen:
        yield Recording(program, kind, msgspec.json.decode(case.read_bytes(), type=Case))


def _verdict(file: Path) -> Verdict:
    return msgspec.json.decode(file.read_bytes(), type=Verdict)


def right_in(recording: Recording, verdict: Verdict) -> dict[str, bool]:
    """Say which answers of a verdict are right; those that the truth does not ask are left out."""
    truth = recording.truth
    asked = {"culprits": list(verdict.culprits) in truth.all_culprits}
    asked["cause"] = verdict.cause in any_of(truth.cause)
    if truth.phase is not None:
        asked["phase"] = verdict.phase in any_of(truth.phase)
    if functions := any_of(truth.function):
        source = (FOLDER.parent / "cases" / f"{recording.program}.py").read_text(encoding="utf-8")
        asked["line"] = bool(functions_named(verdict.summary, source).intersection(functions))
    return asked
