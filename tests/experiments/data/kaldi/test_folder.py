import kaldiio
import numpy as np
import pytest
from kaldi_files import PDFS, binary_model, write_features, write_states

from rnnorm.experiments.data.kaldi.folder import load_kaldi

RANDOM = np.random.RandomState(0)
LENGTHS = {"train": [5, 9, 3, 4], "dev": [6, 2], "test": [7, 8]}
FEATURES = {
    part: {f"{part}{i}": RANDOM.randn(n, 4).astype(np.float32) for i, n in enumerate(lengths)}
    for part, lengths in LENGTHS.items()
}
STATES = {
    part: {name: RANDOM.randint(0, 7, len(m)).astype(np.int32) for name, m in given.items()}
    for part, given in FEATURES.items()
}


@pytest.fixture
def folder(tmp_path):
    for part in LENGTHS:
        write_features(tmp_path / "data" / part, FEATURES[part])
        write_states(tmp_path / "data" / part, STATES[part])
    return tmp_path / "data"


def test_three_folders(folder):
    speech = load_kaldi(folder)
    assert speech.num_features == 4
    assert speech.num_targets == 7
    assert list(speech.notes) == []
    for part, utterances in zip(LENGTHS, speech[:3], strict=True):
        assert [u.name for u in utterances] == list(FEATURES[part])
        for utterance in utterances:
            np.testing.assert_array_equal(utterance.read(), FEATURES[part][utterance.name])
            np.testing.assert_array_equal(utterance.targets, STATES[part][utterance.name])


def test_transition_ids_of_one_model_for_all(folder):
    ids = {p: {n: 1 + s for n, s in given.items()} for p, given in STATES.items()}
    for part in LENGTHS:
        (folder / part / "pdf.ark").unlink()
        kaldiio.save_ark(str(folder / part / "ali.1.ark"), ids[part])
    (folder / "final.mdl").write_bytes(binary_model())
    speech = load_kaldi(folder)
    assert speech.num_targets == 4
    for utterance in speech.train:
        assert utterance.targets.tolist() == [PDFS[i] for i in ids["train"][utterance.name]]


def test_an_archive_without_a_script_file(folder):
    for part in LENGTHS:
        (folder / part / "feats.scp").unlink()
    (utterance, *_) = load_kaldi(folder).val
    np.testing.assert_array_equal(utterance.read(), FEATURES["dev"]["dev0"])


def test_features_are_read_when_they_are_wanted(folder):
    speech = load_kaldi(folder)
    changed = FEATURES["train"] | {"train1": 2 * FEATURES["train"]["train1"]}
    write_features(folder / "train", changed)
    np.testing.assert_array_equal(speech.train[1].read(), changed["train1"])


def test_utterances_without_an_alignment_are_left_out_and_counted(folder):
    states = dict(STATES["train"])
    del states["train1"], states["train2"]
    write_states(folder / "train", states)
    speech = load_kaldi(folder)
    assert [u.name for u in speech.train] == ["train0", "train3"]
    (note,) = speech.notes
    assert note.endswith("train: 2 utterances without alignment, such as train1")


def test_alignments_without_features_are_left_out_and_counted(folder):
    write_states(folder / "dev", STATES["dev"] | {"more": np.int32([1])})
    speech = load_kaldi(folder)
    assert len(speech.val) == 2
    assert speech.notes[0].endswith("dev: 1 alignments without features, such as more")


def test_no_utterance_with_both(folder):
    write_states(folder / "test", STATES["dev"])
    with pytest.raises(ValueError, match=r"test: none of 2 utterances .* one of the 2 alignments"):
        load_kaldi(folder)


@pytest.mark.parametrize("frames", [4, 6])
def test_an_alignment_of_another_length(folder, frames):
    write_states(folder / "train", STATES["train"] | {"train0": np.zeros(frames, np.int32)})
    what = f"1 of 4 .* such as 'train0' with 5 frames and {frames} states"
    with pytest.raises(ValueError, match=what):
        load_kaldi(folder)


def test_features_of_another_width(folder):
    write_features(folder / "dev", {n: m[:, :3] for n, m in FEATURES["dev"].items()})
    what = r"as many columns, got 4 for 'train0' in .*, 3 for 'dev0' in .*feats\.ark at byte 5"
    with pytest.raises(ValueError, match=what):
        load_kaldi(folder)


def test_an_utterance_that_stands_twice(folder):
    (folder / "dev/feats.scp").unlink()
    ark = folder / "dev/feats.ark"
    ark.write_bytes(2 * ark.read_bytes())
    with pytest.raises(ValueError, match="is a second matrix of utterance 'dev0'"):
        load_kaldi(folder)


def test_an_archive_that_was_cut_is_found_before_training(folder):
    ark = folder / "train/feats.ark"
    ark.write_bytes(ark.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"feats\.ark is truncated"):
        load_kaldi(folder)


def test_what_is_missing_is_named(folder):
    with pytest.raises(FileNotFoundError, match="--data-dir"):
        load_kaldi(None)
    (folder / "dev/feats.scp").unlink()
    (folder / "dev/feats.ark").unlink()
    with pytest.raises(FileNotFoundError, match=r"dev has no features: neither feats\.scp nor"):
        load_kaldi(folder)
    (folder / "dev").rename(folder / "valid")
    with pytest.raises(FileNotFoundError, match=r"lacks the folder dev: .* train, dev, test"):
        load_kaldi(folder)
