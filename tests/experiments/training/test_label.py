import pytest

from rnnorm.experiments.recipe.label import changes, run_label, whole_changes


def test_a_run_is_called_by_its_recipe_and_what_was_changed():
    about = {
        "recipe": "demo/digits-bn",
        "scale": "small",
        "overrides": ["--model.init_args.norm=layer", "--optimizer.lr=0.1", "--seed_everything=2"],
    }
    assert run_label(about) == "demo/digits-bn, small, norm=layer, lr=0.1"


def test_a_run_of_an_earlier_version_is_called_by_its_recipe():
    assert run_label({"recipe": "demo/digits-bn", "scale": "paper"}) == "demo/digits-bn"


@pytest.mark.parametrize(
    "option",
    [
        "--trainer.max_epochs=3",
        "--data.init_args.data_dir=/data",
        "--data.init_args.eval_batch_size=9",
        "--trainer.devices=2",
        "--trainer.strategy=ddp",
        "--trainer.max_time=00:01:00:00",
        "--trainer.min_epochs=2",
    ],
)
def test_how_long_and_where_it_trains_makes_no_other_training(option):
    assert changes([option]) == ()


def test_options_of_the_same_name_are_both_told():
    given = ["--optimizer.momentum=0.9", "--model.norm_options.momentum=0.1"]
    assert changes(given) == ("momentum=0.9", "momentum=0.1")
    assert whole_changes(given) == ("optimizer.momentum=0.9", "model.norm_options.momentum=0.1")


@pytest.mark.parametrize(
    ("start", "name", "whole"),
    [
        ("/runs/words/checkpoints/best.ckpt", "words", "words/checkpoints/best.ckpt"),
        ("/kept/words.ckpt", "words.ckpt", "words.ckpt"),
    ],
)
def test_what_a_run_begins_with_is_part_of_its_name(start, name, whole):
    about = {"recipe": "a", "scale": "paper", "overrides": ["--optimizer.lr=0.1"], "start": start}
    assert run_label(about) == f"a, lr=0.1, start={name}"
    assert whole_changes(about["overrides"], start) == ("optimizer.lr=0.1", f"start={whole}")


def test_the_later_of_two_counts():
    assert changes(["--model.norm=batch", "--model.init_args.norm=layer"]) == ("norm=layer",)


def test_a_number_is_told_in_one_spelling():
    told = ("lr=0.001", "batch_size=50", "norm=layer", "dropout=true")
    given = ["--optimizer.lr=1e-3", "--data.init_args.batch_size=5e1"]
    assert changes([*given, "--model.norm=layer", "--model.dropout=true"]) == told
    assert whole_changes(["--optimizer.lr=0.0010"]) == whole_changes(["--optimizer.lr=1.0e-03"])
