"""
Series of different length
==========================

A net classifies series of different length. It is saved, loaded, and reads a series one frame at a
time.

The series on this page are scikit-learn's digits: a list of the inked pixels of an image, each with
row, column and ink. With ``--data-dir`` they are utterances of Japanese vowels, from the files
``JapaneseVowels_TRAIN.ts`` and ``JapaneseVowels_TEST.ts`` of the UEA archive of time series.

.. code-block:: sh

   python examples/ragged_classification.py --data-dir ~/data --epochs 30
"""

import argparse
import io

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import rnnorm
from rnnorm.experiments.data.series import Series, load_series

parser = argparse.ArgumentParser(description="Classify series of different length.")
parser.add_argument("--data-dir", help="folder of JapaneseVowels_TRAIN.ts and _TEST.ts")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--save", help="path of the trained weights, which are otherwise in memory")
# a notebook has no command line
given = parser.parse_args([] if "get_ipython" in globals() else None)
torch.manual_seed(0)

# %%
# The series
# ----------


def digits():
    found = load_digits()
    images = torch.from_numpy(found.images).float() / 16
    series = []
    for image in images:
        row, column = torch.nonzero(image, as_tuple=True)
        series.append(torch.stack([row / 4 - 1, column / 4 - 1, image[row, column]], 1))
    whole = Series(series, torch.from_numpy(found.target).long())
    return whole.rows(range(1400)), whole.rows(range(1400, len(series)))


if given.data_dir is None:
    train, test = digits()
else:
    train, _, test, *_ = load_series("JapaneseVowels", given.data_dir)
lengths = [len(each) for each in train.x]
print(f"{len(train.x)} series for training, of {min(lengths)} to {max(lengths)} frames")

# %%
# The net
# -------
#
# ``lengths=`` says how long each row is. The padding after that has no effect, and h_n is the state
# after the last frame of each row.


class Classifier(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.rnn = rnnorm.LSTM(features, 64, norm="batch")
        self.out = nn.Linear(64, classes)

    def forward(self, x, lengths):
        _, (h_n, _) = self.rnn(x, lengths=lengths)
        return self.out(h_n[0])


def batch(series):
    return pad_sequence(series.x), torch.tensor([len(each) for each in series.x]), series.y


def minibatches(series, size=32):
    order = torch.randperm(len(series.y))
    # a last minibatch of few rows would have poor statistics
    for rows in order.split(size)[: len(order) // size]:
        yield batch(series.rows(rows.tolist()))


# %%
# Training
# --------
#
# After training ``rnnorm.update_bn`` takes the statistics of the trained weights. The running
# average mixes in those of earlier weights.

features, classes = train.x[0].size(1), int(train.y.max()) + 1
model = Classifier(features, classes)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses = []
for _ in range(given.epochs):
    for x, lengths, y in minibatches(train):
        loss = cross_entropy(model(x, lengths), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
rnnorm.update_bn(minibatches(train), model, forward=lambda model, batch: model(*batch[:2]))
model.eval()

# %%
# Save and load
# -------------

file = given.save or io.BytesIO()
torch.save(model.state_dict(), file)
if given.save is None:
    file.seek(0)
loaded = Classifier(features, classes).eval()
loaded.load_state_dict(torch.load(file, weights_only=True))
x, lengths, y = batch(test)
with torch.no_grad():
    predicted = loaded(x, lengths).argmax(1)
print(f"test accuracy: {(predicted == y).float().mean():.3f}")

# %%
# One frame at a time
# -------------------
#
# Each step has statistics of its own, so each call says which step it is.

x, state = test.x[0], None
with torch.no_grad():
    whole = loaded(x.unsqueeze(1), [len(x)])
    scores = []
    for step, frame in enumerate(x):
        output, state = loaded.rnn(frame.view(1, 1, -1), state, step=step)
        scores.append(loaded.out(output[-1]))
print(f"streamed as in one pass: {torch.allclose(whole, scores[-1], atol=1e-5)}")

# %%
# The left picture has the loss, the right one what the net predicts after each frame of a series.

_, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
left.semilogy(losses)
left.set(xlabel="minibatch", ylabel="cross entropy, training")
chances = torch.cat(scores).softmax(1)
for k in range(classes):
    wanted = k == test.y[0]
    right.plot(chances[:, k], color="C0" if wanted else "lightgrey", label="the class" * wanted)
right.set(xlabel="frame", ylabel="probability of each class")
right.legend()
plt.show()
