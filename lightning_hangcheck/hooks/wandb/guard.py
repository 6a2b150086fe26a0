"""A WandbLogger that cannot leave the other ranks waiting, nor the job at its end."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, get_args

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage, MeetingFailed
from lightning_hangcheck.hooks.rendezvous.peer_group import PeerGroup, find_peer_group
from lightning_hangcheck.hooks.rendezvous.rendezvous import join_rendezvous
from lightning_hangcheck.hooks.wait_limit import check_limit, said_while_waiting
from lightning_hangcheck.hooks.wandb.logger import Created, LoggerMaker, describe
from lightning_hangcheck.hooks.wandb.run_finish import RunFinish, wandb_patience
from lightning_hangcheck.hooks.wandb.service import abandon, services
from lightning_hangcheck.model.decoders import json_decoder
from lightning_hangcheck.recorder.announcer import describe_exception
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.sections import Section
from lightning_hangcheck.settings import LoggerFailure
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from lightning.pytorch.loggers import WandbLogger

BEFORE, AFTER = "wandb before", "wandb after"
SUBSTITUTE_LIMIT = 30.0  # seconds for a run on the disk, or none; measured on wandb 0.31: 0.3 s
LONGEST_ERROR = 500  # characters of wandb's own error that are repeated on every rank


class _Request(msgspec.Struct, frozen=True):
    """One call of the guard: the logger that is asked for, and the limits."""

    maker: LoggerMaker
    peers: PeerGroup
    init_timeout: float
    finish_timeout: float
    on_failure: LoggerFailure


def guarded_wandb_logger(
    *arguments: object,
    init_timeout: float | None = None,
    finish_timeout: float | None = None,
    on_failure: LoggerFailure | None = None,
    **named: object,
) -> WandbLogger:
    """Make a WandbLogger on rank 0, with its run, and one that follows it on every other rank.

    Example:
        >>> logger = guarded_wandb_logger(project="demo", on_failure="offline")
        >>> trainer = Trainer(logger=logger)

    All ranks meet before and after ("wandb before", "wandb after"), each time within the limit.
    Under ``python train.py`` with ``Trainer(devices=2)`` the first process makes the logger at once
    and the ranks that Lightning starts in ``fit`` learn of it; under ``ddp_spawn`` rank 0 attaches
    to its run. Finishing the run, by `wandb.finish` or at exit, is bounded too, and raises nothing
    for being late: what was not uploaded stays on the disk for ``wandb sync``.

    Args:
        *arguments: WandbLogger's own.
        init_timeout: Seconds that creating the run may take, and that ranks wait for each other;
            HANGCHECK_LOGGER_INIT_TIMEOUT by default, 60.
        finish_timeout: Seconds for finishing the run, upload included;
            HANGCHECK_LOGGER_FINISH_TIMEOUT by default, 30.
        on_failure: ``raise`` the same error on every rank, go on with a run that stays
            ``offline``, or with ``none``: a logger that drops what it is given;
            HANGCHECK_LOGGER_ON_FAILURE by default, ``raise``.
        **named: WandbLogger's own.

    Returns:
        A WandbLogger of the Lightning package that is imported (``lightning`` if both are). On
        all ranks it has rank 0's name, version and save_dir.

    Raises:
        MeetingFailed: On every rank alike: who failed, why, after how long, and the way out.
        BadUsage: An option cannot be used, or Lightning is not installed.
        TypeError: WandbLogger does not take these arguments.
    """
    check_limit("init_timeout", init_timeout)
    check_limit("finish_timeout", finish_timeout)
    _check_choice(on_failure)
    maker = LoggerMaker(arguments, named)
    recorder = current()
    peers, settings = find_peer_group(recorder), recorder.settings
    if peers is None:
        return maker.plain()
    request = _Request(
        maker,
        peers,
        init_timeout or settings.logger_init_timeout,
        finish_timeout or settings.logger_finish_timeout,
        on_failure or settings.logger_on_failure,
    )
    return _lead(request) if peers.index == 0 else _follow(request)


def _check_choice(on_failure: str | None) -> None:
    if on_failure not in (None, *get_args(LoggerFailure)):
        raise BadUsage(
            f"on_failure={on_failure!r} is unknown", "write 'raise', 'offline' or 'none'"
        )


def _lead(request: _Request) -> WandbLogger:
    run_id = request.maker.new_run_id()
    try:
        join_rendezvous(BEFORE, request.init_timeout, run_id.encode(), request.peers)
    except MeetingFailed as error:
        _raise_if_asked(request, error)
        return _make_substitute(request, run_id)
    try:
        logger = _make(request, run_id)
    except MeetingFailed as error:
        failed = Created(failure=str(error.args[0]), remedy=error.remedy)
        with suppress(MeetingFailed):  # the others gave up: what was wrong here says more
            join_rendezvous(AFTER, request.init_timeout, msgspec.json.encode(failed), request.peers)
        raise
    try:
        join_rendezvous(
            AFTER, request.init_timeout, msgspec.json.encode(describe(logger)), request.peers
        )
    except MeetingFailed as error:
        _raise_if_asked(request, error)
    return logger


def _follow(request: _Request) -> WandbLogger:
    created = Created()
    patience = request.init_timeout + (0.0 if request.on_failure == "raise" else SUBSTITUTE_LIMIT)
    try:
        run_id = join_rendezvous(BEFORE, request.init_timeout, b"", request.peers)[0].decode()
        created = Created(version=run_id)
        told = join_rendezvous(AFTER, patience, b"", request.peers)[0]
        created = json_decoder(Created).decode(told)
    except MeetingFailed as error:
        _raise_if_asked(request, error)
    if created.failure:
        raise MeetingFailed(created.failure, created.remedy)
    return request.maker.following(created)


def _raise_if_asked(request: _Request, error: MeetingFailed) -> None:
    if request.on_failure == "raise":
        raise error
    instead = "with wandb offline" if request.on_failure == "offline" else "without wandb"
    sentence = f"{error.args[0]}; {error.remedy}. Training goes on {instead}"
    log.once(sentence, sentence)


def _make(request: _Request, run_id: str) -> WandbLogger:
    """Make rank 0's logger; another one if that is asked for and online fails.

    Raises:
        MeetingFailed: wandb raised, or did not return in time.
    """
    started, before = time.monotonic(), services()
    online = partial(
        request.maker.online,
        wandb_patience(request.init_timeout),
        wandb_patience(request.finish_timeout),
    )
    try:
        with _creation(request), said_while_waiting(_waiting(request), request.init_timeout):
            logger = within(request.init_timeout, online)
    except Exception as error:  # noqa: BLE001 - wandb's boundary: whatever it raises, every rank learns
        failed = _failure(error, time.monotonic() - started)
        failed.__cause__ = error
    else:
        RunFinish(logger.experiment, request.finish_timeout, services())
        return logger
    abandon(before)
    _raise_if_asked(request, failed)
    return _make_substitute(request, run_id)


def _creation(request: _Request) -> Section:
    goes_on = None if request.on_failure == "raise" else request.init_timeout
    return Section(current(), "wandb run creation", goes_on_after_s=goes_on)


def _make_substitute(request: _Request, run_id: str) -> WandbLogger:
    started, offline = time.monotonic(), request.on_failure == "offline"
    make = request.maker.offline if offline else request.maker.disabled
    try:
        logger = within(SUBSTITUTE_LIMIT, partial(make, run_id))
    except Exception as error:
        raise _failure(error, time.monotonic() - started) from error
    if offline:
        RunFinish(logger.experiment, request.finish_timeout, services())
    return logger


def _waiting(request: _Request) -> str:
    server = os.environ.get("WANDB_BASE_URL", "")
    return (
        f"rank 0 waits for wandb to create its run{f' (server {server})' if server else ''}, "
        f"and gives up after {request.init_timeout:g} s"
    )


def _failure(error: Exception, seconds: float) -> MeetingFailed:
    why = str(error) if isinstance(error, NoAnswer) else describe_exception(error, LONGEST_ERROR)
    return MeetingFailed(
        f"rank 0 could not create the wandb run, and gave up after {seconds:.1f} s: {why}",
        "see whether the wandb server answers from rank 0's host (WANDB_BASE_URL, proxy), or go "
        "without it: WANDB_MODE=offline, or guarded_wandb_logger(..., on_failure='offline')",
    )
