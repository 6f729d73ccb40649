import kaldiio
import numpy as np
import pytest
from kaldi_files import PDFS, binary_model, write_states

from rnnorm.experiments.data.kaldi.alignments import read_alignments

IDS = {"one": np.int32([1, 1, 2, 3]), "two": np.int32([9, 11])}
STATES = {name: [PDFS[i] for i in ids] for name, ids in IDS.items()}


def write_ids(folder, model, ids=IDS):
    folder.mkdir(parents=True)
    for number, (name, vector) in enumerate(ids.items(), 1):
        kaldiio.save_ark(str(folder / f"ali.{number}.ark"), {name: vector})
    if model is not None:
        model.write_bytes(binary_model())


def as_lists(alignments):
    return {name: states.tolist() for name, states in alignments.states.items()}


@pytest.mark.parametrize("where", ["train/final.mdl", "final.mdl"])
def test_transition_ids_become_states_of_the_model_beside_or_above(tmp_path, where):
    write_ids(tmp_path / "train", tmp_path / where)
    alignments = read_alignments(tmp_path / "train")
    assert as_lists(alignments) == STATES
    # as many as the model has, not as occur
    assert alignments.num_states == 4


def test_states_need_no_model(tmp_path):
    write_states(tmp_path / "train", {n: np.int32(s) for n, s in STATES.items()})
    alignments = read_alignments(tmp_path / "train")
    assert as_lists(alignments) == STATES
    assert alignments.num_states == 4


def test_a_text_archive_of_states(tmp_path):
    (tmp_path / "ali_pdf.txt").write_text("one 3 4\n")
    assert as_lists(read_alignments(tmp_path)) == {"one": [3, 4]}


def test_transition_ids_come_before_states(tmp_path):
    write_ids(tmp_path / "train", tmp_path / "final.mdl")
    write_states(tmp_path / "train", {"three": np.int32([0])})
    assert as_lists(read_alignments(tmp_path / "train")) == STATES
    (tmp_path / "final.mdl").unlink()
    assert as_lists(read_alignments(tmp_path / "train")) == {"three": [0]}


def test_transition_ids_are_never_taken_for_states(tmp_path):
    write_ids(tmp_path / "train", None)
    with pytest.raises(FileNotFoundError, match=r"ids \(ali\.1\.ark\) and no final\.mdl"):
        read_alignments(tmp_path / "train")


def test_a_folder_without_alignments(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no alignments: neither ali\.\* nor pdf\.\*"):
        read_alignments(tmp_path)


@pytest.mark.parametrize("ids", [[0, 1], [1, 12], [-1], []])
def test_numbers_that_are_no_transition_ids(tmp_path, ids):
    write_ids(tmp_path / "train", tmp_path / "final.mdl", {"one": np.int32(ids)})
    with pytest.raises(ValueError, match=r"'one': the transition ids .* are 1 to 11, got"):
        read_alignments(tmp_path / "train")


def test_numbers_that_are_no_states(tmp_path):
    write_states(tmp_path, {"one": np.int32([1, -2])})
    with pytest.raises(ValueError, match=r"pdf\.ark, utterance 'one': the states are 0 to .*-2 to"):
        read_alignments(tmp_path)


def test_an_utterance_in_two_archives(tmp_path):
    write_ids(tmp_path / "train", tmp_path / "final.mdl")
    kaldiio.save_ark(str(tmp_path / "train" / "ali.3.ark"), {"one": np.int32([1])})
    with pytest.raises(ValueError, match=r"ali\.3\.ark has utterance 'one', which another"):
        read_alignments(tmp_path / "train")
