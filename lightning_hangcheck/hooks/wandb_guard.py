"""A WandbLogger that cannot leave the other ranks waiting."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage, MeetingFailed
from lightning_hangcheck.hooks.circle import Circle, find_circle
from lightning_hangcheck.hooks.meeting import meet
from lightning_hangcheck.hooks.wandb_logger import (
    Created,
    LoggerPlan,
    describe,
)
from lightning_hangcheck.hooks.wandb_service import abandon, services
from lightning_hangcheck.model.redaction import redact_text
from lightning_hangcheck.probes.guard import NoAnswer, within
from lightning_hangcheck.recorder.api import section
from lightning_hangcheck.recorder.recording import current

if TYPE_CHECKING:
    from lightning.pytorch.loggers import WandbLogger

OnFailure = Literal["raise", "offline"]
BEFORE, AFTER = "wandb before", "wandb after"
OFFLINE_LIMIT = 30.0  # seconds to open a run on the disk; measured on wandb 0.31: 0.3 s
LONGEST_ERROR = 500  # characters of wandb's own error that are repeated on every rank


class _Wish(msgspec.Struct, frozen=True):
    """One call of the guard."""

    plan: LoggerPlan
    circle: Circle
    time_limit: float
    on_failure: OnFailure


def guarded_wandb_logger(
    *arguments: object, time_limit: float = 60.0, on_failure: OnFailure = "raise", **named: object
) -> WandbLogger:
    """Make a WandbLogger on rank 0, with its run, and one that follows it on every other rank.

    Example:
        >>> logger = guarded_wandb_logger(project="demo")
        >>> trainer = Trainer(logger=logger)

    All ranks meet before and after ("wandb before", "wandb after"), each time within the limit.
    Under ``python train.py`` with ``Trainer(devices=2)`` the first process makes the logger at once
    and the ranks that Lightning starts in ``fit`` learn of it; under ``ddp_spawn`` rank 0 attaches
    to its run.

    Args:
        *arguments: WandbLogger's own.
        time_limit: Seconds that creating the run may take, and that ranks wait for each other.
        on_failure: ``raise`` the same error on every rank, or go on with a run that stays
            ``offline``.
        **named: WandbLogger's own.

    Returns:
        A WandbLogger of the Lightning package that is imported (``lightning`` if both are). On
        all ranks it has rank 0's name, version and save_dir.

    Raises:
        MeetingFailed: On every rank alike: who failed, why, after how long, and the way out.
        BadUsage: An option cannot be used, or Lightning is not installed.
        TypeError: WandbLogger does not take these arguments.
    """
    _check(time_limit, on_failure)
    plan = LoggerPlan(arguments, named)
    circle = find_circle(current())
    if circle is None:
        return plan.plain()
    wish = _Wish(plan, circle, time_limit, on_failure)
    return _lead(wish) if circle.index == 0 else _follow(wish)


def _check(time_limit: float, on_failure: str) -> None:
    if on_failure not in get_args(OnFailure):
        raise BadUsage(f"on_failure={on_failure!r} is unknown", "write 'raise' or 'offline'")
    if not 0 < time_limit < float("inf"):
        raise BadUsage(f"time_limit={time_limit!r} is no positive number", "write seconds, as 60.0")


def _lead(wish: _Wish) -> WandbLogger:
    run_id = wish.plan.new_run_id()
    try:
        meet(BEFORE, wish.time_limit, run_id.encode(), wish.circle)
    except MeetingFailed as error:
        _raise_unless_offline(wish, error)
        return _make_offline(wish, run_id)
    try:
        logger = _make(wish, run_id)
    except MeetingFailed as error:
        failed = Created(failure=str(error.args[0]), remedy=error.remedy)
        with suppress(MeetingFailed):  # the others gave up: what was wrong here says more
            meet(AFTER, wish.time_limit, msgspec.json.encode(failed), wish.circle)
        raise
    try:
        meet(AFTER, wish.time_limit, msgspec.json.encode(describe(logger)), wish.circle)
    except MeetingFailed as error:
        _raise_unless_offline(wish, error)
    return logger


def _follow(wish: _Wish) -> WandbLogger:
    created = Created()
    patience = wish.time_limit + (OFFLINE_LIMIT if wish.on_failure == "offline" else 0.0)
    try:
        run_id = meet(BEFORE, wish.time_limit, b"", wish.circle)[0].decode()
        created = Created(version=run_id)
        told = meet(AFTER, patience, b"", wish.circle)[0]
        created = msgspec.json.decode(told, type=Created)
    except MeetingFailed as error:
        _raise_unless_offline(wish, error)
    if created.failure:
        raise MeetingFailed(created.failure, created.remedy)
    return wish.plan.following(created)


def _raise_unless_offline(wish: _Wish, error: MeetingFailed) -> None:
    if wish.on_failure == "raise":
        raise error
    log.once("wandb-offline", f"{error}. Training goes on with wandb offline")


def _make(wish: _Wish, run_id: str) -> WandbLogger:
    """Make rank 0's logger; offline if that is wished and online fails.

    Raises:
        MeetingFailed: wandb raised, or did not return in time.
    """
    started, before = time.monotonic(), services()
    try:
        with section("wandb run creation"):
            return within(wish.time_limit, partial(wish.plan.online, wish.time_limit))
    except Exception as error:  # noqa: BLE001 - wandb's boundary: whatever it raises, every rank learns
        failed = _failure(error, time.monotonic() - started)
        failed.__cause__ = error
    abandon(before)
    _raise_unless_offline(wish, failed)
    return _make_offline(wish, run_id)


def _make_offline(wish: _Wish, run_id: str) -> WandbLogger:
    started = time.monotonic()
    try:
        return within(OFFLINE_LIMIT, partial(wish.plan.offline, run_id))
    except Exception as error:
        raise _failure(error, time.monotonic() - started) from error


def _failure(error: Exception, seconds: float) -> MeetingFailed:
    why = str(error) if isinstance(error, NoAnswer) else f"{type(error).__name__}: {error}"
    one_line = " ".join(redact_text(why).split())[:LONGEST_ERROR]
    return MeetingFailed(
        f"rank 0 could not create the wandb run, and gave up after {seconds:.1f} s: {one_line}",
        "see whether the wandb server answers from rank 0's host (WANDB_BASE_URL, proxy), or go "
        "without it: WANDB_MODE=offline, or guarded_wandb_logger(..., on_failure='offline')",
    )
