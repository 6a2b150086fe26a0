"""What the run spent its time on, and what a restart would throw away."""

__all__ = ["spending"]
