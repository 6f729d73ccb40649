import itertools

import pytest
import torch
from parallel_files import write_multi30k
from torch.nn.functional import cross_entropy
from translations import TARGET, batch, calls, lively, model

from rnnorm.experiments.models.feeding import write, writing_freely
from rnnorm.experiments.models.generation_training import WAYS, Progress, Teacher, training_by_name
from rnnorm.experiments.tasks.translation.beam import beam_search
from rnnorm.experiments.tasks.translation.data import TranslationData
from rnnorm.experiments.tasks.translation.model import Translator
from rnnorm.lightning import estimate_statistics

NORMS = [None, "batch", "layer"]
#: late enough for every schedule
LATE = Progress(minibatch=3000, epoch=1)


def trained_statistics(**given):
    """A model in evaluation, with population statistics of the minibatch where it has them."""
    net = model(**given)
    if given.get("norm") == "batch":
        estimate_statistics([batch()], net)
    return net.eval()


def steps_of(chosen):
    """How many symbols each row wrote, the end symbol included."""
    ended = chosen == 0
    return torch.where(ended.any(0), ended.int().argmax(0) + 1, len(chosen))


def fed(target):
    """The target of a task, and the truth that is fed."""
    return {"target": target, "truth": torch.cat([torch.zeros_like(target[:1]), target[:-1]])}


def free(net, limit, at=None):
    at = at or net.encode(batch().source, batch().source_lengths)
    return write(net.decoder, at, writing_freely(len(at.memory.y), limit, at.memory.y.device))


def beam_of_one(net, limit):
    return beam_search(net.decoder, net.encode(batch().source, batch().source_lengths), 1, limit)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", WAYS)
def test_padding_is_nothing_however_it_is_trained(name, norm):
    results = []
    for padding in (0, 8):
        net = model(norm=norm, training=name)
        torch.manual_seed(2)
        loss = net.way.loss(net.task(batch(padding)), LATE)["loss"]
        loss.backward()
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        results.append([loss.detach(), *grads, *net.buffers()])
    torch.testing.assert_close(*results, rtol=0, atol=1e-11)
    # all of the model learns, but the baseline of one way alone
    assert len(grads) == len(list(net.parameters())) - 2 * (name != "mixer")


@pytest.mark.parametrize("norm", [None, "layer"])
def test_the_loss_is_that_of_each_sentence_alone(norm):
    net, whole = model(norm=norm), batch()
    task = net.task(whole)
    loss = Teacher().loss(task, Progress())["loss"]
    alone = 0
    for row, length in enumerate(TARGET):
        one = type(whole)(*(each[..., row : row + 1] for each in whole))
        one_loss = Teacher().loss(net.task(one), Progress())["loss"]
        alone = alone + length * one_loss
    torch.testing.assert_close(loss, alone / TARGET.sum())


@torch.no_grad()
def test_a_score_is_the_mean_over_all_words_whatever_the_minibatches():
    net, whole, found = model().eval(), batch(), []
    net.log = lambda *args, **options: None
    for rows in (1, len(TARGET)):
        for first in range(0, len(TARGET), rows):
            some = type(whole)(*(each[..., first : first + rows] for each in whole))
            net.evaluate("val", some)
        found.append(net.val_likelihood.compute())
        net.val_likelihood.reset()
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN", "ClockworkRNN"])
@pytest.mark.parametrize("norm", NORMS)
@torch.no_grad()
def test_one_call_with_what_was_written_is_the_same_as_step_by_step(cell, norm):
    net = trained_statistics(cell=cell, norm=norm, hidden_size=8)
    at = net.encode(batch().source, batch().source_lengths)
    limit = 12
    written = free(net, limit, at)
    lengths = steps_of(written.chosen)
    task = net.task(batch())._replace(**fed(written.chosen), lengths=lengths)
    seen = calls(net.decoder)
    known = task.write(Teacher().feeding(task, Progress()))
    assert len(seen) == 1
    assert len(known.steps) == len(written.steps) == lengths.sum()
    for each in (written, known):
        order = (each.rows * limit + each.steps).argsort()
        torch.testing.assert_close(
            net.decoder.scores(each.features[order]).argmax(1),
            torch.cat([written.chosen[:n, row] for row, n in enumerate(lengths)]),
        )


def test_in_training_one_call_takes_the_statistics_of_single_steps():
    whole = batch()
    same = whole._replace(target=whole.target[:3], target_lengths=torch.full((6,), 3))
    features, moments = [], []
    for steps in (1, 3):
        net = model(norm="batch")
        task = net.task(same)
        feeding = Teacher().feeding(task, Progress())
        if steps == 1:
            # a choice after each step that is the truth
            truth = iter(same.target)
            feeding = feeding._replace(own=torch.ones_like(feeding.own))
            feeding.own[0], feeding.own[3] = False, False
            feeding = feeding._replace(
                choose=lambda s, truth=truth: (
                    next(truth).unsqueeze(1),
                    torch.ones_like(s[:, :1]),
                )
            )
        seen = calls(net.decoder)
        written = task.write(feeding)
        assert len(seen) == 4 - max(1, steps)
        features.append(written.features)
        moments.append([b for n, b in net.decoder.named_buffers() if "population" in n])
    torch.testing.assert_close(*features)
    torch.testing.assert_close(*moments)


@pytest.mark.parametrize("by", [free, beam_of_one])
def test_a_row_that_has_ended_costs_nothing_more(by):
    net = lively(trained_statistics(cell="RNN"), 2)
    seen = calls(net.decoder)
    with torch.no_grad():
        by(net, 9)
        lengths = steps_of(free(net, 9).chosen)
    assert lengths.tolist() == [5, 9, 9, 2, 9, 9]
    ran = [(1, int((lengths > t).sum())) for t in range(int(lengths.max()))]
    assert seen == 2 * ran


@torch.no_grad()
def test_a_translation_does_not_depend_on_the_others():
    net, whole = trained_statistics(norm="layer"), batch()
    together = net.translate(whole.source, whole.source_lengths)
    for row, length in enumerate(whole.source_lengths):
        alone = net.translate(whole.source[:, row : row + 1], length.reshape(1))
        assert torch.equal(alone[:, 0], together[:, row])


@pytest.mark.parametrize("norm", NORMS)
@torch.no_grad()
def test_a_beam_of_one_is_greedy(norm):
    net = trained_statistics(norm=norm, cell="RNN")
    at = net.encode(batch().source, batch().source_lengths)
    greedy = free(net, 20, at).chosen
    beam = beam_search(net.decoder, at, 1, 20)
    assert torch.equal(beam, greedy[: len(beam)])
    assert not greedy[len(beam) :].any()


@torch.no_grad()
def test_a_beam_as_wide_as_all_translations_finds_the_best():
    limit = 3
    net = trained_statistics(target_size=4)
    at = net.encode(batch().source, batch().source_lengths)
    found = beam_search(net.decoder, at, 4**limit, limit)
    best = torch.full((6,), -torch.inf).double()
    winners = [()] * 6
    for words in itertools.product(range(4), repeat=limit):
        # nothing follows an end
        length = words.index(0) + 1 if 0 in words else limit
        if any(words[length:]):
            continue
        target = torch.tensor(words[:length]).unsqueeze(1).expand(length, 6)
        task = net.task(batch())._replace(**fed(target), lengths=torch.full((6,), length))
        written = task.write(Teacher().feeding(task, Progress()))
        scores = net.decoder.scores(written.features)
        losses = cross_entropy(scores, written.of(target), reduction="none")
        total = torch.zeros(6).double().index_add(0, written.rows, -losses) / length
        for row in (total > best).nonzero().flatten().tolist():
            best[row], winners[row] = total[row], words
    assert [tuple(row) for row in found.T.tolist()] == winners


def test_statistics_are_of_what_the_decoder_saw():
    counted = []
    for statistics in ("teacher", "free"):
        given = {"limit": 9, "norm": "batch", "norm_options": {"min_rows": 2}, "cell": "RNN"}
        net = lively(model(statistics=statistics, **given), 0)
        estimate_statistics(3 * [batch()], net)
        rows = net.decoder.rnn.population_recurrent_l0.rows.clone()
        lengths = TARGET if statistics == "teacher" else steps_of(free(net, 9).chosen)
        expected = [3 * int((lengths > t).sum()) for t in range(len(rows))]
        # steps that fewer rows reach than four times the least are served by earlier ones
        assert rows.tolist() == [n if n >= 4 * 2 else 0 for n in expected]
        counted.append(expected)
    assert counted[0] != counted[1]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"training": "forcing"}, "training must be one of 'teacher', .*, got 'forcing'"),
        ({"training_options": {"k": 1}}, "options of teacher, got 'k': it has none"),
        ({"training": "mixer", "training_options": {"step": 1}}, "got 'step': it has steps"),
        ({"training": "e2e", "training_options": {"top_k": 0}}, "top_k must be at least 1, got 0"),
        ({"training": "mixer", "training_options": {"every": "a"}}, "must be numbers"),
        ({"training": "scheduled", "training_options": {"decay": "cosine"}}, "decay must be one"),
        ({"training": "uniform", "training_options": {"k": 0.5}}, "at least 1 if inverse_sigmoid"),
        ({"cell": "HMLSTM"}, "cell must be another one to translate, got 'HMLSTM'"),
        ({"beam": 0}, "beam must be at least 1"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"dropout": 1.1}, "dropout must be from 0 to 1, got 1.1"),
        ({"statistics": "own"}, "statistics must be 'teacher' or 'free'"),
    ],
)
def test_wrong_arguments(given, what):
    with pytest.raises(ValueError, match=what):
        model(**given)


def test_the_options_of_a_way_are_its_own():
    assert training_by_name("uniform", {"k": 7}).k == 7
    assert training_by_name("e2e", {"top_k": 3, "first": 2}).top_k == 3


def test_the_data_number_words_and_say_what_is_unknown(tmp_path):
    write_multi30k(tmp_path, train=50)
    data = TranslationData(data_dir=str(tmp_path), words=4, longest=3, batch_size=8)
    data.setup()
    left = 50 - len(data.loaders["train"].pairs)
    assert 0 < left < 50
    assert f"training: {left} pairs of more than 3 words left out" in data.notes
    assert any("sacrebleu nrefs:1|" in note for note in data.notes)
    with pytest.raises(ValueError, match=r"source_size must be 6, the 4 words of the source"):
        Translator(source_size=7, target_size=6).check_data(data)
    ends = [int(target[-1]) for _, target in data.loaders["val"].pairs]
    assert ends == 30 * [0]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"words": 0}, "words must be at least 1"),
        ({"longest": 0}, "longest must be at least 1"),
        ({"dataset": "files", "source": "a"}, "must both name a file, or none"),
    ],
)
def test_wrong_arguments_of_the_data(tmp_path, given, what):
    with pytest.raises(ValueError, match=what):
        TranslationData(data_dir=str(tmp_path), **given).setup()
