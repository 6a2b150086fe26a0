"""What a user attaches to training: the Lightning callback and the guards.

Nothing here loads torch, Lightning or wandb before it is used.
"""

__all__ = ["callbacks", "guards", "plan", "pretrained", "wandb", "zero_code"]
