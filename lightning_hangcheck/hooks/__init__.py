"""What a user attaches to training: the Lightning callback and the guards.

Nothing here loads torch, Lightning or wandb before it is used.
"""
