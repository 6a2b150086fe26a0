"""What a user attaches to training, and what is attached to a script that never heard of us.

`callbacks` for Lightning and Hugging Face, `guards` and `wandb` around what ranks wait for,
`evaluation` for that in the midst of training, `phases` for what a script does in turn,
`checkpoints` for what training goes on from, `pretrained` for loading and generating, `plan` for a
model's memory, `state_report` for what a rank stands in, `zero_code` for everything at once.
Nothing here loads torch, Lightning or wandb before it is used.
"""
