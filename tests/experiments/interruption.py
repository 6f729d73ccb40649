"""A training that is cut off in the middle of a step."""

from lightning.pytorch import Callback


class Interruption(BaseException):
    pass


class KillAt(Callback):
    """Ends the training in the middle of the step after this many."""

    def __init__(self, step):
        self.step = step

    def on_before_zero_grad(self, trainer, *_):
        if trainer.global_step == self.step:
            raise Interruption
