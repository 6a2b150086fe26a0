"""Versions that are known to hang, and their neighbours that are not."""

from __future__ import annotations

import pytest
from subjects import subject

from lightning_hangcheck.doctor.surroundings import (
    known_versions,
    numbers,
)


@pytest.mark.parametrize(
    ("what", "version", "machine", "status"),
    [
        ("linux", "5.4.250", "x86_64", "warning"),
        ("linux", "5.15.0-91-generic", "x86_64", "ok"),
        ("nvidia-nccl-cu13", "2.28.9", "aarch64", "warning"),
        ("nvidia-nccl-cu13", "2.28.9", "x86_64", "ok"),
        ("nvidia-nccl-cu13", "2.29.3", "aarch64", "ok"),
        ("nvidia-nccl-cu12", "2.26.1", "x86_64", "warning"),
        ("nvidia-nccl-cu12", "2.26.2", "x86_64", "ok"),
    ],
)
def test_a_version_is_compared_as_numbers(
    what: str, version: str, machine: str, status: str
) -> None:
    checks = known_versions(subject(), installed={what: version}, machine=machine)
    assert {check.status for check in checks} == {status}
    assert all(what in check.sentence for check in checks)


def test_what_is_installed_here_is_looked_at() -> None:
    assert "linux" in known_versions(subject())[0].sentence


def test_a_text_without_numbers_has_none() -> None:
    assert numbers("unknown") == ()
