"""Causes beyond the machine: a remote end, ranks that never came, a node that is not heard."""

__all__ = ["network", "rendezvous", "silent_node"]
