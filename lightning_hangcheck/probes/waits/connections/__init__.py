"""Connections as the kernel's tables show them, to everybody who asks.

`sockets` and `tcp_connections` tell both ends of each; `reach` tells of other machines whether
anything comes from them.
"""

__all__ = ["reach", "sockets", "tcp_connections"]
