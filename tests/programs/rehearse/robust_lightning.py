"""Lightning with validation, early stopping and checkpoints as its manual has them."""

import tempfile

from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning_parts import Module, loader, trainer


class Validating(Module):
    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch), sync_dist=True)


folder = tempfile.mkdtemp()
callbacks = [
    EarlyStopping("val_loss", patience=2),
    ModelCheckpoint(folder, monitor="val_loss", every_n_train_steps=500),
    ModelCheckpoint(folder, filename="last"),
]
trainer(callbacks=callbacks, enable_checkpointing=True, max_epochs=10).fit(
    Validating(), loader(shuffle=True), loader(64)
)
