import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

import rnnorm
from rnnorm.experiments.data.text.corpora import Text, load_corpus
from rnnorm.experiments.data.text.vocabulary import Vocabulary
from rnnorm.experiments.data.text.windows import CarriedWindows, IndependentWindows, Stream, Window
from rnnorm.experiments.tasks.language.data import LanguageData
from rnnorm.experiments.tasks.language.model import LanguageModel
from rnnorm.norm.population import Population

SYMBOLS = 7


def text(size, seed=0):
    symbols = torch.randint(SYMBOLS, (size,), generator=torch.Generator().manual_seed(seed))
    return Text(symbols, "some/file")


def model(norm=None, cell="LSTM", **arguments):
    torch.manual_seed(0)
    return LanguageModel(SYMBOLS, cell=cell, norm=norm, hidden_size=5, **arguments)


def trained(norm, **arguments):
    """A model with population statistics of 6 steps and scales that matter."""
    made = model(norm, **arguments)
    for name, parameter in made.named_parameters():
        if "gamma_" in name:
            torch.nn.init.constant_(parameter, 1.0)
    for batch in IndependentWindows(text(300), 6, 8, seed=1):
        made.statistics_step(batch)
    return made


@torch.no_grad()
def likelihood(made, loader):
    made.eval()
    sums = [(float(made._loss("test", w)) * w.y.numel(), w.y.numel()) for w in loader]
    return sum(s for s, _ in sums) / sum(n for _, n in sums)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("embedding_size", [None, 4])
def test_every_cell_and_norm_learns(cell, norm, embedding_size):
    made = model(norm, cell, embedding_size=embedding_size, num_layers=2, dropout=0.1)
    window = next(iter(IndependentWindows(text(200), 6, 8, seed=1)))
    made._loss("train", window).backward()
    assert all(p.grad is not None for p in made.parameters())
    assert made(window.x)[0].shape == (6, 8, SYMBOLS)


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@torch.no_grad()
def test_a_stream_in_pieces_is_one_pass_over_the_text(norm):
    made = trained(norm).eval()
    whole = text(60)
    x, y = whole.symbols[:-1], whole.symbols[1:]
    expected = float(cross_entropy(made(x.unsqueeze(1))[0].squeeze(1), y))
    for piece in (1, 7, 20, 59, 100):
        assert likelihood(made, Stream(whole, piece)) == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_a_stream_goes_on_beyond_the_horizon_of_the_statistics():
    made = trained("batch").eval()
    assert len(made.rnn.population_recurrent_l0.mean) == 6
    one_pass = likelihood(made, Stream(text(60), 9))
    for population in (m for m in made.modules() if isinstance(m, Population)):
        for name, rows in list(population.named_buffers()):
            more = rows[-1:].expand(54, *rows.shape[1:])
            setattr(population, name, torch.cat([rows, more]))
    # as if the last of the 6 steps had stood for each later one
    assert likelihood(made, Stream(text(60), 9)) == one_pass
    made.rnn.population_input_l0.mean[6:] += 1
    assert likelihood(made, Stream(text(60), 9)) != one_pass


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "HMLSTM"])
@torch.no_grad()
def test_carried_windows_are_one_pass_over_each_row(cell):
    made = model(cell=cell).eval()
    windows = list(CarriedWindows(text(100), 8, 3))
    expected = made(torch.cat([w.x for w in windows]))[0]
    scores = torch.cat([made.scores(made._read_on("train", w)[0]) for w in windows])
    torch.testing.assert_close(scores, expected)
    assert made._carried.of == {}


@torch.no_grad()
def test_independent_windows_start_from_the_initial_state():
    made = model().eval()
    for window in IndependentWindows(text(100), 8, 3):
        assert torch.equal(made.scores(made._read_on("val", window)[0]), made(window.x)[0])


def test_no_gradient_goes_into_the_window_before():
    made = model()
    one, two, *_ = CarriedWindows(text(100), 8, 3)
    made._loss("train", one)
    made._loss("train", two).backward()
    assert not any(s.requires_grad for s in made._carried.of["train"])


def test_evaluation_leaves_the_state_of_training_alone():
    made = model()
    windows = list(CarriedWindows(text(100), 8, 3))
    made._loss("train", windows[0])
    before = made._carried.of["train"][0].clone()
    likelihood(made, Stream(text(50), 10))
    made.statistics_step(windows[0])
    assert torch.equal(made._carried.of["train"][0], before)


@pytest.fixture
def window():
    return next(iter(IndependentWindows(text(200), 6, 8, seed=1)))


def silent(made):
    made.log = lambda *_, **__: None
    return made


def test_the_norm_stabilizer_is_paid_in_training_alone(window):
    plain, paid = silent(model()), silent(model(norm_stabilizer=3.0))
    output, _ = plain._read_on("train", window)
    cost = rnnorm.norm_stabilizer(output, 3.0)
    assert cost > 1e-3
    torch.testing.assert_close(paid.training_step(window, 0), plain.training_step(window, 0) + cost)
    assert likelihood(paid, [window]) == likelihood(plain, [window])


def test_weights_are_normalised_after_they_are_drawn(window):
    plain, normalised = (
        model(init="joint_orthogonal"),
        model(init="joint_orthogonal", weight_norm=True),
    )
    torch.testing.assert_close(normalised.rnn.weight_hh_l0, plain.rnn.weight_hh_l0)
    assert likelihood(normalised, [window]) == pytest.approx(likelihood(plain, [window]))


def hmlstm(boundary, **arguments):
    return silent(
        model(cell="HMLSTM", num_layers=3, cell_options={"boundary": boundary}, **arguments)
    )


def boundary_gradient(made, window):
    """Of the row of the lowest layer's weights that makes its boundary."""
    made.training_step(window, 0).backward()
    return made.rnn.weight_ih_l0.grad[-1]


def test_sampled_boundaries_learn_by_reinforce(window):
    sampled, other = hmlstm("sample"), hmlstm("sample")
    torch.manual_seed(1)
    gradient = boundary_gradient(sampled, window)
    torch.manual_seed(1)
    output, boundaries = other._read_on("train", window)
    scores = other.scores(output).flatten(0, 1)
    nats = cross_entropy(scores, window.y.flatten(), reduction="none").view(6, 8)
    # the loss is the mean over 6 * 8 predictions, REINFORCE's the mean over 8 rows
    (nats.mean() + boundaries.reinforce(nats / 6)).backward()
    torch.testing.assert_close(gradient, other.rnn.weight_ih_l0.grad[-1])
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("boundary", ["step", "soft"])
def test_other_boundaries_learn_through_the_loss(window, boundary):
    assert boundary_gradient(hmlstm(boundary), window).abs().max() > 0


def told(boundaries=(("a",), ("b",)), **arguments):
    """A model of the characters a to g whose layers are told where their units end."""
    made = hmlstm("given", boundaries=[list(layer) for layer in boundaries], **arguments)
    made.check_data(SimpleNamespace(vocabulary=Vocabulary("abcdefg")))
    return made


@pytest.mark.parametrize("embedding_size", [None, 4])
def test_boundaries_are_given_by_the_symbols_that_are_read(embedding_size):
    made = told(embedding_size=embedding_size)
    x = torch.tensor([[2, 0, 3, 1, 4, 1, 0, 0]]).T
    _, _, boundaries = made.read(x)
    words, sentences = [0, 1, 0, 1, 0, 1, 1, 1], [0, 0, 0, 1, 0, 1, 0, 0]
    assert boundaries.z[:, 0].T.tolist() == [words, sentences]
    # behind a word the lowest layer begins anew, whatever its c was
    h, c, z = state = made.read(x[:2])[1]
    other = (h, torch.cat([c[:1] + 1, c[1:]]), z)
    for one, two in zip(made.read(x[2:], state, 2)[1], made.read(x[2:], other, 2)[1], strict=True):
        assert torch.equal(one, two)
    state, other = made.read(x[:3])[1], made.read(x[:3], None, 0)[1]
    other = (other[0], other[1] + 1, other[2])
    assert not torch.equal(made.read(x[3:], state, 3)[1][1], made.read(x[3:], other, 3)[1][1])


def test_a_layer_above_moves_at_the_end_of_a_word_alone():
    made = told()
    _, before, _ = made.read(torch.tensor([[2], [0]]))
    _, within, _ = made.read(torch.tensor([[3], [4]]), before, 2)
    assert torch.equal(within[0][1:], before[0][1:])
    _, after, _ = made.read(torch.tensor([[0]]), within, 4)
    assert not torch.equal(after[0][1], before[0][1])
    assert torch.equal(after[0][2], before[0][2])


def test_given_boundaries_are_in_a_checkpoint(window):
    made, other = told(), hmlstm("given", boundaries=[["a"], ["b"]])
    assert not other.ends.any()
    other.load_state_dict(made.state_dict())
    assert torch.equal(other.ends, made.ends)
    assert made.ends.sum(0).tolist() == [2, 1]
    made.training_step(window, 0).backward()
    assert all(p.grad.isfinite().all() for p in made.rnn.parameters())


@pytest.mark.parametrize("way", ["always", "e2e"])
def test_given_boundaries_are_those_of_the_models_own_symbols_too(window, way):
    options = {"first": 0} if way == "e2e" else None
    made = told(training=way, training_options=options)
    assert made.training_step(window, 0).isfinite()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"boundaries": None}, "boundaries must name the symbols .* for 2 layers, .* got None"),
        ({"boundaries": [["a"]]}, r"for 2 layers, .* got \[\['a'\]\]"),
        ({"boundaries": [["a"], []]}, "boundaries must name the symbols"),
        (
            {"cell_options": None, "boundaries": [["a"], ["b"]]},
            "boundaries must be None without cell_options boundary 'given'",
        ),
    ],
)
def test_boundaries_that_do_not_fit_the_layers_are_refused(options, what):
    given = {"cell": "HMLSTM", "num_layers": 3, "cell_options": {"boundary": "given"}}
    with pytest.raises(ValueError, match=what):
        model(**given | options)


def test_a_boundary_that_the_text_lacks_is_refused():
    with pytest.raises(ValueError, match=r"boundaries must be of symbols .* got '!'"):
        told([["!"], ["b"]])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_is_a_mean_or_a_sum_over_steps(monkeypatch, reduction):
    made = model(reduction=reduction)
    logged = {}
    monkeypatch.setattr(made, "log", lambda name, value, **_: logged.update({name: value}))
    window = next(iter(IndependentWindows(text(200), 6, 8, seed=1)))
    loss = made.training_step(window, 0)
    scores = made(window.x)[0]
    steps = [cross_entropy(s, y) for s, y in zip(scores, window.y, strict=True)]
    expected = sum(steps) if reduction == "sum" else sum(steps) / 6
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logged["train/loss"], sum(steps) / 6)


def test_uniform_weights_and_their_bound():
    made = model("batch", init="uniform", init_range=0.05, embedding_size=4)
    for name, parameter in made.named_parameters():
        if "gamma" in name:
            assert (parameter == 0.1).all()
        elif "beta" not in name:
            assert 0.03 < parameter.abs().max() <= 0.05


def test_other_recipes_have_zero_biases_and_a_forget_bias_if_asked():
    biases = [model(init="orthogonal", forget_bias=f).rnn.bias_ih_l0 for f in (None, 1.0)]
    assert (biases[0] == 0).all()
    assert biases[1].tolist() == [0] * 5 + [1] * 5 + [0] * 10


def test_dropout_is_of_training_alone():
    made = model(dropout=0.9, num_layers=2, embedding_size=4)
    x = text(20).symbols.unsqueeze(1)
    assert not torch.equal(made(x)[0], made(x)[0])
    made.eval()
    assert torch.equal(made(x)[0], made(x)[0])


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"cell": "CNN"}, "one of 'LSTM', 'GRU', .*, got 'CNN'"),
        ({"reduction": "max"}, "'mean' or 'sum', got 'max'"),
        ({"unit": "bytes"}, "'bits' or 'perplexity', got 'bytes'"),
        ({"init": "magic"}, "init must be None or one of .*got 'magic'"),
        ({"norm": "group"}, "group"),
        (
            {"cell": "GRU", "forget_bias": 1.0},
            r"forget_bias must be None \(null\) except for an LSTM .*, got 1.0 for GRU\(",
        ),
        ({"norm_stabilizer": -1.0}, "norm_stabilizer must .*got -1"),
        ({"learn_initial_state": "from_input"}, "must be True or False for a text, .*'from_input'"),
    ],
)
def test_bad_model_arguments(arguments, what):
    with pytest.raises(ValueError, match=what):
        model(**arguments)


def data(folder, **arguments):
    module = LanguageData(data_dir=str(folder), **arguments)
    module.setup()
    return module


def test_what_is_read_in_which_way(sentences):
    independent = data(sentences, length=20, crop=True)
    kinds = [type(independent.loaders[name]) for name in ("train", "val", "test")]
    assert kinds == [IndependentWindows, IndependentWindows, Stream]
    assert independent.train_dataloader().crop
    carried = data(sentences, windows="carried", length=5, batch_size=4, eval_batch_size=4)
    assert [type(carried.loaders[n]) for n in ("train", "val")] == [CarriedWindows] * 2
    window = next(iter(independent.val_dataloader()))
    assert isinstance(window, Window)
    assert window.x.shape[0] == 20


def test_evaluation_windows_of_any_length(sentences):
    module = data(sentences, length=20, test_by="windows", eval_length=100, eval_batch_size=2)
    assert next(iter(module.test_dataloader())).x.shape == (100, 2)


def test_sizes_keep_the_vocabulary_whole(sentences):
    module = data(sentences, length=3, train_size=5, eval_size=4)
    assert module.vocabulary.symbols == load_corpus("ptb-char", sentences).vocabulary.symbols
    assert len(module.train_dataloader().symbols) == 5
    assert len(module.test_dataloader().symbols) == 4


def test_a_model_of_another_vocabulary_is_refused(sentences):
    module = data(sentences)
    symbols = len(module.vocabulary)
    LanguageModel(symbols, hidden_size=2).check_data(module)
    with pytest.raises(ValueError, match=rf"vocabulary_size must be {symbols}, .*got 50"):
        LanguageModel(50, hidden_size=2).check_data(module)


def test_a_checkpoint_of_another_vocabulary_is_refused(sentences):
    module = data(sentences)
    module.load_state_dict(module.state_dict())
    module.load_state_dict({})
    with pytest.raises(ValueError, match=r"ptb\.char\.train\.txt .* is not that of the checkpoint"):
        module.load_state_dict({"vocabulary": ["a", "b"]})


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"windows": "sliding"}, "'independent' or 'carried', got 'sliding'"),
        ({"windows": "carried", "crop": True}, "crop must be False"),
        ({"val_by": "rows"}, "val_by must be 'windows' or 'stream', got 'rows'"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"eval_size": 0}, "eval_size must be at least 1, got 0"),
        ({"length": 5000}, r"ptb\.char\.train\.txt ends after .* of 5000 predictions needs 5001"),
        ({"length": 400}, r"ptb\.char\.valid\.txt ends after .* of 400 predictions needs 401"),
    ],
)
def test_bad_data_arguments(sentences, arguments, what):
    with pytest.raises(ValueError, match=what):
        data(sentences, **arguments)


def test_a_uniform_guess_has_the_entropy_of_the_vocabulary():
    made = model()
    torch.nn.init.zeros_(made.classifier.weight)
    torch.nn.init.zeros_(made.classifier.bias)
    assert likelihood(made, Stream(text(50))) == pytest.approx(math.log(SYMBOLS))


def test_norm_options_reach_the_layer():
    made = model("batch", norm_options={"momentum": 0.05})
    assert made.rnn.norm == rnnorm.BatchNorm(momentum=0.05)


def generated(made, window):
    """The loss where the model feeds itself, and what was fed: one-hot symbols of each call."""
    made.log, fed = lambda *_, **__: None, []
    hook = made.rnn.register_forward_pre_hook(lambda _, given: fed.append(given[0].argmax(2)))
    torch.manual_seed(3)
    loss = made._generated(window)
    hook.remove()
    return loss, fed


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "HMLSTM"])
def test_what_the_model_feeds_itself_is_read_as_a_text_is(cell, norm):
    one, two, *_ = CarriedWindows(text(200), 6, 9)
    losses, states = [], []
    made = model(norm, cell, training="always")
    for window in (one, two):
        loss, fed = generated(made, window)
        assert [len(each) for each in fed] == 6 * [1]
        x = torch.cat(fed)
        assert torch.equal(x[0], window.x[0])
        assert not torch.equal(x[1:], window.x[1:])
        losses.append((loss, window._replace(x=x)))
        states.append(made._carried.of["train"])
    again = model(norm, cell)
    for (loss, window), kept in zip(losses, states, strict=True):
        torch.testing.assert_close(again._loss("train", window), loss)
        torch.testing.assert_close(again._carried.of["train"], kept)


def test_scheduled_sampling_is_teacher_forcing_at_first(window):
    options = {"decay": "linear", "k": 1.0, "c": 0.5}
    made = model(training="scheduled", training_options=options)
    loss, fed = generated(made, window)
    assert torch.equal(torch.cat(fed), window.x)
    torch.testing.assert_close(loss, made._loss("val", window))


@pytest.mark.parametrize("name", ["scheduled", "always", "uniform", "dad", "e2e"])
@pytest.mark.parametrize("norm", [None, "batch", "layer"])
def test_padding_is_nothing_however_it_is_trained(name, norm, window):
    lengths = torch.tensor([6, 2, 5, 3, 6, 4, 2, 6])
    outside = torch.arange(6).unsqueeze(1) >= lengths
    ragged = window._replace(y=window.y.masked_fill(outside, -100), lengths=lengths)
    options = {"k": 1.0} if name in ("scheduled", "uniform") else {}
    results = []
    for padding in (0, 5):
        made = model(norm, training=name, training_options=options).double()
        x = ragged.x.masked_fill(outside, padding % SYMBOLS)
        x = torch.cat([x, torch.full((padding, 8), 3)])
        y = torch.cat([ragged.y, torch.full((padding, 8), -100)])
        longest = int(lengths.max())
        loss, _ = generated(made, ragged._replace(x=x, y=y))
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in made.parameters()), *made.buffers()])
        assert longest == 6
    torch.testing.assert_close(*results, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"training": "mixer"}, "training must be any way but 'mixer' for a text"),
        ({"training": "forced"}, "training must be one of 'teacher', .*, got 'forced'"),
        ({"training": "always", "norm_stabilizer": 1.0}, "training must be 'teacher' with norm_st"),
        (
            {"training": "dad", "cell": "HMLSTM", "cell_options": {"boundary": "sample"}},
            "training must be 'teacher' with norm_stabilizer or sampled boundaries",
        ),
    ],
)
def test_ways_that_do_not_fit_a_text_are_refused(given, what):
    with pytest.raises(ValueError, match=what):
        model(**given)
