"""Examples with few epochs and small nets: each is better than guessing. `make examples` runs them in full size."""

import functools
import importlib.util
import pathlib

import numpy as np
import pytest

import fluid

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"


def load(name):
    """Import an example by its file name."""
    spec = importlib.util.spec_from_file_location(f"examples.{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.sample(3)
def test_fit_a_line(capsys):
    errors = load("fit_a_line").main(num_epochs=40)
    assert errors["fluid"] < 0.7 * errors["always the mean"]
    assert errors["fluid"] < 1.05 * errors["least squares"]
    assert "predicted   true" in capsys.readouterr().out


@pytest.mark.sample(3)
def test_recognize_digits(in_tmp, capsys):
    reached, by_guessing = load("recognize_digits").main(net="mlp", num_epochs=6, path=str(in_tmp / "digits.params"))
    assert reached > 0.9 > 5 * by_guessing
    assert f"test accuracy {reached:.4f}" in capsys.readouterr().out


def write_cifar10(folder, records):
    """Write the same records to the six files of CIFAR-10; a record is a label and 3 x 32 x 32 bytes."""
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(records.tobytes())


def test_published_cifar10_format_is_read(in_tmp):
    example = load("image_classification")
    records = np.random.default_rng(0).integers(0, 256, (7, 3073), dtype=np.uint8)
    records[:, 0] = [3, 1, 4, 1, 5, 9, 2]
    write_cifar10(in_tmp, records)
    train, test = example.read_cifar10(in_tmp)
    assert train["image"].shape == (35, 3, 32, 32) and test["label"].tolist() == [3, 1, 4, 1, 5, 9, 2]
    # In a CIFAR-10 file, all red bytes of an image are first, row by row, and all blue bytes are last.
    assert test["image"][2, 0, 1, 5] == np.float32(records[2, 1 + 32 + 5]) / 255
    assert test["image"][2, 2, 31, 31] == np.float32(records[2, -1]) / 255


def test_cifar10_that_is_not_whole_is_refused(in_tmp):
    example = load("image_classification")
    records = np.zeros((2, 3073), np.uint8)
    write_cifar10(in_tmp, records)
    (in_tmp / "data_batch_3.bin").write_bytes(records.tobytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_3.bin has 6145 bytes; expected some records of 3073"):
        example.read_cifar10(in_tmp)
    records[1, 0] = 10
    write_cifar10(in_tmp, records)
    with pytest.raises(ValueError, match=r"data_batch_1.bin has a label 10; expected 0 to 9"):
        example.read_cifar10(in_tmp)
    (in_tmp / "data_batch_1.bin").unlink()
    with pytest.raises(FileNotFoundError, match="--data takes the directory"):
        example.read_cifar10(in_tmp)


@pytest.mark.sample(3)
def test_word2vec_beats_counting(in_tmp, capsys):
    path = str(in_tmp / "words.params")
    net, by_counting = load("word2vec").main(num_epochs=4, path=path)
    assert net[0] < 0.7 * by_counting[0], "perplexity"
    assert net[1] > 1.5 * by_counting[1], "accuracy"
    said = capsys.readouterr().out
    assert "nearest by cosine" in said and "the value of the ... " in said


@pytest.mark.sample(3)
def test_recommender_system(in_tmp, capsys):
    path = str(in_tmp / "movies.params")
    errors = load("recommender_system").main(num_epochs=3, users=200, movies=100, ratings=10_000, path=path)
    assert errors["fluid"] < 0.8 * errors["the movie's mean"] < errors["always the mean"]
    said = capsys.readouterr().out
    assert "generated ratings (not MovieLens)" in said and "generated movie" in said


def test_published_movielens_format_is_read(in_tmp):
    example = load("recommender_system")
    (in_tmp / "users.dat").write_text("1::F::1::10::48067\n2::M::56::16::70072\n")
    movies = "1::Toy Story (1995)::Animation|Children's|Comedy\n17::Les Misérables (1995)::Drama|Musical\n"
    (in_tmp / "movies.dat").write_text(movies, encoding="latin-1")
    (in_tmp / "ratings.dat").write_text("1::17::5::978300760\n2::1::3::978302109\n")
    users, films, ratings, titles = example.read_movielens(in_tmp)
    assert users.tolist() == [[1, 1, 0, 10], [2, 0, 6, 16]]
    assert films.tolist() == [[1, 0, 1, 2, 18, 18, 18], [17, 3, 4, 18, 18, 18, 18]]
    assert ratings.tolist() == [[1, 17, 5], [2, 1, 3]] and titles[17] == "Les Misérables (1995)"
    feeds = example.columns(users, films, ratings)
    assert feeds["job"].tolist() == [10, 16] and feeds["categories"][0].tolist() == films[1, 1:].tolist()
    (in_tmp / "ratings.dat").write_text("1::17::5\n")
    with pytest.raises(ValueError, match=r"ratings.dat, line 1: 3 fields between '::'; expected 4"):
        example.read_movielens(in_tmp)
    (in_tmp / "users.dat").unlink()
    with pytest.raises(FileNotFoundError, match="--data takes the directory"):
        example.read_movielens(in_tmp)


@pytest.mark.sample(3)
def test_understand_sentiment(in_tmp, capsys):
    example, path = load("understand_sentiment"), str(in_tmp / "sentiment.params")
    reached, by_counting, majority = example.main(net="rnn", num_epochs=4, count=3000, path=path)
    assert reached > 0.75 > by_counting > majority
    said = capsys.readouterr().out
    assert "generated reviews (not IMDB)" in said and "the story was not good" in said


@pytest.mark.sample(3)
def test_seq2seq_2018(in_tmp, capsys):
    right, by_guessing = load("seq2seq_2018").main(num_epochs=3, count=2500, dirname=str(in_tmp / "numbers.params"))
    assert right > 0.6 > 1000 * by_guessing
    said = capsys.readouterr().out
    assert f"right to the last digit: {right:.3f}" in said and "generated numbers" in said


@pytest.mark.sample(3)
def test_gan_digits(in_tmp, capsys, monkeypatch):
    """Check that after a few epochs the drawn digits are nearer to real digits than noise.

    Readable digits need more epochs, which `make examples` runs.
    """
    example = load("gan_digits")
    monkeypatch.setattr(example, "HIDDEN", 48)
    measured = example.main(num_epochs=15)
    (_, near), (_, far) = measured["drawn by the GAN"], measured["noise"]
    assert near < 0.7 * far
    assert "digits.png shows ten of each digit" in capsys.readouterr().out
    assert (in_tmp / "digits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.sample(3)
def test_gan_digits_equals_custom_loop_and_resumed_run(in_tmp, monkeypatch):
    example = load("gan_digits")
    monkeypatch.setattr(example, "HIDDEN", 16)
    (images, digits), _ = example.load_data()

    def reader():
        columns = {"image": images[:320], "digit": digits[:320]}
        return fluid.reader.arrays(columns, batch_size=64, shuffle=True)

    def fail(event):
        if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == (3, 1):
            raise ZeroDivisionError

    whole = example.train(reader(), 5)
    with pytest.raises(ZeroDivisionError):
        example.train(reader(), 5, "checkpoints", fail)
    for params in (example.train_by_hand(reader(), 5), example.train(reader(), 5, "checkpoints")):
        assert params.keys() == whole.keys()
        assert all(np.array_equal(params[name], whole[name]) for name in whole)


@pytest.mark.sample(3)
def test_shared_tower(capsys):
    errors = load("shared_tower").main(num_epochs=15)
    assert errors["with the shared tower"] < 0.8 * errors["ratings alone"]
    assert "generated ratings" in capsys.readouterr().out


@pytest.mark.sample(3)
def test_serve_digits(in_tmp, capsys):
    accuracy, status = load("serve_digits").main(num_epochs=2, path=str(in_tmp / "digits.fluid"))
    assert accuracy > 0.8 and status == 0
    assert f"accuracy {accuracy:.4f}" in capsys.readouterr().out


@pytest.mark.sample(3)
def test_write_characters(in_tmp, capsys, monkeypatch):
    example = load("write_characters")
    monkeypatch.setattr(example, "WINDOW", 16)
    monkeypatch.setattr(example, "PART", 4)
    bits, counted, text = example.main(size=16, steps=30, length=8)
    assert bits < 6 < np.log2(96), "guessing takes log2(96) bits"
    assert text.startswith("The value of the ") and len(text) == len("The value of the ") + 8
    assert text in capsys.readouterr().out


@pytest.mark.full
def test_online_recommender(in_tmp, capsys):
    errors = load("online_recommender").main(ratings=8000, folder=in_tmp)
    assert errors["moving test in the end"] < 0.8 * errors["moving test after the change"]
    assert errors["served"] < 0.5 * errors["never trained since"]
    assert "generated ratings" in capsys.readouterr().out


@pytest.mark.sample(3)
def test_run_a_2018_model(in_tmp):
    here, served, before, after = load("run_a_2018_model").main(path=str(in_tmp / "old.fluid"))
    assert here < 1e-5 > served and after < before / 2


@pytest.mark.full
def test_notebook_plots_and_reaches_its_accuracy(in_tmp):
    import nbclient
    import nbformat

    notebook = nbformat.read(EXAMPLES / "recognize_digits.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "commit the notebook without outputs"
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    said = "".join(output.get("text", "") for output in outputs)
    assert "image/png" in kinds, "a plot"
    assert float(said.rpartition("test accuracy ")[2].split()[0]) > 0.9


@pytest.mark.sample(3)
def test_plan_gpt(capsys):
    example = load("plan_gpt")
    small = functools.partial(example.gpt, count=50, length=8, layers=2, size=16, heads=2, hidden=24)
    plan = example.main(small, batch_size=4, meshes=[fluid.Mesh(data=1)])
    # The parameters of the embedding and the output layer, of two blocks, and of the last normalisation.
    numbers = 2 * 50 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * 24 + 4 * 16) + 2 * 16
    assert plan.candidates[0].parameters == 4 * numbers
    assert f"{numbers:,} parameters, 4 rows" in capsys.readouterr().out


@pytest.mark.sample(3)
def test_population_digits(in_tmp, capsys, monkeypatch):
    example = load("population_digits")
    monkeypatch.setattr(example, "RATES", [0.001, 0.01])
    monkeypatch.setattr(example, "SEEDS", [0, 1])
    # Leave out the convolution, because compiling it takes longer than the rest of the training.
    monkeypatch.setattr(fluid.nets, "simple_img_conv_pool", lambda image, *sizes, **settings: image)
    best, together = example.main(num_epochs=3)
    assert best > 0.85 and together > 0.85  # a random guess among ten digits is right in a tenth of the cases
    assert f"test accuracy {best:.4f}" in capsys.readouterr().out
    assert (in_tmp / "population_digits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.sample(3)
def test_policy_gradient(in_tmp, capsys):
    example = load("policy_gradient")
    reached, by_chance = example.main(iterations=16)
    assert reached > 2 * by_chance
    assert f"reaches a return of {reached:.1f}" in capsys.readouterr().out
    example.main(iterations=9, checkpoint_dir="policy")
    assert example.main(iterations=16, checkpoint_dir="policy") == (reached, by_chance), "continued to the same bits"


@pytest.mark.sample(3)
def test_gpt2_text_follows_the_scores_of_whole_texts():
    example = load("gpt2")
    prompts = [[5, 17, 33], [9]]
    texts, session = example.main(prompts=prompts, length=12)
    whole = fluid.Inferencer(lambda: example.scores_program(**example.SMALL), params=session.params())
    (scores,) = whole.infer({"ids": texts[..., None]})
    for prompt, text, chosen in zip(prompts, texts, scores.data.argmax(-1), strict=True):
        assert text[: len(prompt)].tolist() == prompt
        assert text[len(prompt) :].tolist() == chosen[len(prompt) - 1 : 11].tolist()


@pytest.mark.sample(3)
def test_bert_classifier(capsys):
    accuracy, by_guessing = load("bert_classifier").main(rows=256, num_epochs=4)
    assert accuracy > 1.15 * by_guessing
    assert f"test accuracy {accuracy:.3f}" in capsys.readouterr().out


@pytest.mark.sample(3)
def test_resnet50_prints_the_most_probable_classes(capsys):
    example = load("resnet50")
    scores, session = example.main(size=32, blocks=(1, 1, 1, 1), classes=7)
    # The net has the parameters of the first convolution and its normalisation, of four blocks, and of `fc`.
    assert scores.shape == (2, 7) and len(session.params()) == 5 + 4 * 20 + 2
    assert capsys.readouterr().out.count("most probable classes") == 2


@pytest.mark.sample(3)
def test_low_rank_digits(capsys):
    reached = load("low_rank_digits").main(num_epochs=8)
    assert reached["tuned"] == pytest.approx(reached["merged"]) and reached["merged"] > 0.8 > 2 * reached["unchanged"]
    assert "2,437 numbers trained of 25,477" in capsys.readouterr().out
