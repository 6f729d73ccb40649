"""
A recurrent policy
==================

A policy has to repeat a cue after a delay. An actor-critic trains it on windows of 16 frames, in
which episodes end and others begin: ``reset=`` says where.

.. code-block:: sh

   python examples/recurrent_policy.py --windows 500
"""

import argparse

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import one_hot

import rnnorm

parser = argparse.ArgumentParser(description="Train a policy to repeat a cue after a delay.")
parser.add_argument("--windows", type=int, default=150)
# a notebook has no command line
given = parser.parse_args([] if "get_ipython" in globals() else None)
torch.manual_seed(0)
CUES = 4

# %%
# The environments
# ----------------
#
# An episode is a cue, 3 to 10 empty frames, and a question. The answer to the question ends the
# episode, and is worth 1 if it is the cue. Many environments run at once.


class Delay:
    def __init__(self, rows):
        self.cue = torch.zeros(rows, dtype=torch.long)
        self.left = torch.zeros(rows, dtype=torch.long)
        self.begin(torch.ones(rows, dtype=torch.bool))

    def begin(self, anew):
        self.anew = anew
        self.cue = torch.where(anew, torch.randint(CUES, anew.shape), self.cue)
        self.left = torch.where(anew, torch.randint(4, 12, anew.shape), self.left)

    def frame(self):
        """Return the cue at an episode's first frame, and whether the question comes now."""
        cue = one_hot(self.cue, CUES) * self.anew.unsqueeze(1)
        return torch.cat([cue, (self.left == 0).unsqueeze(1)], 1).float()

    def step(self, action):
        asked = self.left == 0
        reward = (asked & (action == self.cue)).float()
        self.left = self.left - 1
        self.begin(asked)
        return reward


# %%
# The policy
# ----------
#
# Where ``anew`` is true, the layer forgets the previous episode, both while the policy acts and
# while it is trained.


class Policy(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.rnn = rnnorm.LSTM(CUES + 1, hidden_size, norm=rnnorm.LayerNorm(gamma=0.3))
        self.out = nn.Linear(hidden_size, CUES + 1)

    def forward(self, frames, state, anew):
        """Return logits of the actions (T, B, CUES), values (T, B), and the last state."""
        output, state = self.rnn(frames, state, reset=anew)
        logits, value = self.out(output).split([CUES, 1], 2)
        return logits, value.squeeze(2), state


@torch.no_grad()
def act(policy, environments, state, steps):
    """Act for a window of frames.

    Returns frames, whether an episode begins at them, actions and rewards, and then the state.
    """
    window = []
    for _ in range(steps):
        frame, anew = environments.frame(), environments.anew
        logits, _, state = policy(frame.unsqueeze(0), state, anew.unsqueeze(0))
        action = torch.distributions.Categorical(logits=logits[0]).sample()
        window.append((frame, anew, action, environments.step(action)))
    return [torch.stack(part) for part in zip(*window, strict=True)], state


def returns(rewards, anew, last, discount=0.9):
    """Return the discounted rewards until each episode ends; `last` is the value after them."""
    sums = []
    for reward, ends in zip(rewards.flip(0), anew.flip(0), strict=True):
        last = reward + discount * last * ~ends
        sums.append(last)
    return torch.stack(sums[::-1])


def mean_return(rewards, anew):
    # an episode has ended where the next frame begins another
    return (rewards[:-1].sum() / anew[1:].sum()).item()


def score(policy, rows=500, steps=100):
    (_, anew, _, rewards), _ = act(policy, Delay(rows), None, steps)
    return mean_return(rewards, anew)


# %%
# Training
# --------
#
# One call gives the logits and values of a whole window, with all of its episodes. The state with
# which a window ends is the first state of the next.

policy = Policy(32)
optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
print(f"return without memory, at most: {1 / CUES:.2f}")
print(f"return before training: {score(policy):.2f}")
environments, state, means = Delay(64), None, []
for _ in range(given.windows):
    before = state
    (frames, anew, actions, rewards), state = act(policy, environments, state, steps=16)
    logits, values, _ = policy(frames, before, anew)
    with torch.no_grad():
        after = policy(environments.frame().unsqueeze(0), state, environments.anew[None])[1][0]
    ends = torch.cat([anew[1:], environments.anew[None]])
    target = returns(rewards, ends, after)
    chosen = torch.distributions.Categorical(logits=logits)
    advantage = target - values
    gain = (chosen.log_prob(actions) * advantage.detach()).mean()
    loss = 0.5 * advantage.square().mean() - gain - 0.01 * chosen.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    means.append(mean_return(rewards, anew))
print(f"return after training: {score(policy):.2f}")

# %%

plt.plot(means)
plt.axhline(1 / CUES, color="grey", linestyle=":", label="the best without memory")
plt.xlabel("window")
plt.ylabel("mean return of an episode")
plt.legend()
plt.show()
