"""What torch's flight recorder says about a rank: which collectives it entered, and which ended.

Only what is the same on gloo and NCCL is kept. On gloo (torch 2.13) ``state`` stays ``scheduled``
and start and end times are null, so `retired` shows what ended. ``pg_status`` counts sends too, so
the last operations are taken from the entries. Gloo records no sends, receives or members of
groups; `session.collective_notes` has what ranks noted of these.
"""

from __future__ import annotations

from msgspec import Struct

from lightning_hangcheck.model.evidence import Frame

SAME_SIZES = frozenset(
    {"all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "_all_gather_base"}
)
"""Operations whose input has one size on all ranks; sizes of others may differ."""
FLIGHT_RECORD = "flight record"
"""Name of this evidence in a gap. A job of one process does not need it."""


class CallSite(Struct, frozen=True):
    """Where a rank called a collective, and the arguments that must be equal on all ranks.

    Attributes:
        frames: Down to the call, outermost first; empty if not noted.
        root: For example ``root 0``; empty if there is none, or it was given in another way.
        reduction: For example ``SUM``; empty if nothing is reduced.
    """

    frames: tuple[Frame, ...] = ()
    root: str = ""
    reduction: str = ""


class CollectiveEntry(Struct, frozen=True, kw_only=True):
    """One collective operation that a rank entered.

    Attributes:
        seq: Number within the group; equal on all ranks that meet.
        op: Name without the backend, for example ``all_reduce``.
        sizes: Of the input tensors; ``dtypes`` likewise, in torch's names: ``Float``.
        retired: It has ended on this rank.
        created_ns: Clock time at which the rank entered it, nanoseconds since 1970.
        thread: Python's identifier of the thread that entered it; 0 if the record does not have it.
        site: Place that it was called from, a key of `FlightRecord.sites`; 0 if not noted.
        recorded: Its number among all operations that the rank recorded, independent of clocks; 0
            if the record was not read from a dump.
    """

    seq: int
    op: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    retired: bool = False
    created_ns: int = 0
    thread: int = 0
    site: int = 0
    recorded: int = 0


class Message(Struct, frozen=True, kw_only=True):
    """A send to another rank or a receive from it, as NCCL's record has it.

    Attributes:
        seq: Its number among this rank's messages in the group; equal within a batch, and unknown
            to the other end.
        away: Global rank of the other end minus this rank's: equal for ranks in the same situation.
        retired: It has ended on this rank. The messages of a batch end with it.
    """

    seq: int
    away: int
    sends: bool
    retired: bool = False
    created_ns: int = 0
    recorded: int = 0


class CollectiveRecord(Struct, frozen=True, kw_only=True):
    """One process group as one rank knows it.

    Attributes:
        group: Name, the same on all ranks; ``0`` is the default group.
        description: What the program calls it, for example ``default_pg``.
        ranks: Its members; empty if the backend does not report them.
        on_device: Its operations run on a GPU, asynchronously: the rank is ahead of them.
        last_enqueued: Number of the newest operation that this rank entered.
        last_completed: Number up to which all operations have ended on this rank.
        entries: The newest operations, oldest first; empty if the rank has entered none.
        messages: Sends and receives that are kept, oldest first; numbered apart from operations.
        limit_s: Seconds after which the backend ends a rank with an open operation; 0 if unknown.
    """

    group: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    on_device: bool = False
    last_enqueued: int = 0
    last_completed: int = 0
    entries: tuple[CollectiveEntry, ...] = ()
    messages: tuple[Message, ...] = ()
    limit_s: float = 0.0

    @property
    def newest(self) -> int:
        """Number of the last one entered: torch counts it only after NCCL's call has returned."""
        return max(self.last_enqueued, self.entries[-1].seq if self.entries else 0)

    def has_ended(self, entry: CollectiveEntry) -> bool:
        """Whether an entry has ended on this rank."""
        return entry.retired or entry.seq <= self.last_completed


class GroupRun(Struct, frozen=True, array_like=True):
    """Groups of one shape at equal distances, ``count`` of them.

    Attributes:
        first: First member of the first group.
        step: Distance from there to the first member of the next group.
        name: Of the first group.
        name_step: Difference between successive names, if they are numbers; 0 if all have one.
    """

    first: int
    step: int
    count: int
    name: str
    name_step: int = 0


class GroupFamily(Struct, frozen=True, array_like=True):
    """The groups of ranks in the same situation: one dimension of a device mesh.

    Attributes:
        offsets: Distances of members to the first member, as start, step and count of each run;
            empty if the members are unknown, and the record names the group of all these ranks.
        runs: Where the groups are.
    """

    offsets: tuple[int, ...] = ()
    runs: tuple[GroupRun, ...] = ()


NOT_NOTED = CallSite()


class MessageCounts(Struct, frozen=True, kw_only=True):
    """Number of messages that a rank has posted to and from each peer, by global rank.

    Torch matches messages in order: of two ranks, the one that posted fewer is behind.

    Attributes:
        received: For each peer, the number of receives posted.
        newest: The newest messages of each thread, oldest first: ``peer + 1`` for a send,
            ``-(peer + 1)`` for a receive.
        moved: Number to add to all ranks here: the counts of one rank may describe others, too.
    """

    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    newest: tuple[tuple[int, ...], ...] = ()
    moved: int = 0

    @property
    def posted(self) -> tuple[int, int]:
        """How many sends and receives these are, all together."""
        return sum(self.sent.values()), sum(self.received.values())

    def sends(self) -> list[tuple[int, int]]:
        """Return each peer with the number of sends to it."""
        return [(peer + self.moved, number) for peer, number in self.sent.items()]

    def asked(self) -> list[tuple[int, int]]:
        """Return each peer with the number of receives from it."""
        return [(peer + self.moved, number) for peer, number in self.received.items()]

    def sent_to(self, peer: int) -> int:
        """Return the number of sends to a rank."""
        return self.sent.get(peer - self.moved, 0)

    def asked_of(self, peer: int) -> int:
        """Return the number of receives from a rank."""
        return self.received.get(peer - self.moved, 0)


class FlightRecord(Struct, frozen=True, kw_only=True):
    """All process groups of one rank at one moment.

    Attributes:
        waits: Number of threads in each of torch's own waits, for example ``TCPStore_get``.
        messages: Sends and receives between two ranks; None if not counted.
        sites: Places that its operations were called from.
        reduced: Largest number of reductions called from one place, among the calls that are kept;
            includes those that have left the record.
        repeated: The same of operations that have no root.
    """

    taken_ns: int
    groups: tuple[CollectiveRecord, ...] = ()
    waits: dict[str, int] = {}
    messages: MessageCounts | None = None
    sites: dict[int, CallSite] = {}
    reduced: int = 0
    repeated: int = 0

    def call_of(self, entry: CollectiveEntry) -> CallSite:
        """Return where an operation was called; empty if not noted."""
        return self.sites.get(entry.site, NOT_NOTED)
