"""What a user attaches to training, and what is attached to a script that never heard of us.

Nothing here loads torch, Lightning, transformers or wandb before it is used.
"""
