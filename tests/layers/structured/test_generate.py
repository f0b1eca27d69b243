"""Generated texts: compared with a NumPy loop that recomputes the whole text for each id."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors, layers

IDS, WIDTH, HEADS, END = 11, 8, 2, 0
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [10, 3]]
# In some tests of text generation, the model does not read the text: these are its logits for every next id.
LOGITS = np.array([0.3, 2.0, -1.0, 1.2, 0.0, 2.1], "float32")


def attending(ids, cache):
    x = layers.embedding(ids, size=[IDS, WIDTH], param_attr="table")
    weights = [f"w_{i}" for i in range(4)]
    seen, cache = layers.multi_head_attention(
        x, num_heads=HEADS, cache=cache, param_attr=weights, bias_attr=False, name="attention"
    )
    return layers.dense(x + seen, size=IDS, param_attr="out", bias_attr=False), cache


def program(length=6, capacity=None, step=attending, **arguments):
    prompt = layers.data("prompt", shape=[1], dtype="int64", lod_level=1)
    cache = layers.attention_cache(prompt.shape[0], capacity or prompt.shape[1] + length, HEADS, WIDTH // HEADS)
    return {"text": layers.generate(step, prompt, length, cache, **arguments)}


def params(scale=3.0):
    drawn = np.random.default_rng(0)
    known = fluid.Session(program).params()
    return {name: scale * drawn.normal(size=value.shape).astype("float32") / 3 for name, value in known.items()}


PARAMS = params()


@functools.cache
def inferencer(**arguments):
    return fluid.Inferencer(functools.partial(program, **arguments), params=PARAMS)


def generated(prompts, seed=None, **arguments):
    (text,) = inferencer(**arguments).infer({"prompt": prompts}, seed=seed)
    return [row.ravel().tolist() for row in text.rows()]


def scores_of(text):
    """Return the scores of the next id after a text, computed in NumPy from all ids of the text."""
    x = PARAMS["table"][np.array(text)]
    query, key, value = (np.stack(np.split(x @ PARAMS[f"w_{i}"], HEADS, axis=1)) for i in range(3))
    products = query @ key.transpose(0, 2, 1) / np.sqrt(WIDTH // HEADS)
    weights = np.where(np.tri(len(text), dtype=bool), np.exp(products), 0)
    heads = weights / weights.sum(-1, keepdims=True) @ value
    return (x + np.concatenate(list(heads), axis=1) @ PARAMS["w_3"])[-1] @ PARAMS["out"]


def greedy(prompt, length, end=None):
    text = list(prompt)
    while len(text) < len(prompt) + length and (len(text) == len(prompt) or text[-1] != end):
        text.append(int(np.argmax(scores_of(text))))
    return text[len(prompt) :]


def test_greedy_text_equals_a_loop_over_the_prefix():
    expected = [greedy(prompt, 6) for prompt in PROMPTS]
    assert generated(PROMPTS, temperature=0) == expected
    assert len({tuple(row) for row in expected}) == len(PROMPTS), "different prompts have different texts"


def test_a_row_ends_after_the_end_id():
    texts = [greedy(prompt, 6) for prompt in PROMPTS]
    end = texts[0][2]
    expected = [greedy(prompt, 6, end) for prompt in PROMPTS]
    assert generated(PROMPTS, temperature=0, end_id=end) == expected
    assert {len(row) for row in expected} != {6}


def test_rows_of_different_lengths_equal_rows_alone():
    together = generated(PROMPTS, temperature=0)
    assert [generated([prompt], temperature=0)[0] for prompt in PROMPTS] == together


def test_drawn_rows_ignore_other_rows_and_padding():
    together = generated(PROMPTS, seed=5)
    assert generated(PROMPTS[:1], seed=5) == together[:1]
    assert generated([*PROMPTS[:2], list(range(1, 11)) * 4], seed=5)[:2] == together[:2]
    assert generated(PROMPTS, seed=6) != together


@pytest.mark.parametrize("arguments", [{"temperature": 0}, {"top_p": 0.9, "end_id": 3}], ids=str)
def test_texts_continued_in_pieces_equal_the_whole(arguments):
    seed = None if "temperature" in arguments else 5
    whole = generated(PROMPTS, seed, **arguments)
    texts = PROMPTS
    for _ in range(3):
        more = generated(texts, seed, length=2, **arguments)
        texts = [text + row for text, row in zip(texts, more, strict=True)]
    assert [text[len(prompt) :] for text, prompt in zip(texts, PROMPTS, strict=True)] == whole


def test_an_argument_seed_repeats_each_run():
    first, second = (inferencer(seed=3).infer({"prompt": PROMPTS})["text"].data for _ in range(2))
    assert (first == second).all()


def test_an_empty_or_ended_prompt_gets_no_ids():
    texts = generated([[2, END], [], [END], [END, 2]], temperature=0, end_id=END)
    assert texts[:2] == [[], []] and texts[2] == greedy([END], 6, END) and texts[3] == greedy([END, 2], 6, END)


def test_a_full_cache_returns_minus_1():
    texts = generated([[1, 2, 3], [4]], temperature=0, capacity=4)
    assert texts == [[*greedy([1, 2, 3], 2), -1], [*greedy([4], 4), -1]]


def constant(ids, state):
    return jnp.broadcast_to(LOGITS, (*ids.shape[:2], len(LOGITS))), state


def shares(rows=4096, feed=None, **arguments):
    """Generate one random id for each of `rows` prompts; return the share of each id."""

    def drawing():
        prompt = layers.data("prompt", shape=[1], dtype="int64")
        values = {name: layers.data(name, shape=[1]) for name in feed or ()}
        return layers.generate(constant, prompt, 1, **values, **arguments)

    found = fluid.Inferencer(drawing, params={}, bucket=False).infer(
        {"prompt": np.ones((rows, 1), int), **(feed or {})}, seed=1
    )[0]
    return np.bincount(found.data.ravel(), minlength=len(LOGITS)) / rows


def expected_shares(temperature=1.0, top_k=None, top_p=None):
    chances = np.exp(LOGITS / temperature)
    order = np.argsort(-chances)
    chances[order[top_k:] if top_k else []] = 0
    chances /= chances.sum()
    if top_p:
        kept = np.searchsorted(np.cumsum(chances[order]), top_p) + 1
        chances[order[kept:]] = 0
    return chances / chances.sum()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "arguments",
    [{}, {"temperature": 0.5}, {"top_k": 1}, {"top_k": 50}, {"top_p": 0.7}, {"top_p": 0.05}]
    + [{"temperature": 2.0, "top_k": 4, "top_p": 0.6}],
    ids=str,
)
def test_drawn_ids_have_the_shares_of_numpy(arguments):
    found, expected = shares(**arguments), expected_shares(**arguments)
    np.testing.assert_allclose(found, expected, atol=0.03)
    assert (found[expected == 0] == 0).all()


def test_temperature_and_top_p_differ_by_row():
    half = np.repeat(np.float32([[0.0], [1.0]]), 2048, axis=0)
    found = shares(feed={"temperature": half, "top_p": np.repeat(np.float32([[1.0], [0.7]]), 2048, axis=0)})
    np.testing.assert_allclose(found, (np.eye(6)[5] + expected_shares(top_p=0.7)) / 2, atol=0.03)


def test_a_softmax_counts_as_probabilities():
    def step(ids, state):
        return layers.softmax(constant(ids, state)[0]), state

    def drawing():
        return layers.generate(step, layers.data("prompt", shape=[1], dtype="int64"), 1)

    found = fluid.Inferencer(drawing, params={}, bucket=False).infer({"prompt": np.ones((4096, 1), int)}, seed=1)[0]
    np.testing.assert_allclose(np.bincount(found.data.ravel()) / 4096, expected_shares(), atol=0.03)


def test_recurrent_generation_matches_recomputing_the_prefix():
    def net(ids, state=None):
        x = layers.fc(layers.embedding(ids, size=[IDS, WIDTH]), size=3 * WIDTH)
        states = layers.dynamic_gru(x, WIDTH, h_0=state)
        scores = layers.fc(states, size=IDS, param_attr=fluid.ParamAttr(initializer=fluid.initializer.Normal(0, 9)))
        return scores, layers.sequence_last_step(states)

    def writing():
        prompt = layers.data("prompt", shape=[1], dtype="int64", lod_level=1)
        return layers.generate(net, prompt, 5, jnp.zeros([prompt.shape[0], WIDTH]), temperature=0)

    def reading():
        scores, _ = net(layers.data("prompt", shape=[1], dtype="int64", lod_level=1))
        return layers.argmax(layers.sequence_last_step(scores), axis=1)

    session = fluid.Session(writing, reading, seed=4)
    texts = [list(prompt) for prompt in PROMPTS]
    for _ in range(5):
        (following,) = session.run(reading, {"prompt": texts})
        texts = [[*text, int(i)] for text, i in zip(texts, np.ravel(following), strict=True)]
    (found,) = session.run(writing, {"prompt": PROMPTS})
    assert [row.ravel().tolist() for row in found.rows()] == [text[-5:] for text in texts]
    assert len({id for text in texts for id in text[-5:]}) > 2


def test_stacked_blocks_generate_in_a_single_loop():
    def step(ids, caches):
        def block(x, cache):
            seen, cache = layers.multi_head_attention(x, num_heads=HEADS, rotary=True, cache=cache)
            return x + seen, cache

        x, caches = layers.repeat(block, 3, layers.embedding(ids, size=[IDS, WIDTH]), xs=caches)
        return layers.dense(x, size=IDS), caches

    def writing():
        prompt = layers.data("prompt", shape=[1], dtype="int64", lod_level=1)
        cache = layers.attention_cache(prompt.shape[0], prompt.shape[1] + 4, HEADS, WIDTH // HEADS)
        caches = jax.tree.map(lambda array: jnp.stack([array] * 3), cache)
        return layers.generate(step, prompt, 4, caches, temperature=0)

    (found,) = fluid.Session(writing, seed=1).run(writing, {"prompt": PROMPTS})
    assert [len(row) for row in found.rows()] == [4] * 4


def test_a_greedy_text_draws_no_numbers():
    assert not fluid.Program(functools.partial(program, temperature=0)).draws
    assert fluid.Program(program).draws


def test_an_exported_model_writes_equal_texts(in_tmp):
    sampling = functools.partial(program, top_p=0.9, end_id=3)
    fluid.io.save_inference_model("writer.fluid", sampling, PARAMS, platforms=["cpu"])
    exported = fluid.Inferencer(param_path="writer.fluid")
    for seed in range(3):
        text = exported.infer({"prompt": PROMPTS}, seed=seed)["text"]
        assert [row.ravel().tolist() for row in text.rows()] == generated(PROMPTS, seed, top_p=0.9, end_id=3)


def test_text_inside_a_training_program_leaves_gradients_alone():
    def train_program():
        text = program(length=3)["text"]
        written = layers.embedding(text, size=[IDS, WIDTH], param_attr="table")
        return layers.mean(layers.square(layers.sequence_pool(written, "sum")))

    trainer = fluid.Trainer(train_program, fluid.optimizer.SGD(0.1))
    before = trainer.params["w_0"].copy()
    trainer.train([{"prompt": PROMPTS}])
    assert (trainer.params["w_0"] == before).all()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"length": 0}, "length=0"),
        ({"temperature": -1}, "temperature=-1; expected a positive number"),
        ({"temperature": 0, "top_k": 3}, "top_k=3 beside temperature=0"),
        ({"temperature": 0, "top_p": 0.5}, "top_p=0.5 beside temperature=0"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0}, "top_p=0; expected a number above 0, at most 1"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"end_id": -1}, "end_id=-1"),
        ({"end_id": IDS}, r"end_id=11; expected \[batch, time, vocabulary\]"),
        ({"temperature": np.ones(3, "float32")}, "temperature is .*one for each row"),
        ({"step": lambda ids, cache: cache}, "expected a pair"),
        ({"step": lambda ids, cache: (attending(ids, cache)[0], cache.keys)}, "keeps its structure"),
        ({"step": lambda ids, cache: (attending(ids, cache)[0].data[:, -1], cache)}, "returned scores"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_argument_is_refused(arguments, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(functools.partial(program, **arguments))


@pytest.mark.parametrize(
    "data, message",
    [
        ({"shape": [1], "lod_level": 1}, "prompt are integers"),
        ({"shape": [2, 3], "dtype": "int64"}, "expected ids"),
        ({"shape": [1], "dtype": "int64", "lod_level": 2}, "expected ids"),
    ],
    ids=str,
)
def test_a_wrong_prompt_is_refused(data, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: layers.generate(constant, layers.data("prompt", **data), 3))
