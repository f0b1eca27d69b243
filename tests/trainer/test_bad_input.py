"""Bad input: each error names the field, the found and expected value and a fix; the bad step changes nothing."""

import jax
import numpy as np
import pytest

import fluid
from fluid import errors

IMAGES = np.zeros((8, 6), "float32")
LABELS = np.arange(8).reshape(8, 1) % 3


def train_program():
    image = fluid.layers.data("image", shape=[6])
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    prediction = fluid.layers.fc(image, size=3, act="softmax")
    return fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))


@pytest.fixture
def trainer():
    return fluid.Trainer(train_program, fluid.optimizer.SGD(0.1))


def good():
    return IMAGES, LABELS


def second_batch(bad):
    """Return a reader of two minibatches: a good one, then `bad`."""
    return lambda: iter([good(), bad])


def labels(value, dtype="int64"):
    changed = LABELS.astype(dtype)
    changed[5] = value
    return changed


@pytest.mark.parametrize(
    "bad, words",
    [
        pytest.param((IMAGES[:, :5], LABELS), ["image", "5", "6"], id="wrong feature size"),
        pytest.param((IMAGES[:, :, None, None], LABELS[:7]), ["8", "7"], id="columns of different length"),
        pytest.param((IMAGES.reshape(2, 2, 2, 6), LABELS), ["image"], id="wrong rank"),
        pytest.param((IMAGES, LABELS + 0.5), ["label", "float", "int"], id="float for an int label"),
        pytest.param((IMAGES, LABELS.astype("float32")), ["label", "float", "int"], id="whole floats for an int label"),
        pytest.param((IMAGES, labels(3)), ["label", "3"], id="label beyond the classes"),
        pytest.param((IMAGES, labels(-1)), ["label", "-1"], id="negative label"),
        pytest.param((IMAGES, labels(2**40)), ["label"], id="an int that does not fit"),
        pytest.param((IMAGES.astype(str), LABELS), ["image"], id="strings"),
        pytest.param((np.where(IMAGES > 2, IMAGES, None), LABELS), ["image", "None"], id="objects"),
        pytest.param((IMAGES, LABELS, LABELS), ["3", "2"], id="a column too many"),
        pytest.param((IMAGES,), ["1", "2"], id="a column too few"),
        pytest.param({"image": IMAGES, "lable": LABELS}, ["lable", "Did you mean 'label'"], id="unknown name"),
        pytest.param({"image": IMAGES}, ["label"], id="missing name"),
        pytest.param([(IMAGES[0], 1), (IMAGES[0][:4], 1)], ["image", "sample 1"], id="ragged rows"),
        pytest.param([(IMAGES[0], 1), (IMAGES[0],)], ["sample 1", "1", "2"], id="a row with too few fields"),
        pytest.param([(IMAGES[0], 1, 1)], ["3", "2"], id="a row with too many fields"),
        pytest.param([("x", 1)], ["image"], id="a string in a row"),
        pytest.param([(IMAGES[0], 1.5)], ["label", "float"], id="a float label in a row"),
        pytest.param([(IMAGES[0], 7)], ["label", "7"], id="a label beyond the classes in a row"),
        pytest.param([], ["empty"], id="an empty minibatch"),
        pytest.param(3, ["minibatch"], id="no minibatch at all"),
    ],
)
def test_bad_second_batch_raises_after_the_first_step(trainer, bad, words):
    with pytest.raises((errors.FluidError, KeyError)) as caught:
        trainer.train(second_batch(bad), num_epochs=1)
    text = str(caught.value)
    assert isinstance(caught.value, errors.FluidError)
    for word in words:
        assert word in text, text
    assert int(trainer.session.scope.step) == 1
    trainer.train(lambda: iter([good()]))
    assert int(trainer.session.scope.step) == 2


def test_bad_data_names_the_batch(trainer):
    with pytest.raises(errors.FeedError, match="batch 1"):
        trainer.train(second_batch((IMAGES, labels(9))))


@pytest.mark.parametrize(
    "feed, error",
    [
        ({"image": IMAGES[:, :5], "label": LABELS}, errors.FeedError),
        ({"image": [[1.0, 2.0], [1.0]], "label": LABELS}, errors.FeedError),
        ({"image": IMAGES, "label": labels(3)}, errors.FeedError),
        ({"image": IMAGES, "label": LABELS + 0.5}, errors.FeedTypeError),
        ({"image": IMAGES, "label": [["a"]] * 8}, errors.FeedTypeError),
    ],
)
def test_bad_run_feed_raises_without_a_step(trainer, feed, error):
    with pytest.raises(error):
        trainer.session.run(feed=feed)
    assert int(trainer.session.scope.step) == 0


@pytest.mark.parametrize("empty", [[], lambda: iter(()), lambda: []])
def test_empty_reader_raises_reader_error(trainer, empty):
    with pytest.raises(errors.ReaderError):
        trainer.train(empty)
    with pytest.raises(errors.ReaderError):
        trainer.test(empty)


def test_exhausted_generator_raises_reader_error(trainer):
    once = (good() for _ in range(2))
    with pytest.raises(errors.ReaderError, match="function that returns"):
        trainer.train(once, num_epochs=2)


@pytest.mark.parametrize("order, error", [([], ValueError), (["image", "lable"], KeyError), (["image"], ValueError)])
def test_bad_feed_order_raises_before_the_first_step(trainer, order, error):
    with pytest.raises(error):
        trainer.train(lambda: iter([good()]), feed_order=order)
    assert int(trainer.session.scope.step) == 0


@pytest.mark.parametrize("epochs", [-1, 1.5, "3", True])
def test_bad_num_epochs_raises_argument_error(trainer, epochs):
    with pytest.raises(errors.ArgumentError, match="num_epochs"):
        trainer.train(lambda: iter([good()]), num_epochs=epochs)


def test_missing_reader_raises_argument_type_error(trainer):
    with pytest.raises(errors.ArgumentTypeError, match="reader="):
        trainer.train(num_epochs=3)
    with pytest.raises(errors.ArgumentTypeError, match="reader"):
        trainer.train(3)


@pytest.mark.parametrize("optimizer", [0.1, "sgd", fluid.optimizer.SGD, object()])
def test_wrong_optimizer_raises_argument_type_error(optimizer):
    with pytest.raises(errors.ArgumentTypeError, match="fluid.optimizer"):
        fluid.Trainer(train_program, optimizer)


def test_missing_optimizer_or_program_raises_argument_type_error():
    with pytest.raises(errors.ArgumentTypeError, match="optimizer"):
        fluid.Trainer(train_program)
    with pytest.raises(errors.ArgumentTypeError, match="program function"):
        fluid.Trainer(optimizer=fluid.optimizer.SGD(0.1))
    with pytest.raises(errors.ArgumentTypeError, match="two spellings"):
        fluid.Trainer(train_program, fluid.optimizer.SGD(0.1), train_func=train_program)


def test_program_without_return_raises_program_error():
    def program():
        train_program()

    with pytest.raises(errors.ProgramError, match="returned nothing.*return loss"):
        fluid.Trainer(program, fluid.optimizer.SGD(0.1))


def test_non_scalar_loss_raises_program_error():
    def program():
        image = fluid.layers.data("image", shape=[6])
        return fluid.layers.fc(image, size=3)

    with pytest.raises(errors.ProgramError, match=r"\[batch, 3\].*fluid\.layers\.mean"):
        fluid.Trainer(program, fluid.optimizer.SGD(0.1))


def test_wrong_parameter_path_raises_named_error(tmp_path, trainer):
    with pytest.raises(OSError, match="no parameter file"):
        fluid.Trainer(train_program, fluid.optimizer.SGD(0.1), param_path=tmp_path / "nothing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(errors.ParameterFileError, match="no parameter file of fluid"):
        fluid.Inferencer(train_program, param_path=tmp_path / "text")
    with pytest.raises(errors.ParameterFileError, match="folder"):
        trainer.save_params(tmp_path / "no" / "where")


def test_file_of_other_parameters_raises_parameter_error(tmp_path, trainer):
    def other():
        return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("image", shape=[6]), size=4, name="head"))

    fluid.Trainer(other, fluid.optimizer.SGD(0.1)).save_params(tmp_path / "other")
    for build in (
        lambda: fluid.Trainer(train_program, fluid.optimizer.SGD(0.1), param_path=tmp_path / "other"),
        lambda: fluid.Inferencer(train_program, param_path=tmp_path / "other"),
    ):
        with pytest.raises(errors.ParameterError, match=r"missing: fc_0\.w_0 float32\[6, 3\]"):
            build()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is a GPU here")
def test_absent_gpu_raises_device_error():
    with pytest.raises(errors.DeviceError, match=r"CUDAPlace.*place=None"):
        fluid.Trainer(train_program, fluid.optimizer.SGD(0.1), place=fluid.CUDAPlace(0))


def test_inferencer_without_parameters_raises_argument_type_error():
    with pytest.raises(errors.ArgumentTypeError, match="param_path"):
        fluid.Inferencer(train_program)
