"""What a resumed training may change, what it refuses, and broken files that are named."""

import json

import pytest
from interruption import Interruption, KillAt

import rnnorm
from rnnorm.experiments.training.checkpoint import WholeFiles, read_checkpoint
from rnnorm.experiments.training.fit import fit

RECIPE = "demo/digits-bn"

OTHERS = {
    "--model.init_args.hidden_size=9": "hidden_size was 8 and is 9",
    "--data.init_args.batch_size=10": "batch_size was 20 and is 10",
    "--data.init_args.train_size=60": "train_size was 130 and is 60",
    "--seed_everything=2": "seed was 1 and is 2",
}


def test_resume_refuses_another_model_or_order_and_stays_resumable(tmp_path, tiny):
    folder = tmp_path / "run"
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=2, callbacks=[KillAt(4)])
    before = (folder / "config.yaml").read_bytes()
    for override, said in OTHERS.items():
        with pytest.raises(ValueError, match=f"last.ckpt was trained with other .*: .*{said}"):
            fit(resume=folder, overrides=[override])
    assert (folder / "config.yaml").read_bytes() == before
    assert fit(resume=folder).trainer.global_step == 21


OTHERS_WITHOUT_A_CHECKPOINT = {
    "--model.init_args.initial_noise=0.5": r"initial_noise was 0\.1 and is 0\.5",
    "--model.norm_options.gamma=0.5": "norm_options was None and is .*gamma.*",
    "--data.init_args.batch_size=10": "data.init_args.batch_size was 20 and is 10",
    "--seed_everything=2": "seed_everything was 1 and is 2",
}


def test_without_a_checkpoint_too_another_model_or_order_is_refused(tmp_path, tiny):
    folder = tmp_path / "run"
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, callbacks=[KillAt(1)])
    assert not (folder / "checkpoints").exists()
    before = (folder / "config.yaml").read_bytes()
    for override, said in OTHERS_WITHOUT_A_CHECKPOINT.items():
        told = f"{said}, so begin a new training with another --run-dir$"
        with pytest.raises(ValueError, match=f"run was trained with other settings: .*{told}"):
            fit(resume=folder, overrides=[override])
    assert (folder / "config.yaml").read_bytes() == before
    assert fit(resume=folder, overrides=["--data.eval_batch_size=90"]).trainer.global_step == 21


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("max_epochs=1", "epochs must be at least 3, as the training in .* got 1"),
        ("max_epochs=2", "epochs must be at least 3, as the training in .* got 2"),
        ("val_check_interval=1000", "val_check_interval"),
    ],
)
def test_what_the_trainer_refuses_leaves_the_configuration_alone(tmp_path, tiny, option, said):
    folder = tmp_path / "run"
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=2, callbacks=[KillAt(17)])
    before = (folder / "config.yaml").read_bytes()
    with pytest.raises(ValueError, match=said):
        fit(resume=folder, overrides=[f"--trainer.{option}"])
    assert (folder / "config.yaml").read_bytes() == before


def test_broken_checkpoints_leave_the_configuration_alone(tmp_path, tiny):
    folder = tmp_path / "run"
    run = fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.max_epochs=1"])
    before = (folder / "config.yaml").read_bytes()
    for path in run.last_checkpoint.parent.iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"last\.ckpt is not a whole checkpoint.*best\.ckpt is no"):
        fit(resume=folder, overrides=["--trainer.max_epochs=2"])
    assert (folder / "config.yaml").read_bytes() == before


def test_a_checkpoint_that_lacks_something_is_refused_by_name(tmp_path, tiny):
    folder = tmp_path / "run"
    run = fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.max_epochs=1"])
    before = (folder / "config.yaml").read_bytes()
    state = read_checkpoint(run.last_checkpoint)

    def refused(changed, said):
        WholeFiles().save_checkpoint(changed, run.last_checkpoint)
        with pytest.raises(ValueError, match=said) as error:
            fit(resume=folder, overrides=["--trainer.max_epochs=2"])
        assert "\n" not in str(error.value)
        assert (folder / "config.yaml").read_bytes() == before

    for name in ("optimizer_states", "loops", "callbacks", "lr_schedulers"):
        lacks = {key: value for key, value in state.items() if key != name}
        refused(lacks, rf"last\.ckpt is not a checkpoint of a training: it has no '{name}'")
        refused(lacks | {name: 7}, rf"last\.ckpt is .*: its '{name}' must be of type")
    refused(state | {"callbacks": {}}, r"last\.ckpt is .*: it has no 'Clock'")
    refused(state | {"loops": {"fit_loop": 7}}, r"cannot resume from .*last\.ckpt: ")
    refused(state | {"optimizer_states": [7]}, r"cannot resume from .*last\.ckpt: ")
    refused(state | {"state_dict": {"a": 7}}, r"cannot resume from .*last\.ckpt: ")


LEARNS_OTHERWISE = [
    ("--optimizer.lr=0.5", r"optimizer\.init_args\.lr was 0\.001 and is 0\.5"),
    ("--optimizer=SGD", r"optimizer\.class_path was 'torch\.optim\.RMSprop' and is .*SGD"),
    ("--lr_scheduler.T_max=2", r"lr_scheduler\.init_args\.T_max was 1 and is 2"),
    ("--trainer.gradient_clip_val=0.001", r"gradient_clip_val was 1\.0 and is 0\.001"),
    ("--trainer.accumulate_grad_batches=2", "accumulate_grad_batches was 1 and is 2"),
    ("--trainer.limit_train_batches=2", "limit_train_batches was None and is 2"),
    ("--trainer.precision=64", "precision was None and is 64"),
    (
        "--trainer.callbacks=[{class_path: rnnorm.lightning.SlopeAnnealing}]",
        r"trainer\.callbacks\.rnnorm\.lightning\.SlopeAnnealing was None and is .*rate",
    ),
    (
        "--trainer.callbacks=[{class_path: lightning.pytorch.callbacks."
        "GradientAccumulationScheduler, init_args: {scheduling: {0: 2}}}]",
        r"callbacks\.GradientAccumulationScheduler was None and is .*scheduling",
    ),
]


def test_resume_refuses_to_learn_otherwise_and_stays_resumable(tmp_path, tiny):
    recipe, folder = tmp_path / "falling.yaml", tmp_path / "run"
    cosine = "{class_path: torch.optim.lr_scheduler.CosineAnnealingLR, init_args: {T_max: 1}}"
    recipe.write_text(f"base: {RECIPE}\nlr_scheduler: {cosine}\n")
    fit(str(recipe), run_dir=folder, overrides=[*tiny, "--trainer.max_epochs=1"])
    before = (folder / "config.yaml").read_bytes()
    for override, said in LEARNS_OTHERWISE:
        with pytest.raises(ValueError, match=f"run was trained with other settings: .*{said}"):
            fit(resume=folder, overrides=["--trainer.max_epochs=2", override])
    assert (folder / "config.yaml").read_bytes() == before
    # what it is anyway may be said again
    more = ["--optimizer.lr=0.001", "--trainer.gradient_clip_val=1", "--trainer.max_epochs=2"]
    assert fit(resume=folder, overrides=more).trainer.global_step == 14


@pytest.mark.parametrize("limit", [None, 1])
def test_resume_refuses_to_validate_other_rows(tmp_path, tiny, limit):
    given = [] if limit is None else [f"--trainer.limit_val_batches={limit}"]
    folder = tmp_path / "run"
    fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.max_epochs=1", *given])
    other, said = {
        None: ("--trainer.limit_val_batches=1", r"trainer\.limit_val_batches was None and is 1"),
        1: ("--data.eval_batch_size=5", r"data\.init_args\.eval_batch_size was \d+ and is 5"),
    }[limit]
    with pytest.raises(ValueError, match=f"run was validated with other settings: {said}, so"):
        fit(resume=folder, overrides=["--trainer.max_epochs=2", other])
    if limit is None:
        whole = ["--trainer.max_epochs=2", "--trainer.limit_val_batches=1.0"]
        assert fit(resume=folder, overrides=whole).trainer.current_epoch == 2


def test_resume_evaluates_in_other_minibatches(tmp_path, tiny):
    folder = tmp_path / "run"
    fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.max_epochs=1"])
    more = ["--trainer.max_epochs=2", "--data.init_args.eval_batch_size=90"]
    assert fit(resume=folder, overrides=more).trainer.global_step == 14


@pytest.mark.parametrize(
    "exact",
    ["[{class_path: rnnorm.lightning.ExactStatistics}]", "rnnorm.lightning.ExactStatistics"],
)
def test_resume_takes_statistics_otherwise(tmp_path, tiny, exact):
    folder = tmp_path / "run"
    fit(RECIPE, run_dir=folder, overrides=[*tiny, "--trainer.max_epochs=1"])
    exact = f"--trainer.callbacks={exact}"
    more = ["--trainer.max_epochs=2", exact]
    assert fit(resume=folder, overrides=more).trainer.global_step == 14


def test_resume_refuses_what_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run in"):
        fit(resume=tmp_path)
    with pytest.raises(ValueError, match="needs a recipe"):
        fit()


def test_resume_names_a_run_in_a_folder_of_runs(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds several runs: name one, such as \S*/one$"):
        fit(resume=tmp_path)


def test_a_run_to_resume_may_be_named_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no run in"):
        fit(resume=tmp_path / "run", run_dir="run")
    with pytest.raises(ValueError, match="different folders"):
        fit(resume=tmp_path / "run", run_dir="other")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("run.json", b"{recipe", r"run\.json is not JSON: Expecting"),
        ("run.json", b"\xff", r"run\.json is not JSON"),
        ("run.json", b"{}", r"run\.json is not a run's file"),
        ("run.json", b"null", r"run\.json is not a run's file: it must be an object, got null"),
        ("run.json", b"[1]", r"run\.json is not a run's file: it must be an object, got \[1\]"),
        ("run.json", b"[" * 10**5, r"run\.json is not JSON"),
        (
            "run.json",
            b'{"recipe": "a", "scale": "paper", "about": null}',
            r"run\.json is not a run's file: it needs the key 'about', with a value of type dict",
        ),
        (
            "run.json",
            b'{"recipe": "a", "scale": "paper", "about": {}, "overrides": [1]}',
            r"run\.json is not a run's file: overrides must be a list of words, got \[1\]",
        ),
        (
            "run.json",
            b'{"recipe": "a", "scale": "paper", "about": {}, "start": 1}',
            r"run\.json is not a run's file: start must be a path, got 1",
        ),
        (
            "run.json",
            b'{"recipe": "a", "scale": "paper", "about": {"number": "95"}}',
            r"run\.json: about\.number must be a number, got '95'",
        ),
        (
            "run.json",
            b'{"recipe": "a", "scale": "paper", "about": {"number": 95}}',
            r"run\.json: about\.number is given, and about lacks metric",
        ),
        (
            "run.json",
            b'{"recipe": "a", "scale": "small", "about": {"small": 1}}',
            r"run\.json: about\.small must be str, got 1",
        ),
        ("config.yaml", b"", r"config\.yaml is not a recipe"),
        ("config.yaml", b"\xff", r"config\.yaml is not YAML"),
        ("config.yaml", b"model: [", r"config\.yaml is not YAML"),
    ],
)
def test_broken_files_of_a_run_are_named(tmp_path, name, content, said):
    run = {"recipe": RECIPE, "scale": "paper", "about": {}, "rnnorm": rnnorm.__version__}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "config.yaml").write_text("model: {}\ndata: {}\n")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        fit(resume=tmp_path)
