"""Will a model fit, how fast will it be, do batches add up? Arithmetic; no torch, no clock."""

__all__ = [
    "batches",
    "from_config",
    "outline",
    "placing",
    "plan",
    "planner",
    "sizes",
    "speed",
    "uses",
]
