"""Versions that are known to hang, each with its source and the version that mends it."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.doctor.check import Check

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.doctor.subject import Subject

NAME = "known versions"


class KnownHang(NamedTuple):
    """Versions of something that hang.

    Attributes:
        what: A distribution, or ``linux`` for the kernel.
        from_: The first version that hangs.
        before: The first that does not.
        only_on: Machine that it concerns; empty for all.
        sentence: What hangs.
        see: Who says so.
    """

    what: str
    from_: tuple[int, ...]
    before: tuple[int, ...]
    only_on: str
    sentence: str
    remedy: str
    see: str


ARM = "on ARM a lost compare-and-swap leaves NCCL's proxy without places: collectives hang silently"
_NCCL_ON_ARM = "https://github.com/marin-community/marin/pull/8038"
_UPGRADE = "pip install -U 'nvidia-nccl-{cuda}>=2.29.3'"
KNOWN_HANGS = (
    KnownHang(
        "linux",
        (0,),
        (5, 5),
        "",
        "processes that train may hang on kernels before 5.5",
        "boot a kernel of 5.5 or newer",
        "accelerate/utils/other.py, check_os_kernel",
    ),
    KnownHang(
        "nvidia-nccl-cu12",
        (2,),
        (2, 29, 3),
        "aarch64",
        ARM,
        _UPGRADE.format(cuda="cu12"),
        _NCCL_ON_ARM,
    ),
    KnownHang(
        "nvidia-nccl-cu13",
        (2,),
        (2, 29, 3),
        "aarch64",
        ARM,
        _UPGRADE.format(cuda="cu13"),
        _NCCL_ON_ARM,
    ),
    KnownHang(
        "nvidia-nccl-cu12",
        (2, 26),
        (2, 26, 2),
        "",
        "ncclCommAbort may never return",
        "pip install -U torch",
        "https://github.com/pytorch/pytorch/pull/149546",
    ),
)


def versions_known(_: Subject) -> tuple[Check, ...]:
    """Compare what is installed here with versions that are known to hang."""
    return judge_versions(_installed(), platform.machine())


def judge_versions(installed: Mapping[str, str], machine: str) -> tuple[Check, ...]:
    """Compare versions with those that are known to hang.

    Args:
        installed: By the names that `KNOWN_HANGS` uses.
        machine: As ``uname -m`` says it.
    """
    found = [
        Check(
            NAME,
            "warning",
            f"{one.what} {installed[one.what]}: {one.sentence} ({one.see})",
            one.remedy,
        )
        for one in KNOWN_HANGS
        if one.what in installed
        and one.only_on in ("", machine)
        and one.from_ <= numbers(installed[one.what]) < one.before
    ]
    shown = ", ".join(f"{name} {text}" for name, text in installed.items())
    return tuple(found) or (Check(NAME, "ok", f"none of them is known to hang: {shown}"),)


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: ``5.15.0-91-generic`` is 5, 15, 0."""
    head = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, head[0].split("."))) if head else ()


def _installed() -> dict[str, str]:
    found = {"linux": platform.release()}
    for name in dict.fromkeys(one.what for one in KNOWN_HANGS if one.what != "linux"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
