import pytest
import yaml

from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.training.build import Experiment
from rnnorm.experiments.training.folder import describe
from rnnorm.experiments.training.run import introduction


@pytest.fixture
def said(tmp_path):
    """The lines before those of model and data, of a recipe of one's own on another one."""

    def of(base, *overrides, scale="paper", start=None, **about):
        path = tmp_path / "own.yaml"
        path.write_text(yaml.safe_dump({"base": base, "about": about}))
        recipe = read_recipe(str(path), scale)
        experiment = Experiment(recipe.config)
        described = describe(recipe, overrides) | ({"start": start} if start else {})
        lines = introduction(described, experiment, experiment.trainer, tmp_path).splitlines()
        return lines[1 : next(i for i, line in enumerate(lines) if line.startswith("model: "))]

    return of


def test_the_paper_is_named_with_its_number_and_what_it_leaves_open_is_said(said):
    found = said("laurent2015/appendix-a-rnn", note="Windows\nare cut.\n")
    assert found == [
        "the paper's number (Batch Normalized Recurrent Neural Networks, arXiv 1510.01378): "
        "validation nats per character 1.1",
        "note: Windows are cut.",
    ]


def test_a_paper_without_a_number_is_named(said):
    assert said("demo/digits-lstm", paper="A Thesis", note="Of our own.") == [
        "paper: A Thesis",
        "note: Of our own.",
    ]


def test_a_number_of_no_paper_and_an_empty_note(said):
    found = said("cooijmans2016/pmnist-lstm", paper="", note="", number=90.2)
    assert found == ["the paper's number: test accuracy, % 90.2"]


@pytest.mark.parametrize(
    ("overrides", "given"),
    [(["--model.init_args.lr=1"], {}), ([], {"scale": "small"}), ([], {"start": "best.ckpt"})],
)
def test_a_number_is_not_said_of_a_training_that_the_paper_has_not(said, overrides, given):
    found = said("laurent2015/appendix-a-rnn", *overrides, **given)
    assert found[0] == "paper: Batch Normalized Recurrent Neural Networks, arXiv 1510.01378"
    assert "1.1" not in "".join(found[1:])


def test_a_number_is_said_of_a_training_on_another_folder_of_data(said):
    found = said("laurent2015/appendix-a-rnn", "--data.init_args.data_dir=there")
    assert found[0].endswith("validation nats per character 1.1")


def test_a_note_is_that_of_the_base(said):
    note = read_recipe("cooijmans2016/pmnist-lstm").about["note"]
    assert f"note: {note}" in said("cooijmans2016/pmnist-lstm", title="mine")
