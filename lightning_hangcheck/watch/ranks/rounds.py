"""The ranks of one round, what shows that another has begun, and what the end of a round comes to.

torchrun starts all ranks again when one has failed, a shell loop the whole command. The ranks of
two rounds are never mixed: one that is gone since the last round is not waited for in this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.machine.process_stat import read_process_stat, ticks_since_boot
from lightning_hangcheck.machine.which_machine import which_machine
from lightning_hangcheck.model.case import RunFacts
from lightning_hangcheck.model.run import RankPlace, Round
from lightning_hangcheck.observe.launchers import is_launcher
from lightning_hangcheck.probes.proc.process_tree import command_line
from lightning_hangcheck.probes.proc.vitals import has_ended
from lightning_hangcheck.session.node_place import place_of
from lightning_hangcheck.text.moments import NANOSECONDS, utc_now
from lightning_hangcheck.text.shown_command import show_command
from lightning_hangcheck.watch.ranks.watched_rank import WatchedRank

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, RankView
    from lightning_hangcheck.model.evidence import Gap
    from lightning_hangcheck.model.run import RoundStart
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.observe.discovery import FoundRank
    from lightning_hangcheck.session.session import Session

WAITED_OUT_S = 8.0
"""torchrun starts ranks again within a second or two of their end; a busy machine takes longer."""


class WatchedRound:
    """The ranks of one round on this node.

    Args:
        number: 0 for the first of the run.

    Attributes:
        ranks: By their number.
        started_at: When the first of them was seen.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.ranks: dict[int, WatchedRank] = {}
        self.started_at = utc_now()
        self._guessed_command: list[str] | Gap = []
        self._agents: set[int] = set()
        self._exit_count = 0
        self._seen_alive_ticks = 0

    @property
    def alive(self) -> list[WatchedRank]:
        """Ranks whose process is there."""
        return [rank for rank in self.ranks.values() if rank.process_exit is None]

    @property
    def agents_alive(self) -> list[int]:
        """Process ids of the torchrun agents that started its ranks, where they are there."""
        return [pid for pid in sorted(self._agents) if not has_ended(pid)]

    @property
    def count(self) -> int | None:
        """The launcher's own count of this round, None where it keeps none."""
        told = (rank.found.start.number for rank in self.ranks.values())
        return max((number for number in told if number is not None), default=None)

    @property
    def world_size(self) -> int:
        """Ranks that the launcher promised, or that were seen."""
        promised = (rank.found.world_size or 0 for rank in self.ranks.values())
        return max([len(self.ranks), *promised])

    @property
    def may_be_followed(self) -> bool:
        """Whether torchrun would start the ranks again: not all ended well, and not too often."""
        from lightning_hangcheck.diagnosis.process_exit import left_well  # 20 MB, only at the end

        ranks = self.ranks.values()
        most = max((rank.found.start.most or 0 for rank in ranks), default=0)
        used_up = self.count is not None and self.count >= most
        return not used_up and not all(left_well(rank.view("", 0)) for rank in ranks)

    @property
    def restarts_left(self) -> int | None:
        """How often torchrun will start the ranks again; None where none of them tells."""
        starts = [rank.found.start for rank in self.ranks.values()]
        left = [one.most - (one.number or 0) for one in starts if one.most is not None]
        return max(0, min(left)) if left else None

    @property
    def is_guess_a_launcher(self) -> bool:
        """Whether what was taken for a rank, as nothing said who is one, only starts them."""
        words = self._guessed_command
        return isinstance(words, list) and is_launcher(words)

    @property
    def guessed_command(self) -> str:
        """The command line of what was taken for a rank, redacted."""
        words = self._guessed_command
        return show_command(words) if isinstance(words, list) else ""

    def is_left_by(self, found: FoundRank) -> bool:
        """Whether this process belongs to a later round.

        The launcher's count says so. Where there is none, or it stays (torchrun does not count a
        change of nodes), all ranks are gone, and the process was started after one of them was
        last seen alive. A DataLoader worker that outlives its rank has its number, too, but is
        older than that.
        """
        if not self.ranks or any(rank.found.pid == found.pid for rank in self.ranks.values()):
            return False
        if self.count is not None and found.start.number not in (None, self.count):
            return found.start.number > self.count
        if self.alive or not found.started_ticks:
            return False
        return found.started_ticks > self._seen_alive_ticks

    def is_waited_out_by(self, agent: FoundRank, now_ns: int) -> bool:
        """Whether its ranks have been gone for long, and torchrun lives, which started them.

        Then it waits for other nodes before it starts them again: it takes a second or two else.
        """
        if self.alive or not self.ranks or agent.pid not in self._agents:
            return False
        # one that was not seen may be any: ``sys.exit("no data")`` ends as Python ends, by all else
        ends = (rank.process_exit for rank in self.ranks.values())
        well = all(one is not None and one.exit_code == 0 for one in ends)
        return now_ns - self.ended_ns >= WAITED_OUT_S * NANOSECONDS and not well

    @property
    def ended_ns(self) -> int:
        """When the last of its ranks was seen to end."""
        ends = (rank.process_exit for rank in self.ranks.values())
        return max((one.seen_ns for one in ends if one is not None), default=0)

    def is_repeated_by(self, found: FoundRank) -> bool:
        """Whether what follows is the same job again, not the next command of a shell script.

        Ranks that a launcher or a page told are; a process that was only guessed to be a rank is
        repeated by one with its command line.
        """
        guessed = all(rank.found.guessed for rank in self.ranks.values())
        return not guessed or command_line(found.pid) == self._guessed_command

    def is_after(self, found: FoundRank) -> bool:
        """Whether this process is left over from an earlier round, by the launcher's count."""
        number, count = found.start.number, self.count
        return number is not None and count is not None and number < count

    def take_in(self, found: FoundRank, now_ns: int) -> WatchedRank | None:
        """Take a rank in; one that another process was so far is another rank now.

        Returns:
            The rank, if it is new here.
        """
        known = self.ranks.get(found.rank)
        if known is not None and known.found.pid == found.pid:
            known.found = found
            return None
        self.started_at = self.started_at if self.ranks else utc_now()
        # taken for rank 0 until it learnt its number, as Lightning's first process of a later node
        for before in [one for one, rank in self.ranks.items() if rank.found.pid == found.pid]:
            del self.ranks[before]
        if found.guessed:
            self._guessed_command = command_line(found.pid)
        if found.start.launcher == "torchrun":
            stat = read_process_stat(found.pid)
            if stat is not None:
                self.note_agent(stat.parent_pid)
        rank = self.ranks[found.rank] = WatchedRank(found, now_ns)
        return rank

    def was_started_by(self, pid: int) -> bool:
        """Whether this is the torchrun agent of a rank, which SLURM may have given a number too."""
        return pid in self._agents

    def note_agent(self, pid: int) -> None:
        """Take down who started a rank; its page tells, too, where its parent cannot be asked."""
        self._agents.add(pid)

    def note_alive(self) -> None:
        """Take down that one of the ranks is seen alive at this moment."""
        self._seen_alive_ticks = ticks_since_boot()

    def note_words(self) -> None:
        """Take down whose training has ended in a process that goes on, by its own word.

        It may begin anew there.
        """
        for rank in self.ranks.values():
            if rank.has_trained and rank.process_exit is None:
                self.note_exit(rank.found.pid, None)
                rank.ended_by_word = True
            elif rank.ended_by_word and not rank.has_trained:
                rank.ended_by_word, rank.process_exit = False, None

    def note_exit(self, pid: int, exit_code: int | None) -> None:
        """Take down that the process of a rank has ended, or the exit code that was unknown."""
        for rank in self.ranks.values():
            if rank.found.pid != pid:
                continue
            if rank.process_exit is None:
                rank.note_exit(self._exit_count, utc_now(), exit_code)
                self._exit_count += 1
            elif rank.process_exit.exit_code is None:
                rank.process_exit = replace(rank.process_exit, exit_code=exit_code)

    def views(self, host: str, now_ns: int) -> tuple[RankView, ...]:
        """Return all ranks as rules may see them."""
        return tuple(rank.view(host, now_ns) for rank in self.ranks.values())


def run_facts(
    session: Session,
    watched: WatchedRound,
    earlier: tuple[Round, ...],
    next_start: RoundStart | None,
) -> RunFacts:
    """Tell of the run what a case of one of its rounds needs.

    Args:
        session: Of the job.
        watched: The round.
        earlier: The rounds that have ended.
        next_start: What followed, if anything did.
    """
    found = [rank.found for rank in watched.ranks.values()]
    command = session.facts.command
    if not session.facts.launched and watched.is_guess_a_launcher:
        command = watched.guessed_command
    local = [rank.local_world_size for rank in found if rank.local_world_size is not None]
    world_size = max((rank.world_size or 0 for rank in found), default=0)
    place = place_of(session)
    if place is not None and place.ranks and not all(rank.guessed for rank in found):
        local = [place.ranks]
    nnodes = max(1, -(-world_size // max(local))) if local else 1
    return RunFacts(
        run_id=session.run_folder.run_id,
        command=command,
        started_at=session.facts.started_at,
        world_size=world_size,
        nnodes=nnodes if place is None else place.machines or place.nnodes,
        local_world_size=max(local, default=None),
        round=watched.number,
        earlier=earlier,
        next_start=next_start,
        machine=which_machine(),
    )


def end_round(case: Case, started_at: str, hang: Verdict | None) -> tuple[Verdict, Round]:
    """Judge a round that has ended.

    Args:
        case: Of the round's ranks, with what followed.
        started_at: When the first of them was seen.
        hang: That stood when the round ended: what its ranks died of then is not its cause.

    Returns:
        The verdict to tell, and the round as it is remembered.
    """
    from lightning_hangcheck.diagnosis import judge
    from lightning_hangcheck.diagnosis.verdict.summary import own_end

    verdict = judge(case)
    if hang is None or verdict.verdict == "finished":
        alone = replace(verdict, summary=own_end(case))
        return verdict, describe_round(case.run.round, started_at, alone)
    told = _after_hang(case, hang, verdict)
    return told, describe_round(case.run.round, started_at, replace(hang, summary=_hung(hang)))


def describe_round(number: int, started_at: str, verdict: Verdict) -> Round:
    """Describe a round that has ended, for run.json and for the verdicts to come.

    Args:
        number: Of the round.
        started_at: When its first rank was seen.
        verdict: What its end came to.
    """
    return Round(
        number=number,
        started_at=started_at,
        world_size=verdict.world_size,
        ended_at=verdict.detected_at,
        verdict=verdict.verdict,
        culprits=verdict.culprits,
        cause=verdict.cause,
        summary=verdict.summary,
        ranks=tuple(
            RankPlace(rank=one.rank, host=one.host, pid=one.pid)
            for one in verdict.ranks
            if one.pid is not None
        ),
    )


def _after_hang(case: Case, hang: Verdict, ended: Verdict) -> Verdict:
    from lightning_hangcheck.diagnosis.rounds import end_of_round

    return replace(
        hang,
        verdict="crashed",
        detected_at=ended.detected_at,
        stalled_since=None,
        stalled_for_s=0.0,
        ranks=ended.ranks,
        summary=end_of_round(_hung(hang), case.run),
    )


def _hung(hang: Verdict) -> str:
    return f"it hung: {hang.summary}"
