"""Leases, by which processes share the trials of a study, and the status of a study."""

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

#: attribute of a trial: its process, and how often the process has renewed the lease
LEASE = "lease"


class Leases:
    """The leases of a study's trials, those of processes that have died included.

    A process renews the lease of its trial regularly. If a lease has not changed for ``seconds``,
    on the observer's own clock, its process counts as dead.

    Args:
        study: the study.
        seconds: seconds without a renewal; 0 if no other process works on the study.
    """

    def __init__(self, study: optuna.Study, seconds: float) -> None:
        self._study, self._seconds = study, seconds
        self._storage = study._storage
        self._own_name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        # last value of each lease, and the time at which the value was new
        self._seen: dict[int, tuple[object, float]] = {}

    def take(self, trials: int) -> optuna.Trial | None:
        """Take a trial; wait while other processes may yet die. Return None if all are finished.

        Args:
            trials: number of trials; only trials of lower numbers are taken.
        """
        while True:
            # numbers begin with 0, and no trial is ever removed
            eligible = [t for t in self._study.get_trials(deepcopy=False) if t.number < trials]
            for trial in eligible:
                if self._silent(trial) and self._claim(trial):
                    return optuna.Trial(self._study, trial._trial_id)
            for trial in eligible:
                if trial.state == TrialState.WAITING and self._claim(trial):
                    return optuna.Trial(self._study, trial._trial_id)
            if all(trial.state.is_finished() for trial in eligible):
                return None
            time.sleep(min(1.0, self._seconds / 4))

    def _silent(self, trial: FrozenTrial) -> bool:
        """Tell whether the process of a running trial has not renewed its lease in time."""
        if trial.state != TrialState.RUNNING:
            self._seen.pop(trial.number, None)
            return False
        lease, now = trial.user_attrs.get(LEASE), time.monotonic()
        if trial.number not in self._seen or self._seen[trial.number][0] != lease:
            self._seen[trial.number] = lease, now
        return now - self._seen[trial.number][1] >= self._seconds

    def _claim(self, trial: FrozenTrial) -> bool:
        """Try to get a trial that waits or whose process has died; tell whether it succeeded."""
        number = trial._trial_id
        try:
            if trial.state == TrialState.RUNNING:
                self._storage.set_trial_state_values(number, TrialState.WAITING)
            if not self._storage.set_trial_state_values(number, TrialState.RUNNING):
                return False
            self._storage.set_trial_user_attr(number, LEASE, [self._own_name, 0])
        except UpdateFinishedTrialError:
            # another process has finished the trial in the meantime
            return False
        if self._seconds:
            # if two processes claim one trial, the last write wins
            time.sleep(min(1.0, self._seconds / 4))
        kept: bool = self._storage.get_trial(number).user_attrs[LEASE][0] == self._own_name
        return kept

    @contextmanager
    def kept(self, trial: optuna.Trial) -> Iterator[None]:
        """Renew the lease of a trial regularly within the context."""
        if not self._seconds:
            yield
            return
        over = threading.Event()

        def renew() -> None:
            count = 0
            while not over.wait(self._seconds / 4):
                count += 1
                # a failed renewal is tried again, unless another process has finished the trial
                with suppress(OptunaError, SQLAlchemyError, OSError):
                    self._storage.set_trial_user_attr(
                        trial._trial_id, LEASE, [self._own_name, count]
                    )

        renewal = threading.Thread(target=renew, daemon=True)
        renewal.start()
        try:
            yield
        finally:
            over.set()
            renewal.join()


def status(storage: str) -> str:
    """Describe each study of a storage: counts, the best trial, and the running trials.

    Raises:
        FileNotFoundError: if the storage's file is missing.
        ValueError: if the storage cannot be opened, or holds a study of another program.
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
                lines.append(
                    f"  best: trial {best.number}, {score.format('validation', best.value)}"
                )
            for trial in trials:
                if trial.state == TrialState.RUNNING:
                    # a trial that has just begun has no lease yet
                    lease = trial.user_attrs.get(LEASE)
                    worker = str(lease[0]).rpartition(":")[0] if lease else "?"
                    step = trial.last_step
                    at = "before its first validation"
                    if step is not None:
                        value = trial.intermediate_values[step]
                        at = f"step {step}, {score.format('validation', value)}"
                    lines.append(f"  trial {trial.number} on {worker}: {at}")
    return "\n".join(lines) or "no study yet"
