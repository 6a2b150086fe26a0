"""Will a model fit, and how fast will it be? Arithmetic over config.json; no torch, no clock."""

__all__ = [
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
