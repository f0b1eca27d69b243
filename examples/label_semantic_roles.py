"""Label semantic roles in sentences with a deep recurrent net and a conditional random field.

For one marked verb of a sentence, the net finds the agent, the patient, the place and the time. The sentences are
generated from a small grammar (not CoNLL-2005). They are active or passive, with relative clauses that contain a second
verb, so a word alone does not determine its role. The net follows Zhou and Xu (2015): stacked LSTMs in alternating
directions. Run

    python examples/label_semantic_roles.py
    python examples/label_semantic_roles.py --depth 4 --hidden 64 --epochs 3
"""

import argparse
import os
import tempfile

import numpy as np

import fluid

ROLES = ["agent", "patient", "place", "time", "verb"]
TAGS = [f"{kind}-{role}" for role in ROLES for kind in "BI"] + ["O"]  # in the order of `chunk_eval`'s scheme IOB

NOUNS = "dog cat girl boy teacher king farmer bird singer doctor baker clerk".split()
ADJECTIVES = "old young tall small clever quiet".split()
VERBS = "saw chased praised followed helped called carried found".split()
PLACES = "garden house street river market school".split()
TIMES = ["yesterday", "at noon", "last week", "on Monday", "in the morning"]
WORDS = sorted({*NOUNS, *ADJECTIVES, *VERBS, *PLACES, *" ".join(TIMES).split(), *"the one that was by in near".split()})


def make_sentence(random):
    """Generate a sentence and its semantic roles: `(words, [(index of a verb, spans of the roles of the verb)])`."""
    words, frames = [], []

    def pick(choices):
        return choices[random.integers(len(choices))]

    def say(text):
        words.extend(text.split())
        return len(words) - len(text.split()), len(words)

    def thing():
        return say(f"{pick(['the', 'one'])} {pick(ADJECTIVES) + ' ' if random.random() < 0.4 else ''}{pick(NOUNS)}")

    def clause(subject, whole):
        passive = random.random() < 0.4
        verb = say(f"was {pick(VERBS)}" if passive else pick(VERBS))
        spans = {"patient" if passive else "agent": subject, "verb": (verb[1] - 1, verb[1])}
        if not passive or random.random() < 0.7:
            passive and say("by")
            other = thing()
            spans["agent" if passive else "patient"] = other
            if whole and random.random() < 0.4:
                say("that")
                clause(other, False)
        if whole and random.random() < 0.4:
            spans["place"] = say(f"{pick(['in', 'near'])} the {pick(PLACES)}")
        if whole and random.random() < 0.3:
            spans["time"] = say(pick(TIMES))
        frames.append((verb[1] - 1, spans))

    subject = thing()
    if random.random() < 0.4:
        say("that")
        clause(subject, False)
    clause(subject, True)
    return words, frames


def make_rows(count, seed):
    """Generate a row `(word ids [n, 1], marks [n, 1], tag ids [n, 1])` for each verb; only the verb has the mark 1."""
    random, ids, rows = np.random.default_rng(seed), {word: i for i, word in enumerate(WORDS)}, []
    while len(rows) < count:
        words, frames = make_sentence(random)
        for verb, spans in frames:
            tags = np.full((len(words), 1), len(TAGS) - 1)
            for role, (start, end) in spans.items():
                tags[start:end] = TAGS.index(f"I-{role}")
                tags[start] = TAGS.index(f"B-{role}")
            marks = (np.arange(len(words)) == verb).astype("int64")[:, None]
            rows.append((np.array([[ids[word]] for word in words]), marks, tags))
    return rows[:count]


def make_programs(depth, hidden):
    """Return the inference program and the training program of a net of `depth` LSTMs."""

    def features():
        word, mark = (fluid.layers.data(name, shape=[1], dtype="int64", lod_level=1) for name in ("word", "mark"))
        inputs = [fluid.layers.embedding(word, size=[len(WORDS), 32]), fluid.layers.embedding(mark, size=[2, 8])]
        for level in range(depth):
            mixed = fluid.layers.fc(inputs, size=4 * hidden)
            state, _ = fluid.layers.dynamic_lstm(mixed, size=4 * hidden, is_reverse=level % 2 == 1)
            inputs = [mixed, state]
        return fluid.layers.fc(inputs, size=len(TAGS))

    def inference_program():
        return fluid.layers.crf_decoding(features(), param_attr="transitions")

    def train_program():
        scores = features()
        tags = fluid.layers.data("tags", shape=[1], dtype="int64", lod_level=1)
        loss = fluid.layers.mean(fluid.layers.linear_chain_crf(scores, tags, param_attr="transitions"))
        found = fluid.layers.crf_decoding(scores, param_attr="transitions")
        precision, recall, f1, *_ = fluid.layers.chunk_eval(found, tags, "IOB", len(ROLES))
        return {"loss": loss, "precision": precision, "recall": recall, "f1": f1}

    return inference_program, train_program


def spans(tags):
    """Convert a row of tag ids, one for each word, to the roles of the sentence: a list of `(start, end, role)`."""
    found, outside = [], len(TAGS) - 1
    for i, tag in enumerate(tags):
        if tag == outside:
            continue
        role = ROLES[tag // 2]
        if tag % 2 and found and found[-1][1:] == (i, role):
            found[-1] = (found[-1][0], i + 1, role)
        else:
            found.append((i, i + 1, role))
    return found


def by_counting(train, test):
    """Compute the F1 score of a baseline: the most frequent tag of each word, counted apart for marked words."""
    counts = np.zeros((len(WORDS), 2, len(TAGS)))
    for row in train:
        np.add.at(counts, tuple(column[:, 0] for column in row), 1)
    found, right = [], []
    for i, (word, mark, tags) in enumerate(test):
        found += [(i, *span) for span in spans(counts[word[:, 0], mark[:, 0]].argmax(1).tolist())]
        right += [(i, *span) for span in spans(tags[:, 0].tolist())]
    return 2 * len(set(found) & set(right)) / (len(found) + len(right))


def show(row, tags):
    """Print a sentence with its roles in brackets."""
    words = [WORDS[i] for i in row[0][:, 0]]
    roles = {start: (end, role) for start, end, role in spans(tags)}
    said, i = [], 0
    while i < len(words):
        end, role = roles.get(i, (i + 1, None))
        said.append(f"[{' '.join(words[i:end])}]{role}" if role else words[i])
        i = end
    print("   ", " ".join(said), "" if tags == row[2][:, 0].tolist() else " (WRONG)")


def main(depth=8, hidden=64, num_epochs=5, sentences=3000, path="roles.params"):
    """Train, test, save, load and label roles; return the F1 scores of the net and of `by_counting`."""
    train, test = make_rows(sentences, seed=0), make_rows(500, seed=1)
    print(f"{len(train)} generated sentences to learn from, {len(test)} to test, {len(WORDS)} words")
    counted = by_counting(train, test)
    print(f"F1 by counting words {counted:.3f}")

    inference_program, train_program = make_programs(depth, hidden)
    clip = fluid.clip.GradientClipByGlobalNorm(1.0)
    trainer = fluid.Trainer(train_program, fluid.optimizer.Adam(3e-3, grad_clip=clip))

    order = ["word", "mark", "tags"]

    def test_now():
        return trainer.test(fluid.reader.batch(test, batch_size=100), feed_order=order)

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            loss, precision, recall, f1 = test_now()
            scores = f"loss {loss:.3f}, precision {precision:.3f}, recall {recall:.3f}, F1 {f1:.3f}"
            print(f"epoch {event.epoch + 1:2}: test {scores}")

    reader = fluid.reader.batch(fluid.reader.shuffle(train, buf_size=len(train)), batch_size=64)
    trainer.train(reader, num_epochs=num_epochs, event_handler=on_event, feed_order=order)
    f1 = float(test_now()["f1"])
    trainer.save_params(path)

    feed = {"word": [row[0] for row in test[:8]], "mark": [row[1] for row in test[:8]]}
    (found,) = fluid.Inferencer(inference_program, param_path=path).infer(feed)
    print(f"\nparameters saved to {path}, loaded again; some sentences of the test part, with the roles of one verb:\n")
    for row, tags in zip(test, found.rows(), strict=False):
        show(row, tags[:, 0].tolist())
    print(f"\nF1 {f1:.3f}, by counting words {counted:.3f}")
    return f1, counted


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=8, help="LSTMs on top of each other")
    parser.add_argument("--hidden", type=int, default=64, help="width of each")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=3000)
    parser.add_argument("--save", metavar="PATH", help="where to keep the parameters (a temporary place by default)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.save or os.path.join(folder, "roles.params")
        main(given.depth, given.hidden, given.epochs, given.sentences, path)
