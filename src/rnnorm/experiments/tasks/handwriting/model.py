"""A recurrent model that predicts the next point of a pen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rnnorm.diagnostics import plot_strokes
from rnnorm.experiments.data.strokes.strokes import END, StrokeBatch, StrokeBatches, inputs
from rnnorm.experiments.models.feeding import draw_at
from rnnorm.experiments.models.layers import initialise
from rnnorm.experiments.models.measures import Likelihood, cross_entropy
from rnnorm.experiments.models.mixture import Mixture
from rnnorm.experiments.models.recurrent_model import RecurrentModel, rows_of
from rnnorm.experiments.tasks.handwriting.data import StrokeData
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.score import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# inputs of a point: x and y offset, and whether the pen was lifted
_INPUT = 3
_DRAWN, _COLUMNS, _MOST = 20, 5, 200


class Writer(RecurrentModel):
    """Recurrent layers, a mixture over the next offset and a softmax over the state of the pen.

    The model of Graves 2013, section 4, with a third state of the pen: lifted for the last time.

    Args:
        components: Gaussians of the mixture.
        num_layers: number of layers.
        num_classes: number of classes, each with a learned initial state of the layers; 0 for one
            initial state for all drawings.
        **layers: arguments of :class:`rnnorm.experiments.models.recurrent_model.RecurrentModel`.

    Attributes:
        score: the metric of the best checkpoint, nats a point; lower is better, and values are
            below 0 where densities are above 1.

    Raises:
        ValueError: if ``num_classes`` is given with an HMLSTM or with ``learn_initial_state``.
    """

    score = Score("loss", "min")
    kind = "one of handwriting"
    writes = "draws: write RUN --out PICTURE"
    in_processes = True

    def __init__(
        self, components: int = 20, num_layers: int = 1, num_classes: int = 0, **layers: Any
    ) -> None:
        super().__init__(**layers)
        if num_classes and self.hparams["cell"] == "HMLSTM":
            raise ValueError(f"num_classes must be 0 for an HMLSTM, got {num_classes}")
        if num_classes and self.hparams["learn_initial_state"]:
            raise ValueError(
                "learn_initial_state must be False with num_classes, whose states are learned, got "
                f"{self.hparams['learn_initial_state']}"
            )
        self.rnn = self.make_layer(_INPUT, num_layers=num_layers)
        self.head = nn.Linear(self.rnn.hidden_size, 6 * components + END + 1)
        initialise(self.rnn, self.hparams["init"], self.head)
        size = 2 * num_layers * self.rnn.hidden_size
        self.start = nn.Embedding(num_classes, size) if num_classes else None
        self.val_likelihood, self.test_likelihood = Likelihood("nats"), Likelihood("nats")

    def check_data(self, data: StrokeData) -> None:
        """Check that the model has the classes of the data, or no classes.

        Raises:
            ValueError: if ``num_classes`` is neither 0 nor the number of the data's classes.
        """
        given, found = self.hparams["num_classes"], len(data.classes)
        if given not in (0, found):
            raise ValueError(
                f"model.init_args.num_classes must be 0 or the {found} classes, got {given}"
            )

    def first_state(self, classes: Tensor) -> Any:
        """Return the states ``(num_layers, B, H)`` of classes ``(B,)``, or None without classes."""
        if self.start is None:
            return None
        states = self.start(classes).unflatten(1, (2, self.rnn.num_layers, -1)).permute(1, 2, 0, 3)
        h, c = states.contiguous()
        return (h, c) if self.hparams["cell"] == "LSTM" else h

    def forward(
        self, x: Tensor, state: Any = None, step: int = 0, lengths: Tensor | None = None
    ) -> tuple[Mixture, Tensor, Any]:
        """Compute the distributions of the next offset and of the pen.

        Args:
            x: offset and pen of the previous points ``(T, B, 3)``.
            state: states of the layers before the first point, or None for the initial states.
            step: index of the first point in its drawing.
            lengths: points of each row ``(B,)`` if not all have ``T``.

        Returns:
            The mixture of the next offsets, scores of the pen ``(T, B, 3)``, and the states after
            the last point.
        """
        # an HMLSTM also returns its boundaries
        output, state, *_ = self.rnn(x, state, lengths=lengths, step=step)
        return *self._predicted(output), state

    def _predicted(self, output: Tensor) -> tuple[Mixture, Tensor]:
        outputs = self.head(output)
        return Mixture.of(outputs[..., : -(END + 1)]), outputs[..., -(END + 1) :]

    def training_step(self, batch: StrokeBatch, batch_idx: int) -> Tensor:
        """Compute the negative log-likelihood of a minibatch, in nats a point."""
        loss, points = self._loss(batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=points)
        return loss * processes.loss_weight(points)

    def statistics_step(self, batch: StrokeBatch) -> None:
        """Run the model over a minibatch to collect its statistics."""
        classes = batch.classes.to(self.device)
        x = batch.x.to(self.head.weight)
        self.rnn(x, self.first_state(classes), lengths=batch.lengths, step=0)

    def evaluate(self, name: str, batch: StrokeBatch) -> None:
        """Log the likelihood of a minibatch."""
        loss, points = self._loss(batch)
        likelihood = getattr(self, f"{name}_likelihood")
        likelihood(loss, points)
        self.log(f"{name}/loss", likelihood, prog_bar=True, batch_size=points)

    def _loss(self, batch: StrokeBatch) -> tuple[Tensor, int]:
        """Compute the nats a point of a minibatch, and its number of points."""
        inside = batch.inside
        state = self.first_state(batch.classes)
        output, *_ = self.rnn(batch.x, state, lengths=batch.lengths, step=0)
        mixture, pen = self._predicted(output[inside])
        nats = mixture.nats(batch.offsets[inside]).mean() + cross_entropy(pen, batch.pen[inside])
        return nats, int(inside.sum())

    @torch.no_grad()
    def draw(
        self,
        classes: Tensor,
        temperature: float,
        max_length: int,
        generator: torch.Generator,
        beginning: tuple[Tensor, Tensor] | None = None,
    ) -> list[Tensor]:
        """Draw point by point until the pen is lifted for the last time.

        Args:
            classes: class of each drawing ``(B,)``; without classes only their number matters.
            temperature: temperature of offsets (:meth:`Mixture.draw`) and pen; 0 for the most
                probable.
            max_length: most points of a drawing; a longer one is cut off.
            generator: source of the random numbers.
            beginning: scaled offsets ``(N, 2)`` and pen ``(N,)`` that all drawings begin with.

        Returns:
            Scaled offset and pen of each point ``(N, 3)``, for each drawing.

        Raises:
            ValueError: if ``temperature`` is negative or not finite.
        """
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"temperature must be at least 0 and finite, got {temperature}")
        self.eval()
        like = self.head.weight
        offsets, pen = beginning or (like.new_zeros(0, 2), torch.zeros(0).long())
        x = inputs(offsets.to(like), pen).unsqueeze(1).repeat(1, len(classes), 1)
        points = [torch.cat([offsets.to(like), pen.to(like).unsqueeze(1)], 1) for _ in classes]
        state, step, going = self.first_state(classes), 0, list(range(len(classes)))
        while going and len(points[going[0]]) < max_length:
            mixture, scores, state = self(x, state, step)
            step += len(x)
            next_offsets = Mixture(*(part[-1] for part in mixture)).draw(temperature, generator)
            next_pen = draw_at(scores[-1], temperature, generator)
            new = torch.cat([next_offsets, next_pen.to(like).unsqueeze(1)], 1)
            for row, i in enumerate(going):
                points[i] = torch.cat([points[i], new[row : row + 1]])
            # a drawing that has ended costs nothing more
            left = (next_pen != END).nonzero().flatten()
            going = [going[row] for row in left.tolist()]
            state = rows_of(state, left)
            lifted = (next_pen > 0).to(like).unsqueeze(1)
            x = torch.cat([next_offsets, lifted], 1)[None, left]
        return points

    def examples(self, data: StrokeData) -> Iterator[tuple[str, str, Callable[[Axes], None]]]:
        """Show drawings by the model in evaluation mode, and the boundaries that an HMLSTM finds.

        Args:
            data: the loaded data.

        Yields:
            A title, a caption, and a function that draws the figure.
        """
        generator = torch.Generator().manual_seed(1)
        classes = torch.arange(_DRAWN) % max(1, self.hparams["num_classes"])
        drawn = self.draw(classes, 0.5, _MOST, generator)
        ended = sum(bool(points[-1, 2] == END) for points in drawn)
        caption = f"At temperature 0.5; {ended} of {_DRAWN} have ended by themselves."
        yield "Drawn from nothing", caption, partial(plot_strokes, drawings=drawn)
        if self.hparams["cell"] == "HMLSTM":
            yield self._boundaries(data)

    def _boundaries(self, data: StrokeData) -> tuple[str, str, Callable[[Axes], None]]:
        """Return title, caption and picture of the boundaries on validation drawings."""
        loader = data.loaders["val"]
        assert isinstance(loader, StrokeBatches)
        drawings, found, lifted = [], [], []
        for i in range(min(_DRAWN, len(loader.drawings))):
            offsets, pen = loader.points(i)
            x = inputs(offsets, pen).to(self.head.weight)
            _, _, boundaries = self.rnn(x.unsqueeze(1))
            # a point is the input of the step after it
            z = boundaries.z[1:, 0].cpu() > 0.5
            last = (pen > 0).nonzero().flatten()
            lifted.append(z[last] | z[(last + 1).clamp(max=len(z) - 1)])
            drawings.append(torch.cat([offsets, pen.unsqueeze(1)], 1))
            # column 0: strokes end where the pen is lifted
            found.append(torch.cat([(pen > 0).unsqueeze(1), z], 1))
        layers, columns = found[0].size(1), range(min(_COLUMNS, len(drawings)))
        points, lifts = torch.cat(found).double().mean(0), torch.cat(lifted).double().mean(0)
        shares = (
            f"layer {k}: at {points[k]:.0%} of all points, at {lifts[k - 1]:.0%} of the lifts"
            for k in range(1, layers)
        )
        plot = partial(
            plot_strokes,
            drawings=[drawings[i] for _ in range(layers) for i in columns],
            columns=len(columns),
            boundaries=[found[i][:, k] for k in range(layers) for i in columns],
        )
        caption = (
            "Validation drawings; each segment has another colour than the one before. Above a "
            "segment is a stroke of the pen; below it ends at a boundary, a row a layer, first the "
            f"lowest. Boundaries of {len(drawings)} drawings, {'; '.join(shares)} of the pen: at "
            "the last point of a stroke or the first of the next."
        )
        return "Boundaries on strokes", caption, plot
