import numpy as np
import pytest
from kaldi_files import PDFS, PDFS_APART, binary_model, text_model

from rnnorm.experiments.data.kaldi import model
from rnnorm.experiments.data.kaldi.alignments import read_int_vectors
from rnnorm.experiments.data.kaldi.model import read_pdf_ids

MODELS = {"binary": binary_model, "text": text_model}


@pytest.mark.parametrize("form", MODELS)
@pytest.mark.parametrize(("loops_apart", "pdfs"), [(False, PDFS), (True, PDFS_APART)])
def test_the_state_of_every_transition(tmp_path, form, loops_apart, pdfs):
    path = tmp_path / "final.mdl"
    path.write_bytes(MODELS[form](loops_apart))
    assert read_pdf_ids(path).tolist() == pdfs


@pytest.mark.parametrize("form", MODELS)
@pytest.mark.parametrize("loops_apart", [False, True])
def test_a_model_cut_anywhere_is_an_error_that_names_it(tmp_path, form, loops_apart):
    path, data = tmp_path / "final.mdl", MODELS[form](loops_apart)
    end = data.index(b"<LogProbs>") - 1
    for size in range(end):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"final\.mdl is (truncated|not a Kaldi model)"):
            read_pdf_ids(path)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is truncated: it ends at byte 0"),
        (b"\0B<Nnet3> <Topology> ", "'<Nnet3>' stands where <TransitionModel> should, at byte 2"),
        (b"hello there, this is a letter", "'hello' stands where <TransitionModel> should"),
        (bytes(100), "final.mdl is"),
        (text_model().replace(b"1 1 1\n", b"9 1 1\n"), "phone 9 has no state 1"),
        (text_model().replace(b"1 1 1\n", b"1 7 1\n"), "phone 1 has no state 7"),
        (text_model().replace(b"1 1 1\n", b"1 x 1\n"), "'x' stands where a number should"),
        (text_model().replace(b"1 2\n", b"1 x\n"), "'x' stands where a number should"),
        (text_model().replace(b"1 1 1\n", b"1 1 -1\n"), "5 tuples have no state -1"),
        (text_model().replace(b"1 1 1\n", b"1 1 5\n"), "5 tuples have no state 5"),
        (text_model(True).replace(b"1 1 1 5\n", b"1 1 1 -100\n"), "no state 1 or -100"),
        (text_model(True).replace(b"1 1 1 5\n", b"1 1 1 10\n"), "no state 1 or 10"),
        (text_model().replace(b"<Triples>", b"<Tuples>"), "'<Tuples>' stands where <Triples>"),
        (text_model().replace(b"<State> 0", b"0"), "'0' stands where <State> should"),
    ],
)
def test_what_is_no_model(tmp_path, data, what):
    path = tmp_path / "final.mdl"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=what):
        read_pdf_ids(path)


def test_a_model_of_too_many_transitions_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "_MOST_TRANSITIONS", 10)
    (tmp_path / "final.mdl").write_bytes(text_model())
    with pytest.raises(ValueError, match=r"final\.mdl .* more than 10 transitions, the limit"):
        read_pdf_ids(tmp_path / "final.mdl")


@pytest.mark.parametrize("name", ["digits/tri1", "digits/mono_ali", "yesno/mono0a"])
def test_real_models(kaldi_dir, name):
    folder = kaldi_dir / name
    pdf_of = read_pdf_ids(folder / "final.mdl")
    ids, want = (read_int_vectors(folder / name) for name in ("ali.1.gz", "ali_pdf.txt.gz"))
    assert ids.keys() == want.keys()
    assert all(np.array_equal(pdf_of[ids[u]], want[u]) for u in want)


def test_a_real_model_cut_short(kaldi_dir, tmp_path):
    data = (kaldi_dir / "yesno/mono0a/final.mdl").read_bytes()
    path = tmp_path / "final.mdl"
    end = data.index(b"</Triples>") + 10
    for size in range(0, end, 37):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"final\.mdl is truncated"):
            read_pdf_ids(path)
