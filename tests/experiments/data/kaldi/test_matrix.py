import gzip

import kaldiio
import numpy as np
import pytest
from kaldi_files import write_features

from rnnorm.experiments import files as whole_file
from rnnorm.experiments.data.kaldi.archive import (
    MatrixPosition,
    index_archive,
    matrix_shape,
    read_matrix,
    read_scp,
)

RANDOM = np.random.RandomState(0)
MATRICES = {f"utt{i}": RANDOM.randn(4 + i, 3).astype(np.float32) for i in range(3)}
# how each form is written, and how far it may be from what was given
FORMS = {
    "float": ({}, 0),
    "double": ({"double": True}, 0),
    "compressed": ({"compression_method": 2}, 0.05),
    "compressed-16": ({"compression_method": 3}, 1e-3),
    "compressed-8": ({"compression_method": 5}, 0.05),
    "text": ({"text": True}, 1e-5),
}


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


def written(folder, form, matrices=MATRICES):
    options = dict(FORMS[form][0])
    if options.pop("double", False):
        matrices = {name: m.astype(np.float64) for name, m in matrices.items()}
    return write_features(folder, matrices, **options)


def test_every_form_is_read(tmp_path, form):
    positions = read_scp(written(tmp_path / "data", form))
    assert list(positions) == list(MATRICES)
    for name, position in positions.items():
        matrix = read_matrix(position)
        assert matrix.dtype == np.float32
        assert matrix_shape(position) == matrix.shape == MATRICES[name].shape
        np.testing.assert_allclose(matrix, MATRICES[name], atol=FORMS[form][1], rtol=0)


def test_the_forms_differ(tmp_path):
    kinds = set()
    for form in FORMS:
        written(tmp_path / form, form)
        kinds.add((tmp_path / form / "feats.ark").read_bytes()[5:10].partition(b" ")[0])
    assert len(kinds) == len(FORMS)


def test_an_archive_without_a_script_file(tmp_path, form):
    scp = written(tmp_path / "data", form)
    assert dict(index_archive(scp.with_suffix(".ark"))) == read_scp(scp)


def test_a_gzipped_archive(tmp_path, form):
    plain = written(tmp_path / "data", form).with_suffix(".ark")
    packed = tmp_path / "feats.ark.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for (name, one), (other, two) in zip(index_archive(plain), index_archive(packed), strict=True):
        assert name == other
        assert matrix_shape(one) == matrix_shape(two)
        np.testing.assert_array_equal(read_matrix(one), read_matrix(two))


def test_an_archive_cut_anywhere_is_an_error_that_names_it(tmp_path, form):
    scp = written(tmp_path / "data", form, {"utt1": MATRICES["utt1"]})
    ark = scp.with_suffix(".ark")
    position, data = read_scp(scp)["utt1"], ark.read_bytes()
    # the last byte of a text matrix is the line end behind its bracket
    for size in range(len(data) - (form == "text")):
        ark.write_bytes(data[:size])
        for read in (matrix_shape, read_matrix):
            with pytest.raises(ValueError, match=r"feats\.ark"):
                read(position)


def test_headers_alone_find_that_an_archive_was_cut(tmp_path):
    scp = written(tmp_path / "data", "float")
    ark = scp.with_suffix(".ark")
    ark.write_bytes(ark.read_bytes()[:-1])
    *whole, last = read_scp(scp).values()
    size = ark.stat().st_size
    for position in whole:
        matrix_shape(position)
    with pytest.raises(ValueError, match=f"is truncated: it ends at byte {size}, its matrix of 6"):
        matrix_shape(last)
    with pytest.raises(ValueError, match=f"would end at {size + 1}"):
        list(index_archive(ark))


@pytest.mark.parametrize("offset", [1, 3, 40])
def test_an_offset_that_is_no_matrix(tmp_path, offset):
    scp = written(tmp_path / "data", "float")
    with pytest.raises(ValueError, match=f"feats.ark at byte {offset}"):
        read_matrix(MatrixPosition(scp.with_suffix(".ark"), offset))


def test_an_offset_beyond_the_archive(tmp_path):
    ark = written(tmp_path / "data", "float").with_suffix(".ark")
    size = ark.stat().st_size
    with pytest.raises(ValueError, match=f"ends at byte {size}, before a matrix at {size + 9}"):
        matrix_shape(MatrixPosition(ark, size + 9))


@pytest.mark.parametrize("form", ["float", "double", "text"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(tmp_path, form, value):
    matrix = MATRICES["utt0"].copy()
    matrix[2, 1] = value
    position = read_scp(written(tmp_path / "data", form, {"utt0": matrix}))["utt0"]
    assert matrix_shape(position) == (4, 3)
    with pytest.raises(ValueError, match=f"byte 5 has {value} in row 2, column 1"):
        read_matrix(position)


@pytest.mark.parametrize("data", [b"[ ]\n", b"\0BFM \4\0\0\0\0\4\0\0\0\0"])
def test_a_matrix_without_values_is_refused(tmp_path, data):
    path = tmp_path / "empty.ark"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="has no values"):
        matrix_shape(MatrixPosition(path, 0))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"[\n 1 2\n 3 ]\n", "is broken"),
        (b"[ 1 two ]\n", "is broken"),
        (b"[ 1 2 ] two [ 3 4 ]\n", "must end its line, got b' two"),
        (b"\0BFV \4\3\0\0\0" + bytes(40), "is not a matrix of type FM"),
        (b"\0B\4\3\0\0\0" + bytes(40), "is not a matrix of type FM"),
        (b"NPY\0\0", "is not a matrix"),
        (b"PKL\0\0", "is not a matrix"),
    ],
)
def test_other_things_are_refused(tmp_path, data, what):
    path = tmp_path / "other.ark"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=what):
        read_matrix(MatrixPosition(path, 0))


@pytest.mark.parametrize("between", [b"  ", b"\t"])
def test_a_text_matrix_may_begin_with_a_whole_number(tmp_path, between):
    path = tmp_path / "text.ark"
    path.write_bytes(b"utt" + between + b"[\n  1 0.5\n  -2 3e-1 ]\n")
    ((name, position),) = index_archive(path)
    assert name == "utt"
    np.testing.assert_array_equal(read_matrix(position), np.float32([[1, 0.5], [-2, 0.3]]))


def test_real_archives(kaldi_dir):
    samples = kaldi_dir / "io_formats"
    want = dict(kaldiio.load_ark(str(samples / "feats.ark")))
    for name, tolerance in (
        ("feats.ark", 0),
        ("feats_compressed.ark", 0.5),
        ("feats_ascii.ark", 1e-4),
    ):
        found = {name: read_matrix(position) for name, position in index_archive(samples / name)}
        assert found
        for utterance, matrix in found.items():
            np.testing.assert_allclose(matrix, want[utterance], atol=tolerance, rtol=0)


@pytest.mark.parametrize("at", [5, 10])
def test_a_wrong_size_byte_is_refused(tmp_path, at):
    write_features(tmp_path, {"one": np.zeros((3, 2), np.float32)})
    path = tmp_path / "feats.ark"
    data = bytearray(path.read_bytes())
    start = data.index(b"\0B")
    assert data[start + at] == 4
    data[start + at] = 8
    path.write_bytes(data)
    for read in (matrix_shape, read_matrix):
        with pytest.raises(ValueError, match=r"feats\.ark at byte 4 has numbers of .* not of 4"):
            read(MatrixPosition(path, start))


def test_a_matrix_that_is_larger_than_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_file, "LIMIT", 100)
    write_features(tmp_path, {"one": np.zeros((30, 2), np.float32)})
    with pytest.raises(ValueError, match=r"feats\.ark at byte 4 is too large.* 100 bytes"):
        read_matrix(MatrixPosition(tmp_path / "feats.ark", 4))


def test_an_archive_of_one_letter_has_no_utterance(tmp_path):
    (tmp_path / "feats.ark").write_bytes(b"a" * 10_000)
    with pytest.raises(ValueError, match="no utterance before the matrix at byte 0"):
        list(index_archive(tmp_path / "feats.ark"))


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{read_matrix.__module__}._LONGEST_TEXT", 1000)
    (tmp_path / "feats.ark").write_bytes(b"one [ " + b"1 " * 10_000)
    with pytest.raises(ValueError, match=r"the text matrix of .*feats\.ark.* 1,000 bytes"):
        list(index_archive(tmp_path / "feats.ark"))
