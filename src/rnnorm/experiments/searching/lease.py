"""Which process works on a trial, whether it still does, and what all of them are doing."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import optuna
from optuna.exceptions import OptunaError, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from rnnorm.experiments.searching.storage import naming_file, open_storage, without_password
from rnnorm.experiments.searching.study import search_of
from rnnorm.experiments.training.score import Metric

#: attribute of a trial: who has it, and how often that was said
LEASE = "lease"


class Leases:
    """Takes trials for this process, those of processes that have died among them.

    Who has a trial says so again and again. One who has been silent for ``seconds``, on the
    observer's own clock, has died.

    Args:
        study: the study.
        seconds: how long the silence is; 0 where no other process works on the study.
    """

    def __init__(self, study: optuna.Study, seconds: float) -> None:
        self._study, self._seconds = study, seconds
        self._storage = study._storage
        self._me = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        # what each lease said last, and when that was new
        self._heard: dict[int, tuple[object, float]] = {}

    def take(self, trials: int) -> optuna.Trial | None:
        """A trial to work on, waiting for one as long as others may yet die; None if all are done.

        Args:
            trials: only those of lower numbers.
        """
        while True:
            # the numbers of a study begin with 0, and nobody removes any
            mine = [t for t in self._study.get_trials(deepcopy=False) if t.number < trials]
            for trial in mine:
                if self._silent(trial) and self._claim(trial):
                    return optuna.Trial(self._study, trial._trial_id)
            for trial in mine:
                if trial.state == TrialState.WAITING and self._claim(trial):
                    return optuna.Trial(self._study, trial._trial_id)
            if all(trial.state.is_finished() for trial in mine):
                return None
            time.sleep(min(1.0, self._seconds / 4))

    def _silent(self, trial: FrozenTrial) -> bool:
        if trial.state != TrialState.RUNNING:
            self._heard.pop(trial.number, None)
            return False
        said, now = trial.user_attrs.get(LEASE), time.monotonic()
        if trial.number not in self._heard or self._heard[trial.number][0] != said:
            self._heard[trial.number] = said, now
        return now - self._heard[trial.number][1] >= self._seconds

    def _claim(self, trial: FrozenTrial) -> bool:
        """Whether this process has got a trial that waits, or whose process has died."""
        number = trial._trial_id
        try:
            if trial.state == TrialState.RUNNING:
                self._storage.set_trial_state_values(number, TrialState.WAITING)
            if not self._storage.set_trial_state_values(number, TrialState.RUNNING):
                return False
            self._storage.set_trial_user_attr(number, LEASE, [self._me, 0])
        except UpdateFinishedTrialError:
            # somebody has finished it since it was looked up
            return False
        if self._seconds:
            # of two that found the same one silent, the last to write has it
            time.sleep(min(1.0, self._seconds / 4))
        kept: bool = self._storage.get_trial(number).user_attrs[LEASE][0] == self._me
        return kept

    @contextmanager
    def kept(self, trial: optuna.Trial) -> Iterator[None]:
        """Say again and again that this process works on a trial."""
        if not self._seconds:
            yield
            return
        over = threading.Event()

        def renew() -> None:
            count = 0
            while not over.wait(self._seconds / 4):
                count += 1
                # what does not get through now may the next time, unless another process has
                # taken this one for dead and finished the trial
                with suppress(OptunaError, SQLAlchemyError, OSError):
                    self._storage.set_trial_user_attr(trial._trial_id, LEASE, [self._me, count])

        renewal = threading.Thread(target=renew, daemon=True)
        renewal.start()
        try:
            yield
        finally:
            over.set()
            renewal.join()


def status(storage: str) -> str:
    """How far each study of a storage is: counts, the best trial, and who is at what.

    Raises:
        FileNotFoundError: if the file is not there.
        ValueError: if it cannot be opened, or holds a study of something else.
    """
    lines = []
    with open_storage(storage, new=False) as opened, naming_file(without_password(storage)):
        for name in optuna.get_all_study_names(opened):
            study = optuna.load_study(study_name=name, storage=opened)
            found = search_of(study, without_password(storage))
            trials = study.get_trials(deepcopy=False)
            counts = [
                f"{sum(t.state == state for t in trials)} {word}"
                for state, word in (
                    (TrialState.COMPLETE, "complete"),
                    (TrialState.PRUNED, "pruned"),
                    (TrialState.FAIL, "failed"),
                    (TrialState.RUNNING, "running"),
                    (TrialState.WAITING, "waiting"),
                )
            ]
            lines.append(f"{name}: {', '.join(counts)}")
            score = Metric(found.score)
            best = found.trials[0] if found.trials else None
            if best is not None and best.state == TrialState.COMPLETE:
                assert best.value is not None
                lines.append(f"  best: trial {best.number}, {score.said('validation', best.value)}")
            for trial in trials:
                if trial.state == TrialState.RUNNING:
                    # one that has just begun does not say whose it is yet
                    lease = trial.user_attrs.get(LEASE)
                    worker = str(lease[0]).rpartition(":")[0] if lease else "?"
                    step = trial.last_step
                    at = "before its first validation"
                    if step is not None:
                        value = trial.intermediate_values[step]
                        at = f"step {step}, {score.said('validation', value)}"
                    lines.append(f"  trial {trial.number} on {worker}: {at}")
    return "\n".join(lines) or "no study yet"
