"""Train a recurrent policy to repeat a cue after a delay, on windows in which episodes end.

python examples/recurrent_policy.py
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import one_hot

import rnnorm

CUES = 4


class Delay:
    """Many environments at once: a cue, 3 to 10 frames of nothing, a question; then anew.

    The answer to the question is worth 1 if it is the cue, and ends the episode.
    """

    def __init__(self, rows):
        self.cue = torch.zeros(rows, dtype=torch.long)
        self.left = torch.zeros(rows, dtype=torch.long)
        self.begin(torch.ones(rows, dtype=torch.bool))

    def begin(self, anew):
        self.anew = anew
        self.cue = torch.where(anew, torch.randint(CUES, anew.shape), self.cue)
        self.left = torch.where(anew, torch.randint(4, 12, anew.shape), self.left)

    def frame(self):
        """The cue at an episode's first frame, and whether now is the question."""
        cue = one_hot(self.cue, CUES) * self.anew.unsqueeze(1)
        return torch.cat([cue, (self.left == 0).unsqueeze(1)], 1).float()

    def step(self, action):
        asked = self.left == 0
        reward = (asked & (action == self.cue)).float()
        self.left = self.left - 1
        self.begin(asked)
        return reward


class Policy(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.rnn = rnnorm.LSTM(CUES + 1, hidden_size, norm=rnnorm.LayerNorm(gamma=0.3))
        self.out = nn.Linear(hidden_size, CUES + 1)

    def forward(self, frames, state, anew):
        """Logits of the actions (T, B, CUES), values (T, B), and the state to go on from."""
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
    """Discounted sums of the rewards until the episode ends; `last` is the value after them."""
    sums = []
    for reward, ends in zip(rewards.flip(0), anew.flip(0), strict=True):
        last = reward + discount * last * ~ends
        sums.append(last)
    return torch.stack(sums[::-1])


def score(policy, rows=500, steps=100):
    """The mean return of an episode."""
    (_, anew, _, rewards), _ = act(policy, Delay(rows), None, steps)
    # an episode has ended where the next frame begins another
    return (rewards[:-1].sum() / anew[1:].sum()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=500)
    given = parser.parse_args()
    torch.manual_seed(0)
    policy = Policy(32)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    print(f"return without memory, at most: {1 / CUES:.2f}")
    print(f"return before training: {score(policy):.2f}")
    environments, state = Delay(64), None
    for _ in range(given.windows):
        before = state
        (frames, anew, actions, rewards), state = act(policy, environments, state, steps=16)
        # all episodes of the window in one call; each begins anew where `anew` is true
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
    print(f"return after training: {score(policy):.2f}")


if __name__ == "__main__":
    main()
