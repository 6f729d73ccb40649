import errno
import os
import threading
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

from rnnorm.experiments.training import checkpoint as checkpoint_file
from rnnorm.experiments.training import checkpointing
from rnnorm.experiments.training.checkpoint import (
    WholeFiles,
    load_weights,
    newest_checkpoint,
    read_checkpoint,
)
from rnnorm.experiments.training.checkpointing import KeepLastAndBest
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.score import Score


class FullDisk:
    """A file that takes half of the data and then finds the disk full."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        self.file.write(bytes(data)[: len(data) // 2])
        self.file.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full_disk(monkeypatch):
    """Call it with a number: writes of checkpoints fail after so many."""
    left = [None]
    real = Path.open

    def opened(path, mode="r", *args, **kwargs):
        file = real(path, mode, *args, **kwargs)
        if not fnmatch(path.name, "*.ckpt.*.partial") or left[0] is None:
            return file
        left[0] -= 1
        return FullDisk(file) if left[0] < 0 else file

    monkeypatch.setattr(Path, "open", opened)
    return lambda writes: left.__setitem__(0, writes)


def test_the_previous_checkpoint_survives_a_full_disk(tmp_path, full_disk):
    path = tmp_path / "deep" / "last.ckpt"
    WholeFiles().save_checkpoint({"state_dict": {"a": torch.ones(100)}}, path)
    before = path.read_bytes()
    full_disk(0)
    with pytest.raises(OSError, match="the checkpoint before it is whole") as error:
        WholeFiles().save_checkpoint({"state_dict": {"a": torch.zeros(100)}}, path)
    assert error.value.errno == errno.ENOSPC
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["last.ckpt"]


def test_a_full_disk_that_a_logger_finds_is_told_with_the_run_folder(tmp_path, tiny, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # tensorboard's error has no file name
    monkeypatch.setattr("lightning.pytorch.loggers.TensorBoardLogger.log_metrics", full)
    with pytest.raises(OSError, match="No space left") as error:
        fit("demo/digits-bn", run_dir=tmp_path / "run", overrides=tiny)
    assert error.value.filename == str(tmp_path / "run")


def test_the_thread_that_finds_the_disk_full_prints_no_traceback(tmp_path, tiny, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    unhandled = []
    monkeypatch.setattr(threading, "excepthook", unhandled.append)
    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", full)
    with pytest.raises(OSError, match="No space left") as error:
        fit("demo/digits-bn", run_dir=tmp_path / "run", overrides=tiny)
    assert error.value.filename == str(tmp_path / "run")
    assert unhandled == []


def test_training_stops_on_a_full_disk_and_goes_on_later(tmp_path, tiny, full_disk):
    folder, whole = tmp_path / "run", tmp_path / "whole"
    full_disk(3)
    with pytest.raises(OSError, match="No space left"):
        fit("demo/digits-bn", run_dir=folder, overrides=tiny, every_n_steps=2)
    assert read_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"] == 6
    assert not list((folder / "checkpoints").glob("*.partial"))
    full_disk(None)
    fit(resume=folder)
    fit("demo/digits-bn", run_dir=whole, overrides=tiny)
    one, two = (read_checkpoint(f / "checkpoints/last.ckpt")["state_dict"] for f in (folder, whole))
    assert all(torch.equal(one[name], two[name]) for name in two)


class Validated:
    """A trainer after a validation that gave this accuracy."""

    sanity_checking = False

    def __init__(self, epoch, accuracy):
        self.current_epoch = self.global_step = epoch
        self.callback_metrics = {"val/accuracy": accuracy}

    def save_checkpoint(self, path):
        path.touch()


def test_nan_is_never_the_best(tmp_path):
    keep = KeepLastAndBest(tmp_path, Score("accuracy", "max"))
    keep.on_validation_end(Validated(0, float("nan")), None)
    assert keep.best is None
    assert not (tmp_path / "best.ckpt").exists()
    keep.on_validation_end(Validated(1, 0.25), None)
    keep.on_validation_end(Validated(2, float("inf")), None)
    assert (keep.best, keep.best_epoch) == (0.25, 2)


class Saving:
    """A trainer that notes where the checkpoint before is to be kept."""

    global_step = 3

    def __init__(self):
        self.kept = []

    def save_checkpoint(self, path, storage_options):
        self.kept.append(storage_options)


def test_a_broken_checkpoint_never_takes_the_place_of_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointing, "log_now", lambda trainer: None)
    keep, trainer = KeepLastAndBest(tmp_path, Score("accuracy", "max"), every_n_steps=3), Saving()
    trainer.is_last_batch = True
    keep.broken = True
    for _ in range(2):
        keep.on_train_epoch_end(trainer, None)
    assert trainer.kept == [None, tmp_path / "previous.ckpt"]


def test_the_best_checkpoint_has_the_weights_that_were_validated(tiny):
    # 7 steps an epoch, validated after five of them
    run = fit("demo/digits-bn", overrides=[*tiny, "--trainer.val_check_interval=5"])
    state = read_checkpoint(run.best_checkpoint)
    assert state["global_step"] in (5, 12, 19)
    load_weights(run.experiment.model, state, run.best_checkpoint)
    trainer = run.experiment.make_trainer([])
    (found,) = trainer.validate(run.experiment.model, run.experiment.datamodule.val_dataloader())
    assert found["val/accuracy"] == pytest.approx(run.best)


STATE = {"state_dict": {"a": torch.arange(100.0)}, "epoch": 1, "global_step": 5}


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def assert_every_flip_is_refused(path, bits):
    data = path.read_bytes()
    for bit in bits:
        path.write_bytes(flipped(data, bit))
        try:
            state = read_checkpoint(path)
        except ValueError as error:
            assert str(error).startswith(f"{path} is not a whole checkpoint: ")  # noqa: PT017
        else:
            # the mark alone was hit that says where the digest is: all else is what was written
            assert torch.equal(state["state_dict"]["a"], STATE["state_dict"]["a"])
            assert len(data) - 71 <= bit // 8 < len(data) - 64
    path.write_bytes(data)


def test_a_flipped_bit_anywhere_is_found(tmp_path):
    path = tmp_path / "last.ckpt"
    WholeFiles().save_checkpoint(STATE, path)
    bits = 8 * path.stat().st_size
    chosen = torch.randperm(bits, generator=torch.Generator().manual_seed(1))[:1500].tolist()
    # the directory of the archive and the digest stand at its end
    assert_every_flip_is_refused(path, [*chosen, *range(bits - 8 * 250, bits)])
    assert torch.equal(read_checkpoint(path)["state_dict"]["a"], STATE["state_dict"]["a"])


def test_a_flipped_bit_in_a_tensor_is_found_without_a_digest_too(tmp_path):
    path = tmp_path / "torch.ckpt"
    torch.save(STATE, path)
    data = path.read_bytes()
    start = data.index(STATE["state_dict"]["a"].numpy().tobytes())
    for bit in range(8 * start, 8 * start + 3200, 7):
        path.write_bytes(flipped(data, bit))
        with pytest.raises(ValueError, match=r"is not a whole checkpoint: the checksum of .*data"):
            read_checkpoint(path)


def test_torch_reads_a_checkpoint_with_a_digest(tmp_path):
    WholeFiles().save_checkpoint(STATE, tmp_path / "last.ckpt")
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert torch.equal(state["state_dict"]["a"], STATE["state_dict"]["a"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state_dict": [1]}, "its 'state_dict' must be of type dict, got list"),
        ({"global_step": None}, "its 'global_step' must be of type int, got NoneType"),
        ({"epoch": "1"}, "its 'epoch' must be of type int, got str"),
    ],
)
def test_a_state_of_another_form_is_refused_by_name(tmp_path, change, said):
    path = tmp_path / "last.ckpt"
    torch.save(STATE | change, path)
    with pytest.raises(ValueError, match=rf"last\.ckpt is not a checkpoint of a training: {said}"):
        read_checkpoint(path)
    (name,) = change
    torch.save({k: v for k, v in STATE.items() if k != name}, path)
    with pytest.raises(ValueError, match=f"it has no '{name}'"):
        read_checkpoint(path)


def test_weights_of_another_model_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"x\.ckpt does not hold this model's weights: ") as error:
        load_weights(torch.nn.Linear(2, 3), STATE, "x.ckpt")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [0, 10, 500])
def test_a_broken_checkpoint_is_refused_by_name(tmp_path, size):
    path = tmp_path / "last.ckpt"
    WholeFiles().save_checkpoint({"state_dict": {"a": torch.ones(100)}}, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"last\.ckpt is not a whole checkpoint"):
        read_checkpoint(path)


def test_a_folder_in_the_place_of_a_checkpoint_is_none(tmp_path, capsys):
    (tmp_path / "last.ckpt").mkdir()
    WholeFiles().save_checkpoint(STATE, tmp_path / "previous.ckpt")
    assert newest_checkpoint(tmp_path)[0] == tmp_path / "previous.ckpt"
    assert "last.ckpt is not a whole checkpoint" in capsys.readouterr().err
    with pytest.raises(OSError, match="could not write a checkpoint") as error:
        WholeFiles().save_checkpoint(STATE, tmp_path / "last.ckpt")
    assert "whole at" not in str(error.value)


def test_a_broken_checkpoint_is_answered_with_the_whole_ones_beside_it(tmp_path):
    last, before, best = (tmp_path / f"{name}.ckpt" for name in ("last", "previous", "best"))
    for path, step in ((last, 9), (before, 8), (best, 7)):
        WholeFiles().save_checkpoint(STATE | {"global_step": step}, path)
    last.write_bytes(last.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"last\.ckpt is not a whole checkpoint: ") as error:
        read_checkpoint(last)
    assert str(error.value).endswith(f". Whole beside it: {before} (step 8), {best} (step 7)")
    best.write_bytes(b"")
    before.unlink()
    with pytest.raises(ValueError, match=r"last\.ckpt is not a whole checkpoint: ") as error:
        read_checkpoint(last)
    assert "beside" not in str(error.value)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    torch.save([1, 2], tmp_path / "list.ckpt")
    with pytest.raises(ValueError, match="not a checkpoint of a training"):
        read_checkpoint(tmp_path / "list.ckpt")
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        read_checkpoint(tmp_path / "none.ckpt")


def test_a_checkpoint_with_code_in_it_is_not_run(tmp_path):
    class Bad:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "harm"),))

    torch.save({"state_dict": {}, "x": Bad()}, tmp_path / "bad.ckpt")
    with pytest.raises(ValueError, match="it holds more than plain types and tensors"):
        read_checkpoint(tmp_path / "bad.ckpt")
    assert not (tmp_path / "harm").exists()


def special(path, kind):
    """A named pipe, or a link to a device without an end."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "last.ckpt"
    special(path, kind)
    for read in (read_checkpoint, lambda path: newest_checkpoint(path.parent)):
        with pytest.raises(ValueError, match=rf"^{path} is a {kind}, not a file"):
            read(path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_the_one_before_serves_where_the_last_is_no_file(tmp_path, capsys, kind):
    state = {"state_dict": {}, "epoch": 1, "global_step": 7}
    WholeFiles().save_checkpoint(state, tmp_path / "previous.ckpt")
    special(tmp_path / "last.ckpt", kind)
    assert newest_checkpoint(tmp_path)[1]["global_step"] == 7
    assert f"last.ckpt is a {kind}, not a file" in capsys.readouterr().err
    WholeFiles().save_checkpoint(state, tmp_path / "last.ckpt")
    assert read_checkpoint(tmp_path / "last.ckpt")["epoch"] == 1


def test_what_is_or_unpacks_to_more_than_the_limit_is_not_loaded(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"last\.ckpt is too large.* 17,179,869,184 bytes, the"):
        read_checkpoint(path)
    torch.save({"state_dict": {"a": torch.zeros(10000)}, "epoch": 1, "global_step": 7}, path)
    with zipfile.ZipFile(path) as stored, zipfile.ZipFile(path.with_name("b.ckpt"), "w") as packed:
        for each in stored.infolist():
            packed.writestr(each, stored.read(each), zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(checkpoint_file, "_LIMIT", 20_000)
    with pytest.raises(ValueError, match=r"b\.ckpt, unpacked, is too large"):
        read_checkpoint(path.with_name("b.ckpt"))
