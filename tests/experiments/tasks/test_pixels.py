import pytest
import torch

import rnnorm
from rnnorm.experiments.data.images import load_images
from rnnorm.experiments.tasks.pixels import PixelClassifier, PixelData, step_order
from rnnorm.experiments.training.fit import fit


def test_fixed_permutation_is_a_bijection_and_not_the_identity():
    order = step_order(784, "fixed", 1)
    assert sorted(order.tolist()) == list(range(784))
    assert order.tolist() != list(range(784))
    assert torch.equal(order, step_order(784, "fixed", 1))
    assert not torch.equal(order, step_order(784, "fixed", 2))


def test_published_permutation_is_none():
    order = step_order(784, "published", 1)
    assert len(order) == 784
    assert len(order.unique()) == 501
    assert order[:5].tolist() == [37, 235, 72, 767, 715]


def test_unknown_permutation():
    with pytest.raises(ValueError, match="'fixed' or 'published', got 'random'"):
        step_order(4, "random", 1)


def data(**arguments):
    module = PixelData(**{"batch_size": 100, "eval_batch_size": 500} | arguments)
    module.setup()
    return module


def test_pixels_are_read_row_by_row():
    x, y = next(iter(data().val_dataloader()))
    images = load_images("digits").val
    assert x.shape == (64, 270, 1)
    assert torch.equal(x[:, :, 0].T.reshape(-1, 8, 8), images.x)
    assert torch.equal(y, images.y)


def test_rows():
    x, _ = next(iter(data(step="row").val_dataloader()))
    assert x.shape == (8, 270, 8)
    assert torch.equal(x.transpose(0, 1), load_images("digits").val.x)


def test_all_splits_are_read_in_the_same_order():
    module = data(permutation="fixed")
    images = load_images("digits")
    order = step_order(64, "fixed", 1)
    for loader, part in (
        (module.val_dataloader(), images.val),
        (module.test_dataloader(), images.test),
    ):
        x, _ = next(iter(loader))
        assert torch.equal(x[:, :, 0].T, part.x.flatten(1)[:, order])


def test_shrink_averages_squares():
    x, _ = next(iter(data(shrink=2).val_dataloader()))
    expected = load_images("digits").val.x.unfold(1, 2, 2).unfold(2, 2, 2).mean((3, 4))
    torch.testing.assert_close(x[:, :, 0].T, expected.flatten(1))


@pytest.mark.parametrize(
    "given",
    [
        {"permutation": "fixed", "permutation_seed": 3},
        {"permutation": "published", "permutation_seed": 2, "shrink": 2},
        {"permutation": "fixed", "step": "row", "shrink": 2},
    ],
    ids=str,
)
def test_what_an_export_says_of_images_makes_their_sequences(given):
    module = data(**given)
    about, x = module.preprocessing({}), load_images("digits").val.x
    squares = about["average_squares_of"]
    assert [*x.shape[1:]] == about["image"]
    x = x.unfold(1, squares, squares).unfold(2, squares, squares).mean((3, 4))
    steps = x if about["step"] == "row" else x.flatten(1).unsqueeze(2)
    read, _ = next(iter(module.val_dataloader()))
    torch.testing.assert_close(read.transpose(0, 1), steps[:, about["order"]])


def test_train_size_keeps_validation_whole():
    module = data(train_size=150)
    assert len(module.train_dataloader()) == 2
    assert len(next(iter(module.val_dataloader()))[1]) == 270


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"step": "column"}, "'pixel' or 'row', got 'column'"),
        ({"shrink": 0}, "shrink must be at least 1, got 0"),
        ({"shrink": 3}, "shrink must divide the image's 8 by 8 pixels, got 3"),
        ({"train_size": 1258}, "train_size must be 1 to 1257 for digits, got 1258"),
        ({"train_size": 0}, "train_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"dataset": "cifar"}, "'digits' or 'mnist'"),
    ],
)
def test_bad_data_arguments(arguments, what):
    with pytest.raises(ValueError, match=what):
        data(**arguments)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("norm", [None, "batch", "layer"])
def test_every_cell_and_norm_gives_scores(cell, norm):
    init = "cooijmans2016" if cell == "LSTM" else "orthogonal"
    model = PixelClassifier(cell=cell, norm=norm, hidden_size=6, init=init)
    x = torch.randn(5, 4, 1)
    scores = model(x)
    scores.square().mean().backward()
    assert scores.shape == (4, 10)
    assert all(p.grad is not None for p in model.parameters())


def test_norm_options_reach_the_layer():
    model = PixelClassifier(norm="batch", norm_options={"momentum": 0.01, "cell": None})
    assert model.rnn.norm == rnnorm.BatchNorm(momentum=0.01, cell=None)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"cell": "CNN"}, "one of 'LSTM', 'GRU', .*, got 'CNN'"),
        ({"norm": "group"}, "group"),
        ({"norm_options": {"gamma": 1.0}}, "norm to be 'batch', 'layer' or 'rms', got None"),
        ({"init": "magic"}, "init must be None or one of .*orthogonal.*got 'magic'"),
    ],
)
def test_bad_model_arguments(arguments, what):
    with pytest.raises(ValueError, match=what):
        PixelClassifier(**arguments)


@pytest.mark.parametrize("states", ["from-input", "no-noise"])
def test_an_epoch_of_each_initial_state(tiny, states):
    changes = (
        "trainer.max_epochs=1",
        "trainer.log_every_n_steps=1",
        "data.init_args.dataset=digits",
    )
    overrides = [*tiny, *(f"--{change}" for change in changes)]
    run = fit(
        f"cooijmans2016/smnist-bn-{states}",
        scale="small",
        run_dir="run",
        overrides=overrides,
        quiet=True,
    )
    assert run.best is not None
    learned = [
        name for name, _ in run.experiment.model.named_parameters() if name.endswith("_0_weight")
    ]
    assert learned == (["rnn.h_0_weight", "rnn.c_0_weight"] if states == "from-input" else [])
