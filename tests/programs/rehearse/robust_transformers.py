"""transformers' Trainer with evaluation, saves and its own early stopping."""

from transformers import EarlyStoppingCallback
from transformers_parts import trainer

trainer(
    callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
    eval_strategy="steps",
    save_strategy="steps",
    eval_steps=100,
    save_steps=100,
    load_best_model_at_end=True,
    metric_for_best_model="eval_loss",
)
