import gzip
import struct

import numpy as np
import pytest
import torch

from rnnorm.experiments.data.images import ADDRESS, SHA256, load_images, mnist_files


def rows(images):
    return {tuple(row) for row in images.x.flatten(1).tolist()}


def test_digits_are_split_into_disjoint_parts():
    splits = load_images("digits")
    assert [len(part.y) for part in splits] == [1257, 270, 270]
    train, val, test = map(rows, splits)
    assert not train & val
    assert not train & test
    assert not val & test


def test_digits_split_is_fixed_and_holds_every_class():
    splits = load_images("digits")
    assert torch.equal(splits.test.x, load_images("digits").test.x)
    assert splits.train.y[:8].tolist() == [2, 8, 2, 6, 6, 7, 1, 9]
    assert all(part.y.unique().tolist() == list(range(10)) for part in splits)
    assert splits.train.x.min() == 0
    assert splits.train.x.max() == 1


def test_mnist_split(mnist_dir):
    splits = load_images("mnist", mnist_dir)
    assert [tuple(part.x.shape) for part in splits] == [
        (50000, 28, 28),
        (10000, 28, 28),
        (10000, 28, 28),
    ]
    assert splits.train.y[:6].tolist() == [5, 0, 4, 1, 9, 2]
    assert splits.test.y[:6].tolist() == [7, 2, 1, 0, 4, 1]
    assert splits.train.x.max() == 1


def test_mnist_files_are_found_from_either_folder(mnist_dir):
    below = mnist_files(mnist_dir)
    assert below == mnist_files(mnist_dir / "mnist")
    assert all(path.is_file() for path in below.values())


def test_checksums_are_those_of_the_files(mnist_dir):
    import hashlib

    for name, path in mnist_files(mnist_dir).items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256[name]


def test_missing_files_are_named_with_their_address(tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").touch()
    with pytest.raises(FileNotFoundError) as error:
        mnist_files(tmp_path)
    message = str(error.value)
    assert message.startswith(f"{tmp_path} lacks train-labels-idx1-ubyte.gz, ")
    assert f"{tmp_path / 'mnist'} lacks train-images-idx3-ubyte.gz, " in message
    assert "t10k-labels-idx1-ubyte.gz" in message
    assert ADDRESS in message


@pytest.mark.parametrize("name", [".", "mnist"])
def test_files_are_found_in_the_folder_or_below_it(tmp_path, name):
    (tmp_path / "mnist").mkdir()
    for file in SHA256:
        (tmp_path / name / file).touch()
    assert mnist_files(tmp_path) == {file: tmp_path / name / file for file in SHA256}


@pytest.mark.parametrize("place", [".", "mnist", "MNIST/raw", "raw"])
@pytest.mark.parametrize(
    "name",
    [
        "{name}-{kind}-ubyte.gz",
        "{name}-{kind}-ubyte",
        "{name}.{kind}-ubyte",
        "{name}-{kind}-ubyte/{name}-{kind}-ubyte",
        "{name}-{kind}-ubyte/{name}.{kind}-ubyte",
    ],
)
def test_files_are_found_as_torchvision_and_kaggle_leave_them(tmp_path, place, name):
    for file in SHA256:
        first, _, kind = file.removesuffix("-ubyte.gz").rpartition("-")
        path = tmp_path / place / name.format(name=first, kind=kind)
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    found = mnist_files(tmp_path)
    assert found.keys() == SHA256.keys()
    assert all(path.is_file() for path in found.values())
    assert found["t10k-labels-idx1-ubyte.gz"].name.startswith("t10k-labels")


def test_failed_download_names_address_and_way_out(monkeypatch, tmp_path):
    import pooch

    def refuse(url, *_):
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", refuse)
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path)
    with pytest.raises(RuntimeError, match=r"could not download https://.*no network.*--data-dir"):
        mnist_files()


def test_download_checks_sha256(monkeypatch, tmp_path):
    import pooch

    asked = {}

    def retrieve(url, known_hash, fname, path):
        asked[fname] = (url, known_hash)
        return path / fname

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path)
    assert set(mnist_files()) == set(SHA256)
    assert all(asked[n] == (ADDRESS + n, f"sha256:{SHA256[n]}") for n in SHA256)


def write_mnist(folder, images, labels, names=("train", "t10k")):
    for name in names:
        data = b"\0\0\x08\x03" + struct.pack(">3I", *images.shape) + images.tobytes()
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(data))
        data = b"\0\0\x08\x01" + struct.pack(">I", len(labels)) + labels.tobytes()
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(data))


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        ([1, 2], "3 images.*2 labels"),
        ([1, 2, 3], "train-labels-idx1-ubyte.gz has 3 labels, MNIST has 60000"),
    ],
)
def test_labels_that_do_not_fit(tmp_path, labels, what):
    write_mnist(tmp_path, np.zeros((3, 2, 2), np.uint8), np.array(labels, np.uint8))
    with pytest.raises(ValueError, match=what):
        load_images("mnist", tmp_path)


def zeros(count, side):
    return np.zeros((count, side, side), np.uint8), np.zeros(count, np.uint8)


def test_an_unknown_label_is_named_with_its_place(tmp_path):
    images, labels = zeros(60000, 28)
    labels[2] = 10
    write_mnist(tmp_path, images, labels)
    with pytest.raises(ValueError, match=r"train-labels.*label 10 at byte 10"):
        load_images("mnist", tmp_path)


def test_images_of_another_size_are_refused(tmp_path):
    write_mnist(tmp_path, *zeros(60000, 4))
    with pytest.raises(ValueError, match=r"train-images.* has images of 4 by 4 pixels"):
        load_images("mnist", tmp_path)


def test_a_test_set_of_another_length_is_refused(tmp_path):
    write_mnist(tmp_path, *zeros(60000, 28), names=["train"])
    write_mnist(tmp_path, *zeros(0, 28), names=["t10k"])
    with pytest.raises(ValueError, match=r"t10k-labels.* has 0 labels, MNIST has 10000"):
        load_images("mnist", tmp_path)


def test_digits_take_no_folder(tmp_path):
    with pytest.raises(ValueError, match=f"leave --data-dir {tmp_path} out"):
        load_images("digits", tmp_path)


def test_unknown_data_set():
    with pytest.raises(ValueError, match="'digits' or 'mnist', got 'cifar'"):
        load_images("cifar")
