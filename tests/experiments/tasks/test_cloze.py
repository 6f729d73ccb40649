import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import rnnorm
from rnnorm.experiments.data.questions.encode import NO_CANDIDATE, ClozeBatch, QuestionBatches
from rnnorm.experiments.tasks.cloze.data import ClozeData
from rnnorm.experiments.tasks.cloze.model import ClozeReader
from rnnorm.layers.normalised_module import temporarily

BN = {"norm": "batch", "norm_options": {"min_rows": 4}}
SEQUENCE = {"norm": "batch", "norm_options": {"min_rows": 4, "input": "sequence"}}
VARIANTS = {
    "LSTM": {},
    "BN-LSTM": BN,
    "BN-everywhere": BN | {"attention_norm": True},
    "BN-e*": SEQUENCE | {"attention_norm": True},
    "BN-e**": SEQUENCE | {"attention_norm": True, "bidirectional": True},
}


def write_stories(folder, count=40, shortest=2, longest=4):
    """People are in places: where is one of them, or who is in the place of the first one?"""
    random = np.random.RandomState(1)
    people = ["mary", "john", "ann", "bob", "eve", "max"]
    places = ["hall", "garden", "office", "kitchen", "attic", "park"]
    for part in ("train", "test"):
        lines = []
        for i in range(count):
            size = shortest + i % (longest - shortest + 1)
            went = [(random.choice(people), random.choice(places)) for _ in range(size)]
            lines += [f"{n} {who} is in the {where}." for n, (who, where) in enumerate(went, 1)]
            (who, where), n = went[0], size + 1
            lines.append(
                f"{n} Where is he or she?\t{where}\t1" if i // 3 % 2 else f"{n} Who?\t{who}\t1"
            )
        (folder / f"qa1_where_{part}.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def stories(tmp_path):
    write_stories(tmp_path)
    return tmp_path


def data(folder, **arguments):
    module = ClozeData(**({"dataset": "babi", "data_dir": str(folder), "tasks": [1]} | arguments))
    module.setup()
    return module


def reader(module, **arguments):
    torch.manual_seed(0)
    size = len(module.numbering)
    return ClozeReader(
        **({"hidden_size": 8, "embedding_size": 8} | arguments), vocabulary_size=size
    )


def real(name, **arguments):
    folder = Path(os.environ.get("RNNORM_DATA", "nowhere")) / "cloze"
    if not folder.is_dir():
        pytest.skip("RNNORM_DATA does not name a folder with cloze/")
    return data(folder, dataset=name, train_size=200, eval_size=20, batch_size=20, **arguments)


@pytest.fixture(scope="module")
def babi():
    return real("babi", tasks=[1, 4, 5])


@pytest.fixture(scope="module")
def chinese():
    return real("chinese", tasks=None, words=2000, placeholders=120)


def everything(model, batch):
    """Loss, gradients and buffers of a training step, on the kernel that is the definition."""
    model.train().zero_grad()
    with rnnorm.use_backend("reference"):
        scores, _ = model(batch)
        loss = cross_entropy(scores.T, batch.answers)
        loss.backward()
    gradients = {f"gradient of {n}": p.grad.clone() for n, p in model.named_parameters()}
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    return {"loss": loss.detach(), **gradients, **buffers}


def padded_longer(batch, fill):
    def longer(words):
        return torch.cat([words, torch.full_like(words, fill)])

    return batch._replace(x=longer(batch.x), query=longer(batch.query))


def with_garbage(batch, size):
    def filled(words, lengths):
        outside = torch.arange(len(words)).unsqueeze(1) >= lengths
        assert outside.any()
        return torch.where(outside, torch.randint(size, words.shape), words)

    return batch._replace(
        x=filled(batch.x, batch.lengths), query=filled(batch.query, batch.query_lengths)
    )


def with_nan(model, batch):
    """Let the embedding of what is padded be NaN."""

    def hook(_, given, output):
        (words,) = given
        lengths = batch.lengths if len(words) == batch.lengths.max() else batch.query_lengths
        assert len(words) == lengths.max()
        outside = torch.arange(len(words)).unsqueeze(1) >= lengths
        return output.masked_fill(outside.unsqueeze(2), torch.nan)

    return model.embedding.register_forward_hook(hook)


@pytest.fixture
def made_up(stories):
    return data(stories, batch_size=20)


@pytest.mark.parametrize(
    ("name", "variant"),
    [*(("made_up", variant) for variant in VARIANTS), ("babi", "BN-e**"), ("chinese", "BN-e**")],
)
def test_padding_is_nothing(request, name, variant):
    module = request.getfixturevalue(name)
    batch = next(iter(module.train_dataloader()))
    assert len(batch.lengths.unique()) > 2
    assert len(batch.query_lengths.unique()) > 1
    size = len(module.numbering)
    expected = everything(reader(module, **VARIANTS[variant]), batch)
    assert all(torch.isfinite(value).all() for value in expected.values())
    changed = {
        "longer": padded_longer(batch, 0),
        "longer, with another word": padded_longer(batch, size - 1),
        "garbage": with_garbage(batch, size),
        "NaN": batch,
    }
    for how, other in changed.items():
        model = reader(module, **VARIANTS[variant])
        if how == "NaN":
            with_nan(model, batch)
        got = everything(model, other)
        assert got.keys() == expected.keys()
        for key, value in expected.items():
            assert torch.equal(got[key], value), f"{how}: {key}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_fused_kernel_agrees(stories, variant):
    module = data(stories)
    batch = next(iter(module.train_dataloader()))
    expected = everything(reader(module, **VARIANTS[variant]), batch)
    model = reader(module, **VARIANTS[variant])
    loss = cross_entropy(model(batch)[0].T, batch.answers)
    torch.testing.assert_close(loss.detach(), expected["loss"])


def test_autocast(stories):
    module = data(stories)
    model = reader(module, **VARIANTS["BN-e**"])
    batch = next(iter(module.train_dataloader()))
    expected = cross_entropy(model(batch)[0].T, batch.answers)
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(model(batch)[0].T, batch.answers)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=0.05, atol=0, check_dtype=False)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_question_is_answered_by_itself_in_evaluation(stories, bidirectional):
    module = data(stories)
    model = reader(module, bidirectional=bidirectional).eval()
    batch = next(iter(module.train_dataloader()))
    scores, s = model(batch)
    for i in range(5):
        n, m, c = (int(v) for v in (batch.lengths[i], batch.query_lengths[i], 0))
        c = int((batch.candidates[:, i] >= 0).sum())
        x, query, candidates = (p[:k, [i]] for p, k in zip(batch[0:5:2], (n, m, c), strict=True))
        one = ClozeBatch(
            x, batch.lengths[[i]], query, batch.query_lengths[[i]], candidates, batch.answers[[i]]
        )
        alone, attention = model(one)
        torch.testing.assert_close(alone[:, 0], scores[:c, i])
        torch.testing.assert_close(attention[:, 0], s[:n, i])
        assert (scores[c:, i] == -torch.inf).all()


def test_the_query_is_read_in_both_directions(stories):
    module = data(stories)
    model = reader(module, bidirectional=True).eval()
    batch = next(iter(module.val_dataloader()))
    last = model(batch)[0]
    for at in (0, int(batch.query_lengths.min()) - 1):
        other = batch.query.clone()
        other[at] = (other[at] + 1) % 5
        assert not torch.allclose(model(batch._replace(query=other))[0], last)


def test_a_question_without_its_answer_is_an_error_and_has_no_loss(stories, monkeypatch):
    module = data(stories)
    model = reader(module)
    batch = next(iter(module.val_dataloader()))
    logged = {}
    monkeypatch.setattr(model, "log", lambda name, value, **rest: logged.update({name: value}))
    scores, _ = model(batch)
    right = batch._replace(answers=scores.argmax(0))
    half = right.answers.clone()
    half[: len(half) // 2] = -1
    model.validation_step(batch._replace(answers=half), 0)
    assert float(logged["val/error"]) == pytest.approx((len(half) // 2) / len(half))
    rest = slice(len(half) // 2, None)
    expected = cross_entropy(scores.T[rest], half[rest])
    torch.testing.assert_close(logged["val/loss"], expected)
    logged.clear()
    nothing = torch.full_like(batch.candidates[:1], NO_CANDIDATE)
    model.validation_step(batch._replace(candidates=nothing, answers=0 * half - 1), 0)
    assert logged.keys() == {"val/error"}
    assert float(logged["val/error"]) == 1
    logged.clear()
    model.test_step(batch._replace(answers=torch.full_like(half, -1)), 0)
    assert logged.keys() == {"test/error", "test/sampling_error"}
    assert float(logged["test/error"]) == 1


def test_what_is_left_out_is_told(stories):
    path = stories / "qa1_where_train.txt"
    path.write_text(path.read_text().replace("\thall\t", "\tnowhere\t"))
    module = data(stories)
    (note,) = module.notes
    assert "left out since their documents have not their answers" in note
    assert "qa1_where_train.txt, line" in note
    assert all((batch.answers >= 0).all() for batch in module.train_dataloader())
    path.write_text("1 Mary left.\n2 Is it so?\tyes\t1\n" * 20)
    with pytest.raises(ValueError, match=r"no document of the training .*qa1_where_train.txt, l"):
        data(stories)


def test_sizes_leave_the_vocabulary_as_it_is(stories):
    whole, less = data(stories), data(stories, train_size=5, eval_size=3)
    assert less.numbering.vocabulary.symbols == whole.numbering.vocabulary.symbols
    counts = [len(loader.questions) for loader in less.loaders.values()]
    assert counts == [5, 3, 3]
    assert isinstance(less.train_dataloader(), QuestionBatches)


def test_documents_are_cut_to_sentences(stories):
    short, whole = data(stories, sentences=1), data(stories)
    lengths = [
        max(int(b.lengths.max()) for b in module.test_dataloader()) for module in (short, whole)
    ]
    assert lengths[0] == 6 < lengths[1]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"dataset": "squad", "tasks": None}, "'cnn', 'babi' or 'chinese', got 'squad'"),
        ({"dataset": "cnn"}, r"tasks must be None for cnn, they are bAbI's, got \[1\]"),
        ({"sentences": 0}, "sentences must be at least 1, got 0"),
        ({"words": 0}, "words must be at least 1, got 0"),
        ({"placeholders": -1}, "placeholders must be at least 0, got -1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"tasks": [0]}, "1 to 20"),
    ],
)
def test_bad_arguments(stories, arguments, what):
    with pytest.raises(ValueError, match=what):
        data(stories, **arguments)


def test_a_cell_without_last_states_is_refused():
    with pytest.raises(ValueError, match=r"cell must be another one .*, got 'HMLSTM'"):
        ClozeReader(9, cell="HMLSTM")


def test_a_model_of_another_vocabulary_is_refused(stories):
    module = data(stories, placeholders=2)
    size = len(module.numbering)
    with pytest.raises(ValueError, match=f"vocabulary_size must be {size}, .* 2 place.* got 9"):
        ClozeReader(9, hidden_size=4, embedding_size=4).check_data(module)
    ClozeReader(size, hidden_size=4, embedding_size=4).check_data(module)


def test_a_checkpoint_of_other_words_is_refused(stories):
    module = data(stories)
    state = module.state_dict()
    module.load_state_dict(state)
    state["vocabulary"][0] = "elephant"
    with pytest.raises(ValueError, match="not that of the checkpoint"):
        module.load_state_dict(state)


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_learns(stories, variant):
    write_stories(stories, 400, 1, 2)
    module = data(stories, batch_size=32)
    # many queries begin with the same word: without noise the first steps have no variance
    sizes = {"hidden_size": 24, "embedding_size": 24, "initial_noise": 0.1}
    model = reader(module, **VARIANTS[variant], **sizes)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = module.train_dataloader()
    for epoch in range(8):
        loader.set_epoch(epoch)
        for batch in loader:
            optimiser.zero_grad()
            cross_entropy(model(batch)[0].T, batch.answers).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimiser.step()
    if "norm" in VARIANTS[variant]:
        rnnorm.update_bn(loader, model, forward=lambda m, b: m.statistics_step(b))
    wrong = chance = rows = 0
    for batch in module.val_dataloader():
        with torch.no_grad():
            scores, _ = model.eval()(batch)
        wrong += int((scores.argmax(0) != batch.answers).sum())
        chance += float((1 - 1 / (batch.candidates >= 0).sum(0)).sum())
        rows += len(batch.answers)
    assert rows >= 30
    assert wrong < 0.5 * chance


def test_examples_show_two_validation_questions(chinese, tmp_path):
    from matplotlib.figure import Figure

    model = reader(chinese).train()
    with temporarily(model.modules(), training=False), torch.no_grad():
        found = list(model.examples(chinese))
    assert model.training
    batch = next(iter(chinese.val_dataloader()))
    assert len(found) == 2
    for i, (title, caption, plot) in enumerate(found):
        figure = Figure()
        plot(figure.subplots())
        figure.savefig(tmp_path / "a.svg")
        assert title.endswith(f"question {i + 1}")
        assert len(figure.axes[0].texts) == int(batch.lengths[i])
        answer = batch.candidates[batch.answers[i], i]
        assert f"Answer: {chinese.numbering.name(int(answer))};" in caption
