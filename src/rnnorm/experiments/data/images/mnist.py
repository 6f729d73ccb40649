"""Where MNIST's four files are: in a folder of the user's, or downloaded and checked."""

from __future__ import annotations

import logging
from pathlib import Path

from rnnorm.experiments.data.whole_file import is_there

# the address that torchvision downloads from
ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"

SHA256 = {
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}
# the folders that are looked into, torchvision's among them; an error names the first two
_PLACES = (".", "mnist", "MNIST", "raw", "MNIST/raw", "mnist/raw")


def mnist_files(data_dir: str | Path | None = None) -> dict[str, Path]:
    """Paths of the four idx-gz files of MNIST.

    Args:
        data_dir: a folder that holds them, itself or in a sub-folder ``mnist``, or as torchvision
            keeps them in ``MNIST/raw``; unpacked or not, also by the names that Kaggle has
            (``train-images.idx3-ubyte``). Without it they are downloaded once into the user's cache
            and checked by sha256.

    Returns:
        The path of each file by its published name.

    Raises:
        FileNotFoundError: ``data_dir`` lacks one of the files.
        RuntimeError: the download failed.
    """
    if data_dir is None:
        return _download()
    folder = Path(data_dir).expanduser()
    lacking = {}
    for inner in _PLACES:
        found = {name: _find(folder / inner, name) for name in SHA256}
        files = {name: path for name, path in found.items() if path is not None}
        if len(files) == len(SHA256):
            return files
        lacking[folder / inner] = [name for name in SHA256 if name not in files]
    told = list(lacking.items())[:2]
    said = " and ".join(f"{place} lacks {', '.join(names)}" for place, names in told)
    raise FileNotFoundError(
        f"{said}: download them from {ADDRESS} into one of these folders, or leave --data-dir out "
        "and they are downloaded for you"
    )


def _find(place: Path, name: str) -> Path | None:
    plain = name.removesuffix(".gz")
    names = [name, plain, plain.replace("-idx", ".idx"), name.replace("-idx", ".idx")]
    # some programs unpack a file into a folder of its name
    paths = [place / inner / each for inner in (".", *names) for each in names]
    return next((path for path in paths if is_there(path)), None)


def _download() -> dict[str, Path]:
    import pooch

    folder = Path(pooch.os_cache("rnnorm")) / "mnist"
    pooch.get_logger().setLevel(logging.WARNING)
    files = {}
    for name, sha256 in SHA256.items():
        if not (folder / name).exists():
            print(f"downloading {ADDRESS}{name} into {folder}", flush=True)
        try:
            files[name] = Path(pooch.retrieve(ADDRESS + name, f"sha256:{sha256}", name, folder))
        except Exception as error:
            raise RuntimeError(
                f"could not download {ADDRESS}{name}: {error}; put {', '.join(SHA256)} into a "
                "folder and name it with --data-dir"
            ) from error
    return files
