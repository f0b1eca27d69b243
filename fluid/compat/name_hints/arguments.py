"""Hints for unknown arguments: what to write in place of arguments of Keras, PyTorch, Lightning and optax."""

from collections.abc import Collection, Mapping

from fluid import errors

# A dict from the name of an argument in other libraries to its possible names in fluid. The error message suggests the
# first name that is an argument of the called function.
_SAME = {
    "accumulate_grad_batches": ("accumulate_steps",),
    "activation": ("act",),
    "betas": ("beta1",),
    "bias": ("bias_attr",),
    "callbacks": ("handlers",),
    "checkpoint_path": ("param_path",),
    "criterion": ("monitor",),
    "dataloader": ("reader",),
    "dataloaders": ("reader",),
    "device": ("place",),
    "devices": ("place",),
    "dim": ("axis", "dim"),
    "dirpath": ("checkpoint_dir", "path"),
    "drop_rate": ("dropout_prob",),
    "embedding_dim": ("size",),
    "epochs": ("num_epochs",),
    "eps": ("epsilon",),
    "every_n_epochs": ("epoch_interval",),
    "every_n_train_steps": ("step_interval",),
    "feed_dict": ("feed",),
    "fetch_list": ("fetch",),
    "filename": ("path",),
    "filepath": ("path", "checkpoint_dir"),
    "filters": ("num_filters",),
    "folder": ("checkpoint_dir",),
    "kernel_size": ("filter_size", "pool_size"),
    "log_dir": ("logdir",),
    "lr": ("learning_rate",),
    "max_epochs": ("num_epochs",),
    "max_norm": ("clip_norm",),
    "max_to_keep": ("max_num_checkpoints",),
    "model": ("program_func", "infer_func"),
    "nesterov": ("use_nesterov",),
    "num_embeddings": ("size",),
    "out_channels": ("num_filters",),
    "out_features": ("size",),
    "p": ("dropout_prob",),
    "rate": ("dropout_prob",),
    "requires_grad": ("trainable",),
    "save_last_n": ("max_num_checkpoints",),
    "save_top_k": ("max_num_checkpoints",),
    "strides": ("stride", "pool_stride"),
    "units": ("size",),
    "use_bias": ("bias_attr",),
    "val_dataloaders": ("test_reader",),
    "validation_data": ("test_reader",),
    "verbose": ("progress",),
    "weight_decay": ("regularization",),
}
_BATCHES = 'a reader makes the minibatches: fluid.reader.arrays({"x": x, "y": y}, batch_size=32, shuffle=True)'
_IN_ORDER = _BATCHES.replace(", shuffle=True", "")
_BY_THE_PROGRAM = "the program function returns it: return {'loss': loss, 'accuracy': accuracy}"
_BY_TRAIN = "it belongs to the call of train: trainer.train(reader, {})"
_CLIP = "clips belong to the optimizer: fluid.optimizer.Adam(1e-3, grad_clip=fluid.clip.{})"
_FOUND = "the number of inputs is found from the value that the layer is given; leave it out"
_INIT = "give ParamAttr an initializer: {}=fluid.ParamAttr(initializer=fluid.initializer.Xavier())"
_DECAY = "give ParamAttr a regularizer: {}=fluid.ParamAttr(regularizer=fluid.regularizer.L2Decay(1e-4))"
_MODE = "it is known: trainer.train runs the program in train mode, trainer.test and an Inferencer in test mode"
_OUTSIDE = "data is read outside of the loop: "
_WEIGHTED = (
    "multiply the cost of each row by its weight in the program: "
    'layers.mean(cost * layers.data("weight", shape=[1])), with a column "weight" in the reader'
)

# Advice for arguments without an equivalent argument in fluid: a dict from the argument to a dict from a prefix of the
# called function's name to the advice. The first prefix that matches decides.
_INSTEAD: Mapping[str, Mapping[str, str]] = {
    "accelerator": {"": 'place="gpu:0" chooses a device, parallel=True all of them'},
    "batch_size": {
        "layers.": "the batch is not declared: a program is compiled for the batches that it is fed",
        "trainer.test": _IN_ORDER,
        "trainer.predict": _IN_ORDER,
        "inferencer.": _IN_ORDER,
        "": _BATCHES,
    },
    "betas": {"fluid.optimizer.": "Write beta1=0.9, beta2=0.999"},
    "callbacks": {"fluid.Trainer": _BY_TRAIN.format("handlers=[...]")},
    "checkpoint_callback": {"": "Write checkpoint_config=fluid.CheckpointConfig(folder)"},
    "class_weight": {"": _WEIGHTED},
    "clip_norm": {"fluid.Trainer": _CLIP.format("GradientClipByGlobalNorm(1.0)")},
    "clipnorm": {"": _CLIP.format("GradientClipByNorm(1.0)")},
    "clipvalue": {"": _CLIP.format("GradientClipByValue(0.5)")},
    "decay": {
        "fluid.optimizer.": "a schedule takes the place of the rate: learning_rate=fluid.layers.exponential_decay(...)"
    },
    "default_root_dir": {"": "Write checkpoint_config=fluid.CheckpointConfig(folder)"},
    "device": {"layers.": "a program runs on one device: fluid.Trainer(program, optimizer, place=...)"},
    "drop_last": {"trainer.": _BATCHES.replace("shuffle=True", "drop_last=True")},
    "enable_progress_bar": {"fluid.Trainer": _BY_TRAIN.format("progress=False")},
    "epochs": {"fluid.Trainer": _BY_TRAIN.format("num_epochs=10")},
    "every": {"fluid.CheckpointConfig": "Write step_interval=1000 for steps, or epoch_interval=1 for epochs"},
    "global_clipnorm": {"": _CLIP.format("GradientClipByGlobalNorm(1.0)")},
    "gradient_clip_val": {"": _CLIP.format("GradientClipByGlobalNorm(1.0)")},
    "handlers": {
        "fluid.Trainer": _BY_TRAIN.format("handlers=[...]"),
        "fluid.Popul": _BY_TRAIN.format("handlers=[...]"),
    },
    "in_channels": {"layers.": _FOUND},
    "in_features": {"layers.": _FOUND},
    "input_dim": {"layers.embedding": "Write size=[input_dim, output_dim]", "layers.": _FOUND},
    "input_shape": {"layers.": _FOUND},
    "kernel_initializer": {"": _INIT.format("param_attr")},
    "kernel_regularizer": {"": _DECAY.format("param_attr")},
    "bias_initializer": {"": _INIT.format("bias_attr")},
    "bias_regularizer": {"": _DECAY.format("bias_attr")},
    "logger": {"": _BY_TRAIN.format('handlers=[fluid.handlers.TensorBoard("logs")]')},
    "loss": {"fluid.": "the program function returns it, the loss first"},
    "loss_fn": {"fluid.": "the program function returns it, the loss first"},
    "max_epochs": {"fluid.Trainer": _BY_TRAIN.format("num_epochs=10")},
    "max_steps": {"": "a reader of so many minibatches: trainer.train(fluid.reader.firstn(reader, 1000))"},
    "metrics": {"fluid.Trainer": _BY_THE_PROGRAM, "fluid.Popul": _BY_THE_PROGRAM},
    "monitor": {"fluid.CheckpointConfig": 'Write keep_best=("test_loss", "min")'},
    "num_epochs": {
        "fluid.Trainer": _BY_TRAIN.format("num_epochs=10"),
        "fluid.Popul": _BY_TRAIN.format("num_epochs=10"),
    },
    "num_workers": {"": _OUTSIDE + "fluid.reader.xmap(function, reader, processes=4)"},
    "output_dim": {"layers.embedding": "Write size=[input_dim, output_dim]"},
    "params": {"fluid.optimizer.": "the program has its parameters; parameter_list=[...] names those to change"},
    "reader": {"fluid.Trainer": "it belongs to the call of train: trainer.train(reader)"},
    "restore_best_weights": {"": "Write trainer.train(reader, test_reader=test_reader, restore_best=True)"},
    "sample_weight": {"": _WEIGHTED},
    "save_best_only": {"fluid.CheckpointConfig": 'Write keep_best=("test_loss", "min")'},
    "shuffle": {
        "trainer.test": "leave it out: the rows are read in the order of the reader",
        "trainer.predict": "leave it out: the rows are read in the order of the reader",
        "inferencer.": "leave it out: the rows are read in the order of the reader",
        "": _BATCHES,
    },
    "steps_per_epoch": {"": "a reader of so many minibatches: trainer.train(fluid.reader.firstn(reader, 100))"},
    "strategy": {"fluid.": 'parallel=True divides each batch among all devices, parallel="fsdp" parameters as well'},
    "training": {"layers.": _MODE},
    "validation_split": {
        "": "divide the arrays: train with the first rows of them, and give the others as "
        "test_reader=fluid.reader.arrays(..., batch_size=32)"
    },
    "verbose": {"fluid.Trainer": _BY_TRAIN.format("progress=False"), "fluid.handlers": "leave it out"},
    "weight_decay": {
        "fluid.optimizer.Adam": "Write fluid.optimizer.AdamW(1e-3, weight_decay=0.01) for decoupled decay, or "
        "regularization=fluid.regularizer.L2Decay(0.01) for one in the gradient",
        "fluid.optimizer.": "Write regularization=fluid.regularizer.L2Decay(0.01)",
        "fluid.Trainer": "decay belongs to the optimizer: fluid.optimizer.AdamW(1e-3, weight_decay=0.01)",
    },
}


def argument_advice(function: str, argument: str, taken: Collection[str]) -> str:
    """Return a sentence for an error message: what to write in place of an argument that a function does not take.

    Args:
      function: the name of the function, as users write it.
      argument: the name of the unknown argument.
      taken: the names of the arguments that the function takes.

    Returns:
      The sentence with a space before it; an empty string if there is neither advice nor a similar name.

    Example:
      >>> argument_advice("layers.fc", "units", ["input", "size"])
      " Did you mean 'size'?"
      >>> argument_advice("fluid.CheckpointConfig", "monitor", ["keep_best"])
      ' Write keep_best=("test_loss", "min").'
    """
    owners = _INSTEAD.get(argument, {})
    instead = next((advice for owner, advice in owners.items() if owner and function.startswith(owner)), None)
    same = next((name for name in _SAME.get(argument, ()) if name in taken), None)
    if instead is None and same is None:
        instead = owners.get("")
    if instead is not None:
        return f" {instead[0].upper()}{instead[1:]}."
    if same is not None:
        return f" Did you mean {same!r}?"
    near = errors.nearest(argument, taken) if taken else ""
    return f" {near}" if near.startswith("Did you mean") else ""
