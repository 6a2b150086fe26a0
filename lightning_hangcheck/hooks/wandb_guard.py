"""A WandbLogger that cannot leave the other ranks waiting, nor the job at its end."""

from __future__ import annotations

import atexit
import inspect
import os
import secrets
import signal
import string
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from msgspec import Struct, field

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage, MeetingFailed
from lightning_hangcheck.hooks.callbacks import lightning_packages
from lightning_hangcheck.hooks.guards import check_limit, notice_after, said_while_waiting
from lightning_hangcheck.hooks.rendezvous import PeerGroup, find_peer_group, join_rendezvous
from lightning_hangcheck.look.proc import command_line, descendants
from lightning_hangcheck.machine.own_thread import start_thread
from lightning_hangcheck.machine.process_stat import is_alive
from lightning_hangcheck.machine.room import NoRoom
from lightning_hangcheck.model.decoders import json_decoder
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.recorder.announcer import describe_exception
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.sections import Section
from lightning_hangcheck.settings import LoggerFailure
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lightning.pytorch.loggers import WandbLogger
    from wandb.sdk.wandb_run import Run

    from lightning_hangcheck.look.proc import ProcessRef


PROGRAM = "wandb-core"
CLOSING_LIMIT = 2.0  # seconds; measured on wandb 0.31: under 0.1 s, unless its server is stuck
ENDING_LIMIT = 1.0  # seconds between SIGTERM and SIGKILL; it has nothing to save
LOOK_INTERVAL = 0.02  # seconds


def services() -> frozenset[ProcessRef]:
    """Find wandb's service processes that this process started."""
    children = (ref for ref in descendants(os.getpid()) if ref.parent_pid == os.getpid())
    return frozenset(child for child in children if _is_service(child))


def abandon(before: frozenset[ProcessRef]) -> None:
    """Close wandb's connection to its service, so that a next run gets a fresh one.

    A run that was there before ours is left alone, and so is a service that was.

    Args:
        before: The services before ours was tried.
    """
    import wandb

    if wandb.run is not None:
        return
    ours = services() - before
    # wandb forgets the service first and then waits for it; however that ends, it is forgotten
    with suppress(Exception):
        within(CLOSING_LIMIT, partial(wandb.teardown, exit_code=1))
    end_services(ours)


def end_services(processes: Iterable[ProcessRef]) -> None:
    """End these services, those that don't listen by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _end(processes, number)


def _is_service(process: ProcessRef) -> bool:
    words = command_line(process.pid)
    return not isinstance(words, Gap) and bool(words) and Path(words[0]).name == PROGRAM


def _end(processes: Iterable[ProcessRef], number: signal.Signals) -> None:
    """Signal those that still live, and give them a moment."""
    alive = [ref for ref in processes if is_alive(ref.pid, ref.started_ticks)]
    for process in alive:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
    deadline = time.monotonic() + ENDING_LIMIT
    while time.monotonic() < deadline and any(is_alive(r.pid, r.started_ticks) for r in alive):
        time.sleep(LOOK_INTERVAL)


GIVES_UP_EARLIER = 2.0  # seconds that wandb gets less than we wait: it ends in order, we by force


class _Stage(Struct, frozen=True):
    """A wait for wandb's service: when it begins, when it is over, and whether we cut it off."""

    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    cut: threading.Event = field(default_factory=threading.Event)


def wandb_patience(limit: float) -> float:
    """Seconds after which wandb should give up, so that it does before we do."""
    return max(limit - GIVES_UP_EARLIER, limit / 2)


class RunFinish:
    """Bounds ``run.finish()``, and what wandb does at exit for a run that was not finished.

    Nothing is raised for being late: training is done, and what was not uploaded is on the disk.

    Args:
        run: Just created; its ``finish`` is replaced by one that returns in time.
        limit: Seconds for finishing it, upload included, and for closing wandb at exit.
        service: Its service processes, as far as this process started them.
    """

    def __init__(self, run: Run, limit: float, service: frozenset[ProcessRef]) -> None:
        self._pid = os.getpid()
        self._limit = limit
        self._service = service
        self._folder = Path(run.dir).parent.absolute()
        self._destination = "offline" if run.offline else f"server {run.settings.base_url}"
        self._plain_finish = run.finish
        self._finishing, self._closing = _Stage(), _Stage()
        run.finish = self.finish
        try:
            start_thread(self._watch, "hangcheck-wandb-ending")
        except NoRoom as refusal:
            log.once("wandb-ending", f"wandb's end has only wandb's own limit: {refusal}")
        atexit.register(self._at_exit)

    def finish(self, exit_code: int | None = None) -> None:
        """Finish the run as wandb does, but return in time.

        Args:
            exit_code: Of the program, as wandb wants to know it.

        Raises:
            Exception: What wandb raises for another reason than that its service was ended.
        """
        stage = self._finishing
        if os.getpid() != self._pid or stage.over.is_set():
            self._plain_finish(exit_code)
            return
        stage.begun.set()
        try:
            with self._shown():
                self._plain_finish(exit_code)
        except Exception:
            if not stage.cut.is_set():
                raise
        finally:
            stage.over.set()
        if stage.cut.is_set():
            abandon(frozenset())  # so that the next run gets a service that lives

    def _shown(self) -> Section:
        """Tell the sidecar that this wait is going to end."""
        return Section(current(), "wandb run finish", spoken=False, goes_on_after_s=self._limit)

    def _at_exit(self) -> None:
        """Runs before wandb's own hook, which was registered earlier and waits without a limit."""
        import wandb

        if os.getpid() != self._pid:
            return
        if not self._finishing.over.is_set():
            self._shown().__enter__()  # wandb's own hook waits next, and tells nobody of its end
            self._finishing.begun.set()
        elif wandb.run is None:  # else wandb still uploads another run, which is not ours to end
            self._closing.begun.set()

    def _watch(self) -> None:
        stage = self._finishing
        stage.begun.wait()
        if not self._is_over_in_time(stage):
            stage.cut.set()
            end_services(self._service)
            self._say(
                "wandb's service did not react and was ended; what it had written is in "
                f"{self._folder}"
            )
            stage.over.wait()
        self._closing.begun.wait()
        if not self._closing.over.wait(self._limit):
            end_services(self._service)

    def _is_over_in_time(self, stage: _Stage) -> bool:
        first, last = notice_after(self._limit), wandb_patience(self._limit)
        if stage.over.wait(first):
            return True
        self._say(
            f"wandb is waited for, to finish its run ({self._destination}); it has "
            f"{self._limit:g} s for that"
        )
        if stage.over.wait(last - first):
            return True
        self._say(
            f"wandb did not finish its run within {last:g} s and is not waited for any longer; the "
            f"data is in {self._folder}; upload it later: wandb sync {self._folder}"
        )
        return stage.over.wait(self._limit - last)

    def _say(self, sentence: str) -> None:
        log.once(sentence, sentence)


RUN_ID_LETTERS = string.ascii_lowercase + string.digits


class Created(Struct, frozen=True, kw_only=True):
    """What rank 0 tells the others of its logger.

    Attributes:
        name: The project, which WandbLogger calls its name.
        version: The run's id.
        failure: Why there is no logger, in one clause; empty if there is one.
        remedy: The way out, in one clause.
    """

    name: str | None = None
    version: str | None = None
    save_dir: str | None = None
    failure: str = ""
    remedy: str = ""


class LoggerMaker:
    """The caller's arguments of WandbLogger, kept by name."""

    def __init__(self, positional: tuple[object, ...], named: Mapping[str, object]) -> None:
        """Check the arguments without making anything.

        Raises:
            TypeError: WandbLogger would not take them either.
            BadUsage: Lightning is not installed.
        """
        self._kind: type[WandbLogger] = lightning_packages()[0].loggers.WandbLogger
        by_name = dict(inspect.signature(self._kind).bind(*positional, **named).arguments)
        for_wandb_init = by_name.pop("kwargs", {})
        self._arguments: dict[str, Any] = {**by_name, **for_wandb_init}

    def new_run_id(self) -> str:
        """Return the id that the caller wants, or a new one of 8 letters or digits."""
        wanted = self._arguments.get("version") or self._arguments.get("id")
        return str(wanted or "".join(secrets.choice(RUN_ID_LETTERS) for _ in range(8)))

    def plain(self) -> WandbLogger:
        """Make the logger as WandbLogger itself would: its run is created later, in ``fit``."""
        return self._kind(**self._arguments)

    def online(self, init_timeout: float, finish_timeout: float) -> WandbLogger:
        """Make the logger and its run. Blocks as long as wandb does.

        Args:
            init_timeout: Seconds after which wandb is asked to give up creating the run, unless
                the caller or the environment told it.
            finish_timeout: The same for finishing it: wandb then writes the rest to the disk.
        """
        # wandb 0.31 waits at exit, 20 to 40 s, for reports about its own errors to be sent to a
        # server that does not answer; who sets the variable gets what it says
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        arguments = self._arguments
        if "settings" not in arguments:
            patience = {"init_timeout": init_timeout, "finish_timeout": finish_timeout}
            arguments = {**arguments, "settings": _settings(patience)}
        return _with_run(self._kind(**arguments))

    def offline(self, run_id: str) -> WandbLogger:
        """Make the logger with a run that stays on this disk; `wandb sync` uploads it later.

        Checkpoints are not logged as artifacts: WandbLogger refuses that offline.
        """
        changes = {"mode": "offline", "offline": True, "log_model": False, "version": run_id}
        return _with_run(self._kind(**{**self._arguments, **changes}))

    def disabled(self, run_id: str) -> WandbLogger:
        """Make a logger that takes everything and keeps nothing; it starts no process."""
        changes = {"mode": "disabled", "offline": False, "log_model": False, "version": run_id}
        return _with_run(self._kind(**{**self._arguments, **changes}))

    def following(self, created: Created) -> WandbLogger:
        """Make the logger of another rank: it never creates a run, and looks like rank 0's."""
        changes = {
            "project": created.name,
            "version": created.version,
            "save_dir": created.save_dir,
        }
        known = {name: value for name, value in changes.items() if value is not None}
        return self._kind(**{**self._arguments, **known})


def describe(logger: WandbLogger) -> Created:
    """Say what other ranks need to know of a logger."""
    return Created(name=logger.name, version=logger.version, save_dir=logger.save_dir)


def _settings(patience: Mapping[str, float]) -> object:
    """Wandb's settings with what this version of it knows and nobody else has said."""
    import wandb

    known = wandb.Settings.model_fields
    unsaid = {
        name: seconds
        for name, seconds in patience.items()
        if name in known and f"WANDB_{name.upper()}" not in os.environ
    }
    return wandb.Settings(**unsaid)


def _with_run(logger: WandbLogger) -> WandbLogger:
    """WandbLogger creates its run when it is first asked for."""
    _ = logger.experiment
    return logger


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
