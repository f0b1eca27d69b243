"""Optimizers: Fluid's names and numbers, optax underneath; any optax transformation is accepted beside them."""

from fluid.optimizer.adagrad import (
    Adadelta,
    AdadeltaOptimizer,
    Adagrad,
    AdagradOptimizer,
    DecayedAdagrad,
    DecayedAdagradOptimizer,
    Ftrl,
    FtrlOptimizer,
    RMSProp,
    RMSPropOptimizer,
)
from fluid.optimizer.adam import (
    Adam,
    Adamax,
    AdamaxOptimizer,
    AdamOptimizer,
    AdamW,
    AdamWOptimizer,
    Lamb,
    LambOptimizer,
)
from fluid.optimizer.averages import ExponentialMovingAverage, ModelAverage
from fluid.optimizer.base import Minimizer, Optax, Optimizer, as_optimizer
from fluid.optimizer.missing import __getattr__ as __getattr__
from fluid.optimizer.momentum import (
    SGD,
    LarsMomentum,
    LarsMomentumOptimizer,
    Lion,
    LionOptimizer,
    Momentum,
    MomentumOptimizer,
    Muon,
    MuonOptimizer,
    SGDOptimizer,
)
from fluid.optimizer.wrapper import Lookahead, LookaheadOptimizer

__all__ = [
    "Adadelta",
    "AdadeltaOptimizer",
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "AdamW",
    "AdamWOptimizer",
    "Adamax",
    "AdamaxOptimizer",
    "DecayedAdagrad",
    "DecayedAdagradOptimizer",
    "ExponentialMovingAverage",
    "Ftrl",
    "FtrlOptimizer",
    "Lamb",
    "LambOptimizer",
    "LarsMomentum",
    "LarsMomentumOptimizer",
    "Lion",
    "LionOptimizer",
    "Lookahead",
    "LookaheadOptimizer",
    "Minimizer",
    "ModelAverage",
    "Momentum",
    "MomentumOptimizer",
    "Muon",
    "MuonOptimizer",
    "Optax",
    "Optimizer",
    "RMSProp",
    "RMSPropOptimizer",
    "SGD",
    "SGDOptimizer",
    "as_optimizer",
]
