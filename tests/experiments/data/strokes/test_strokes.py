import lzma
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from stroke_files import IAM, crosses, write_kanji

from rnnorm.experiments.data.strokes.corpora import (
    load_iam,
    load_kanjivg,
    load_pendigits,
    read_iam,
    read_kanjivg,
)
from rnnorm.experiments.data.strokes.strokes import END, UP, StrokeBatches, drawing
from rnnorm.experiments.files import BrokenFileError


def test_strokes_become_offsets_and_end_once():
    made = drawing([np.array([[2.0, 3], [4, 3]]), np.array([[4.0, 5]])], "a")
    assert made.offsets.tolist() == [[0, 0], [2, 0], [0, 2]]
    assert made.pen.tolist() == [0, UP, END]
    assert made.label == "a"


def test_characters_are_read_as_they_were_written(tmp_path):
    path = write_kanji(tmp_path)
    parts = read_kanjivg(path)
    assert [len(part) for part in parts] == [30, 8, 8]
    offsets, pen, begins = crosses()
    np.testing.assert_array_equal(parts.train[3].offsets, offsets[begins[3] : begins[4]])
    for each in parts.train:
        assert each.pen[-1] == END
        assert (each.pen[:-1] < END).all()
    assert sum((each.pen > 0).sum() for each in parts.train) == pen.sum()
    packed = tmp_path / "more" / "kanjivg_rdp100.npz.xz"
    packed.parent.mkdir()
    packed.write_bytes(lzma.compress(path.read_bytes()))
    assert len(load_kanjivg(packed.parent).train) == 30


@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("train_dxdy", np.zeros((3, 2), np.float32), r"must have dxdy \(P, 2\)"),
        ("train_dxdy", np.array([None, 1]), "cannot be read: .*pickle"),
        ("train_dxdy", np.zeros(135, np.complex64), "plain numbers, got complex64"),
        ("valid_pen_up", np.uint8(1), r"must have dxdy \(P, 2\), pen_up \(P,\)"),
        ("valid_pen_up", np.full(36, 2, np.uint8), "must have 0 or 1 in pen_up"),
        ("valid_pen_up", np.zeros(36, np.uint8), "character that ends with the pen down: 0"),
        ("test_offsets", np.array([0, 5, 5, 36]), "offsets that go up from 0 to 36"),
        ("test_offsets", np.array([0, 5]), "offsets that go up from 0 to 36"),
        ("test_offsets", np.array([0]), r"offsets \(C \+ 1,\)"),
        ("test_dxdy", np.full((36, 2), np.nan, np.float32), "not finite at point 0"),
    ],
)
def test_broken_arrays_are_refused(tmp_path, name, values, what):
    path = write_kanji(tmp_path, **{name: values})
    with pytest.raises(BrokenFileError, match=f"{path}, {name.partition('_')[0]}.*{what}"):
        read_kanjivg(path)


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00\x08\x00{'descr'"])
def test_a_member_that_is_no_array_is_refused(tmp_path, content):
    path = write_kanji(tmp_path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (members | {"valid_dxdy.npy": content}).items():
            archive.writestr(name, data)
    with pytest.raises(BrokenFileError, match=f"{path}, valid_dxdy cannot be read"):
        read_kanjivg(path)


def test_a_file_that_was_cut_short_is_refused(tmp_path):
    path = write_kanji(tmp_path)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(BrokenFileError, match=str(path)):
            read_kanjivg(path)
    with pytest.raises(FileNotFoundError, match=r"lacks kanjivg_rdp100\.npz"):
        load_kanjivg(tmp_path / "more")


def test_a_line_of_iam(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text(IAM)
    read = read_iam(path)
    assert read.offsets.tolist() == [[0, 0], [3, 4], [-8, 0]]
    assert read.pen.tolist() == [0, UP, END]


@pytest.mark.parametrize(
    ("code", "declared"),
    [
        ("iso-8859-1", '<?xml version="1.0" encoding="ISO-8859-1"?>'),
        ("windows-1252", '<?xml version="1.0" encoding="windows-1252"?>'),
        ("utf-8-sig", '<?xml version="1.0"?>\n<!DOCTYPE WhiteboardCaptureSession SYSTEM "a.dtd">'),
        ("utf-8", "<!DOCTYPE a [<!ATTLIST Point x CDATA #REQUIRED>]>"),
        ("utf-16", '<?xml version="1.0"?>'),
        ("utf-8", '\n\n<?xml version="1.0"?>\r\n'),
    ],
)
def test_a_line_of_iam_in_any_encoding_that_it_declares(tmp_path, code, declared):
    path, body = tmp_path / "a.xml", IAM[IAM.index("<White") :]
    for text in (body, body.replace("\n", "\r\n")):
        path.write_bytes(f"{declared}<!-- größer -->{text}".encode(code))
        assert read_iam(path).offsets.tolist() == [[0, 0], [3, 4], [-8, 0]]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("</StrokeSet>", "", "is not a whole xml: mismatched tag"),
        (IAM[-60:], "", "is not a whole xml: "),
        ('x="13"', "", "stroke 1 has a point whose x or y is not a finite number"),
        ('x="13"', 'x="nan"', "stroke 1 has a point whose x or y is not a finite number"),
        ('y="24" time="2"', 'y="1e999"', "stroke 2 has a point"),
        # too large for float32
        ('x="13"', 'x="1e39"', "stroke 1 has a point whose x or y is not a finite number"),
        ("StrokeSet", "Strokes", "has no point of a stroke"),
        ("<White", '<!DOCTYPE a [<!ENTITY b "c">]><White', "has a declaration"),
    ],
)
def test_a_broken_line_is_refused(tmp_path, old, new, what):
    path = tmp_path / "a.xml"
    path.write_text(IAM.replace(old, new))
    with pytest.raises(BrokenFileError, match=f"{path}.*{what}"):
        read_iam(path)


def test_a_form_is_in_one_part(tmp_path):
    for form in range(30):
        for line in (1, 2):
            path = tmp_path / f"lineStrokes/a{form // 10}/f{form}/f{form}-0{line}.xml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(IAM.replace('x="13"', f'x="{100 + form}"'))
    parts = load_iam(tmp_path)
    forms = [{float(each.offsets[1, 0]) for each in part} for part in parts]
    assert [len(part) for part in parts] == [56, 2, 2]
    assert len(forms[0] | forms[1] | forms[2]) == sum(map(len, forms)) == 30
    with pytest.raises(ValueError, match="xml files of three forms or more, got 2"):
        load_iam(_two(tmp_path))


def test_forms_in_another_folder_and_case_and_what_macos_adds(tmp_path):
    for form in "abcd":
        path = tmp_path / f"again/LINESTROKES/{form}01/{form}01-01.XML"
        path.parent.mkdir(parents=True)
        path.write_text(IAM)
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")
    (tmp_path / "again/other.xml").write_text("no line")
    assert sum(map(len, load_iam(tmp_path / "again"))) == 4


def _two(folder):
    for form in ("a", "b"):
        path = folder / "two" / f"{form}-01.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(IAM)
    return folder / "two"


def test_digits_have_their_classes_and_y_downwards(tmp_path):
    for ending, rows in (("tra", 20), ("tes", 5)):
        lines = [f"0,100,50,40,{i % 3}" for i in range(rows)]
        (tmp_path / f"pendigits.{ending}").write_text("\n".join(lines))
    parts = load_pendigits(tmp_path)
    assert [len(part) for part in parts] == [18, 2, 5]
    assert parts.test[1].offsets.tolist() == [[0, 0], [50, 60]]
    assert [each.label for each in parts.test] == ["0", "1", "2", "0", "1"]


def test_a_digit_too_far_from_the_origin_is_refused_with_its_number(tmp_path):
    for ending in ("tra", "tes"):
        (tmp_path / f"pendigits.{ending}").write_text("0,1,2,3,1\n3e38,-3e38,-3e38,3e38,1\n")
    with pytest.raises(BrokenFileError, match=r"pendigits\.tra: drawing 2 has a point .* 1e\+09"):
        load_pendigits(tmp_path)


def test_a_digit_alone_cannot_train_and_validate(tmp_path):
    for ending in ("tra", "tes"):
        (tmp_path / f"pendigits.{ending}").write_text("0,100,50,40,1\n")
    with pytest.raises(ValueError, match=f"{tmp_path} must have a digit to train and one to val"):
        load_pendigits(tmp_path)


@pytest.mark.parametrize("load", [load_kanjivg, load_iam, load_pendigits])
def test_a_folder_is_asked_for(load):
    with pytest.raises(FileNotFoundError, match="--data-dir"):
        load(None)


def test_what_is_read_is_the_point_before():
    drawings = [drawing([np.array([[0.0, 0], [2, 0]]), np.array([[2.0, 4]])], "b")]
    (batch,) = StrokeBatches(drawings, ("a", "b"), 2.0, 1)
    assert batch.x[:, 0].tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 1]]
    assert batch.offsets[:, 0].tolist() == [[0, 0], [1, 0], [0, 2]]
    assert batch.pen[:, 0].tolist() == [0, UP, END]
    assert batch.classes.tolist() == [1]


def test_the_real_characters():
    folder = os.environ.get("RNNORM_DATA")
    if not folder or not (Path(folder) / "handwriting").is_dir():
        pytest.skip("RNNORM_DATA does not name a folder with handwriting/")
    parts = load_kanjivg(folder)
    assert [len(part) for part in parts] == [10358, 600, 500]
    assert sum(len(each.pen) for each in parts.test) == 18612
