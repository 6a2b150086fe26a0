"""What a user attaches to training, and what zero-code mode attaches to an unchanged script.

Nothing here loads torch, Lightning, transformers or wandb before it is used.
"""
