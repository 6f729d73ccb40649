import pytest
import torch
from torch.nn.functional import cross_entropy

from rnnorm.experiments.data.series import Series, SeriesBatch, SeriesBatches
from rnnorm.experiments.tasks.timeseries import TimeSeriesClassifier, TimeSeriesData
from rnnorm.experiments.training.fit import fit

NORMS = [None, "batch", "layer"]


def model(**arguments):
    torch.manual_seed(0)
    given = {"input_size": 2, "num_classes": 3, "hidden_size": 5, "initial_noise": 0.0}
    return TimeSeriesClassifier(**given | arguments).double()


@pytest.fixture
def batch():
    torch.manual_seed(1)
    x = [torch.randn(n, 2, dtype=torch.float64) for n in (2, 7, 4, 5)]
    series = Series(x, torch.tensor([0, 2, 1, 0]))
    return next(iter(SeriesBatches(series, 4)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("readout", ["last", "mean"])
def test_padding_is_nothing(norm, readout, batch):
    results = []
    for padding in (0, 7):
        net = model(norm=norm, readout=readout, bidirectional=True)
        x = torch.nn.functional.pad(batch.x, (0, 0, 0, 0, 0, padding), value=float("nan"))
        loss = cross_entropy(net(x, batch.lengths), batch.y)
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in net.parameters()), *net.buffers()])
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


def test_the_last_output_is_that_of_the_last_real_step(batch):
    net = model().eval()
    scores = net(batch.x, batch.lengths)
    for row, length in enumerate(batch.lengths):
        output, _ = net.rnn(batch.x[:length, row : row + 1])
        torch.testing.assert_close(scores[row], net.classifier(output[-1, 0]))


def test_the_mean_is_over_the_real_steps(batch):
    net = model(readout="mean").eval()
    scores = net(batch.x, batch.lengths)
    output, _ = net.rnn(batch.x[:2, :1])
    torch.testing.assert_close(scores[0], net.classifier(output.mean(0)[0]))


def test_a_misspelt_readout_is_refused():
    with pytest.raises(ValueError, match="readout must be 'last' or 'mean', got 'first'"):
        model(readout="first")


def test_data_that_do_not_fit_the_model_are_refused(ts_dir):
    data = TimeSeriesData(name="Two", data_dir=str(ts_dir))
    data.setup()
    with pytest.raises(ValueError, match="input_size must be 1, the features of Two, got 2"):
        model().check_data(data)
    with pytest.raises(ValueError, match="num_classes must be 2, the classes of Two, got 3"):
        model(input_size=1).check_data(data)


@pytest.fixture
def ts_dir(tmp_path):
    torch.manual_seed(0)
    for part, rows in (("TRAIN", 20), ("TEST", 8)):
        lines = ["@classLabel true up down", "@data"]
        for row in range(rows):
            slope = 1 - 2 * (row % 2)
            x = slope * torch.linspace(-1, 1, 4 + row % 3) + 0.1 * torch.randn(4 + row % 3)
            lines.append(",".join(f"{v:.4f}" for v in x) + (":up", ":down")[row % 2])
        (tmp_path / f"Two_{part}.ts").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("variant", ["lstm", "bn", "ln"])
def test_a_recipe_learns_ragged_series(ts_dir, variant):
    given = {"data": {"name": "Two", "batch_size": 8}}
    given["model"] = {"input_size": 1, "num_classes": 2, "hidden_size": 8}
    overrides = [f"--{p}.init_args.{k}={v}" for p, args in given.items() for k, v in args.items()]
    run = fit(
        f"timeseries/japanesevowels-{variant}",
        data_dir=ts_dir,
        overrides=[*overrides, "--trainer.max_epochs=12", "--trainer.accelerator=cpu"],
        quiet=True,
    )
    assert run.best == 1.0


def test_a_checkpoint_of_other_series_is_refused(ts_dir):
    data = TimeSeriesData(name="Two", data_dir=str(ts_dir))
    data.setup()
    kept = data.state_dict()
    data.load_state_dict(kept)
    data.load_state_dict({})
    # on another processor the last bits differ
    data.load_state_dict({**kept, "divide_by": [1.000001 * kept["divide_by"][0]]})
    # of centred series the mean is all rounding
    data.load_state_dict({**kept, "subtract": [kept["subtract"][0] + 1e-6]})
    for name in ("subtract", "divide_by"):
        for off in (-0.01, 0.01):
            with pytest.raises(ValueError, match=rf"scaled with {name}=\[.*the data have"):
                data.load_state_dict({**kept, name: [kept[name][0] + off]})
    with pytest.raises(ValueError, match=r"the classes are not those of the checkpoint, \['down'"):
        data.load_state_dict({**kept, "classes": ["down", "left"]})
    fresh = TimeSeriesData(name="Two", data_dir="nowhere")
    assert fresh.preprocessing(kept) == kept


def test_batches_keep_their_lengths_on_the_way_to_the_model(batch):
    assert isinstance(batch, SeriesBatch)
    assert batch.x.shape == (7, 4, 2)
    assert batch.lengths.tolist() == [2, 7, 4, 5]
