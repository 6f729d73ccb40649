"""Begin a training with the weights of another."""

from __future__ import annotations

from pathlib import Path

from rnnorm.experiments.training.building import Built
from rnnorm.experiments.training.checkpoint_file import read_checkpoint
from rnnorm.experiments.training.checkpoints import data_state, load_weights
from rnnorm.experiments.training.words import checkpoint_of, is_run


def start_file(start: str | Path) -> Path:
    """The checkpoint that a run folder or a ``.ckpt`` file is, whole path.

    Raises:
        ValueError: it is neither.
        FileNotFoundError: there is none yet.
    """
    folder = is_run(start) or Path(start).is_dir()
    return checkpoint_of(start, None if folder else start).resolve()


def start_with(built: Built, start: Path) -> None:
    """Give a model whose data are loaded the weights and statistics of a checkpoint, no more.

    The optimiser, and what counts epochs, begin anew.

    Raises:
        ValueError: the checkpoint is of other layers or of other data.
        FileNotFoundError: there is none.
    """
    state = read_checkpoint(start)
    load_weights(built.model, state, start)
    built.datamodule.load_state_dict(data_state(state, built.datamodule))
