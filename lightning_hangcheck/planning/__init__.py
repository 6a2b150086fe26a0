"""Will a model fit, and how fast will it be? Arithmetic over config.json; no torch, no clock."""

__all__ = ["config", "counting", "outline", "placing", "plan", "planner", "sizes", "weights"]
