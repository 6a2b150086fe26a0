"""Pythons that can be read, and those that cannot."""

from __future__ import annotations

import sys

import pytest
from subjects import subject

from lightning_hangcheck.doctor.seeing import python_version


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 9), "failed"), ((3, 10), "ok"), ((3, 14), "ok"), ((3, 15), "warning")],
)
def test_pythons_outside_the_known_range_are_told(version: tuple[int, int], status: str) -> None:
    (check,) = python_version(subject(), version=version)
    assert check.status == status
    assert bool(check.remedy) == (status != "ok")


def test_this_python_will_do() -> None:
    (check,) = python_version(subject())
    assert check.sentence == "Python {}.{}".format(*sys.version_info[:2])
