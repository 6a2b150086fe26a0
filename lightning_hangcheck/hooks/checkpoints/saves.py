"""Do the checkpoints that this process saves hold what training needs to go on from them?

Told by keys and arguments as they are saved; no file is opened. Said once, at the second step at
which it saves: those who keep the optimizer in a file of its own have saved it by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.checkpoints.contents import PARTS

if TYPE_CHECKING:
    from collections.abc import Collection

    from lightning_hangcheck.recorder.lifecycle import Recorder

EVERYTHING = frozenset(PARTS)
HISTORY_ALONE = frozenset({"history"})
"""What a Trainer's checkpoint of weights alone still holds."""
STARTS_ANEW = {
    "optimizer state": "no optimizer state (its moments start at zero)",
    "scheduler": "no scheduler (the learning rate starts anew)",
    "history": "no step or epoch (the loop starts at its first)",
}


class SavedParts:
    """What all checkpoints of one process held so far.

    Args:
        recorder: Of this process.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._held: frozenset[str] = frozenset()
        self._step: int | None = None
        self._said = False

    def note(self, held: frozenset[str], needed: Collection[str], remedy: str) -> None:
        """Take a save that has ended well, and say once what none of them holds.

        Args:
            held: Parts of `PARTS` in it.
            needed: Those that this training has.
            remedy: How to keep them, too.
        """
        before, self._step = self._step, self._recorder.page.step
        self._held |= held
        lacking = [part for part in PARTS if part in needed and part not in self._held]
        if self._said or not lacking or before is None or before == self._step:
            return
        self._said = True
        without = " and ".join(STARTS_ANEW[part] for part in lacking)
        self._recorder.say(f"the checkpoints saved so far hold {without}: {remedy}")
        self._recorder.note("saves_lack", parts=lacking)
