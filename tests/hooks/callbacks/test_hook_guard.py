"""A hook of ours that raises is switched off; training hears one sentence and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.never_raise import guard_hooks, switch_off

if TYPE_CHECKING:
    import pytest


@guard_hooks
class Guest:
    def __init__(self) -> None:
        self.called: list[str] = []

    def on_step(self, number: int) -> None:
        self.called.append(f"step {number}")
        if number == 2:
            raise ValueError("no such step, token=verysecretvalue")

    def setup(self, stage: str) -> None:
        self.called.append(stage)

    def other(self) -> str:
        return "not a hook"


def test_hook_that_raises_is_said_once_and_all_hooks_of_that_guest_rest(
    capfd: pytest.CaptureFixture[str],
) -> None:
    guest, neighbour = Guest(), Guest()
    for number in (1, 2, 3):
        guest.on_step(number)
    guest.setup(stage="fit")
    neighbour.on_step(1)

    assert guest.called == ["step 1", "step 2"]
    assert neighbour.called == ["step 1"]
    said = capfd.readouterr().err
    assert said.count("on_step failed (ValueError: no such step") == 1
    assert "verysecretvalue" not in said
    assert guest.other() == "not a hook"


def test_switched_off_guest_takes_any_arguments() -> None:
    guest = Guest()
    switch_off(guest)
    guest.on_step(1)
    guest.setup(stage="fit")

    assert guest.called == []
