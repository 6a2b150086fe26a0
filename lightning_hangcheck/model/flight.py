"""What torch's flight recorder says of one rank: which collectives it entered, and which ended.

Only what is the same on gloo and NCCL is kept. On gloo (torch 2.13) ``state`` stays ``scheduled``
and times of start and end are null, so `retired` tells what ended; ``pg_status`` counts sends too,
so the last operations are taken from the entries; gloo records no sends and receives, and does not
name the members of a group: `session.collectives` has what ranks noted of both.
"""

from __future__ import annotations

from msgspec import Struct

from lightning_hangcheck.model.evidence import Frame

SAME_SIZES = frozenset(
    {"all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "_all_gather_base"}
)
"""Operations whose input has one size on all ranks; of others the sizes may differ."""
FLIGHT_RECORD = "flight record"
"""What a gap of this evidence is called. In a job of one process nobody misses it."""


class CallSite(Struct, frozen=True):
    """From where a rank called a collective, and with what that all ranks must give alike.

    Attributes:
        frames: Down to the call, outermost first; none where nobody noted them.
        root: For example ``root 0``; empty where there is none, or it was told otherwise.
        reduction: For example ``SUM``; empty where nothing is reduced.
    """

    frames: tuple[Frame, ...] = ()
    root: str = ""
    reduction: str = ""


class CollectiveEntry(Struct, frozen=True, kw_only=True):
    """One collective operation that a rank entered.

    Attributes:
        seq: Number within the group: ranks that meet have the same one.
        op: Name without the backend, for example ``all_reduce``.
        sizes: Of the input tensors; so are the types, as torch names them: ``Float``.
        retired: It has ended on this rank.
        created_ns: Clock time at which the rank entered it, nanoseconds since 1970.
        thread: That entered it, by Python's identifier; 0 where the record does not tell.
        site: Place that it was called from, a key of `FlightRecord.sites`; 0 where nobody noted it.
        recorded: Its number among all that the rank recorded, which no clock moves; 0 where the
            record was not read from a dump.
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
        seq: Number among the messages of this rank in the group, not known to the other end; those
            of one batch share it.
        away: By how much the other end's global rank is larger than this one's: ranks that stand
            alike tell the same.
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
        ranks: Its members; empty where the backend does not tell.
        on_device: Its operations run on a GPU, behind the rank's back: the rank is ahead of them.
        last_enqueued: Number of the newest operation that this rank entered.
        last_completed: Number of the newest before which all ended on this rank.
        entries: The newest operations, oldest first; none where the rank is a member that has not
            entered any.
        messages: Sends and receives that are kept, oldest first; they count apart from operations.
        limit_s: Seconds after which the backend ends a rank whose operation does not end; 0 where
            it does not tell.
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
        """Whether one of its entries has ended on this rank."""
        return entry.retired or entry.seq <= self.last_completed


class GroupRun(Struct, frozen=True, array_like=True):
    """Groups of one shape at equal distances, ``count`` of them.

    Attributes:
        first: First member of the first of them.
        step: From there to the first member of the next.
        name: Of the first.
        name_step: By which the names, numbers then, grow; 0 where all have that one.
    """

    first: int
    step: int
    count: int
    name: str
    name_step: int = 0


class GroupFamily(Struct, frozen=True, array_like=True):
    """The groups in which ranks that stand alike are: one dimension of a device mesh.

    Attributes:
        offsets: Of each member to the first one, as start, step and count of each run; none where
            the members are not known, and the record names the group of all these ranks.
        runs: Where the groups are.
    """

    offsets: tuple[int, ...] = ()
    runs: tuple[GroupRun, ...] = ()


NOT_NOTED = CallSite()


class MessageCounts(Struct, frozen=True, kw_only=True):
    """How many messages a rank posted so far, to whom and from whom, by global rank.

    Torch matches them in order, so of two ranks the one that posted fewer is behind.

    Attributes:
        received: From whom how many were asked for.
        newest: In which order each thread posted its newest ones, oldest first: ``peer + 1`` for
            one that it sent, ``-(peer + 1)`` for one that it asked for.
        moved: By how much the rank's number, and so that of each of its peers, is larger than what
            is told: counts that another rank tells for it, too.
    """

    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    newest: tuple[tuple[int, ...], ...] = ()
    moved: int = 0

    def sends(self) -> list[tuple[int, int]]:
        """To whom it sent how many."""
        return [(peer + self.moved, number) for peer, number in self.sent.items()]

    def asked(self) -> list[tuple[int, int]]:
        """Whom it asked for how many."""
        return [(peer + self.moved, number) for peer, number in self.received.items()]

    def sent_to(self, peer: int) -> int:
        """How many it sent to a rank."""
        return self.sent.get(peer - self.moved, 0)

    def asked_of(self, peer: int) -> int:
        """How many it asked a rank for."""
        return self.received.get(peer - self.moved, 0)


class FlightRecord(Struct, frozen=True, kw_only=True):
    """All process groups of one rank at one moment.

    Attributes:
        waits: How many threads stand in one of torch's own waits, for example ``TCPStore_get``.
        messages: Sends and receives between two ranks; None where nobody counted them.
        sites: Places that its operations were called from.
        reduced: How often it called a reduction from one and the same place, at most, of the calls
            that are kept; also of those that have gone from the record.
        repeated: The same of any operation that has no root.
    """

    taken_ns: int
    groups: tuple[CollectiveRecord, ...] = ()
    waits: dict[str, int] = {}
    messages: MessageCounts | None = None
    sites: dict[int, CallSite] = {}
    reduced: int = 0
    repeated: int = 0

    def call_of(self, entry: CollectiveEntry) -> CallSite:
        """Return from where an operation was called; an empty one where nobody noted it."""
        return self.sites.get(entry.site, NOT_NOTED)
