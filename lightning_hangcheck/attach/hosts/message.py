"""What `hangcheck attach --json-case` prints on one host, and another host reads.

It is read as if a stranger had written it: JSON that can only become these structs, of bounded
size, with numbers that can be.
"""

from __future__ import annotations

import msgspec

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.decoding import decode
from lightning_hangcheck.model.case import Case
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import RankRecord
from lightning_hangcheck.nodes.encoding import can_be_reckoned_with
from lightning_hangcheck.nodes.word import MOST_RANKS
from lightning_hangcheck.text.moments import read_utc
from lightning_hangcheck.text.plain_text import visible_json
from lightning_hangcheck.version import __version__

SAME_VERSION = "install the same lightning-hangcheck on all hosts"


class HostMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one host.

    Attributes:
        version: Of the package that wrote it.
        case: What was seen there.
        ranks: For run.json.
        said: What `hangcheck attach` would have said on stderr there, sentence by sentence.
        hang_stands: A sidecar there has told a hang, and it stands.
    """

    schema_version: int = 1
    version: str = __version__
    case: Case
    ranks: tuple[RankRecord, ...] = ()
    said: tuple[str, ...] = ()
    hang_stands: bool = False


def encode_message(message: HostMessage) -> bytes:
    """Encode it as one line, without the line's end."""
    return visible_json(encode(message))


def decode_message(output: bytes) -> HostMessage:
    """Decode the last line of what a host sent; a login shell may have written some before it.

    Raises:
        UnreadableRun: It is no such message.
    """
    lines = output.rstrip().rsplit(b"\n", 1)
    try:
        message = decode(lines[-1], HostMessage, "what it sent")
        _refuse_impossible(message.case)
    except (ValueError, OverflowError, RecursionError) as error:
        raise UnreadableRun(f"what it sent cannot be read: {error}", SAME_VERSION) from error
    except UnreadableRun as error:
        raise UnreadableRun(str(error.args[0]), SAME_VERSION) from error
    return message


def _refuse_impossible(case: Case) -> None:
    """Refuse what would fill memory, or cannot be computed with.

    Raises:
        ValueError: It would.
    """
    sizes = (case.run.world_size, case.run.nnodes, case.run.local_world_size or 0)
    numbers = (*sizes, *(view.rank for view in case.ranks))
    if any(not 0 <= number < MOST_RANKS for number in numbers):
        raise ValueError("it has a rank or world size that cannot be")
    if not can_be_reckoned_with(case):
        raise ValueError("it has a number that cannot be")
    for moment in (case.taken_at, case.run.started_at):
        read_utc(moment)
