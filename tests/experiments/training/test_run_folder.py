import json
import shutil
from datetime import date

import pytest

import rnnorm
from rnnorm.experiments.recipe.recipe import OverrideError
from rnnorm.experiments.trained.test import measure
from rnnorm.experiments.training import folder as run_folder
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.writing import write_whole

RECIPE = "demo/digits-bn"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return {"parent": tmp_path_factory.mktemp("trained")}


@pytest.fixture
def folder(tiny, trained, tmp_path):
    """A copy of a run that is trained once."""
    if "run" not in trained:
        trained["run"] = trained["parent"] / "run"
        fit(RECIPE, run_dir=trained["run"], overrides=[*tiny, "--trainer.max_epochs=1"])
    return shutil.copytree(trained["run"], tmp_path / "run")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("wrote", "said"),
    [
        ({"rnnorm": "99.1.0"}, rf"is of rnnorm 99\.1\.0, and this is rnnorm {rnnorm.__version__}"),
        ({}, rf"not say of which version, and this is rnnorm {rnnorm.__version__}"),
        ({"rnnorm": None}, "is of rnnorm None"),
    ],
)
def test_a_run_of_another_version_is_refused_and_left_as_it_is(folder, wrote, said):
    about = json.loads((folder / "run.json").read_text())
    del about["rnnorm"]
    (folder / "run.json").write_text(json.dumps(about | wrote))
    before = contents(folder)
    with pytest.raises(ValueError, match=said):
        fit(resume=folder, overrides=["--trainer.max_epochs=9"])
    with pytest.raises(ValueError, match=said):
        measure(RECIPE, folder / "checkpoints" / "best.ckpt")
    assert contents(folder) == before


def test_a_patch_of_the_same_version_goes_on(folder):
    about = json.loads((folder / "run.json").read_text())
    about["rnnorm"] = ".".join([*rnnorm.__version__.split(".")[:2], "99"])
    (folder / "run.json").write_text(json.dumps(about))
    fit(resume=folder)


def test_a_configuration_that_this_version_does_not_know_is_refused(folder):
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("hidden_size:", "hidden_length:"))
    before = contents(folder)
    with pytest.raises(ValueError, match=rf"written by rnnorm {rnnorm.__version__}.*hidden_length"):
        fit(resume=folder)
    assert contents(folder) == before
    (folder / "config.yaml").write_text(config)
    with pytest.raises(OverrideError, match="hidden_length"):
        fit(resume=folder, overrides=["--model.init_args.hidden_length=3"])


def test_the_advice_to_resume_can_be_pasted(tmp_path):
    run_folder.start_run(tmp_path / "my run", {"recipe": RECIPE}, "model: {}\n")
    with pytest.raises(FileExistsError, match=r"by --resume '\S*/my run', or name another"):
        run_folder.refuse_existing(tmp_path / "my run")


def test_a_run_that_is_killed_as_it_starts_leaves_no_folder(tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def killed(path, data):
        if path.name == "config.yaml":
            raise KeyboardInterrupt
        write_whole(path, data)

    with monkeypatch.context() as cut:
        cut.setattr(run_folder, "write_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            run_folder.start_run(folder, {"recipe": RECIPE}, "model: {}\n")
    assert not folder.exists()
    run_folder.start_run(folder, {"recipe": RECIPE}, "model: {}\n")
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "run.json"]
    assert not list(tmp_path.glob("run.*"))


def test_a_date_of_a_recipe_is_kept_as_text(tmp_path):
    run_folder.start_run(tmp_path / "run", {"about": {"date": date(2026, 7, 1)}}, "model: {}\n")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["about"]["date"] == "2026-07-01"


@pytest.mark.parametrize("old", ["tasks.pixels.DigitData", "pixels.PixelData"])
def test_a_run_of_an_older_layout_is_refused_in_one_line(folder, old):
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("tasks.pixels.PixelData", old))
    with pytest.raises(ValueError, match=rf"of an older layout, or was edited.*{old}") as caught:
        measure(folder)
    assert "\n" not in str(caught.value)


def test_a_description_of_any_size_is_not_held_in_memory(folder):
    (folder / "run.json").write_text(" " * ((1 << 20) + 1))
    with pytest.raises(ValueError, match=r"run\.json is too large"):
        run_folder.read_about(folder)
