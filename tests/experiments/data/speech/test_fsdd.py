import numpy as np
import pytest
import soundfile
from kaldi_files import write_states
from spoken import RATE, write_spoken

from rnnorm.experiments.data.kaldi.alignments import read_alignments
from rnnorm.experiments.data.kaldi.archive import read_matrix, read_scp
from rnnorm.experiments.data.speech.filter_banks import filter_banks
from rnnorm.experiments.data.speech.spoken_digits import load_fsdd

ALIGNMENTS = "kaldi/digits/tri1"


@pytest.fixture
def spoken(tmp_path):
    write_spoken(tmp_path / "data")
    return tmp_path / "data"


def load(folder, split="speaker", speaker="nicolas"):
    return load_fsdd(folder, ALIGNMENTS, split, speaker)


def names(part):
    return [u.name for u in part]


def test_every_utterance_has_its_own_features_and_states(spoken):
    states = read_alignments(spoken / ALIGNMENTS).states
    speech = load(spoken)
    assert (speech.num_features, speech.num_targets) == (41, 6)
    for utterance in (*speech.train, *speech.val, *speech.test):
        speaker, digit, index = utterance.name.split("_")
        samples, _ = soundfile.read(spoken / f"recordings/{digit}_{speaker}_{index}.wav")
        want = filter_banks(samples.astype(np.float32), RATE)
        np.testing.assert_array_equal(utterance.read(), want)
        np.testing.assert_array_equal(utterance.targets, states[utterance.name])


def test_split_by_speaker(spoken):
    speech = load(spoken, speaker="theo")
    assert [len(part) for part in speech[:3]] == [14, 1, 15]
    assert all(name.startswith("theo_") for name in names(speech.train) + names(speech.val))
    assert all(name.startswith("nicolas_") for name in names(speech.test))


def test_random_split(spoken):
    speech = load(spoken, "random")
    parts = [names(part) for part in speech[:3]]
    assert [len(part) for part in parts] == [24, 3, 3]
    assert len(set(parts[0] + parts[1] + parts[2])) == 30
    assert {name.split("_")[0] for name in parts[0]} == {"nicolas", "theo"}
    assert parts == [names(part) for part in load(spoken, "random")[:3]]


@pytest.mark.parametrize("speaker", ["eve", "nicola", ""])
def test_an_unknown_speaker(spoken, speaker):
    with pytest.raises(ValueError, match=rf"speaker must be .* nicolas, theo, got '{speaker}'"):
        load(spoken, speaker=speaker)


@pytest.mark.parametrize(("split", "count"), [("speaker", 1), ("random", 2)])
def test_too_few_recordings_to_train_are_told(spoken, split, count):
    aligned = read_alignments(spoken / ALIGNMENTS).states
    few = [name for name in aligned if name.startswith("nicolas")][:1]
    few += [name for name in aligned if name.startswith("theo")][:1]
    write_states(spoken / "few", {name: aligned[name] for name in few})
    with pytest.raises(ValueError, match=rf"recordings has too few .* to train: .*, of {count}"):
        load_fsdd(spoken, "few", split, "nicolas")


def test_an_alignment_that_is_longer_or_shorter_than_its_features(spoken):
    states = dict(read_alignments(spoken / ALIGNMENTS).states)
    states["nicolas_0_0"] = states["nicolas_0_0"][:-1]
    states["theo_1_1"] = np.append(states["theo_1_1"], np.int32(0))
    write_states(spoken / ALIGNMENTS, states)
    with pytest.raises(
        ValueError, match=r"2 of 30 .* such as 'nicolas_0_0' with 3 frames and 2 states"
    ):
        load(spoken)


def test_a_recording_without_alignment_is_not_read(spoken):
    states = dict(read_alignments(spoken / ALIGNMENTS).states)
    del states["nicolas_0_0"]
    write_states(spoken / ALIGNMENTS, states)
    (spoken / "recordings/0_nicolas_0.wav").write_bytes(b"not read")
    assert [len(part) for part in load(spoken)[:3]] == [13, 1, 15]


def test_an_alignment_without_recording(spoken):
    (spoken / "recordings/0_nicolas_0.wav").unlink()
    with pytest.raises(FileNotFoundError, match="lacks 1 of 30 recordings, such as 0_nicolas_0"):
        load(spoken)


def test_a_recording_shorter_than_a_frame(spoken):
    path = spoken / "recordings/0_nicolas_0.wav"
    soundfile.write(path, np.zeros(199), RATE)
    with pytest.raises(
        ValueError, match=r"0_nicolas_0\.wav has 199 samples, less than a frame of 25"
    ):
        load(spoken)


def test_utterances_of_another_name(spoken):
    write_states(spoken / ALIGNMENTS, {"utterance": np.int32([1])})
    with pytest.raises(
        ValueError, match=r"called \{speaker\}_\{digit\}_\{index\}, got 'utterance'"
    ):
        load(spoken)


def test_where_the_recordings_are_looked_for(spoken):
    (spoken / "recordings").rename(spoken / "elsewhere")
    with pytest.raises(
        FileNotFoundError, match=r"holds no recordings/ and no fsdd-recordings\.tar"
    ):
        load(spoken)
    (spoken / "free-spoken-digit-dataset").mkdir()
    (spoken / "elsewhere").rename(spoken / "free-spoken-digit-dataset/recordings")
    assert len(load(spoken).test) == 15
    (spoken / "free-spoken-digit-dataset").rename(spoken / "free-spoken-digit-dataset-master")
    assert len(load(spoken).test) == 15
    with pytest.raises(FileNotFoundError, match="--data-dir"):
        load(None)


def test_the_real_digits(speech_dir):
    speech = load_fsdd(speech_dir, ALIGNMENTS, "speaker", "nicolas")
    assert [len(part) for part in speech[:3]] == [450, 50, 500]
    assert (speech.num_features, speech.num_targets, list(speech.notes)) == (41, 96, [])
    utterances = [u for part in speech[:3] for u in part]
    assert sum(len(u.targets) for u in utterances) == 34902
    # kaldi's own features: the first cepstrum is the mean of the logarithms, in the same frames
    theirs = read_scp(speech_dir / "kaldi/digits/train/feats.scp")
    likeness = [[], []]
    for utterance in utterances[::10]:
        ours, cepstra = utterance.read()[:, 1:].mean(1), read_matrix(theirs[utterance.name])[:, 0]
        assert len(ours) == len(cepstra) == len(utterance.targets)
        likeness[0].append(np.corrcoef(ours, cepstra)[0, 1])
        likeness[1].append(np.corrcoef(ours[1:], cepstra[:-1])[0, 1])
    assert np.median(likeness[0]) > 0.995 > 0.96 > np.median(likeness[1])
