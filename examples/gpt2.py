"""Continue texts with GPT-2 (Radford et al., 2019) and the weights of Hugging Face.

The file is `model.safetensors` or `pytorch_model.bin` of a model such as openai-community/gpt2. Its shapes
determine the sizes of the net. Texts are lists of ids, for example from a tokenizer of transformers. Without a file, a
small net with random weights writes texts. Run

    python examples/gpt2.py
    python examples/gpt2.py --weights model.safetensors --prompt 464 3280 318 --length 20
"""

import argparse

import jax.numpy as jnp

import fluid
from fluid import layers

# Hugging Face saves GPT-2 with its output layer (the head) or without the head. Names in files with the head begin with
# "transformer.h.0", and names in files without the head begin with "h.0". One matrix contains the projections to
# queries, keys and values. All matrices are [in, out], as in fluid.
TABLE = {
    "*wte.weight": "wte",
    "*wpe.weight": "wpe",
    "*h.{n}.ln_1.weight": "h_{n}/ln_1.w_0",
    "*h.{n}.ln_1.bias": "h_{n}/ln_1.b_0",
    "*h.{n}.attn.c_attn.weight": ["h_{n}/attn.w_0", "h_{n}/attn.w_1", "h_{n}/attn.w_2"],
    "*h.{n}.attn.c_attn.bias": ["h_{n}/attn.b_0", "h_{n}/attn.b_1", "h_{n}/attn.b_2"],
    "*h.{n}.attn.c_proj.weight": "h_{n}/attn.w_3",
    "*h.{n}.attn.c_proj.bias": "h_{n}/attn.b_3",
    "*h.{n}.ln_2.weight": "h_{n}/ln_2.w_0",
    "*h.{n}.ln_2.bias": "h_{n}/ln_2.b_0",
    "*h.{n}.mlp.c_fc.weight": "h_{n}/fc.w_0",
    "*h.{n}.mlp.c_fc.bias": "h_{n}/fc.b_0",
    "*h.{n}.mlp.c_proj.weight": "h_{n}/proj.w_0",
    "*h.{n}.mlp.c_proj.bias": "h_{n}/proj.b_0",
    "*ln_f.weight": "ln_f.w_0",
    "*ln_f.bias": "ln_f.b_0",
}
# Entries of GPT-2's file that are not loaded: lm_head is a copy of the word table. Older files also have causal masks
# of the attention.
IGNORE = ["lm_head.weight", "*.attn.bias", "*.attn.masked_bias"]
SMALL = {"count": 65, "positions": 32, "depth": 2, "size": 64, "heads": 4}


def gelu(x):
    """Apply the approximation of GELU with which GPT-2 was trained."""
    return layers.gelu(x, approximate=True)


def gpt2(ids, count, positions, depth, size, heads, caches=None, attention=None):
    """Return the scores of each next word, `[batch, time, count]`, and the new caches.

    Args:
      ids: `[batch, time]`.
      count: the number of words.
      positions: the maximum length of a text.
      depth: the number of blocks.
      size: the width.
      heads: the number of heads.
      caches: for each block the `attention_cache` of the words before `ids`; None if there are none.
      attention: `param_attr` of all attention layers.
    """
    words = layers.create_parameter([count, size], name="wte")
    first = 0 if caches is None else caches[0].position[:, None]
    x = words[ids] + layers.create_parameter([positions, size], name="wpe")[first + jnp.arange(ids.shape[1])]
    after = []
    for n in range(depth):
        with fluid.name_scope(f"h_{n}"):
            seen = layers.multi_head_attention(
                layers.feature_norm(x, name="ln_1"),
                num_heads=heads,
                causal=True,
                cache=None if caches is None else caches[n],
                param_attr=attention,
                name="attn",
            )
            seen, cache = seen if caches else (seen, None)
            x = x + seen
            hidden = layers.dense(layers.feature_norm(x, name="ln_2"), size=4 * size, act=gelu, name="fc")
            x = x + layers.dense(hidden, size=size, name="proj")
            after.append(cache)
    return layers.feature_norm(x, name="ln_f") @ words.T, after


def scores_program(**sizes):
    """Return the scores of each next word, a sequence of `[count]`, for texts of any lengths."""
    ids = layers.data("ids", shape=[1], dtype="int64", lod_level=1)
    return ids.with_data(gpt2(ids.data[..., 0], **sizes)[0])


def writing_program(length, **sizes):
    """Continue prompts of any lengths by the most probable words; return the whole texts, `[batch, length]`."""
    prompt = layers.data("prompt", shape=[1], dtype="int64", lod_level=1)
    given = prompt.data[:, :, 0]
    shape = {"max_length": length, "num_heads": sizes["heads"], "head_size": sizes["size"] // sizes["heads"]}
    caches = [layers.attention_cache(given.shape[0], **shape) for _ in range(sizes["depth"])]

    def step(carry, i):
        word, caches = carry
        word = jnp.where(i < prompt.lengths, given[:, jnp.minimum(i, given.shape[1] - 1)], word)
        scores, caches = gpt2(word[:, None], **sizes, caches=caches)
        return (scores[:, 0].argmax(-1).astype(word.dtype), caches), word

    _, written = layers.scan(step, (given[:, 0], caches), jnp.arange(length))
    return written.T


def sizes_of(weights):
    """Compute the sizes of a net from the shapes of its weights; an attention head of GPT-2 has width 64."""
    shapes = {name.removeprefix("transformer."): array.shape for name, array in weights.items()}
    (count, size), positions = shapes["wte.weight"], shapes["wpe.weight"][0]
    depth = sum(name.endswith("ln_1.weight") for name in shapes)
    return {"count": count, "positions": positions, "depth": depth, "size": size, "heads": size // 64}


def main(path=None, prompts=((1, 2, 3), (4,)), length=16, **sizes):
    """Load the weights, continue the prompts, and return the texts and the Session."""
    weights = fluid.io.read_state_dict(path) if path else {}
    sizes = (sizes_of(weights) if path else SMALL) | sizes
    session = fluid.Session(lambda: writing_program(length, **sizes))
    if path:
        print(fluid.io.load_state_dict(session, weights, TABLE, ignore=IGNORE))
    (texts,) = session.run(feed={"prompt": [[[word] for word in prompt] for prompt in prompts]})
    for text in texts:
        print(*text)
    return texts, session


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", metavar="PATH", help="model.safetensors or pytorch_model.bin")
    parser.add_argument("--prompt", type=int, nargs="+", default=[1, 2, 3], help="ids of words")
    parser.add_argument("--length", type=int, default=16, help="words in the whole text")
    arguments = parser.parse_args()
    main(arguments.weights, [arguments.prompt], arguments.length)
