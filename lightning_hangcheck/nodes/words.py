"""What nodes tell each other at one place, as it goes, and as it was heard and read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.nodes.digest import ReadWord
from lightning_hangcheck.nodes.judging.tree import FIRST

if TYPE_CHECKING:
    from lightning_hangcheck.model.naming.slugs import VerdictKind
    from lightning_hangcheck.nodes.digest import NodeDigest
    from lightning_hangcheck.nodes.encoding import JudgesWord


class Telling(NamedTuple):
    """What a node tells.

    Attributes:
        digest: Of this node alone.
        word: To all, where it judges for them, or will; its times are put in when it goes.
    """

    digest: NodeDigest
    word: JudgesWord | None = None


class HeardWord(NamedTuple):
    """What a node that judges told last, and when that was new by our monotonic clock."""

    word: JudgesWord
    heard_ns: int

    @property
    def as_read(self) -> ReadWord:
        """How it is told that this was read."""
        return ReadWord(judge_of(self.word), self.word.stamp)


class Posted(NamedTuple):
    """What this node told last to all.

    Attributes:
        word: That.
        since: Stamp of the first word with a verdict of the same kind; all between had one, too.
    """

    word: JudgesWord
    since: int

    @property
    def kind(self) -> VerdictKind | None:
        """Of the verdict in it."""
        return self.word.verdict.verdict if self.word.verdict is not None else None


def judge_of(word: JudgesWord) -> int:
    """Return the number of the node that told it."""
    return word.state.node if word.state is not None else FIRST


def posted_after(before: Posted | None, word: JudgesWord) -> Posted:
    """Return what was told last, once this was.

    Args:
        before: What was told last until then.
        word: With its stamp.
    """
    told = Posted(word, word.stamp)
    if before is None or before.kind != told.kind:
        return told
    return told._replace(since=before.since)
