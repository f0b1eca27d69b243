"""Translate numbers in words to digits in the style of 2018: Executor, While and a beam search.

"four thousand and seventeen" becomes "4017". Layers are called outside of functions and recorded in a program. The
decoder is a block that assigns to variables. The program differs from a program of 2018 only in its imports, and in
`fluid.batch` and `fluid.reader`, which were `paddle.batch` and `paddle.reader`. `machine_translation.py` has a similar
model with program functions. No test number is in the training data. Run `python examples/seq2seq_2018.py`.
"""

import argparse
import os
import tempfile

import numpy as np

import fluid.static as fluid
from fluid.static import layers

WIDTH = 64
BEAM = 3
START = 0
END = 1
DIGITS = ["<s>", "</s>", *"0123456789"]
LONGEST = 5
SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
WORDS = [*SMALL, *TENS, "hundred", "thousand", "and"]


def say(number):
    """Return a number below 10000 in words."""
    if number >= 1000:
        rest = number % 1000
        joined = [] if not rest else [*(["and"] if rest < 100 else []), *say(rest)]
        return [SMALL[number // 1000], "thousand", *joined]
    if number >= 100:
        return [SMALL[number // 100], "hundred", *(["and", *say(number % 100)] if number % 100 else [])]
    if number >= 20:
        return [TENS[number // 10 - 2], *(say(number % 10) if number % 10 else [])]
    return [SMALL[number]]


def encoder():
    """Return the last hidden state of a sentence."""
    words = layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    vectors = layers.embedding(input=words, size=[len(WORDS), WIDTH], dtype="float32")
    projected = layers.fc(input=vectors, size=WIDTH * 4, act="tanh")
    hidden, _ = layers.dynamic_lstm(input=projected, size=WIDTH * 4)
    return layers.sequence_last_step(input=hidden)


def next_digit(digit, state):
    """Take one step of the decoder: return the new state, and the probability of each digit."""
    vector = layers.embedding(input=digit, size=[len(DIGITS), WIDTH], dtype="float32", param_attr="digits")
    both = layers.fc(input=[vector, state], size=WIDTH * 3, act="tanh")
    state = layers.fc(input=[both, state], size=WIDTH, act="tanh")
    return state, layers.fc(input=state, size=len(DIGITS), act="softmax")


def train_decoder(context):
    """Return the loss of the true digits; the decoder predicts each digit from the true digits before it."""
    before = layers.data(name="before", shape=[1], dtype="int64", lod_level=1)
    rnn = layers.DynamicRNN()
    with rnn.block():
        digit = rnn.step_input(before)
        pre_state = rnn.memory(init=context, need_reorder=True)
        state, score = next_digit(digit, pre_state)
        rnn.update_memory(pre_state, state)
        rnn.output(score)
    after = layers.data(name="after", shape=[1], dtype="int64", lod_level=1)
    cost = layers.cross_entropy(input=rnn(), label=after)
    return layers.mean(cost)


def decode(context):
    """Return the best digits of a beam search."""
    array_len = layers.fill_constant(shape=[1], dtype="int64", value=LONGEST)
    counter = layers.zeros(shape=[1], dtype="int64", force_cpu=True)

    state_array = layers.create_array("float32")
    layers.array_write(context, array=state_array, i=counter)
    ids_array = layers.create_array("int64")
    scores_array = layers.create_array("float32")
    init_ids = layers.data(name="init_ids", shape=[1], dtype="int64", lod_level=2)
    init_scores = layers.data(name="init_scores", shape=[1], dtype="float32", lod_level=2)
    layers.array_write(init_ids, array=ids_array, i=counter)
    layers.array_write(init_scores, array=scores_array, i=counter)

    cond = layers.less_than(x=counter, y=array_len)
    while_op = layers.While(cond=cond)
    with while_op.block():
        pre_ids = layers.array_read(array=ids_array, i=counter)
        pre_state = layers.array_read(array=state_array, i=counter)
        pre_score = layers.array_read(array=scores_array, i=counter)
        pre_state_expanded = layers.sequence_expand(pre_state, pre_score)

        state, score = next_digit(pre_ids, pre_state_expanded)
        topk_scores, topk_indices = layers.topk(layers.lod_reset(x=score, y=pre_score), k=BEAM)
        total = layers.elementwise_add(x=layers.log(topk_scores), y=layers.reshape(pre_score, shape=[-1]), axis=0)
        selected_ids, selected_scores = layers.beam_search(
            pre_ids, pre_score, topk_indices, total, BEAM, end_id=END, level=0
        )

        layers.increment(x=counter, value=1, in_place=True)
        layers.array_write(state, array=state_array, i=counter)
        layers.array_write(selected_ids, array=ids_array, i=counter)
        layers.array_write(selected_scores, array=scores_array, i=counter)
        length_cond = layers.less_than(x=counter, y=array_len)
        finish_cond = layers.logical_not(layers.is_empty(x=selected_ids))
        layers.logical_and(x=length_cond, y=finish_cond, out=cond)
    return layers.beam_search_decode(ids=ids_array, scores=scores_array, beam_size=BEAM, end_id=END)


def train(exe, rows, num_epochs, dirname):
    """Train on rows of words and digits, and save the parameters."""
    main = fluid.Program()
    startup = fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        avg_cost = train_decoder(encoder())
        rate = layers.exponential_decay(learning_rate=0.004, decay_steps=1000, decay_rate=0.5)
        optimizer = fluid.optimizer.Adam(learning_rate=rate)
        optimizer.minimize(avg_cost)

    exe.run(startup)
    feed_list = [main.global_block().var(name) for name in ("words", "before", "after")]
    feeder = fluid.DataFeeder(feed_list, fluid.CPUPlace())
    reader = fluid.batch(fluid.reader.shuffle(rows, buf_size=len(rows), seed=0), batch_size=50)
    for pass_id in range(num_epochs):
        costs = []
        for data in reader():
            (cost,) = exe.run(main, feed=feeder.feed(data), fetch_list=[avg_cost])
            costs.append(cost[0])
        print(f"pass {pass_id + 1}: loss per digit {np.mean(costs):.4f}")
    fluid.io.save_params(exe, dirname, main)


def translate(exe, sentences, dirname):
    """Return the best translations of each sentence, `(text, score)`, with saved parameters."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        translation_ids, translation_scores = decode(encoder())
    fluid.io.load_params(exe, dirname, main)

    count = len(sentences)
    words = np.concatenate(sentences).astype("int64").reshape(-1, 1)
    lengths = [[1] * count, [1] * count]
    feed = {
        "words": fluid.create_lod_tensor(words, [[len(s) for s in sentences]], fluid.CPUPlace()),
        "init_ids": fluid.create_lod_tensor(np.full((count, 1), START, "int64"), lengths, fluid.CPUPlace()),
        "init_scores": fluid.create_lod_tensor(np.zeros((count, 1), "float32"), lengths, fluid.CPUPlace()),
    }
    ids, scores = exe.run(main, feed=feed, fetch_list=[translation_ids, translation_scores], return_numpy=False)
    outer, inner = ids.lod()
    texts = np.array(ids).ravel()
    totals = np.array(scores).ravel()
    found = []
    for begin, end in zip(outer[:-1], outer[1:], strict=True):
        places = [(inner[i], inner[i + 1]) for i in range(begin, end)]
        found.append([("".join(DIGITS[t] for t in texts[a:b] if t > END), float(totals[b - 1])) for a, b in places])
    return found


def main(num_epochs=8, count=4000, dirname="numbers.params"):
    """Train, save, load and translate; return the share of correct test numbers by the net and by guessing."""
    numbers = np.random.default_rng(0).permutation(10_000)[: count + 500]
    ids = {word: i for i, word in enumerate(WORDS)}
    spoken = [[ids[word] for word in say(number)] for number in numbers]
    digits = [[DIGITS.index(c) for c in str(number)] for number in numbers]
    rows = [(words, [START, *out], [*out, END]) for words, out in zip(spoken, digits, strict=True)]
    print(f"{count} generated numbers to learn from, 500 to test; {len(WORDS)} different words")
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        train(exe, rows[500:], num_epochs, dirname)
    with fluid.scope_guard(fluid.Scope()):
        found = translate(exe, spoken[:500], dirname)
    right = float(np.mean([best[0][0] == str(number) for best, number in zip(found, numbers, strict=False)]))
    print(f"\nparameters saved to {dirname}, loaded again; the best {BEAM} translations of")
    for number, best in zip(numbers[:4], found, strict=False):
        print(f"  {' '.join(say(number))}")
        print("   ", ", ".join(f"{text} ({np.exp(score):.0%})" for text, score in best))
    print(f"right to the last digit: {right:.3f}")
    return right, 1 / 10_000


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--save", metavar="DIR", help="where to keep the parameters (a temporary place by default)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(arguments.epochs, dirname=arguments.save or os.path.join(folder, "numbers.params"))
