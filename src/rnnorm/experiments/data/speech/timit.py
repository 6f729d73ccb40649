"""A user's copy of TIMIT: recordings with their phones, 61 folded into 39."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rnnorm.experiments.data.speech.filter_banks import FEATURES, filter_banks_of
from rnnorm.experiments.data.speech.recordings import read_recording
from rnnorm.experiments.data.speech.utterances import Spoken, SpokenParts, in_memory
from rnnorm.experiments.data.text_file import placed_lines
from rnnorm.experiments.files import BrokenFileError, files_below, inner_folder, users_folder

RATE = 16000
#: phones that are mapped to another one (Lee & Hon 1989, table 3)
FOLDED = {
    **dict.fromkeys(("bcl", "dcl", "gcl", "kcl", "pcl", "tcl", "epi", "pau", "h#"), "sil"),
    "ao": "aa",
    "ax": "ah",
    "ax-h": "ah",
    "axr": "er",
    "el": "l",
    "em": "m",
    "en": "n",
    "eng": "ng",
    "hv": "hh",
    "ix": "ih",
    "nx": "n",
    "ux": "uw",
    "zh": "sh",
}
_PHONES = (
    "aa ae ah aw ay b ch d dh dx eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh sil t th uh uw "
    "v w y z"
)
#: the 39 phones
PHONES = frozenset(_PHONES.split())
#: the glottal stop, which has no phone among the 39
_DROPPED = "q"
_CORE = (
    "mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0 mbpm0 mklt0 fnlp0 "
    "mcmj0 mjdh0 fmgd0 mgrt0 mnjm0 fdhc0 mjln0 mpam0 fmld0"
)
#: speakers of the core test set
CORE = frozenset(_CORE.split())


def read_phones(path: str | Path) -> tuple[str, ...]:
    """Read the phones of a ``.phn`` file, folded into 39.

    Args:
        path: the file: first sample, sample behind the last, and phone on each line.

    Raises:
        BrokenFileError: if a line does not have these three fields, a phone ends before it begins
            or begins before its predecessor, a phone is not one of the 61, or no phone is left.
        FileNotFoundError: if there is no such file.
    """
    phones, before = [], 0
    for where, line in placed_lines(path):
        fields = line.split()
        if len(fields) != 3 or not all(f.isascii() and f.isdigit() for f in fields[:2]):
            raise BrokenFileError(f"{where} must be two samples and a phone, got {line[:80]!r}")
        begin, end = (int(f[:15]) for f in fields[:2])
        if not before <= begin < end:
            raise BrokenFileError(
                f"{where} is from sample {begin} to {end}, the line before from {before}"
            )
        before, phone = begin, FOLDED.get(fields[2], fields[2])
        if phone == _DROPPED:
            continue
        if phone not in PHONES:
            raise BrokenFileError(
                f"{where} has the phone {fields[2][:40]!r}, which is none of the 61"
            )
        phones.append(phone)
    if not phones:
        raise BrokenFileError(f"{path} has no phone")
    return tuple(phones)


def load_timit(data_dir: str | Path | None) -> SpokenParts:
    """Load filter banks and phones of TIMIT, without SA1 and SA2, which all speakers read.

    The core test set is for test, the other speakers of the test part are for validation.

    Args:
        data_dir: folder with ``TRAIN`` and ``TEST``, each with dialects, speakers and their files
            (``SI1027.WAV``, ``SI1027.PHN``; lower case too), itself or in ``TIMIT``.

    Raises:
        ValueError: if a file is broken, an utterance occurs twice, or a part has no utterance.
        FileNotFoundError: if a folder or a recording is missing.
    """
    folder = users_folder(data_dir, "TIMIT's TRAIN and TEST")
    # published archives have up to three folders above TRAIN
    for _ in range(3):
        if inner_folder(folder, "train") is None:
            folder = inner_folder(folder, "timit", "data", "lisa") or folder
    parts: dict[str, list[Spoken]] = {"train": [], "val": [], "test": []}
    seen: dict[str, Path] = {}
    notes: list[str] = []
    for name in ("train", "test"):
        inner = inner_folder(folder, name)
        if inner is None:
            raise FileNotFoundError(f"{folder} lacks the folder {name.upper()}")
        found = [
            path for path in files_below(inner) if _utterance_of(path)[1] not in ("sa1", "sa2")
        ]
        files = {str(path).lower(): path for path in found}
        phones = [path for path in found if path.suffix.lower() == ".phn"]
        for path in phones:
            speaker = path.parent.name.lower()
            part = name if name == "train" or speaker in CORE else "val"
            parts[part].append(_utterance(path, speaker, files))
            if (other := seen.setdefault(parts[part][-1].name, path)) != path:
                raise BrokenFileError(f"{path} is a second time the utterance of {other}")
        silent = {_utterance_of(path): path for path in found if path.suffix.lower() == ".wav"}
        for path in phones:
            silent.pop(_utterance_of(path), None)
        if silent:
            first = min(silent.values())
            notes.append(f"{inner}: {len(silent)} recordings without phones, such as {first}")
    if empty := [part for part, some in parts.items() if not some]:
        raise ValueError(f"{folder} has no utterance for {', '.join(empty)}")
    return SpokenParts(parts["train"], parts["val"], parts["test"], FEATURES, notes)


def _utterance_of(path: Path) -> tuple[str, str]:
    """Return folder and name of an utterance, in lower case, that a file belongs to."""
    return str(path.parent).lower(), path.name.partition(".")[0].lower()


def _utterance(path: Path, speaker: str, files: Mapping[str, Path]) -> Spoken:
    """Load the utterance of a ``.phn`` file and the recording beside it."""
    names = (str(path.with_suffix(ending)).lower() for ending in (".wav", ".wav.wav"))
    if (recording := next((files[name] for name in names if name in files), None)) is None:
        raise FileNotFoundError(f"{path.with_suffix('.WAV')} is missing beside {path.name}")
    frames = filter_banks_of(recording, read_recording(recording, RATE), RATE)
    return Spoken(
        f"{speaker}-{path.stem.lower()}", in_memory(frames), len(frames), read_phones(path)
    )
