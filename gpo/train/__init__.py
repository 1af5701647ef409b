"""Training: the compiled step, its state, the loop around it, checkpoints, evaluation.

`make_step` builds the step, `fit` runs it in a folder, `evaluate` scores parameters.
"""

from gpo.train import track
from gpo.train.checkpoint import Checkpoints, SaveError, about, structure
from gpo.train.evaluate import Evaluation, evaluate
from gpo.train.loop import command, fit
from gpo.train.sharding import make_mesh, parameter_shardings, place
from gpo.train.state import TrainState
from gpo.train.step import Step, make_step

__all__ = [
    "Checkpoints", "Evaluation", "SaveError", "Step", "TrainState", "about", "command",
    "evaluate", "fit", "make_mesh", "make_step", "parameter_shardings", "place",
    "structure", "track",
]  # fmt: skip
