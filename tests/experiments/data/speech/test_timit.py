import numpy as np
import pytest
import soundfile

from rnnorm.experiments.data.speech.timit import CORE, FOLDED, PHONES, load_timit, read_phones
from rnnorm.experiments.files import BrokenFileError

SAID = "0 800 h#\n800 1600 sh\n1600 2400 ix\n2400 2500 q\n2500 3200 h#\n"


def write_timit(folder, speakers=("TRAIN/DR1/FCJF0", "TEST/DR1/MDAB0", "TEST/DR2/FAKS0")):
    for speaker in speakers:
        place = folder / speaker
        place.mkdir(parents=True)
        for name in ("SA1", "SA2", "SI648", "SX37"):
            sound = 0.1 * np.random.RandomState(0).randn(3200)
            with soundfile.SoundFile(
                place / f"{name}.WAV", "w", 16000, 1, subtype="PCM_16", format="NIST"
            ) as file:
                file.write(sound)
            (place / f"{name}.PHN").write_text(SAID)
    return folder


def test_the_sixty_one_phones_become_thirty_nine():
    assert len(PHONES) == 39
    assert len(FOLDED) + len(PHONES - {"sil"}) + len({"q"}) == 61
    assert set(FOLDED.values()) <= PHONES
    assert len(CORE) == 24


def test_phones_are_folded_and_the_glottal_stop_is_none(tmp_path):
    (tmp_path / "a.phn").write_text(SAID)
    assert read_phones(tmp_path / "a.phn") == ("sil", "sh", "ih", "sil")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("0 800 h#\n800 900 xx\n", "line 2 has the phone 'xx', which is none of the 61"),
        ("0 800\n", "line 1 must be two samples and a phone"),
        ("0 800 h#\n800\n", "line 2 must be two samples and a phone"),
        ("0 8e2 h#\n", "line 1 must be two samples and a phone"),
        ("0 0 h#\n", "line 1 is from sample 0 to 0"),
        ("9 20 h#\n8 20 ix\n", "line 2 is from sample 8 to 20, the line before from 9"),
        ("0 9 q\n", "has no phone"),
    ],
)
def test_broken_phones_are_refused(tmp_path, text, what):
    (tmp_path / "a.phn").write_text(text)
    with pytest.raises(BrokenFileError, match=f"{tmp_path}/a.phn.*{what}"):
        read_phones(tmp_path / "a.phn")


def test_the_core_speakers_test_and_the_others_validate(tmp_path):
    parts = load_timit(write_timit(tmp_path / "TIMIT").parent)
    names = [[each.name for each in part] for part in parts[:3]]
    assert names == [
        [f"{speaker}-{name}" for name in ("si648", "sx37")]
        for speaker in ("fcjf0", "faks0", "mdab0")
    ]
    (first, *_) = parts.train
    assert first.read().shape == (first.frames, 41)
    assert first.symbols == ("sil", "sh", "ih", "sil")


def test_what_is_missing_or_cut_short_is_named(tmp_path):
    folder = write_timit(tmp_path)
    recording = folder / "TRAIN/DR1/FCJF0/SX37.WAV"
    whole = recording.read_bytes()
    recording.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"SX37\.WAV is truncated: it ends at byte 7324, not 7424"):
        load_timit(folder)
    recording.unlink()
    with pytest.raises(FileNotFoundError, match=r"SX37\.WAV is missing"):
        load_timit(folder)
    recording.write_bytes(whole)
    for path in (folder / "TEST/DR1/MDAB0").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="has no utterance for test"):
        load_timit(folder)
    with pytest.raises(FileNotFoundError, match="lacks the folder TRAIN"):
        load_timit(folder / "TEST")
    with pytest.raises(FileNotFoundError, match="--data-dir"):
        load_timit(None)


def test_recordings_without_phones_are_counted(tmp_path):
    folder = write_timit(tmp_path)
    for speaker, name in (("TRAIN/DR1/FCJF0", "SX37"), ("TEST/DR1/MDAB0", "SA1")):
        (folder / speaker / f"{name}.PHN").unlink()
    parts = load_timit(folder)
    assert [len(part) for part in parts[:3]] == [1, 2, 2]
    place = folder / "TRAIN"
    assert parts.notes == [
        f"{place}: 1 recordings without phones, such as {place}/DR1/FCJF0/SX37.WAV"
    ]


@pytest.mark.parametrize("copy", ["TRAIN/DR1 (copy)/FCJF0/SX37", "TRAIN/DR1/FCJF0/sx37"])
def test_an_utterance_that_occurs_twice_is_refused(tmp_path, copy):
    folder = write_timit(tmp_path)
    (folder / copy).parent.mkdir(parents=True, exist_ok=True)
    for ending in (".WAV", ".PHN"):
        data = (folder / f"TRAIN/DR1/FCJF0/SX37{ending}").read_bytes()
        (folder / f"{copy}{ending}").write_bytes(data)
    with pytest.raises(BrokenFileError, match=r"(SX|sx)37\.PHN is a second time the utterance of"):
        load_timit(folder)


def test_a_recording_of_another_rate_is_refused(tmp_path):
    folder = write_timit(tmp_path)
    path = folder / "TRAIN/DR1/FCJF0/SX37.WAV"
    path.unlink()
    soundfile.write(path, np.zeros(900), 8000, format="WAV", subtype="PCM_16")
    with pytest.raises(ValueError, match=r"SX37\.WAV must have 16000 samples a second, got 8000"):
        load_timit(folder)


@pytest.mark.parametrize("above", [".", "timit", "TIMIT", "data", "timit/TIMIT", "lisa/data/timit"])
@pytest.mark.parametrize("ending", [".WAV", ".wav", ".Wav", ".WAV.wav"])
def test_the_layouts_that_archives_have(tmp_path, above, ending):
    folder = write_timit(tmp_path / above)
    for path in sorted(folder.rglob("*.WAV")):
        path.rename(path.with_suffix(ending))
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")
        path.with_name(f"._{path.stem}.PHN").write_bytes(b"\0\5\x16\7")
    assert [len(part) for part in load_timit(tmp_path)[:3]] == [2, 2, 2]
