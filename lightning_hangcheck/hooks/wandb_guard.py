"""A WandbLogger that cannot block the other ranks, nor the job at its end.

Rank 0 creates the run within a time limit, and all others learn the result. wandb gets a shorter
limit than the guard, so that it ends by itself; the files that wandb leaves are its own.
"""

from __future__ import annotations

import atexit
import inspect
import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage, MeetingFailed
from lightning_hangcheck.hooks.callbacks import lightning_packages
from lightning_hangcheck.hooks.places import check_limit, notice_after
from lightning_hangcheck.hooks.rendezvous import (
    GRACE,
    Outcome,
    RendezvousPoint,
    find_peer_group,
    join_rendezvous,
)
from lightning_hangcheck.hooks.zero_code.wrapping import later
from lightning_hangcheck.recorder.announcer import attempt, describe_exception
from lightning_hangcheck.recorder.lifecycle import Section, current
from lightning_hangcheck.settings import LoggerFailure
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch.loggers import WandbLogger
    from wandb.sdk.wandb_run import Run

Result = TypeVar("Result")
WAITING = "a line about wandb"
SUBSTITUTE_LIMIT = 30.0  # seconds for a run on the disk, or none; measured on wandb 0.31: 0.3 s
REFUSAL = "MisconfigurationException"
"""What Lightning raises for arguments that do not go together."""
CLOSING_LIMIT = 2.0  # seconds; measured on wandb 0.31: under 0.1 s, unless its server is stuck
GIVES_UP_EARLIER = 2.0  # seconds by which wandb gives up before us, so that it ends in order
LONGEST_ERROR = 500  # characters of wandb's own error that are repeated on every rank


def guarded_wandb_logger(
    *arguments: object,
    init_timeout: float | None = None,
    finish_timeout: float | None = None,
    on_failure: LoggerFailure | None = None,
    **named: object,
) -> WandbLogger:
    """Make a WandbLogger with its run on rank 0, and one that follows it on every other rank.

    All ranks meet first, and learn the result, both within the limit ("wandb run"). Under
    ``python train.py`` with ``Trainer(devices=2)`` the first process makes the logger at once,
    and the ranks that Lightning starts in ``fit`` learn of it. Finishing the run has a time limit
    too, and a late finish raises nothing. If an option is not given, its setting counts.

    Args:
        *arguments: Arguments of WandbLogger, as are ``named``.
        init_timeout: Seconds for creating the run, and for waiting for other ranks; 60 by default.
        finish_timeout: Seconds for finishing the run, upload included; 30 by default.
        on_failure: ``raise`` the same `MeetingFailed` on every rank (default), or continue with a
            run that stays ``offline``, or with ``none``: a logger that drops what it is given.
        **named: Arguments of WandbLogger.

    Returns:
        A WandbLogger of the imported Lightning package (``lightning`` if both are). On all ranks it
            has rank 0's name, version and save_dir.
    """
    check_limit("init_timeout", init_timeout)
    check_limit("finish_timeout", finish_timeout)
    if on_failure not in (None, *get_args(LoggerFailure)):
        raise BadUsage(
            f"on_failure={on_failure!r} is unknown", "write 'raise', 'offline' or 'none'"
        )
    kind: type[WandbLogger] = lightning_packages()[0].loggers.WandbLogger
    given = dict(inspect.signature(kind).bind(*arguments, **named).arguments)
    given |= given.pop("kwargs", {})  # for wandb.init
    recorder = current()
    peers, settings = find_peer_group(recorder), recorder.settings
    if peers is None:
        return kind(**given)  # its run is created later, in `fit`
    init_limit = init_timeout or settings.logger_init_timeout
    finish_limit = finish_timeout or settings.logger_finish_timeout
    on_failure = on_failure or settings.logger_on_failure

    def go_on(error: MeetingFailed) -> None:
        if on_failure == "raise":
            raise error
        instead = "with wandb offline" if on_failure == "offline" else "without wandb"
        sentence = f"{error.args[0]}; {error.remedy}. Training goes on {instead}"
        log.once(sentence, sentence)

    all_came, decided, logger = True, {}, None
    try:
        join_rendezvous("wandb run", init_limit, peers=peers)
    except MeetingFailed as error:  # the run is made without the missing ranks, if at all
        go_on(error)
        all_came = False
    patience = init_limit + (0.0 if on_failure == "raise" else SUBSTITUTE_LIMIT) + GRACE
    point = RendezvousPoint.next(peers, "wandb run creation", patience)
    if peers.index:
        point.arrive(b"")
        try:
            decided = msgspec.json.decode(point.await_outcome("did not finish").unwrap()[0])
        except MeetingFailed as error:
            go_on(error)
        return kind(**{**given, **decided})
    server = os.environ.get("WANDB_BASE_URL", "")
    of = f" (server {server})" if server else ""
    waiting = f"rank 0 waits for wandb to create its run{of}, and gives up after {init_limit:g} s"
    goes_on = None if on_failure == "raise" else init_limit
    section = Section(recorder, "wandb run creation", goes_on_after_s=goes_on)
    try:
        if all_came:
            try:
                with section, later(notice_after(init_limit), WAITING, log.once, waiting, waiting):
                    logger = _create(kind, given, init_limit, finish_limit)
            except MeetingFailed as error:
                go_on(error)
        if logger is None:
            offline = on_failure == "offline"
            run_id = str(given.get("version") or given.get("id") or os.urandom(4).hex())
            given |= {"mode": "offline" if offline else "disabled", "version": run_id}
            given |= {"offline": offline, "log_model": False}
            logger = _create(kind, given, SUBSTITUTE_LIMIT, finish_limit)
    except MeetingFailed as error:
        point.decide(Outcome(failure=str(error.args[0]), remedy=error.remedy))
        raise
    known = {"project": logger.name, "version": logger.version, "save_dir": logger.save_dir}
    decided = {name: value for name, value in known.items() if value is not None}
    point.decide(Outcome(payloads={0: msgspec.json.encode(decided)}))
    return logger


def _create(
    kind: type[Any], given: dict[str, Any], limit_s: float, finish_limit_s: float
) -> WandbLogger:
    """Make rank 0's logger and its run in time, and limit the time to finish it."""

    def work() -> WandbLogger:
        # wandb 0.31 waits 20 to 40 s at exit to send reports about its own errors to a server that
        # does not answer; a value that the user sets is kept
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        limits = {"init_timeout": limit_s, "finish_timeout": finish_limit_s}
        unsaid = {  # wandb should give up before we do
            name: max(limit - GIVES_UP_EARLIER, limit / 2)
            for name, limit in limits.items()
            if name in wandb.Settings.model_fields and f"WANDB_{name.upper()}" not in os.environ
        }
        made: WandbLogger = kind(**{"settings": wandb.Settings(**unsaid), **given})
        _ = made.experiment  # the run is created on first access
        return made

    started = time.monotonic()
    try:
        logger = bounded(limit_s, work)
    except Exception as error:
        after = time.monotonic() - started
        attempt("closing wandb", _forget_service)
        late = isinstance(error, NoAnswer)
        why = str(error) if late else describe_exception(error, LONGEST_ERROR)
        refused = isinstance(error, (TypeError, ValueError))
        remedy = (
            "correct the arguments of guarded_wandb_logger"
            if refused or type(error).__name__ == REFUSAL
            else "see whether the wandb server answers from rank 0's host (WANDB_BASE_URL, proxy), "
            "or go without it: WANDB_MODE=offline, or guarded_wandb_logger(..., "
            "on_failure='offline')"
        )
        raise MeetingFailed(
            f"rank 0 could not create the wandb run, and gave up after {after:.1f} s: {why}", remedy
        ) from error
    if given.get("mode") != "disabled":
        _bound_finish(logger.experiment, finish_limit_s)
    return logger


def bounded(limit: float, work: Callable[[], Result]) -> Result:
    """Do the work within a limit; if no thread can start, only wandb's own limits hold."""
    try:
        return within(limit, work)
    except NoAnswer as error:
        if not isinstance(error.__cause__, RuntimeError):
            raise
        log.once("wandb-limit", f"wandb has only its own limits here: {error}")
        return work()


def _forget_service() -> None:
    """Close wandb's connection to its service, so that the next run gets a fresh one."""
    # A run that existed before ours is left alone; if closing fails, wandb forgets the service.
    import wandb

    if wandb.run is None:
        with suppress(Exception):
            within(CLOSING_LIMIT, partial(wandb.teardown, exit_code=1))


def _bound_finish(run: Run, limit: float) -> None:
    """Replace ``run.finish`` by a function that returns in time and does not raise if late."""
    pid, plain = os.getpid(), run.finish
    folder = Path(run.dir).parent.absolute()
    destination = "offline" if run.offline else f"server {run.settings.base_url}"
    waiting = f"wandb is waited for, to finish its run ({destination}); it has {limit:g} s for that"
    is_over = False

    def shown() -> Section:
        return Section(current(), "wandb run finish", spoken=False, goes_on_after_s=limit)

    def finish(*arguments: Any, **named: Any) -> None:  # noqa: ANN401 - wandb's own
        nonlocal is_over
        if os.getpid() != pid or is_over:
            plain(*arguments, **named)
            return
        is_over = True
        try:
            with shown(), later(notice_after(limit), WAITING, log.once, waiting, waiting):
                bounded(limit, partial(plain, *arguments, **named))
        except NoAnswer:
            log.once(
                f"wandb {folder}",
                f"wandb did not finish its run within {limit:g} s and is not waited for any "
                f"longer; the data is in {folder}; upload it later: wandb sync {folder}",
            )
            attempt("closing wandb", _forget_service)  # so that the next run gets a working service

    def at_exit() -> None:
        """Runs before wandb's own hook, which was registered earlier and waits."""
        if os.getpid() == pid and not is_over:
            shown().__enter__()

    run.finish = finish
    atexit.register(at_exit)
