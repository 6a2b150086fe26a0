"""What NVIDIA's driver tells of the GPUs, asked so that a driver that is stuck holds nobody up."""

__all__ = ["memory", "use"]
