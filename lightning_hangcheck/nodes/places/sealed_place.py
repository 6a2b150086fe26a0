"""A meeting place that strangers can reach: what is read there must be sealed with a shared secret.

torch's store asks nobody who he is, and lists its keys to anybody. So the secret never goes there:
each value carries an HMAC of it and its key. Who has not the secret can leave nothing that is taken
for a node's word. He may read what nodes tell, take it away, and put an older word in its place.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from lightning_hangcheck import log

if TYPE_CHECKING:
    from lightning_hangcheck.nodes.places.meeting_place import ClosablePlace

SEAL_BYTES = 32


class SealedPlace:
    """Another place, with a seal on each value.

    Args:
        place: Where the values are left.
        secret: Known to all nodes of the job, and to nobody else.
        job: Names the job: the word of another one under the same secret does not count.
    """

    def __init__(self, place: ClosablePlace, secret: str, job: str) -> None:
        self._place = place
        self._secret = hashlib.sha256(f"{job}\0{secret}".encode()).digest()

    @property
    def where(self) -> str:
        """The place in words."""
        return self._place.where

    def post(self, key: str, value: bytes) -> None:
        """Seal a value and leave it."""
        self._place.post(key, self._seal(key, value) + value)

    def look(self, key: str) -> bytes | None:
        """Return the value under a key, None where it has no seal of ours."""
        data = self._place.look(key)
        if data is None:
            return None
        seal, value = data[:SEAL_BYTES], data[SEAL_BYTES:]
        if hmac.compare_digest(seal, self._seal(key, value)):
            return value
        log.once(
            f"seal of {key}",
            f"what {self.where} has under {key} is not used, it has no seal of this job; give all "
            "nodes the same HANGCHECK_NODES_TOKEN, if it is of this job",
        )
        return None

    def close(self) -> None:
        """End what the place holds open."""
        self._place.close()

    def _seal(self, key: str, value: bytes) -> bytes:
        return hmac.new(self._secret, key.encode() + b"\0" + value, hashlib.sha256).digest()
