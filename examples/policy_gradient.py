"""Learn a policy that balances a pole by REINFORCE with a baseline, in a custom loop over a Session.

The environment is generated: the equations of a cart with a pole on it, 32 of them at a time, in NumPy. An episode ends
when the pole falls or the cart leaves its track. The return is the number of steps until the end, 200 at most.

Run with `python examples/policy_gradient.py`. It reaches a mean return above 150; random actions reach about 20.
`--checkpoint-dir FOLDER` saves after every tenth iteration, and resumes from there on the next run.
"""

import argparse
import contextlib

import jax
import numpy as np

import fluid
from fluid import layers

EPISODES = 32
HORIZON = 200
DISCOUNT = 0.99


class CartPole:
    """Carts on a track, each pushed to the left or to the right at every step.

    An observation `[4]` has the position of the cart in m, its speed, the angle of the pole in radians, and the angular
    speed.
    """

    gravity, cart, pole, half_length, push, seconds = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02

    def __init__(self, count, rng):
        self.observations = rng.uniform(-0.05, 0.05, (count, 4))

    def step(self, actions):
        """Push carts by actions `[count]`, 0 to the left and 1 to the right; return a mask of running episodes."""
        x, speed, angle, turning = self.observations.T
        sine = np.sin(angle)
        cosine = np.cos(angle)
        total = self.cart + self.pole
        driven = (self.push * (2 * actions - 1) + self.pole * self.half_length * turning**2 * sine) / total
        inertia = self.half_length * (4 / 3 - self.pole * cosine**2 / total)
        turn = (self.gravity * sine - cosine * driven) / inertia
        drive = driven - self.pole * self.half_length * turn * cosine / total
        self.observations = self.observations + self.seconds * np.stack([speed, drive, turning, turn], axis=1)
        return (np.abs(self.observations[:, 0]) < 2.4) & (np.abs(self.observations[:, 2]) < 0.21)


class Player:
    """A player of episodes, whose random state is saved in checkpoints."""

    def __init__(self, seed=0):
        self.rng = np.random.Generator(np.random.PCG64(seed))

    def state(self):
        """Return the state of the random generator, as a dictionary that JSON can represent."""
        return self.rng.bit_generator.state

    def restore(self, state):
        """Set the random generator to a saved state."""
        self.rng.bit_generator.state = state

    def play(self, probabilities, count=EPISODES):
        """Play `count` episodes at once; `probabilities` maps observations `[count, 4]` to action probabilities.

        Returns:
          Arrays `[HORIZON, count, ...]`: observations, actions, and a mask that is True before the end of an episode.
        """
        carts = CartPole(count, self.rng)
        alive = np.ones(count, bool)
        played = []
        for _ in range(HORIZON):
            observations = carts.observations.astype("float32")
            actions = (self.rng.random(count) < probabilities(observations)[:, 1]).astype("int64")
            played.append((observations, actions, alive))
            alive = alive & carts.step(actions)
        return tuple(map(np.stack, zip(*played, strict=True)))


@fluid.shared
def actor(observation):
    """Return the probabilities of the two actions, `[batch, 2]`."""
    return layers.fc(layers.fc(observation, size=64, act="tanh"), size=2, act="softmax")


@fluid.shared
def critic(observation):
    """Estimate the sum of the rewards that follow each observation, `[batch, 1]`."""
    return layers.fc(layers.fc(observation, size=64, act="tanh"), size=1)


def act():
    return {"probabilities": actor(layers.data("observation", shape=[4]))}


def learn():
    """Train the actor by the policy gradient, and the critic to estimate returns; return both losses."""
    observation = layers.data("observation", shape=[4])
    action = layers.data("action", shape=[1], dtype="int64")
    reached = layers.data("return", shape=[1])
    weight = layers.data("weight", shape=[1])  # 1 for each step of an episode, 0 for steps after its end
    probabilities = actor(observation)
    baseline = critic(observation)
    advantage = jax.lax.stop_gradient(reached - baseline)
    surprise = layers.cross_entropy(probabilities, action)
    steps = layers.reduce_sum(weight)
    actor_loss = layers.reduce_sum(weight * surprise * advantage) / steps
    critic_loss = layers.reduce_sum(weight * layers.square(reached - baseline)) / steps
    fluid.optimizer.Adam(5e-3).minimize(actor_loss, parameter_list="actor/*")
    fluid.optimizer.Adam(1e-2).minimize(critic_loss, parameter_list="critic/*")
    return {"actor": actor_loss, "critic": critic_loss}


def returns(alive):
    """Compute the discounted return from each step on, `[HORIZON, count]`, in units of ten steps."""
    found = np.zeros(alive.shape, "float32")
    later = np.zeros(alive.shape[1], "float32")
    for time in reversed(range(len(alive))):
        later = alive[time] * (0.1 + DISCOUNT * later)
        found[time] = later
    return found


def as_feed(observations, actions, alive):
    """Return all steps of all episodes as one minibatch of constant size, so that JAX compiles only once."""
    rows = {"observation": observations, "action": actions, "return": returns(alive), "weight": alive}
    sizes = {"observation": 4}
    return {name: values.reshape(-1, sizes.get(name, 1)) for name, values in rows.items()}


def main(iterations=80, checkpoint_dir=None):
    """Train for some iterations; return the mean return of the policy and of random actions."""
    session = fluid.Session(act, learn, seed=1)
    player = Player()

    def probabilities(observations):
        return np.asarray(session.run(act, {"observation": observations}).probabilities)

    random = Player(seed=1).play(lambda observations: np.full((len(observations), 2), 0.5))[2].sum(0).mean()
    print(f"generated cart-poles; random actions reach a return of {random:.1f}")
    saving = contextlib.nullcontext()
    if checkpoint_dir is not None:
        saving = fluid.Checkpoint(session, checkpoint_dir, player)
    with saving as checkpoint:
        while int(session.scope.step) < iterations:
            played = player.play(probabilities)
            losses = session.step(as_feed(*played), learn)
            done = int(session.scope.step)
            if done % 10 == 0:
                reached = played[2].sum(0).mean()
                print(f"iteration {done:3d}: return {reached:5.1f}, error of the baseline {losses.critic:.3f}")
            if checkpoint is not None:
                checkpoint.after_step()
    reached = Player(seed=2).play(probabilities)[2].sum(0).mean()
    print(f"the policy reaches a return of {reached:.1f}, {reached / random:.1f} times that of random actions")
    return float(reached), float(random)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=80)
    parser.add_argument("--checkpoint-dir")
    arguments = parser.parse_args()
    main(arguments.iterations, arguments.checkpoint_dir)
