"""Reports a rank's environment: on request (`report_state`), and once at its start.

Nothing is imported and no device is woken. Facts of torch come once the script has imported torch.
The driver is asked by a separate process, with a time limit.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.process import versions
from lightning_hangcheck.settings import PREFIX, VARIABLES
from lightning_hangcheck.text.redaction import redact_values
from lightning_hangcheck.text.shown import bytes_in_words, published_environment, several

if TYPE_CHECKING:
    from collections.abc import Callable

EXPECTED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES")
"""Variables that are also reported if they are not set."""
_reported: dict[str, str] = {}


def report_state(label: str = "") -> None:
    """Report what decides how this rank behaves: versions, CUDA, backends, group, environment.

    Prints one line, which begins with ``label``, on the console of each rank that prints, and in
    the journal. The first call also writes the environment that training reads to the journal
    (secrets hidden); later calls report what has changed since. Never raises; takes milliseconds,
    at most 2 s if a driver does not answer.
    """
    recorder = current()
    if recorder.settings.disable:
        return
    shown = redact_values(published_environment(os.environ))
    # variables that only our processes set are left out; options are the user's
    ours = {name for name in shown if name.startswith(PREFIX) and name not in VARIABLES}
    now = {name: f"{name}={value}" for name, value in shown.items() if name not in ours}
    known = [name for name in _reported if name not in SUBJECTS]
    now |= {name: f"{name} is not set" for name in (*EXPECTED, *known) if name not in now}
    answers = {name: f"{name}: {answer}" for name, answer in _asked(touching=True).items()}
    changed = [line for name, line in {**answers, **now}.items() if _reported.get(name) != line]
    if not _reported:
        recorder.note("environment", variables=list(now.values()))
        changed = [*answers.values(), f"{len(now)} variables of the environment: in the journal"]
    _reported.update({**now, **answers})
    heading = f"state {label}: " if label else "state: "
    recorder.say(heading + ("; ".join(changed) or "as before"))


@cache
def tell_start() -> None:
    """Write this rank's state to the journal once, so that the sidecar can compare ranks."""
    # Called when work begins, with torch imported. About a millisecond; no device is asked.
    recorder = current()
    if recorder.settings.disable or recorder.settings.start_report == "off":
        return
    facts = {**redact_values(published_environment(os.environ)), **_asked(touching=False)}
    recorder.note("state", facts=facts)


def _asked(*, touching: bool) -> dict[str, str]:
    """Return the answers; without ``touching`` no device is counted and no driver asked."""
    answers = {}
    for subject, ask in SUBJECTS.items():
        try:
            if touching or ask is not _gpus:
                answers[subject] = ask(touching)
        except Exception as error:  # noqa: BLE001 - another torch version may refuse in any way
            answers[subject] = f"unknown ({error!r})"
    return answers


def _cuda(asks: bool) -> str:
    """Return CUDA's state; asking more before it is initialized would make a context."""
    # Counting devices is slow, and would break a later fork.
    torch = sys.modules.get("torch")
    if torch is None:
        return "not known yet, torch is not imported"
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    if asks and not torch.cuda.is_available():
        return "not available"
    if not asks and built is None:
        return "torch is built without it"
    devices = several(torch.cuda.device_count(), "device") if asks else str(built)
    if not torch.cuda.is_initialized():
        return f"{devices}, not initialized"
    index = torch.cuda.current_device()
    if not asks:
        return f"{devices}, device {index}, {torch.cuda.get_device_name(index)}"
    allocated = bytes_in_words(torch.cuda.memory_allocated())
    reserved = bytes_in_words(torch.cuda.memory_reserved())
    return f"{devices}, current device {index}, {allocated} allocated, {reserved} reserved"


def _gpus(_: bool) -> str:
    from lightning_hangcheck.look.gpu import gpus_here  # 10 ms that only `report_state` needs

    states, gaps = gpus_here(2.0)  # the driver takes 0.1 s, or 1 s if it has to wake 8 GPUs
    named = [
        f"{state.index} {state.name}, {bytes_in_words(state.memory_used_bytes or 0)} of "
        f"{bytes_in_words(state.memory_bytes or 0)} used"
        for state in states or ()
    ]
    return "; ".join(named + [gap.why for gap in gaps]) or "none that NVIDIA's driver knows"


def _backends(_: bool) -> str:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return "not known yet, torch.distributed is not there"
    names = ("gloo", "nccl", "mpi", "ucc", "xccl")
    there = (name for name in names if getattr(distributed, f"is_{name}_available", bool)())
    return ", ".join(there) or "none"


def _group(with_rank: bool) -> str:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return "not initialized"
    size = distributed.get_world_size()
    ranks = f"rank {distributed.get_rank()} of {size}" if with_rank else several(size, "rank")
    return f"{distributed.get_backend()}, {ranks}"


SUBJECTS: dict[str, Callable[[bool], str]] = {
    "versions": lambda _: ", ".join(f"{name} {version}" for name, version in versions().items()),
    "CUDA": _cuda,
    "GPUs": _gpus,
    "backends": _backends,
    "process group": _group,
}
