"""The WandbLoggers that one call can become: with its run, offline, none, or following rank 0's."""

from __future__ import annotations

import inspect
import os
import secrets
import string
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from lightning_hangcheck.hooks.callbacks.lightning_package import lightning_packages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning.pytorch.loggers import WandbLogger

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
