"""Classify ragged time series, save the net, load it, and read a series one frame at a time.

python examples/ragged_classification.py --data-dir FOLDER   # with JapaneseVowels_{TRAIN,TEST}.ts
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import rnnorm
from rnnorm.experiments.data.series import load_series


class Classifier(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.rnn = rnnorm.LSTM(features, 64, norm="batch")
        self.out = nn.Linear(64, classes)

    def forward(self, x, lengths):
        _, (h_n, _) = self.rnn(x, lengths=lengths)
        return self.out(h_n[0])


def minibatches(series, size, generator):
    order = torch.randperm(len(series.y), generator=generator)
    # a last minibatch of few rows would have poor statistics
    for rows in order.split(size)[: len(order) // size]:
        x, y = series.rows(rows.tolist())
        yield pad_sequence(x), torch.tensor([len(each) for each in x]), y


def accuracy(model, series):
    x, lengths = pad_sequence(series.x), torch.tensor([len(each) for each in series.x])
    return (model(x, lengths).argmax(1) == series.y).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--save", default="vowels.pt")
    given = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    train, _, test, classes, *_ = load_series("JapaneseVowels", given.data_dir)
    model = Classifier(train.x[0].size(1), len(classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(given.epochs):
        for x, lengths, y in minibatches(train, 32, generator):
            loss = cross_entropy(model(x, lengths), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    # statistics of the weights as they are now, not of those of the last steps
    batches = minibatches(train, 32, generator)
    rnnorm.update_bn(batches, model, forward=lambda model, batch: model(*batch[:2]))
    model.eval()
    torch.save(model.state_dict(), given.save)

    loaded = Classifier(train.x[0].size(1), len(classes)).eval()
    loaded.load_state_dict(torch.load(given.save, weights_only=True))
    with torch.no_grad():
        print(f"test accuracy: {accuracy(loaded, test):.3f}")
        x, state = test.x[0], None
        for step, frame in enumerate(x):
            # the statistics of a step belong to it: say which one comes
            output, state = loaded.rnn(frame.view(1, 1, -1), state, step=step)
        whole, streamed = loaded(x.unsqueeze(1), [len(x)]), loaded.out(output[-1])
        print(f"streamed as in one pass: {torch.allclose(whole, streamed, atol=1e-5)}")


if __name__ == "__main__":
    main()
