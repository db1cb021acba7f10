"""Trains networks under differential privacy: DP-SGD, DP-FTRL, their sampling and accounting, and many at once.

The networks of the papers and their training without privacy are in :mod:`models`, pairs of neighbouring data sets in
:mod:`neighbouring`, prediction with dropout and the attacks on it in :mod:`dropout`.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.training import accounting as accounting
    from dpaudit.training import dp_ftrl as dp_ftrl
    from dpaudit.training import dp_sgd as dp_sgd
    from dpaudit.training import dropout as dropout
    from dpaudit.training import matrix_noise as matrix_noise
    from dpaudit.training import models as models
    from dpaudit.training import neighbouring as neighbouring
    from dpaudit.training import per_example as per_example
    from dpaudit.training import sampling as sampling
    from dpaudit.training.dp_sgd import Trainer as Trainer
    from dpaudit.training.dp_sgd import fit as fit
    from dpaudit.training.dp_sgd import train as train
    from dpaudit.training.many import train_many as train_many
    from dpaudit.training.matrix_noise import Strategy as Strategy
    from dpaudit.training.matrix_noise import banded as banded
    from dpaudit.training.matrix_noise import blt as blt
    from dpaudit.training.matrix_noise import restarted as restarted
    from dpaudit.training.matrix_noise import toeplitz as toeplitz
    from dpaudit.training.matrix_noise import tree as tree
    from dpaudit.training.models import CNN8 as CNN8
    from dpaudit.training.models import CNN28 as CNN28
    from dpaudit.training.models import CNN32 as CNN32
    from dpaudit.training.models import model_for as model_for
    from dpaudit.training.models import pretrain as pretrain
    from dpaudit.training.sampling import Participation as Participation
    from dpaudit.training.sampling import Sampling as Sampling
    from dpaudit.training.sampling import cyclic as cyclic
    from dpaudit.training.sampling import fixed_size as fixed_size
    from dpaudit.training.sampling import poisson as poisson
    from dpaudit.training.sampling import scheduled as scheduled
    from dpaudit.training.sampling import shuffled as shuffled
    from dpaudit.training.sampling import spaced as spaced

__getattr__, __dir__, __all__ = attach(__name__)
