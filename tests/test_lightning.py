"""The callback in a training of a user's own, without the experiments."""

import copy
import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rnnorm

lightning = pytest.importorskip("lightning", reason="needs the extra 'experiments'")
exact = pytest.importorskip("rnnorm.lightning")


class Model(lightning.LightningModule):
    def __init__(self, norm="batch"):
        super().__init__()
        # without noise on h_0 the estimate is a function of the weights
        self.rnn = rnnorm.GRU(3, 4, batch_first=True, norm=norm, initial_noise=0.0)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[1][-1])

    def training_step(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[-1])

    def validation_step(self, batch):
        self.training_step(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class ModelOfThree(Model):
    def statistics_step(self, batch):
        x, lengths, _ = batch
        self.rnn(x, lengths=lengths)


def loader(workers=0, lengths=False):
    torch.manual_seed(0)
    x, y = torch.randn(40, 5, 3), torch.randint(2, (40,))
    more = (torch.full((40,), 2),) if lengths else ()
    return DataLoader(
        TensorDataset(x, *more, y), 8, num_workers=workers, persistent_workers=workers > 0
    )


@contextmanager
def quiet():
    """Without Lightning's warnings of few workers, and of what torch will take away."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        yield


def fit(model, train, folder, **options):
    callbacks = options.pop("callbacks", None)
    trainer = lightning.Trainer(
        max_epochs=options.pop("max_epochs", 1),
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        callbacks=callbacks or [exact.ExactStatistics(**options.pop("exact", {}))],
        **options,
    )
    with quiet():
        data = isinstance(train, lightning.LightningDataModule)
        trainer.fit(model, train, None if data else loader())
    return trainer


def test_after_a_validation_the_statistics_are_exact(tmp_path):
    model = Model()
    fit(model, loader(), tmp_path)
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert kept["rnn.population_recurrent_l0.rows"].tolist() == [40] * 5
    rnnorm.update_bn(loader(), model)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, kept[name], msg=name)


def test_some_minibatches_are_enough(tmp_path):
    model = Model()
    fit(model, loader(), tmp_path, exact={"batches": 2})
    assert (model.rnn.population_input_l0.num_batches_tracked == 2).all()


class Scaled(Model):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return (x - 100) / 50, y


def test_the_statistics_are_of_what_the_hooks_of_the_transfer_make(tmp_path):
    model, plain = Scaled(), Model()
    plain.load_state_dict(model.state_dict())
    x, y = loader().dataset.tensors
    fit(model, DataLoader(TensorDataset(50 * x + 100, y), 8), tmp_path)
    fit(plain, loader(), tmp_path)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(model.state_dict()[name], buffer, atol=1e-5, rtol=1e-4)


class Shifted(lightning.LightningDataModule):
    """Data whose hook makes the rows of loader(), beside a hook of the model that is not called."""

    def train_dataloader(self):
        x, y = loader().dataset.tensors
        return DataLoader(TensorDataset(50 * x + 100, y), 8)

    def val_dataloader(self):
        return self.train_dataloader()

    def on_before_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return (x - 100) / 50, y


class Wrong(Model):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        raise AssertionError("Lightning prefers the hook of the data")


@pytest.mark.parametrize("kind", [Model, Wrong])
def test_the_hook_of_the_data_comes_before_that_of_the_model(kind, tmp_path):
    model, plain = kind(), Model()
    plain.load_state_dict(model.state_dict())
    fit(model, Shifted(), tmp_path)
    fit(plain, loader(), tmp_path)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(model.state_dict()[name], buffer, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}])
def test_only_minibatches_of_the_training_are_taken(options, tmp_path):
    model = Model()
    fit(model, loader(), tmp_path, exact=options, limit_train_batches=2)
    assert (model.rnn.population_input_l0.rows == 16).all()


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield from zip(*loader().dataset.tensors, strict=True)


def test_a_training_without_an_end_is_limited(tmp_path):
    model = Model()
    fit(model, DataLoader(Endless(), 8), tmp_path, limit_train_batches=3)
    assert (model.rnn.population_input_l0.rows == 24).all()


@pytest.mark.parametrize("size", [None, 4])
def test_of_a_loader_without_an_end_as_many_are_taken_as_since_the_last_validation(size, tmp_path):
    class Own(OwnLoader):
        def __iter__(self):
            while True:
                yield from super().__iter__()

    model, seen = Model(), []

    class Seen(lightning.Callback):
        def on_validation_end(self, trainer, pl_module):
            seen.append(int(pl_module.rnn.population_input_l0.rows[0]))

    train = Own() if size else DataLoader(Endless(), 8)
    callbacks = [exact.ExactStatistics(batch_size=size), Seen()]
    fit(
        model,
        train,
        tmp_path,
        max_epochs=-1,
        max_steps=5,
        val_check_interval=2,
        callbacks=callbacks,
    )
    assert seen == [16, 16]


def test_of_a_loader_of_unknown_length_an_epoch_is_all(tmp_path):
    model = Model()
    fit(model, DataLoader(Rows(), 8), tmp_path, max_epochs=2)
    assert (model.rnn.population_input_l0.rows == 40).all()


class Fixed(Model):
    def __init__(self):
        super().__init__(rnnorm.BatchNorm(horizon=5))


@pytest.mark.parametrize("use_buffers", [True, False])
@pytest.mark.parametrize("make", [Fixed, Model])
def test_of_averaged_weights_the_statistics_are_exact_too(make, use_buffers, tmp_path):
    average = lightning.pytorch.callbacks.EMAWeightAveraging
    averaging = average(decay=0.5, use_buffers=use_buffers)
    model, kept = make(), {}

    class Kept(lightning.Callback):
        def on_validation_end(self, trainer, pl_module):
            kept.update(copy.deepcopy(averaging._average_model.module.state_dict()))

    fit(model, loader(), tmp_path, callbacks=[averaging, exact.ExactStatistics(), Kept()])
    again = make()
    again.load_state_dict(kept)
    rnnorm.update_bn(loader(), again)
    torch.testing.assert_close(again.state_dict(), kept)


def test_statistics_before_the_weights_are_averaged_are_refused(tmp_path):
    averaging = lightning.pytorch.callbacks.EMAWeightAveraging()
    with pytest.raises(ValueError, match="must stand behind EMAWeightAveraging in callbacks"):
        fit(Fixed(), loader(), tmp_path, callbacks=[exact.ExactStatistics(), averaging])


def test_a_frozen_part_is_left_alone(tmp_path):
    class Frozen(Model):
        def __init__(self):
            super().__init__("layer")
            trained = Model()
            trained(next(iter(loader()))[0])
            self.other = rnnorm.freeze(trained.rnn)

    model = Frozen()
    before = copy.deepcopy(model.other.state_dict())
    fit(model, loader(), tmp_path)
    assert all(torch.equal(before[name], kept) for name, kept in model.other.state_dict().items())


def test_minibatches_of_the_statistics_may_be_larger(tmp_path):
    model = Model()
    trainer = fit(model, loader(), tmp_path, exact={"batch_size": 40})
    assert trainer.global_step == 5
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert kept["rnn.population_recurrent_l0.rows"].tolist() == [40] * 5
    assert kept["rnn.population_recurrent_l0.num_batches_tracked"].tolist() == [1] * 5
    rnnorm.update_bn([torch.cat([x for x, _ in loader()])], model)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, kept[name], msg=name)


class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(loader().dataset)


class OwnLoader:
    """No DataLoader, but with a batch size."""

    batch_size = 8

    def __iter__(self):
        x, y = loader().dataset.tensors
        return zip(x.split(self.batch_size), y.split(self.batch_size), strict=True)


def test_larger_minibatches_of_a_loader_of_ones_own(tmp_path):
    model, train = Model(), OwnLoader()
    fit(model, train, tmp_path, exact={"batch_size": 16})
    assert model.rnn.population_input_l0.num_batches_tracked.tolist() == [3] * 5
    assert train.batch_size == 8


def test_as_many_larger_minibatches_as_hold_the_rows_of_the_training_are_taken(tmp_path):
    model = Model()
    # 3 minibatches of 8 are one and a half of 16
    fit(model, loader(), tmp_path, exact={"batch_size": 16}, limit_train_batches=3)
    assert (model.rnn.population_input_l0.num_batches_tracked == 2).all()


@pytest.mark.parametrize(
    ("asked", "sizes"), [(8, [8] * 5), (13, [13, 13, 14]), (39, [40]), (38, [38, 2]), (99, [40])]
)
def test_every_row_is_in_one_of_the_larger_minibatches(asked, sizes):
    train = DataLoader(loader().dataset, 7, shuffle=True, drop_last=True)
    parts = list(exact.ExactStatistics(batch_size=asked).minibatches(train))
    assert [len(x) for x, _ in parts] == sizes
    rows = torch.cat([x for x, _ in parts]).flatten(1)
    torch.testing.assert_close(rows.sort(0)[0], loader().dataset.tensors[0].flatten(1).sort(0)[0])


class Mine(DataLoader):
    """Whose order is its own."""


@pytest.mark.parametrize(
    "train",
    [
        DataLoader(Rows(), 8),
        Mine(loader().dataset, 8),
        DataLoader(loader().dataset, batch_sampler=[range(20), range(20, 40)]),
        [(torch.ones(8, 5, 3), torch.zeros(8, dtype=torch.int64))],
    ],
)
def test_larger_minibatches_of_a_loader_that_has_its_own_are_refused(tmp_path, train):
    model = Model()
    with pytest.raises(ValueError, match=r"batch_size must be None, got 16: .* a \w+, has no"):
        fit(model, train, tmp_path, exact={"batch_size": 16})
    assert not model.rnn.population_input_l0.num_batches_tracked.any()


def test_rows_of_the_statistics_are_a_number_of_rows():
    with pytest.raises(ValueError, match="batch_size must be at least 2, got 1"):
        exact.ExactStatistics(batch_size=1)
    for wrong in (True, 2.5):
        with pytest.raises(TypeError, match="batch_size must be an int or None"):
            exact.ExactStatistics(batch_size=wrong)


def test_minibatches_of_the_statistics_are_counted():
    with pytest.raises(ValueError, match="batches must be at least 1, got 0"):
        exact.ExactStatistics(0)
    with pytest.raises(TypeError, match=r"batches must be an int or None, got 0\.5"):
        exact.ExactStatistics(0.5)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("64-true", torch.float64), ("bf16-true", torch.float32), ("bf16-mixed", torch.float32)],
)
def test_statistics_are_taken_in_the_precision_of_the_trainer(precision, dtype, tmp_path):
    model = Model()
    fit(model, loader(), tmp_path, precision=precision)
    population = model.rnn.population_input_l0
    assert population.mean.dtype == dtype
    assert population.rows.tolist() == [40] * 5


class OfTwo(Model):
    def training_step(self, batch):
        batches = batch.values() if isinstance(batch, dict) else [batch]
        return sum(super(OfTwo, self).training_step(batch) for batch in batches)


def test_several_loaders_are_refused_as_training_starts(tmp_path):
    two = {"a": loader(), "b": loader()}
    with pytest.raises(ValueError, match="must have one loader, got a dict of 2: call"):
        fit(OfTwo(), two, tmp_path)
    fit(OfTwo(norm=None), two, tmp_path)


def test_a_statistics_step_says_what_the_model_takes(tmp_path):
    model = ModelOfThree()
    fit(model, loader(lengths=True), tmp_path)
    assert model.rnn.population_input_l0.rows.tolist() == [40, 40, 0, 0, 0]


def test_a_model_that_needs_more_is_told_of_the_statistics_step(tmp_path):
    with pytest.raises(ValueError, match=r"got 3 elements: .*statistics_step\(batch\)"):
        fit(Model(), loader(lengths=True), tmp_path)


def test_workers_that_persist_stay_with_the_training(tmp_path):
    assert fit(Model(), loader(workers=1), tmp_path, val_check_interval=2).global_step == 5


class Multiscale(Model):
    def __init__(self):
        super().__init__()
        self.rnn = rnnorm.HMLSTM(3, 4, 2, batch_first=True)
        self.slopes = []

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])

    def training_step(self, batch):
        self.slopes.append(self.rnn.slope)
        return super().training_step(batch)


def test_the_slope_grows_from_epoch_to_epoch(tmp_path):
    model = Multiscale()
    annealing = exact.SlopeAnnealing(rate=0.5, most=1.75)
    fit(model, loader(), tmp_path, max_epochs=3, callbacks=[annealing])
    assert list(dict.fromkeys(model.slopes)) == [1.0, 1.5, 1.75]
    assert model.state_dict()["rnn.boundary_slope"] == 1.75


def test_a_slope_that_falls_is_an_error():
    with pytest.raises(ValueError, match="rate must be finite and at least 0, got -1"):
        exact.SlopeAnnealing(rate=-1)
    with pytest.raises(ValueError, match=r"most must be finite and at least 1, got 0\.5"):
        exact.SlopeAnnealing(most=0.5)


@pytest.mark.parametrize("norm", [None, "layer"])
def test_a_model_without_statistics_is_left_alone(tmp_path, norm):
    assert fit(Model(norm), loader(), tmp_path).global_step == 5


def test_a_validation_alone_uses_the_statistics_as_they_are(tmp_path):
    model = Model()
    trainer = fit(model, loader(), tmp_path)
    model.rnn.population_input_l0.mean.add_(1)
    before = [buffer.clone() for buffer in model.buffers()]
    with quiet():
        trainer.validate(model, loader(), verbose=False)
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))


def test_lightning_synchronises_layers_and_undoes_it():
    model, plugin = Model(), exact.SynchronizedNorm()
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, sync_batchnorm=True, plugins=plugin, barebones=True
    )
    assert trainer.strategy is not None
    assert plugin.apply(model).rnn.ranks is not None
    assert not model.rnn.synchronized()
    assert plugin.revert(model).rnn.ranks is None
