"""Translate dates in words to dates in digits: an encoder and a decoder with attention, and a beam search.

"the third of march nineteen eighty seven" becomes "1987-03-03". The encoder reads the words in both directions. The
decoder writes one character at a time, with attention to the words (Bahdanau, Cho and Bengio, 2015). In training, the
decoder is a `DynamicRNN` over the true characters. In translation, `beam_search` feeds the written characters to the
decoder. The dates are generated, and no test date is in the training data. Run

    python examples/machine_translation.py
"""

import argparse
import datetime
import os
import tempfile

import numpy as np

import fluid

WIDTH, BEAM = 64, 3
START, END = 0, 1
DIGITS = ["<s>", "</s>", *"0123456789-"]
LONGEST = len("1987-03-03") + 1
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
ONES = "one two three four five six seven eight nine".split()
FIRSTS = "first second third fourth fifth sixth seventh eighth ninth".split()
TEENTHS = "tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth".split()


def in_words(number, ones, teens, tens=None):
    """Return a number below 100 in words, as "twenty one" or, for a day, "twenty first"."""
    if number < 10:
        return ones[number - 1]
    if number < 20:
        return teens[number - 10]
    ten, one = divmod(number, 10)
    return f"{TENS[ten - 2]} {ones[one - 1]}" if one else (tens or TENS)[ten - 2]


def say(date, random):
    """Return a date in words, in one of several forms."""
    day = in_words(date.day, FIRSTS, TEENTHS, ["twentieth", "thirtieth"])
    month = date.strftime("%B").lower()
    year = f"{in_words(date.year // 100, ONES, TEENS)} {in_words(date.year % 100, ONES, TEENS)}"
    if not date.year % 100:
        year = f"{in_words(date.year // 100, ONES, TEENS)} hundred"
    forms = (f"the {day} of {month} {year}", f"{month} the {day} {year}", f"in {year} on the {day} of {month}")
    return str(random.choice(forms)).split()


def generate(count, seed=0):
    """Generate pairs of a date in words, as a list, and the date in digits; all dates are different."""
    random = np.random.default_rng(seed)
    first, days = datetime.date(1800, 1, 1).toordinal(), 300 * 365
    dates = [datetime.date.fromordinal(first + int(d)) for d in random.choice(days, count, replace=False)]
    return [(say(date, random), date.isoformat()) for date in dates]


def encode(size):
    """Encode the words of a date; return a vector for each word, and the initial state of the decoder."""
    words = fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    vectors = fluid.layers.embedding(words, size=[size, WIDTH])
    ways = [
        fluid.layers.dynamic_gru(fluid.layers.fc(vectors, size=3 * WIDTH), size=WIDTH, is_reverse=backward)
        for backward in (False, True)
    ]
    seen = fluid.layers.concat(ways, axis=1)
    start = fluid.layers.fc(fluid.layers.sequence_first_step(ways[1]), size=WIDTH, act="tanh")
    return seen, start


def attend(seen, state):
    """Return the mean of the word vectors, weighted by the fit of each word to the state of the decoder."""
    asked = fluid.layers.fc(state, size=WIDTH, bias_attr=False, name="asked")
    known = fluid.layers.fc(seen, size=WIDTH, bias_attr=False, name="known")
    both = fluid.layers.tanh(known + fluid.layers.sequence_expand(asked, known))
    weights = fluid.layers.sequence_softmax(fluid.layers.fc(both, size=1, bias_attr=False, name="fit"))
    return fluid.layers.sequence_pool(seen * weights, pool_type="sum")


def decode(character, state, seen):
    """Take one step of the decoder: return the new state, and the probability of each next character."""
    vector = fluid.layers.embedding(character, size=[len(DIGITS), WIDTH], param_attr="characters")
    inputs = fluid.layers.fc([vector, attend(seen, state)], size=3 * WIDTH, name="inputs")
    state, _, _ = fluid.layers.gru_unit(inputs, state, size=3 * WIDTH, name="decoder")
    return state, fluid.layers.fc(state, size=len(DIGITS), act="softmax", name="choice")


def make_programs(size):
    """Return the training program and the translating program."""

    def train_program():
        seen, start = encode(size)
        before = fluid.layers.data(name="before", shape=[1], dtype="int64", lod_level=1)
        after = fluid.layers.data(name="after", shape=[1], dtype="int64", lod_level=1)
        rnn = fluid.layers.DynamicRNN()
        with rnn.block():
            character = rnn.step_input(before)
            state = rnn.memory(init=start)
            new_state, choice = decode(character, state, rnn.static_input(seen))
            rnn.update_memory(state, new_state)
            rnn.output(choice)
        return fluid.layers.mean(fluid.layers.cross_entropy(rnn(), after))

    def translate_program():
        seen, start = encode(size)

        def step(last, carried):
            state, choice = decode(last[:, None], carried["state"], carried["seen"])
            return choice, {**carried, "state": state}

        found = fluid.layers.beam_search(
            step, {"state": start, "seen": seen}, start_id=START, end_id=END, beam_size=BEAM, max_length=LONGEST
        )
        return found.ids, found.scores

    return train_program, translate_program


def read(ids):
    """Convert ids to text, up to the first id END."""
    ids = [int(i) for i in ids]
    return "".join(DIGITS[i] for i in ids[: ids.index(END) if END in ids else None])


def main(num_epochs=4, count=6000, path="dates.params"):
    """Train, save and load a net that translates dates; return the share of correct dates by net and by guessing."""
    pairs = generate(count + 500)
    ids = {word: i for i, word in enumerate(sorted({word for words, _ in pairs for word in words}))}
    spelt = [[DIGITS.index(c) for c in digits] for _, digits in pairs]
    rows = [([ids[w] for w in words], [START, *out], [*out, END]) for (words, _), out in zip(pairs, spelt, strict=True)]
    print(f"{count} generated dates to learn from, 500 to test; {len(ids)} different words")
    print("for example", " ".join(pairs[0][0]), "->", pairs[0][1])

    train_program, translate_program = make_programs(len(ids))
    trainer = fluid.Trainer(train_program, optimizer=fluid.optimizer.Adam(3e-3))
    train_reader = fluid.batch(fluid.reader.shuffle(rows[500:], count, seed=0), batch_size=64)
    test_reader = fluid.batch(rows[:500], batch_size=100)

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            (loss,) = trainer.test(test_reader, feed_order=["words", "before", "after"])
            print(f"epoch {event.epoch + 1}: test loss per character {loss:.4f}")

    trainer.train(train_reader, num_epochs=num_epochs, event_handler=on_event, feed_order=["words", "before", "after"])
    trainer.save_params(path)

    inferencer = fluid.Inferencer(translate_program, param_path=path)
    sentences = fluid.SequenceBatch.from_rows([np.array(row[0])[:, None] for row in rows[:500]])
    best, scores = inferencer.infer({"words": sentences})
    right = float(np.mean([read(found[0]) == digits for found, (_, digits) in zip(best, pairs, strict=False)]))
    print(f"\nparameters saved to {path}, loaded again; the best {BEAM} translations of")
    for words, found, score in zip([p[0] for p in pairs[:4]], best, scores, strict=False):
        print(f"  {' '.join(words)}")
        print("   ", ", ".join(f"{read(f)} ({np.exp(s):.0%})" for f, s in zip(found, score, strict=True)))
    print(f"right to the last digit: {right:.3f}")
    return right, 1 / (300 * 365)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save", metavar="PATH", help="where to keep the parameters (a temporary place by default)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(arguments.epochs, path=arguments.save or os.path.join(folder, "dates.params"))
