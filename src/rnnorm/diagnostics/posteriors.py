"""A plot of a frame classifier's posteriors in every frame of an utterance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_posteriors(
    axes: Axes, posteriors: Tensor, targets: Tensor | None = None, least: float = 0.1
) -> None:
    """Draw the posteriors of an utterance against time, and the aligned target.

    The classes that are a target or reach ``least`` in some frame are shown. A target stands by the
    first frame that it is the target of, any other class by the frame in which it is most probable.
    So a recognised utterance is a dark line from corner to corner. Without ``targets`` the most
    probable class of each frame takes the target's place.

    Args:
        axes: axes to draw on.
        posteriors: probabilities of the classes in each frame ``(T, C)``.
        targets: class of each frame ``(T,)``.
        least: classes that never reach this probability are left out.

    Raises:
        ValueError: if the shapes do not fit.
    """
    if posteriors.dim() != 2 or not len(posteriors):
        raise ValueError(f"posteriors must be (T, C), got {tuple(posteriors.shape)}")
    if targets is not None and targets.shape != posteriors.shape[:1]:
        raise ValueError(
            f"targets must be ({len(posteriors)},), one for each frame, got {tuple(targets.shape)}"
        )
    posteriors = posteriors.detach().float().cpu()
    order = posteriors.argmax(1) if targets is None else targets.cpu()
    largest, first = posteriors.max(0)
    others = (largest >= least).nonzero().flatten().tolist()
    begins = {c: int(first[c]) for c in others}
    # in reverse order, so that the first frame of a class is written last
    begins |= {c: frame for frame, c in reversed(list(enumerate(order.tolist())))}
    shown = sorted(begins, key=lambda c: (begins[c], c))
    axes.imshow(
        posteriors[:, shown].T.numpy(),
        aspect="auto",
        origin="lower",
        cmap="Greys",
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    if targets is not None:
        rows = [shown.index(c) for c in targets.tolist()]
        axes.step(range(len(rows)), rows, where="mid", color="#d1495b", linewidth=1.2)
    # at most 12 names fit
    every = max(1, -(-len(shown) // 12))
    axes.set_yticks(range(0, len(shown), every), [str(c) for c in shown[::every]])
    axes.grid(False)
    axes.set(xlabel="frame", ylabel="class")
