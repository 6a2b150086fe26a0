"""A memory plan of a named model: its config.json from disk or hub, its weights as they are made.

`memory_plan` is the door; the arithmetic is in the room `planning`, which needs no torch.
"""
