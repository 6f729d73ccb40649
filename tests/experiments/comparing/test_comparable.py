import pytest

from rnnorm.experiments.comparing.entry import data_of, differences, refuse_differences


def config(**arguments):
    given = {"length": 50, "data_dir": "here", "seed": 1, "eval_batch_size": 64, **arguments}
    return {"data": {"class_path": "Texts", "init_args": given}, "trainer": {"max_epochs": 3}}


def test_place_seed_and_evaluation_batch_are_no_difference():
    one, two = config(), config(data_dir="there", seed=2, eval_batch_size=8)
    refuse_differences({"a": data_of(one), "b": data_of(two)})


def test_the_rows_that_a_text_is_cut_into_for_evaluation_are_one():
    one, two = config(windows="carried"), config(windows="carried", eval_batch_size=8)
    with pytest.raises(ValueError, match="eval_batch_size is 64 and 8"):
        refuse_differences({"a": data_of(one), "b": data_of(two)})


def test_the_folder_of_a_text_of_ones_own_is_no_difference_and_its_name_is_one():
    one, two, three = (config(file=path) for path in ("/a/novel.txt", "/b/novel.txt", "/a/poem"))
    refuse_differences({"a": data_of(one), "b": data_of(two)})
    with pytest.raises(ValueError, match=r"file is 'novel\.txt' and 'poem'"):
        refuse_differences({"a": data_of(one), "b": data_of(three)})


@pytest.mark.parametrize("limit", [1, 5, 0.5])
def test_so_is_the_size_of_minibatches_of_which_not_all_validate(limit):
    one, two = config(), config(eval_batch_size=8)
    for each in (one, two):
        each["trainer"]["limit_val_batches"] = limit
    with pytest.raises(ValueError, match="eval_batch_size is 64 and 8"):
        refuse_differences({"a": data_of(one), "b": data_of(two)})


def test_every_difference_is_named():
    one, two = config(), config(length=100, crop=True)
    two["trainer"]["limit_train_batches"] = 5
    with pytest.raises(ValueError, match="a and b cannot be compared") as error:
        refuse_differences({"a": data_of(one), "b": data_of(two)})
    assert "data.init_args.length is 50 and 100" in str(error.value)
    assert "data.init_args.crop is None and True" in str(error.value)
    assert "trainer.limit_train_batches is None and 5" in str(error.value)


def test_what_is_equal_has_no_differences():
    assert list(differences(config(), config())) == []
