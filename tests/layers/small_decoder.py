"""Reference for tests of beam search: a small recurrent net that scores ids, and a list of all its hypotheses."""

import jax.numpy as jnp
import numpy as np

ROWS, WIDTH, IDS, START, END = 3, 4, 4, 0, 1


def weights(seed):
    """Return random arrays of a small decoder: initial states `x`, and weights of the state, the id and the scores."""
    rng = np.random.default_rng(seed)
    sizes = {"x": (ROWS, WIDTH), "past": (WIDTH, WIDTH), "word": (IDS, WIDTH), "out": (WIDTH, IDS)}
    return {name: rng.normal(size=size).astype("float32") * 1.5 for name, size in sizes.items()}


def step(ids, state, w, np=jnp):
    """Compute a time step of a small decoder: return the log-probabilities of the next id, and the next state."""
    state = np.tanh(state @ w["past"] + w["word"][ids])
    scores = state @ w["out"]
    return scores - np.log(np.sum(np.exp(scores), axis=-1, keepdims=True)), state


def every(x, w, longest, penalty):
    """Return each possible output of a decoder for one input, as a list of pairs `(score, ids)`, best first."""
    found = []

    def walk(ids, total, state):
        scores, state = step(ids[-1] if ids else START, state, w, np)
        for k in range(IDS):
            said, now = (*ids, k), total + float(scores[k])
            if k == END or len(said) == longest:
                found.append((now / ((5 + len(said)) / 6) ** penalty, said))
            else:
                walk(said, now, state)

    walk((), 0.0, x)
    return sorted(found, key=lambda one: -one[0])
