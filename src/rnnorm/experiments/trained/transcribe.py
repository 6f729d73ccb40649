"""Let a trained model transcribe recordings: what ``rnnorm write RUN WAV`` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.speech.recordings import read_recording
from rnnorm.experiments.tasks.transcription.data import SpokenData
from rnnorm.experiments.tasks.transcription.model import Transcriber
from rnnorm.experiments.trained.load import load_trained


@torch.no_grad()
def transcribe(
    run: str | Path,
    recordings: Sequence[str | Path],
    checkpoint: str | Path | None = None,
    *,
    beam: int | None = None,
    scale: str | None = None,
    overrides: Sequence[str] = (),
) -> list[str]:
    """Transcribe recordings, each one by itself.

    Args:
        run: run folder of the training, or a recipe if a checkpoint is given. The model
            is one of recordings.
        recordings: recordings to transcribe. They are files of one channel and the rate that the
            model was trained with.
        checkpoint: a ``.ckpt`` file to use instead of the run's best checkpoint. The data are not
            needed.
        beam: beginnings that a beam search keeps; the model's number by default.
        scale: scale that a checkpoint outside its run folder was trained at; ``"paper"`` by
            default.
        overrides: options of LightningCLI.

    Returns:
        The words, characters or phones of each.

    Raises:
        ValueError: if the recipe is not a transcriber's, a recording is broken, too short or of
            another rate, ``beam < 1``, or the checkpoint does not fit the model.
        FileNotFoundError: if the checkpoint or a recording is missing.
    """
    trained = load_trained(run, checkpoint, scale=scale, overrides=overrides)
    model, data = trained.model(Transcriber), trained.experiment.datamodule
    assert isinstance(data, SpokenData)
    check_at_least(1, beam=beam)
    vocabulary = trained.kept("vocabulary")
    model.eval()
    written = []
    for path in recordings:
        features = data.features(path, read_recording(path, data.rate))
        steps = torch.from_numpy(features).unsqueeze(1)
        (numbers,) = model.symbols(model(steps)[0], torch.tensor([len(steps)]), beam)
        written.append(data.text(tuple(vocabulary[number] for number in numbers)))
    return written
