"""What the processes that work on a storage are doing."""

from __future__ import annotations

import optuna
from optuna.trial import TrialState

from rnnorm.experiments.searching.lease import LEASE
from rnnorm.experiments.searching.storage import named, open_storage, shown
from rnnorm.experiments.searching.study import search_of
from rnnorm.experiments.training.score import Metric


def status(storage: str) -> str:
    """How far each study of a storage is: counts, the best trial, and who is at what.

    Raises:
        FileNotFoundError: the file is not there.
        ValueError: it cannot be opened, or holds a study of something else.
    """
    lines = []
    with open_storage(storage, new=False) as opened, named(shown(storage)):
        for name in optuna.get_all_study_names(opened):
            study = optuna.load_study(study_name=name, storage=opened)
            found = search_of(study, shown(storage))
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
