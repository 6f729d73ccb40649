import itertools

import numpy as np
import pytest
import torch
from kaldi_files import write_features, write_states
from spoken import STATES, write_spoken
from torch.nn.functional import cross_entropy, pad

import rnnorm
from rnnorm.experiments.data.kaldi.alignments import read_alignments
from rnnorm.experiments.data.kaldi.archive import read_matrix, read_scp
from rnnorm.experiments.data.speech.batches import FrameBatch, FrameBatches
from rnnorm.experiments.data.speech.utterances import Utterance
from rnnorm.experiments.data.text.windows import PADDING
from rnnorm.experiments.tasks.frames.data import FrameData
from rnnorm.experiments.tasks.frames.model import FrameClassifier
from rnnorm.layers.normalised_module import temporarily

NORMS = [None, "laurent2015-sequence", "laurent2015-frame"]


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spoken")
    write_spoken(folder)
    return folder


def data(folder, **arguments):
    module = FrameData(data_dir=str(folder), **arguments)
    module.setup()
    return module


def model(**arguments):
    torch.manual_seed(0)
    given = {"input_size": 123, "num_classes": STATES, "hidden_size": 5, "num_layers": 2}
    return FrameClassifier(**given | arguments)


def step(module, batch, name="train"):
    """The training loss, and what was logged."""
    logged = {}
    module.log = lambda key, value, batch_size, **_: logged.update({key: (value, batch_size)})
    loss = getattr(module, {"train": "training", "val": "validation"}[name] + "_step")(batch, 0)
    return loss, logged


def test_what_is_left_out_is_said(spoken):
    module = data(spoken, max_length=9, batch_size=4)
    lengths = [length for batch in module.train_dataloader() for length in batch.lengths.tolist()]
    assert max(lengths) <= 9
    test = [length for batch in module.test_dataloader() for length in batch.lengths.tolist()]
    assert max(test) > 9
    left_out, *counts = module.notes
    assert left_out == f"training: {14 - len(lengths)} utterances of more than 9 frames left out"
    assert counts[0] == f"train: {len(lengths)} utterances, {sum(lengths)} frames"
    assert counts[2] == f"test: 15 utterances, {sum(test)} frames"


def test_deltas_and_normalisation_are_of_whole_utterances(spoken):
    batch = next(iter(data(spoken).val_dataloader()))
    assert batch.x.shape[1:] == (1, 123)
    torch.testing.assert_close(batch.x.mean(0), torch.zeros(1, 123), atol=1e-5, rtol=0)
    plain = next(iter(data(spoken, deltas=False, normalised=False).val_dataloader()))
    assert plain.x.shape[1:] == (1, 41)
    assert plain.x.mean() > 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"dataset": "timit"}, "dataset must be 'fsdd' or 'kaldi', got 'timit'"),
        ({"split": "even"}, "split must be 'speaker' or 'random', got 'even'"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"max_length": 2}, "max_length must leave a training utterance: all 14 are longer than 2"),
    ],
)
def test_bad_data_arguments(spoken, arguments, what):
    with pytest.raises(ValueError, match=what):
        data(spoken, **arguments)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"cell": "CNN"}, "one of 'LSTM', 'GRU', .*, got 'CNN'"),
        ({"norm": "group"}, "group"),
        ({"norm_options": {"gamma": 1.0}}, "norm to be 'batch', 'layer' or 'rms', got None"),
        ({"init": "magic"}, "init must be None or one of .*laurent2015.*got 'magic'"),
        ({"reduction": "none"}, "reduction must be 'sum' or 'mean', got 'none'"),
    ],
)
def test_bad_model_arguments(arguments, what):
    with pytest.raises(ValueError, match=what):
        model(**arguments)


@pytest.mark.parametrize(
    ("sizes", "what"),
    [
        (
            {"input_size": 41},
            r"model\.init_args\.input_size must be 123, .* with deltas, got 41",
        ),
        (
            {"num_classes": 5},
            r"model\.init_args\.num_classes must be at least the 6 states .* got 5",
        ),
    ],
)
def test_data_that_do_not_fit_the_model(spoken, sizes, what):
    module = data(spoken)
    model().check_data(module)
    model(num_classes=7).check_data(module)
    with pytest.raises(ValueError, match=what):
        model(**sizes).check_data(module)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("norm", [*NORMS, "batch", "layer"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_every_cell_and_norm_learns(spoken, cell, norm, bidirectional):
    module = model(cell=cell, norm=norm, bidirectional=bidirectional)
    batch = next(iter(data(spoken).train_dataloader()))
    loss, _ = step(module, batch)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in module.parameters())
    assert module(batch.x, lengths=batch.lengths)[0].shape == (*batch.y.shape, STATES)


def test_weights_are_glorot_and_biases_zero():
    module = model(hidden_size=50, init="laurent2015")
    named = dict(module.named_parameters())
    biases = [p for name, p in named.items() if "bias" in name]
    assert len(biases) == 9
    assert not any(bias.any() for bias in biases)
    bound = (6 / (100 + STATES)) ** 0.5
    assert 0.9 * bound < named["classifier.weight"].abs().max() <= bound


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_loss_is_that_of_all_frames_that_are_not_padding(spoken, reduction):
    module, batch = model(reduction=reduction), next(iter(data(spoken).train_dataloader()))
    loss, logged = step(module, batch)
    scores, _ = module(batch.x, lengths=batch.lengths)
    frames = int(batch.lengths.sum())
    assert frames < batch.y.numel()
    want = cross_entropy(scores.flatten(0, 1), batch.y.flatten(), ignore_index=PADDING)
    wrong = (scores.argmax(2) != batch.y)[batch.y != PADDING].float().mean()
    torch.testing.assert_close(loss, want * (frames if reduction == "sum" else 1))
    torch.testing.assert_close(logged["train/loss"], (want, frames))
    torch.testing.assert_close(logged["train/frame_error"], (wrong, frames))


def padded(batch, value):
    """A batch with ``value`` in its padding, which is twice as long."""
    x = batch.x.clone()
    x[~batch.inside] = value
    more = len(x)
    x = pad(x, (0, 0, 0, 0, 0, more), value=value)
    return FrameBatch(x, pad(batch.y, (0, 0, 0, more), value=PADDING), batch.lengths)


@pytest.fixture(scope="module")
def digits(speech_dir):
    """A real minibatch, of utterances of any length."""
    module = data(speech_dir, batch_size=24)
    utterances = module.loaders["train"].utterances[:8]
    batch = next(iter(FrameBatches(utterances, 8, prepare=module.loaders["train"].prepare)))
    assert batch.lengths.min() < 0.7 * batch.lengths.max()
    return batch


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_padding_is_nothing(digits, backend, norm, dtype):
    if why := rnnorm.backends()[backend]:
        pytest.skip(why)

    def everything(batch):
        module = model(norm=norm, num_classes=96).to(dtype)
        with rnnorm.use_backend(backend):
            loss, _ = step(module, batch._replace(x=batch.x.to(dtype)))
        loss.backward()
        buffers = list(module.buffers())
        assert bool(buffers) == (norm is not None)
        return [loss, *(p.grad for p in module.parameters()), *buffers]

    want = everything(digits)
    for value in (0.0, float("nan")):
        for one, two in zip(everything(padded(digits, value)), want, strict=True):
            if backend == "reference":
                assert torch.equal(one, two)
            else:
                torch.testing.assert_close(one, two)


@pytest.mark.parametrize("norm", NORMS)
def test_a_long_utterance_in_pieces_is_the_whole(kaldi_dir, norm):
    folder = kaldi_dir / "yesno"
    states = read_alignments(folder / "mono0a").states
    places = read_scp(folder / "train" / "feats.scp")
    utterances = [
        Utterance(name, lambda place=place: read_matrix(place), states[name])
        for name, place in itertools.islice(places.items(), 4)
    ]
    whole = next(iter(FrameBatches(utterances, 4)))
    assert whole.lengths.min() > 500
    module = model(input_size=13, num_classes=11, norm=norm, bidirectional=False).double()
    x = whole.x.double() / 10
    step(module, whole._replace(x=x))
    module.eval()
    length = int(whole.lengths[-1])
    x = x[:length, -1:]
    want, last = module(x)
    state, pieces, at = None, [], 0
    for size in (1, 100, 7, 300, length):
        scores, state = module(x[at : at + size], state, step=at)
        pieces.append(scores)
        at += size
    got = torch.cat(pieces)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state, last, rtol=1e-9, atol=1e-9)
    # neither the state nor the step is without effect
    forgotten, _ = module(x[101:208], None, step=101)
    assert not torch.allclose(forgotten, want[101:208], rtol=1e-3)
    if norm == "laurent2015-frame":
        early, _ = module(x[:100], None, step=200)
        assert not torch.allclose(early, want[:100], rtol=1e-3)


@pytest.mark.parametrize("arguments", [{"step": 3}, {"state": (torch.zeros(4, 1, 5),) * 2}])
def test_a_bidirectional_model_refuses_pieces(arguments):
    with pytest.raises(ValueError, match="state and step must be None and 0 for a bidirectional"):
        model()(torch.zeros(4, 1, 123), **arguments)


def test_examples_are_of_two_validation_utterances(spoken):
    module, given = model().train(), data(spoken, split="random")
    before = [p.clone() for p in module.parameters()]
    with temporarily(module.modules(), training=False), torch.no_grad():
        examples = list(module.examples(given))
    titles = [title for title, _, _ in examples]
    utterances = given.loaders["val"].utterances
    assert titles == [f"Posteriors of {u.name}" for u in (utterances[0], utterances[-1])]
    assert module.training
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    for (_, caption, plot), utterance in zip(
        examples, (utterances[0], utterances[-1]), strict=True
    ):
        assert f"of {len(utterance.targets)} frames" in caption
        axes.clear()
        plot(axes)
        assert axes.images[0].get_array().shape[1] == len(utterance.targets)


def test_one_validation_utterance_is_one_example(tmp_path):
    for part in ("train", "dev", "test"):
        write_features(tmp_path / part, {"one": np.ones((9, 4), np.float32)})
        write_states(tmp_path / part, {"one": np.zeros(9, np.int32)})
    given = data(tmp_path, dataset="kaldi", deltas=False)
    net = model(input_size=4)
    with temporarily(net.modules(), training=False), torch.no_grad():
        examples = list(net.examples(given))
    assert [title for title, _, _ in examples] == ["Posteriors of one"]
