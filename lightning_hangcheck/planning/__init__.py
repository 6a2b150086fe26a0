"""Will a model fit, how fast will it be, do batches add up? Arithmetic; no torch, no clock."""

__all__ = [
    "batches",
    "beside",
    "config",
    "counting",
    "outline",
    "phases",
    "placing",
    "plan",
    "planner",
    "sizes",
    "speed",
    "usual_use",
    "weights",
]
