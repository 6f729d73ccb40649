"""What the tests of translation share: a small model and a minibatch."""

import torch

from rnnorm.experiments.data.text.parallel import ParallelBatch
from rnnorm.experiments.tasks.translation.model import Translator

WORDS = 9
SOURCE, TARGET = torch.tensor([3, 5, 2, 7, 4, 5]), torch.tensor([4, 6, 2, 8, 5, 3])


def model(**given):
    torch.manual_seed(0)
    sizes = {"source_size": 12, "target_size": WORDS, "embedding_size": 4, "hidden_size": 5}
    return Translator(**sizes | given).double()


def lively(net, seed):
    """The model with weights that let rows end at different steps."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if "weight" in name:
                weight.normal_(0, 4 / weight.size(-1) ** 0.5)
    return net


def batch(padding=0):
    torch.manual_seed(1)
    source, target = torch.randint(2, 12, (7, 6)), torch.randint(2, WORDS, (8, 6))
    target[TARGET - 1, torch.arange(6)] = 0
    # padding is the number of a word
    source, target = (torch.cat([each, torch.full((padding, 6), 3)]) for each in (source, target))
    return ParallelBatch(source, SOURCE, target, TARGET)


def calls(decoder):
    """Shapes of the inputs of the recurrent layer in each call from now on."""
    seen = []
    decoder.rnn.register_forward_hook(lambda _, given, __: seen.append(tuple(given[0].shape[:2])))
    return seen
