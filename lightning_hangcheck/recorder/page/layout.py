"""The bytes of a page: one record of fixed place and width for each thing that a rank says.

Each changing record starts and ends with the same stamp, a count of its writes. One
``struct.pack_into`` writes it: CPython clears the record (Modules/_struct.c, s_pack_internal),
then stores field by field in ascending order, so a half-written one shows unequal stamps, or 0. A
reader that copies it twice, gets the same bytes and finds equal stamps has what the writer wrote:
the processor keeps the order of stores (x86), or they have settled before the second copy (ARM).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final, get_args

from lightning_hangcheck.model.beat import Ending, Membership, Training
from lightning_hangcheck.model.naming.slugs import PHASES, Phase

MAGIC: Final = b"HANGPAGE"
LAYOUT_VERSION: Final = 7
PAGE_SIZE: Final = 4096
UNKNOWN: Final = -1
SECTION_SLOTS: Final = 8
SECTION_NAME_BYTES: Final = 88
CHECKPOINT_NAME_BYTES: Final = 160
LAST_WORDS_BYTES: Final = 1208  # 300 characters of up to 4 bytes each
ENDINGS: Final[tuple[Ending, ...]] = get_args(Ending)
MEMBERSHIPS: Final[tuple[Membership, ...]] = get_args(Membership)
TRAININGS: Final[tuple[Training, ...]] = get_args(Training)

PHASE_INDEX: Final[dict[Phase | None, int]] = {None: UNKNOWN} | {
    phase: index for index, phase in enumerate(PHASES)
}


class Record:
    """A place on the page and the format of what stands there, in native byte order.

    Attributes:
        start: Offset on the page; records start on cache lines of 64 bytes.
        form: Its fields, the stamps among them.
    """

    __slots__ = ("form", "start", "stop")

    def __init__(self, start: int, form: str) -> None:
        self.start = start
        self.form = Struct(form)
        self.stop = start + self.form.size


# magic, layout version, page size, pid, monotonic time of creation, pid of the parent
HEADER: Final = Record(0, "@8sIIqqq")
# monotonic time: one aligned store needs no stamps
PULSE: Final = Record(64, "@q")
# stamp = count of beats, monotonic time
BEAT: Final = Record(128, "@QqQ")
# monotonic time, phase, epoch, step, batch, count of `enter_phase`
PHASE: Final = Record(192, "@QqqqqqqQ")
# rank, world size, local rank, round, port of the ranks' store
IDENTITY: Final = Record(256, "@QqqqqqQ")
# monotonic time, number, nanoseconds since 1970, name
CHECKPOINT: Final = Record(320, f"@Qqqq{CHECKPOINT_NAME_BYTES}sQ")
# monotonic time, how many are open, then for each shown one: monotonic time of entry, item,
# milliseconds after which a guard ends it, whether the main thread is in it, name
SECTIONS: Final = Record(576, "@Qqq" + f"qqqq{SECTION_NAME_BYTES}s" * SECTION_SLOTS + "Q")
# ending, monotonic time of it, last words
ENDING: Final = Record(1600, f"@Qqq{LAST_WORDS_BYTES}sQ")
# how many saves of a checkpoint ended well; of the last, or of one that was loaded since,
# nanoseconds since 1970, step
SAVE: Final = Record(2880, "@QqqqQ")
# whether the rank is in a process group
MEMBERSHIP: Final = Record(2944, "@QqQ")
# which of the ranks that its parent starts it is to be
ANNOUNCED: Final = Record(3008, "@QqQ")
# sums over the steps that were timed: how many, nanoseconds of loader, forward, and the rest
STEP_TIMES: Final = Record(3072, "@QqqqqQ")
# in which thread the process trains, or whether that is over
TRAINING: Final = Record(3136, "@QqQ")


@lru_cache(maxsize=128)  # a step's name is written again and again
def fit_text(text: str, width: int) -> bytes:
    """Encode a text so that it fits, cut between two characters; struct pads it with zeros."""
    data = text.replace("\0", " ").encode(errors="replace")
    return data if len(data) <= width else data[:width].decode(errors="ignore").encode()


def read_text(data: bytes) -> str:
    """Decode what `fit_text` encoded."""
    return data.rstrip(b"\0").decode(errors="replace")
