"""A store that torch already serves, as a place to meet before any process group exists.

It opens no port: torchrun's agent serves one before the process group exists, and the group has its
own afterwards.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from lightning_hangcheck.errors import MeetingFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import Store

STORE_TIMEOUT = 30.0  # seconds for one request; the agent's store answers in milliseconds


class StorePlace:
    """A store of torch, under a prefix of ours."""

    def __init__(self, store: Store, prefix: str, where: str) -> None:
        """Use a store that is connected.

        Args:
            store: The process group's, or torchrun's.
            prefix: Keeps our keys apart from torch's own, and one start of the job from the next.
            where: The store in words.
        """
        from torch.distributed import PrefixStore

        self._store = PrefixStore(prefix, store)
        self._where = where

    @classmethod
    def of_agent(
        cls, host: str, port: int, prefix: str, timeout: float = STORE_TIMEOUT
    ) -> StorePlace:
        """Connect to the store of torchrun's agent.

        Args:
            host: MASTER_ADDR.
            port: MASTER_PORT.
            prefix: As above.
            timeout: Seconds for the connection and for each request.

        Raises:
            MeetingFailed: The store cannot be reached.
        """
        from torch.distributed import TCPStore

        where = f"torchrun's store at {host}:{port}"
        try:
            store = TCPStore(
                host,
                port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout),
            )
        except RuntimeError as error:
            raise _lost(where, error) from error
        return cls(store, prefix, where)

    @property
    def where(self) -> str:
        """The store in words."""
        return self._where

    def post(self, key: str, value: bytes) -> None:
        """Set a key."""
        try:
            self._store.set(key, value)
        except RuntimeError as error:
            raise _lost(self._where, error) from error

    def decide(self, key: str, value: bytes) -> bytes:
        """Set a key unless it is set; return its value."""
        try:
            return bytes(self._store.compare_set(key, "", value))
        except RuntimeError as error:
            raise _lost(self._where, error) from error

    def look(self, key: str) -> bytes | None:
        """Read a key, if it is set."""
        return self.look_all([key])[0]

    def look_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read each key that is set: all at once where all are, as of nodes that have met."""
        store = self._store
        try:
            if len(keys) > 1 and store.has_extended_api() and store.check(list(keys)):
                return [bytes(value) for value in store.multi_get(list(keys))]
            return [bytes(store.get(key)) if store.check([key]) else None for key in keys]
        except RuntimeError as error:
            raise _lost(self._where, error) from error


def _lost(where: str, error: RuntimeError) -> MeetingFailed:
    return MeetingFailed(
        f"the ranks cannot meet: {where} does not answer ({str(error).splitlines()[0]})",
        "see whether the process that serves it still runs there, and whether a firewall is in "
        "between",
    )
