"""Weights of other libraries: examples return the logits of the original models; PyTorch and Keras files are read."""

import importlib.util
import pathlib

import numpy as np
import pytest
import torch
import torchvision
import transformers

import fluid
from fluid import errors, layers

pytestmark = pytest.mark.peers

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(f"examples.{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def randomized(model):
    """Set every parameter and moving average of a PyTorch model to random numbers, so that each affects the results."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if "running_var" in name:
                value.uniform_(0.5, 1.5)
            elif value.dtype.is_floating_point and value.ndim == 1:
                value.copy_(("weight" in name and "running" not in name) + 0.2 * torch.randn_like(value))
            elif value.dtype.is_floating_point:
                fan_in = value[0].numel() if value.ndim == 4 else 60
                value.copy_(torch.randn_like(value) / fan_in**0.5)
    return model.eval()


@pytest.fixture(scope="module")
def gpt2():
    config = transformers.GPT2Config(
        n_layer=3, n_embd=128, n_head=2, vocab_size=97, n_positions=40, bos_token_id=0, eos_token_id=None
    )
    return randomized(transformers.GPT2LMHeadModel(config))


def test_gpt2_gives_the_logits_of_transformers(gpt2):
    ids = np.random.default_rng(0).integers(0, 97, (3, 24))
    expected = gpt2(torch.from_numpy(ids)).logits.detach().numpy()
    example = load("gpt2")
    sizes = example.sizes_of(gpt2.state_dict())
    with fluid.Session(lambda: example.scores_program(**sizes)) as session:
        report = fluid.io.load_state_dict(session, gpt2.state_dict(), example.TABLE, example.IGNORE)
        assert report.ignored == ("lm_head.weight",) and not report.kept
        (found,) = session.run(feed={"ids": ids[..., None]})
    np.testing.assert_allclose(found.data[:, :24], expected, atol=1e-4)
    assert expected.std() > 0.5


@pytest.mark.parametrize("part", ["whole", "without head"])
def test_gpt2_continues_texts_as_transformers(gpt2, part, tmp_path, capsys):
    (gpt2 if part == "whole" else gpt2.transformer).save_pretrained(tmp_path)
    prompts = [[5, 17, 33], [90]]
    texts, _ = load("gpt2").main(tmp_path / "model.safetensors", prompts, length=30)
    for prompt, text in zip(prompts, texts, strict=True):
        options = {"do_sample": False, "max_length": 30, "pad_token_id": 0}
        expected = gpt2.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), **options)[0]
        assert text.tolist() == expected.tolist()
    assert len(set(texts[0].tolist())) > 5
    assert "52 arrays taken" in capsys.readouterr().out


@pytest.fixture(scope="module")
def bert():
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=48, num_attention_heads=3, intermediate_size=80, vocab_size=97,
        max_position_embeddings=40, num_labels=5,
    )  # fmt: skip
    return randomized(transformers.BertForSequenceClassification(config))


def bert_feed():
    rng = np.random.default_rng(0)
    lengths = [12, 7, 20, 1]
    ids, types = ([rng.integers(0, high, (n, 1)) for n in lengths] for high in (97, 2))
    return {"ids": ids, "types": types}


def bert_scores(bert, feed):
    padded = {name: np.zeros((4, 20), "int64") for name in ("ids", "types", "mask")}
    for row, (ids, types) in enumerate(zip(feed["ids"], feed["types"], strict=True)):
        for name, values in (("ids", ids[:, 0]), ("types", types[:, 0]), ("mask", 1)):
            padded[name][row, : len(ids)] = values
    tensors = {name: torch.from_numpy(array) for name, array in padded.items()}
    with torch.no_grad():
        found = bert(tensors["ids"], attention_mask=tensors["mask"], token_type_ids=tensors["types"])
    return found.logits.numpy()


def test_bert_gives_the_logits_of_transformers(bert, tmp_path):
    torch.save(bert.state_dict(), tmp_path / "pytorch_model.bin")
    example = load("bert_classifier")
    weights = fluid.io.read_state_dict(tmp_path / "pytorch_model.bin")
    sizes = example.sizes_of(weights) | {"heads": 3}
    with fluid.Session(lambda: example.scores_program(classes=5, **sizes)) as session:
        assert not example.load(session, weights).kept
        (found,) = session.run(feed=bert_feed())
    expected = bert_scores(bert, bert_feed())
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert expected.std() > 0.3


def test_bert_without_head_is_fine_tuned(bert, tmp_path):
    bert.bert.save_pretrained(tmp_path)
    example = load("bert_classifier")
    weights = fluid.io.read_state_dict(tmp_path / "model.safetensors")
    sizes = example.sizes_of(weights) | {"heads": 3}
    trainer = fluid.Trainer(lambda: example.train_program(**sizes), fluid.optimizer.Adam(1e-3))
    assert example.load(trainer, weights).kept == ("classifier.w_0", "classifier.b_0")
    rows = [(*row, [i % 2]) for i, row in enumerate(zip(*bert_feed().values(), strict=True))]
    trainer.train([rows], num_epochs=2, feed_order=["ids", "types", "label"])


def test_resnet50_gives_the_logits_of_torchvision(tmp_path):
    model = randomized(torchvision.models.resnet50())
    torch.save(model.state_dict(), tmp_path / "resnet50.pth")
    found, session = load("resnet50").main(tmp_path / "resnet50.pth", size=96)
    images = np.random.default_rng(0).normal(size=(2, 3, 96, 96)).astype("float32")
    with torch.no_grad():
        expected = model(torch.from_numpy(images)).numpy()
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    assert expected.std() > 0.01


def linear():
    return layers.fc(layers.data("x", shape=[4]), size=3)


LINEAR = {"weight": ("fc_0.w_0", "transpose"), "bias": "fc_0.b_0"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["net.pt", "net.safetensors", "old.bin"])
def test_files_of_torch_in_any_precision(dtype, name, tmp_path):
    import safetensors.torch

    net = torch.nn.Linear(4, 3).to(dtype)
    if name == "net.safetensors":
        safetensors.torch.save_file(net.state_dict(), tmp_path / name)
    else:
        torch.save(net.state_dict(), tmp_path / name, _use_new_zipfile_serialization=name != "old.bin")
    with fluid.Session(linear) as session:
        fluid.io.load_state_dict(session, tmp_path / name, LINEAR)
        np.testing.assert_array_equal(session.scope["fc_0.w_0"], net.weight.detach().float().numpy().T)


def test_state_dict_of_torch_is_a_mapping():
    net = torch.nn.Linear(4, 3).bfloat16()
    with fluid.Session(linear) as session:
        fluid.io.load_state_dict(session, net.state_dict(), LINEAR)
        np.testing.assert_array_equal(session.scope["fc_0.b_0"], net.bias.detach().float().numpy())


def test_whole_module_of_torch_is_not_unpickled(tmp_path):
    torch.save(torch.nn.Linear(4, 3), tmp_path / "module.pt")
    with pytest.raises(errors.ParameterFileError, match=r"expected a file of torch.save\(model.state_dict\(\), path\)"):
        fluid.io.read_state_dict(tmp_path / "module.pt")


def test_nested_checkpoint_names_its_entries(tmp_path):
    torch.save({"state_dict": torch.nn.Linear(4, 3).state_dict(), "epoch": 3}, tmp_path / "last.ckpt")
    with pytest.raises(errors.ParameterFileError, match=r"holds \['state_dict', 'epoch'\], expected tensors by name"):
        fluid.io.read_state_dict(tmp_path / "last.ckpt")


@pytest.mark.parametrize("name", ["net.keras", "net.weights.h5", "net.h5"])
@pytest.mark.filterwarnings("ignore")
def test_files_of_keras(name, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    net = keras.Sequential([
        keras.Input((8, 8, 2)), keras.layers.Conv2D(3, (2, 4)), keras.layers.BatchNormalization(),
        keras.layers.Flatten(), keras.layers.Dense(5),
    ])  # fmt: skip
    rng = np.random.default_rng(0)
    net.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in net.get_weights()])
    (net.save_weights if "weights" in name else net.save)(tmp_path / name)

    def program():
        x = layers.conv2d(layers.data("image", shape=[2, 8, 8]), 3, (2, 4))
        x = layers.batch_norm(x, epsilon=1e-3)
        return layers.fc(layers.transpose(x, [0, 2, 3, 1]), size=5)  # Keras flattens arrays with channels last

    if name == "net.h5":
        conv, norm = ("*conv2d*/kernel", "*conv2d*/bias"), "*batch_normalization*/"
        names = [f"{norm}{n}" for n in ("gamma", "beta", "moving_mean", "moving_variance")]
        dense = ("*dense*/kernel", "*dense*/bias")
    else:
        conv, norm = ("layers/conv2d*/vars/0", "layers/conv2d*/vars/1"), "layers/batch_normalization*/vars/"
        names = [f"{norm}{n}" for n in range(4)]
        dense = ("layers/dense*/vars/0", "layers/dense*/vars/1")
    targets = [f"batch_norm_0.{n}" for n in ("w_0", "b_0", "w_1", "w_2")]
    table = {
        conv[0]: ("conv2d_0.w_0", (3, 2, 0, 1)), conv[1]: "conv2d_0.b_0", **dict(zip(names, targets, strict=True)),
        dense[0]: "fc_0.w_0", dense[1]: "fc_0.b_0",
    }  # fmt: skip
    images = rng.normal(size=(2, 8, 8, 2)).astype("float32")
    with fluid.Session(program) as session:
        report = fluid.io.load_state_dict(session, tmp_path / name, table, ignore=["optimizer/*", "seed*"])
        assert len(report.taken) == 8
        (found,) = session.run(feed={"image": images.transpose(0, 3, 1, 2)})
    np.testing.assert_allclose(found, net.predict(images, verbose=0), rtol=2e-4)
