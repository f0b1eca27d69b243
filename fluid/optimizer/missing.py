"""Names of optimizers elsewhere, and what they are called here."""

import sys

from fluid import errors

_INSTEAD = {
    "Adafactor": "fluid.Trainer(program, optax.adafactor(1e-3)): any optax transformation is an optimizer",
    "LBFGS": "fluid.Trainer(..., step=...), a training step of your own",
    "NAdam": "fluid.Trainer(program, optax.nadam(1e-3)): any optax transformation is an optimizer",
    "RAdam": "fluid.Trainer(program, optax.radam(1e-3)): any optax transformation is an optimizer",
    "RMSprop": "fluid.optimizer.RMSProp(1e-3)",
    "lr_scheduler": "fluid.layers.warmup_cosine and the other schedules, given as learning_rate=",
    "schedules": "fluid.layers.warmup_cosine and the other schedules, given as learning_rate=",
}


def __getattr__(name: str) -> None:
    known = vars(sys.modules["fluid.optimizer"]).get("__all__", ())  # not there yet while it is imported
    raise errors.missing_name("module 'fluid.optimizer'", name, known, _INSTEAD)
