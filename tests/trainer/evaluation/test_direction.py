"""The direction of a monitored value: the name of the value says whether larger or smaller is better."""

import numpy as np
import pytest

import fluid
from fluid import errors
from fluid import handlers as H
from fluid.optimizer import SGD
from fluid.trainer.evaluation.monitor import direction

LARGER = """acc accuracy test_acc testAcc val_accuracy_5 val/acc accuracy/val AUC roc_auc test_f1 F1Score r2 R2_score
    top1 top_5 map50 mAP mIoU IoU bleu4 precision recall@10 test_chunks_f1 nDCG psnr cost_model/accuracy"""
SMALLER = """loss test_loss testLoss err error_rate cost mae valRMSE mse perplexity nll wer CER cross_entropy loss_1
    mean_squared_error dice_loss top5_error accuracy_loss test_generator/loss no_step/loss accuracy/loss"""
NEITHER = """account score learning_rate step output_1 neg_mse loss_accuracy loss_scale grad_norm 1-accuracy lossy
    map_size accuracy_std elbo entropy mapping scost"""


@pytest.mark.parametrize(("names", "mode"), [(LARGER, "max"), (SMALLER, "min")])
def test_words_of_a_name_decide_the_mode(names, mode):
    assert {name: direction(name, "auto", str) for name in names.split()} == dict.fromkeys(names.split(), mode)


@pytest.mark.parametrize("name", NEITHER.split())
def test_ambiguous_name_requires_an_explicit_mode(name):
    with pytest.raises(errors.ArgumentError, match="mode='max' or 'min': f mode=max .* or else f mode=min"):
        direction(name, "auto", "f mode={}".format)
    assert direction(name, "max", str) == "max"
    assert direction(name, "min", str) == "min"


def test_explicit_mode_overrides_the_name():
    assert H.EarlyStopping("test_acc", mode="min")._mode == "min"
    assert fluid.CheckpointConfig(keep_best=("loss", "max")).keep_best == ("loss", "max")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: H.EarlyStopping("score"), "EarlyStopping('score', mode='max')"),
        (lambda: H.SaveBest("p", "score"), "SaveBest('p', 'score', mode='max')"),
        (lambda: H.ReduceLROnPlateau("score"), "ReduceLROnPlateau('score', mode='max')"),
        (lambda: fluid.CheckpointConfig(keep_best="score"), "CheckpointConfig(keep_best=('score', 'max'))"),
        (lambda: fluid.CheckpointConfig(keep_best=("score", "auto")), "CheckpointConfig(keep_best=('score', 'max'))"),
        (lambda: trainer().train(READER, restore_best="score"), "train(restore_best=('score', 'max'))"),
        (lambda: make_population().best("wide"), "population.best('wide', mode='max')"),
    ],
)
def test_missing_mode_raises_with_the_corrected_call(build, says):
    with pytest.raises(errors.ArgumentError, match="does not say whether larger or smaller is better") as caught:
        build()
    assert says in str(caught.value)


def program():
    loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
    return {"loss": loss, "wide": loss * 2, "half_acc": loss / 2}


READER = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)


def trainer(**options):
    return fluid.Trainer(program, SGD(0.1), **options)


def make_population():
    population = fluid.Population(program, SGD(0.1), size=2)
    population.test(READER)
    return population


def test_best_member_follows_the_named_value():
    population = make_population()
    assert population.best() == population.best("loss") == 1 - population.best("half_acc")


class Announced(fluid.Handler):
    """A handler that announces `values[epoch]` under `name` at the end of each epoch."""

    def __init__(self, name, values):
        self.name, self.given = name, values

    def measures(self):
        return [self.name]

    def end_epoch(self, event):
        self.announce(event.epoch, event.steps - 1, {self.name: self.given[event.epoch]})


RISING = [0.6, 0.7, 0.8, 0.75, 0.7]


@pytest.mark.parametrize(("name", "best", "epochs"), [("test_acc", 2, 5), ("test_rmse", 0, 3)])
def test_training_goes_by_the_direction_of_the_name(name, best, epochs, tmp_path):
    kept, stopping = [], H.EarlyStopping(name, patience=2)
    config = fluid.CheckpointConfig(tmp_path / "c", keep_best=name, max_num_checkpoints=1)
    mine = trainer(checkpoint_config=config)
    saving = H.SaveBest(tmp_path / "best.params", name)
    history = mine.train(
        READER,
        5,
        lambda event: isinstance(event, fluid.EndEpochEvent) and kept.append(mine.params),
        handlers=[stopping, saving, Announced(name, RISING)],
        restore_best=name,
    )
    assert len(history["epoch"]) == epochs and stopping.best == saving.best == RISING[best]
    saved = fluid.Trainer(program, SGD(0.1), param_path=tmp_path / "best.params").params
    for array, other, wanted in zip(mine.params.values(), saved.values(), kept[best].values(), strict=True):
        np.testing.assert_array_equal(array, wanted)
        np.testing.assert_array_equal(other, wanted)
    mine.restore("best")
    np.testing.assert_array_equal(mine.params["fc_0.w_0"], kept[best]["fc_0.w_0"])


def test_the_rate_is_kept_while_accuracy_rises():
    mine = trainer()
    mine.train(READER, 3, handlers=[H.ReduceLROnPlateau("test_acc", patience=1), Announced("test_acc", RISING)])
    assert mine.learning_rate == 0.1


def test_loss_of_any_name_is_minimised():
    def objective():
        return {"score": program()["loss"]}

    fluid.Trainer(objective, SGD(0.1)).train(READER, 2, test_reader=READER, restore_best=True)
