"""A callback ends training on the loss of its own rank.

Mended by EarlyStoppingCallback, whose metric is gathered from all ranks.
"""

from transformers import Trainer, TrainerCallback
from transformers_parts import trainer

last = {"loss": 1.0}


class Remembering(Trainer):
    def compute_loss(self, *given, **named):
        loss = super().compute_loss(*given, **named)
        last["loss"] = float(loss[0] if isinstance(loss, tuple) else loss)
        return loss


class Stopping(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = last["loss"] < 1e-4


trainer(Remembering, [Stopping()])
