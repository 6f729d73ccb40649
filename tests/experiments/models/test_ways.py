import math

import pytest
import torch
from torch.nn.functional import one_hot
from translations import SOURCE, TARGET, WORDS, batch, calls, model

from rnnorm.experiments.models import feeding, generation_training
from rnnorm.experiments.models.bleu import sentence_bleu
from rnnorm.experiments.models.generation_training import (
    E2E,
    Mixer,
    Progress,
    Scheduled,
    Teacher,
    likelihood_loss,
    training_by_name,
)

STEPS = int(TARGET.max())


def own_of(name, place, **options):
    return training_by_name(name, options).feeding(model().task(batch()), place)


def test_the_probability_of_the_truth_decays():
    linear = Scheduled("linear", k=1.0, c=0.1, floor=0.25)
    assert [linear.truth(i) for i in (0, 5, 99)] == pytest.approx([1, 0.5, 0.25])
    exponential = Scheduled("exponential", k=0.9)
    assert [exponential.truth(i) for i in (0, 2)] == pytest.approx([1, 0.81])
    sigmoid = Scheduled("inverse_sigmoid", k=10.0)
    assert [sigmoid.truth(i) for i in (0, 7, 20)] == pytest.approx(
        [10 / (10 + math.exp(i / 10)) for i in (0, 7, 20)]
    )
    assert sigmoid.truth(10**6) == pytest.approx(0)


def test_as_many_symbols_are_drawn_as_the_schedule_says():
    task = model().task(batch())
    task = task._replace(target=task.target.repeat(1, 1000), lengths=torch.full((6000,), STEPS))
    feeding = Scheduled("exponential", k=0.3).feeding(task, Progress(minibatch=1))
    assert not feeding.own[0].any()
    assert not feeding.own[STEPS].any()
    assert float(feeding.own[1:STEPS].double().mean()) == pytest.approx(0.7, abs=0.01)


@pytest.mark.parametrize("name", ["scheduled", "always", "dad", "e2e"])
def test_where_the_truth_is_fed_and_where_not(name):
    inside = (torch.arange(STEPS + 1).unsqueeze(1) < TARGET) & (
        torch.arange(STEPS + 1).unsqueeze(1) > 0
    )
    task = model().task(batch())
    seen = []
    task = task._replace(
        write=lambda feeding: seen.append(feeding) or model().task(batch()).write(feeding)
    )
    training_by_name(name, {"steps": 9} if name == "e2e" else {}).loss(task, Progress(10**6))
    assert torch.equal(seen[-1].own, inside)
    assert torch.equal(seen[-1].truth[0], torch.zeros(6).long())
    assert torch.equal(seen[-1].truth[1:], task.target[:-1])


@pytest.mark.parametrize(
    ("name", "minibatch", "expected"),
    [
        ("teacher", 0, [STEPS]),
        ("uniform", 10**6, [STEPS]),
        ("scheduled", 10**6, STEPS * [1]),
        ("always", 0, STEPS * [1]),
        ("dad", 0, [STEPS] + STEPS * [1]),
    ],
)
def test_steps_whose_inputs_are_known_are_one_call(name, minibatch, expected):
    net = model(training=name)
    seen = calls(net.decoder)
    net.way.loss(net.task(batch()), Progress(minibatch))
    assert [steps for steps, _ in seen] == expected


def test_uniform_sampling_feeds_any_symbol():
    feeding = own_of("uniform", Progress(10**6))
    inside = torch.arange(1, STEPS).unsqueeze(1) < TARGET
    differs = feeding.truth[1:] != batch().target[:-1]
    assert differs[inside].double().mean() > 0.6
    assert feeding.truth.max() < WORDS
    assert not differs[~inside].any()


def test_the_tail_grows():
    mixer = Mixer(first=2, steps=3, every=2)
    assert [mixer.tail(epoch) for epoch in range(7)] == [0, 0, 3, 3, 6, 6, 9]
    e2e = E2E(steps=2).feeding(model().task(batch()), Progress())
    steps = torch.arange(STEPS + 1).unsqueeze(1)
    assert torch.equal(e2e.own, (steps >= (TARGET - 2).clamp(min=1)) & (steps < TARGET))


def test_mixer_is_teacher_forcing_at_first():
    net = model()
    losses = [way.loss(net.task(batch()), Progress(epoch=1)) for way in (Teacher(), Mixer(first=2))]
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)


def test_dad_is_the_mean_of_both():
    net = model()
    task = net.task(batch())
    teacher = Teacher().feeding(task, Progress())
    inside = torch.arange(STEPS + 1).unsqueeze(1) < TARGET
    inside[0] = False
    losses = [likelihood_loss(task, feeding) for feeding in (teacher, teacher._replace(own=inside))]
    assert abs(losses[0] - losses[1]).item() > 1e-4
    found = training_by_name("dad").loss(net.task(batch()), Progress())["loss"]
    torch.testing.assert_close(found, sum(losses) / 2)


def test_the_top_k_are_fed_by_their_probabilities():
    scores = torch.randn(4, WORDS).double()
    symbols, weights = E2E(top_k=3)._top(scores)
    expected = (scores.softmax(1) * one_hot(symbols, WORDS).sum(1)).double()
    expected = expected / expected.sum(1, keepdim=True)
    found = torch.zeros_like(scores).scatter(1, symbols, weights)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("name", "goes_through"), [("e2e", True), ("always", False)])
def test_the_gradient_goes_through_what_is_fed_end_to_end_alone(name, goes_through):
    net = model()
    task = net.task(batch())
    options = {"steps": 9} if name == "e2e" else {}
    written = task.write(training_by_name(name, options).feeding(task, Progress()))
    # of the last step of the longest row, which the classifier touches by what was fed alone
    last = written.features[(written.rows == 3) & (written.steps == STEPS - 1)].sum()
    (grad,) = torch.autograd.grad(last, net.decoder.classifier.weight, allow_unused=True)
    assert (grad is not None and bool(grad.abs().max() > 1e-8)) is goes_through


def test_mixer_draws_the_last_steps_and_feeds_the_truth_before(monkeypatch):
    net = model()
    drawn = []

    def draw(scores):
        drawn.append(len(scores))
        # no row ever ends by itself
        return torch.full((len(scores), 1), 5), torch.ones(len(scores), 1).double()

    monkeypatch.setattr(generation_training, "draw", draw)
    seen = calls(net.decoder)
    Mixer(steps=2).loss(net.task(batch()), Progress())
    # rows draw from two steps before their end up to two steps after it
    steps = range(STEPS + 2)
    at = [int(((t >= TARGET - 2) & (t < TARGET + 2)).sum()) for t in steps]
    assert drawn == [n for n in at if n]
    going = [int((t < TARGET + 2).sum()) for t in steps]
    assert [rows for steps, rows in seen for _ in range(steps)] == going


def test_reinforce_is_the_gradient_of_the_expected_reward(monkeypatch):
    torch.manual_seed(3)
    net = model(target_size=4)
    whole = batch()
    one = type(whole)(
        whole.source[: SOURCE[0], :1], SOURCE[:1], torch.tensor([[2], [0]]), torch.tensor([2])
    )
    # the first word is given, two more may be drawn
    parameters = [p for n, p in net.named_parameters() if not n.startswith("baseline")]
    sequences = [[0], *([a, b] for a in range(1, 4) for b in range(4))]
    expected_reward, found = 0, None
    for sequence in sequences:
        symbols, log_p = iter(sequence), []

        def draw(scores, symbols=symbols, log_p=log_p):
            symbol = next(symbols)
            log_p.append(scores.log_softmax(1)[0, symbol])
            return torch.tensor([[symbol]]), torch.ones(1, 1).double()

        monkeypatch.setattr(generation_training, "draw", draw)
        loss = Mixer(steps=1).loss(net.task(one), Progress())["loss"]
        p = sum(log_p).exp()
        written = torch.tensor([[2], *([s] for s in sequence), [0]])
        expected_reward = expected_reward + p * sentence_bleu(written, one.target).double()[0]
        # of the mean over the given word and those drawn; the given one's part is no reward's
        grads = torch.autograd.grad(
            (1 + len(sequence)) * loss - _given(net, one), parameters, retain_graph=True
        )
        grads = [p.detach() * g for g in grads]
        found = grads if found is None else [a + b for a, b in zip(found, grads, strict=True)]
    exact = torch.autograd.grad(-expected_reward, parameters)
    torch.testing.assert_close(found, list(exact), rtol=1e-6, atol=1e-9)
    assert max(float(g.abs().max()) for g in exact) > 1e-4


def _given(net, one):
    """Cross-entropy of the first word."""
    task = net.task(one)
    written = task.write(Teacher().feeding(task, Progress()))
    return -task.scores(written.features)[0].log_softmax(0)[2]


def test_the_baseline_learns_the_reward():
    net = model(training="mixer")
    torch.manual_seed(4)
    found = Mixer(steps=9).loss(net.task(batch()), Progress())
    found["loss"].backward()
    assert net.baseline.weight.grad.abs().max() > 0
    assert 0 <= float(found["reward"]) <= 1


def test_symbols_are_drawn_as_often_as_they_are_probable():
    torch.manual_seed(5)
    p = torch.tensor([0.0, 0.5, 0.2, 0.3, 0.0]).double()
    symbols, weights = feeding.draw(p.log().expand(20_000, 5))
    assert symbols.shape == weights.shape == (20_000, 1)
    found = one_hot(symbols.squeeze(1), 5).double().mean(0)
    torch.testing.assert_close(found, p, rtol=0, atol=0.015)
    assert not found[p == 0].any()


def test_so_are_they_in_half_types():
    torch.manual_seed(5)
    # a sum of bfloat16 would not grow by so little
    symbols, _ = feeding.draw(torch.zeros(20_000, 1000, dtype=torch.bfloat16))
    assert len(symbols.unique()) == 1000
