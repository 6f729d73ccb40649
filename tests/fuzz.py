"""Changes small files of every format at random, and reads them: `python tests/fuzz.py --help`.

A reader may take what is left of a file, or raise a ValueError or an OSError that names it.
Anything else, a warning too, is a failure, and so is a reader that needs seconds or gigabytes.
"""

import argparse
import faulthandler
import gzip
import io
import json
import lzma
import random
import resource
import signal
import sys
import tarfile
import tempfile
import warnings
import zipfile
from pathlib import Path

import kaldiio
import numpy as np
import optuna
import soundfile

sys.path.insert(0, str(Path(__file__).parent / "experiments"))
from kaldi_files import binary_model, text_model, write_features
from stroke_files import IAM, write_kanji

from rnnorm.experiments.data.images import read_idx
from rnnorm.experiments.data.kaldi.alignments import read_int_vectors
from rnnorm.experiments.data.kaldi.archive import index_archive, read_matrix, read_scp
from rnnorm.experiments.data.kaldi.folder import read_transcripts
from rnnorm.experiments.data.kaldi.model import read_pdf_ids
from rnnorm.experiments.data.questions.babi import read_babi
from rnnorm.experiments.data.questions.cmrc import read_cft, read_cmrc
from rnnorm.experiments.data.questions.cnn import read_cnn_question
from rnnorm.experiments.data.series import read_ts, read_uci
from rnnorm.experiments.data.speech.recordings import read_recording, read_recordings
from rnnorm.experiments.data.speech.timit import read_phones
from rnnorm.experiments.data.strokes.corpora import read_iam, read_kanjivg
from rnnorm.experiments.data.text.corpora import load_corpus
from rnnorm.experiments.data.text.parallel import read_parallel
from rnnorm.experiments.data.text.rated import read_rated, read_rated_csv
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.searching.study import read_search
from rnnorm.experiments.trained.measurement import read_measurements
from rnnorm.experiments.training.metrics import read_metrics

SECONDS, BYTES = 10, 2 << 30
STORY = "1 Mary went to the hall.\n2 John went home.\n3 Where is Mary? \thall\t1\n" * 4
PASSAGE = "1 ||| 老 鼠 来 了\n2 ||| 它 走 了\n"
CNN = "http://x\n\n@entity1 met @entity2 .\n\n@placeholder met him\n\n@entity1\n\n@entity1:Ann\n"
RECIPE = """about: {title: a row, paper: 'a paper', metric: 'test accuracy, %', number: 98.7}
model: &m {class_path: a.B, init_args: {hidden_size: 100, norm: null, when: 2020-01-31}}
data: {class_path: a.C, init_args: {batch_size: 100, other: *m}}
small: {note: smaller, model: {init_args: {hidden_size: 10}}}
search: {trials: 3, space: {lr: {low: 1.0e-4, high: 1, log: true}}}
"""
MEASUREMENT = {
    "checkpoint": "best.ckpt",
    "epoch": 3,
    "statistics": "population",
    "length": None,
    "estimated": False,
    "overrides": ["--a=1"],
    "metrics": {"test/loss": 0.5},
}


def packed_idx():
    array = np.random.RandomState(0).randint(0, 9, (4, 5, 6)).astype(np.uint8)
    return gzip.compress(bytes((0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6)) + array.tobytes())


def packed_zip(data):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text", data)
    return file.getvalue()


def packed_tar(mode, names, data, form=tarfile.PAX_FORMAT):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, format=form) as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            # a name or a time that takes a header of its own
            member.size, member.mtime = len(data), 1e9 + 0.5
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def recording(kind="WAV"):
    file = io.BytesIO()
    samples = 0.1 * np.sin(np.arange(400))
    soundfile.write(file, samples, 8000, format=kind, subtype="PCM_16")
    return file.getvalue()


def ark(folder, **options):
    matrix = np.random.RandomState(0).randn(6, 3).astype(np.float32)
    write_features(folder, {"one": matrix, "two": matrix[1:]}, **options)
    return (folder / "feats.ark").read_bytes()


def alignment(folder):
    kaldiio.save_ark(str(folder / "a"), {name: np.arange(9, dtype=np.int32) for name in "xy"})
    return (folder / "a").read_bytes()


def study(folder):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/made.db")
    made = optuna.create_study(storage=storage, study_name="search")
    for name, value in {"recipe": "r", "scale": "small", "score": "loss", "overrides": []}.items():
        made.set_user_attr(name, value)
    made.optimize(lambda trial: trial.suggest_float("lr", 0.1, 1), n_trials=2)
    storage.remove_session()
    storage.engine.dispose()
    return (folder / "made.db").read_bytes()


def read_ark(path):
    for _, place in index_archive(path):
        read_matrix(place)


def read_scp_and_matrices(path):
    for place in read_scp(path).values():
        read_matrix(place)


def read_questions(path):
    list(read_babi(path.parent, [1, 2], "train"))


def read_sounds(path):
    list(read_recordings(path, ["a.wav", "b.wav"], 8000))


def formats(folder):
    """For each format the name of a file, its bytes and its reader."""
    text, wav = ("the cat sat.\n" * 20).encode(), recording()
    tasks, sounds = [f"en-10k/qa{i}_a_train.txt" for i in (1, 2)], ["d/a.wav", "d/b.wav"]

    def corpus(path):
        load_corpus("text", file=path)

    for ending, data in {
        "": text,
        ".gz": gzip.compress(text),
        ".xz": lzma.compress(text),
        ".zip": packed_zip(text),
    }.items():
        yield f"text{ending}", data, corpus
    yield "rated", b"1_1\t-0.5\ttoo long\n1_2\t3\tgood &amp; short\n" * 3, read_rated
    yield "rated.csv", b'text,label\n"so, ""so""\n",0.5\ngood,-1\n', read_rated_csv
    yield "idx.gz", packed_idx(), lambda path: read_idx(path, 3)
    for name, mode, form in (
        ("babi.tar.gz", "w:gz", tarfile.PAX_FORMAT),
        ("babi.tar.xz", "w:xz", tarfile.GNU_FORMAT),
        # read as a plain one, so that changes reach its headers
        ("plain.tar.gz", "w", tarfile.PAX_FORMAT),
    ):
        yield name, packed_tar(mode, tasks, STORY.encode(), form), read_questions
    yield "recordings.tar", packed_tar("w", sounds, wav, tarfile.GNU_FORMAT), read_sounds
    for kind in ("WAV", "FLAC"):
        one = f"{kind.lower()}/a.wav"
        yield one, recording(kind), lambda path: list(read_recordings(path.parent, ["a.wav"], 8000))
    yield "qa1_a_train.txt", STORY.encode(), lambda path: list(read_babi(path.parent, [1], "train"))
    yield "a.question", CNN.encode(), read_cnn_question
    answers = folder / "answers"
    answers.write_text("<qid_0> ||| 鼠\n", encoding="utf-8")
    documents = f"{PASSAGE}<qid_0> ||| 老 XXXXX 来\n".encode()
    yield "documents", documents, lambda path: list(read_cmrc(path, answers))
    yield "pairs", "Ein Hund .\nZwei Löwen\n".encode(), lambda path: read_parallel(path, path)
    yield "cft", f"{PASSAGE}3 ||| 老 XXXXX 来 ||| 鼠\n".encode(), lambda path: list(read_cft(path))
    kinds = ({}, {"text": True}, *({"compression_method": m} for m in (2, 3, 5)))
    for i, options in enumerate(kinds):
        yield f"feats{i}.ark", ark(folder, **options), read_ark
    yield "feats.ark.gz", gzip.compress(ark(folder)), read_ark
    yield "feats.scp", (folder / "feats.scp").read_bytes(), read_scp_and_matrices
    yield "text-of", b"one NO YES\ntwo YES\n", read_transcripts
    yield "a.phn", b"0 80 h#\n80 160 sh\n160 240 ix\n240 250 q\n", read_phones
    yield "nist/a.wav", recording("NIST"), lambda path: read_recording(path, 8000)
    yield "ali.1", alignment(folder), read_int_vectors
    yield "ali.txt", b"x 0 1 22 3\ny 4 5 66\n", read_int_vectors
    yield "ali.1.gz", gzip.compress(alignment(folder)), read_int_vectors
    for apart in (False, True):
        yield f"binary{apart}/final.mdl", binary_model(apart), read_pdf_ids
        yield f"text{apart}/final.mdl", text_model(apart), read_pdf_ids
    header = "@timeStamps false\n@classLabel true 1 2\n@data\n"
    yield "a.ts", f"{header}1,2.5:3,-4:1\n-1e-3:2:2\n".encode(), read_ts
    yield "a.tra", b"1,2,3,4,0\n5,6,7,8,1\n", lambda path: read_uci(path, 2)
    yield "a.xml", IAM.encode(), read_iam
    kanji = write_kanji(folder)
    for ending, data in {"": kanji.read_bytes(), ".xz": lzma.compress(kanji.read_bytes())}.items():
        yield f"kanji.npz{ending}", data, read_kanjivg
    metrics = "step,epoch,seconds,name,value\n" + "4,0,1.250,val/loss,0.5\n" * 5
    yield "metrics.csv", metrics.encode(), read_metrics
    yield "recipe.yaml", RECIPE.encode(), lambda path: read_recipe(str(path), "small")
    given = json.dumps([MEASUREMENT] * 2).encode()
    yield "tests.json", given, lambda path: [*map(str, read_measurements(path.parent))]
    yield "study.db", study(folder), lambda path: read_search(path.parent).table()


def packed_again(data):
    """A zip of the file in a folder, with what macOS and Windows add."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("again/", b"")
        for name, content in {
            "again/file": data,
            "__MACOSX/again/._file": b"\0\5\x16\7",
            "again/.DS_Store": b"\0",
            "Thumbs.db": b"\xd0\xcf",
        }.items():
            archive.writestr(name, content)
    return file.getvalue()


#: what people's tools make of a whole file
TOOLS = (
    lambda data: b"\xef\xbb\xbf" + data,
    lambda data: data.decode("latin-1").encode("utf-16"),
    lambda data: data.replace(b"\n", b"\r\n"),
    lambda data: data.replace(b"\n", b"\r"),
    lambda data: data.replace(b"\n", b"\n\n"),
    lambda data: data.replace(b"\n", b" \t\n"),
    lambda data: data.rstrip(b"\n"),
    lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:]),
    lzma.compress,
    packed_again,
)


def changed(data, draw):
    """The data with one to four changes, one file in six also as a tool leaves it."""
    if draw.random() < 1 / 6:
        data = draw.choice(TOOLS)(data)
        # half of these are otherwise whole
        if draw.random() < 0.5:
            return data
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at, size = draw.randrange(len(data) + 1), draw.choice((1, 2, 4, 8, 40))
        match draw.randrange(6):
            case 0:
                data[at : at + 1] = bytes(b ^ 1 << draw.randrange(8) for b in data[at : at + 1])
            case 1:
                del data[at : at + draw.choice((size, len(data)))]
            case 2:
                data[at:at] = draw.randbytes(size)
            case 3:
                data[at:at] = data[at : at + size] * draw.choice((1, 2, 50))
            case 4:
                # what a size, a count or an offset may be
                number = draw.choice((0, 1, -1, 2**31 - 1, -(2**31), 1 << draw.randrange(31)))
                data[at : at + 4] = number.to_bytes(4, draw.choice(("big", "little")), signed=True)
            case 5:
                word = draw.choice((b"-1", b"99999999", b"0", b"1e999", b"nan", b"\xef\xbb\xbf"))
                data[at : at + draw.choice((0, len(word)))] = word
    return bytes(data)


def stop(*_):
    raise TimeoutError(f"more than {SECONDS} seconds")


def failure(path, read):
    """What a reader does that it must not do, or None."""
    seen = []
    sys.unraisablehook = lambda unraisable: seen.append(unraisable.exc_value)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        read(path)
    except TimeoutError as error:
        return error
    except (ValueError, OSError) as error:
        return None if str(path.parent) in str(error) else error
    except Exception as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return seen[0] if seen else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=20, help="changed files of each format")
    parser.add_argument("--first", type=int, default=0, help="number of the first one: its seed")
    parser.add_argument("--format", help="only the format whose file has this name")
    given = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("error")
    # the libraries of torch alone have reserved gigabytes
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, stop)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, data, read in formats(Path(folder)):
            if given.format not in (None, name):
                continue
            path = Path(folder) / "of" / name.replace(".", "-").replace("/", "-") / Path(name).name
            path.parent.mkdir(parents=True)
            if name == "feats.scp":
                (path.parent / "feats.ark").write_bytes((Path(folder) / "feats.ark").read_bytes())
            path.write_bytes(data)
            read(path)
            for number in range(given.first, given.first + given.count):
                path.write_bytes(changed(data, random.Random(f"{name} {number}")))
                if error := failure(path, read):
                    failures += 1
                    print(f"--format {name} --first {number} --count 1: {error!r}", flush=True)
            print(f"{name}: {given.count} read", flush=True)
    sys.exit(f"{failures} failures" if failures else 0)


if __name__ == "__main__":
    main()
