"""The API reference: it has every public method of the main classes, and its indexes list names of other libraries."""

import csv
import importlib.util
import inspect
import pathlib

import pytest

import fluid
from fluid import errors, layers
from fluid._util import known_names

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
CLASSES = ["Trainer", "Session", "Population", "Loop", "Inferencer", "OnlineTrainer", "History"]
# Each layer of Keras, PyTorch, Flax or optax, and the layer of fluid that the index must show for it.
LAYERS = {
    "AdaptiveAvgPool2d": "adaptive_pool2d",
    "AvgPool2d": "pool2d",
    "BatchNorm2d": "batch_norm",
    "Bidirectional": "rnn",
    "Concatenate": "concat",
    "Conv2DTranspose": "conv2d_transpose",
    "ConvTranspose2d": "conv2d_transpose",
    "CosineAnnealingLR": "cosine_decay",
    "CrossEntropyLoss": "softmax_with_cross_entropy",
    "CTCLoss": "warpctc",
    "Dense": "dense",
    "Embed": "embedding",
    "GlobalAveragePooling2D": "pool2d",
    "GroupNorm": "group_norm",
    "Hardtanh": "brelu",
    "InstanceNorm2d": "instance_norm",
    "KLDivLoss": "kldiv_loss",
    "LayerNorm": "feature_norm",
    "LeakyReLU": "leaky_relu",
    "Linear": "dense",
    "Masking": "sequence_mask",
    "MaxPool2d": "pool2d",
    "MultiHeadDotProductAttention": "multi_head_attention",
    "MultiheadAttention": "multi_head_attention",
    "Parameter": "create_parameter",
    "Permute": "transpose",
    "PixelShuffle": "pixel_shuffle",
    "StepLR": "exponential_decay",
    "UpSampling2D": "resize_nearest",
    "Upsample": "resize_nearest",
    "ZeroPad2d": "pad2d",
    "softmax_cross_entropy_with_integer_labels": "softmax_with_cross_entropy",
}
# Each name of another library, and the name of fluid at the beginning of its line in the index.
NAMES = {
    "Adam": "fluid.optimizer.Adam",
    "BackupAndRestore": "fluid.Trainer",
    "Callback": "fluid.handlers.Handler",
    "DataLoader": "fluid.reader.arrays",
    "DistributedDataParallel": "fluid.Trainer",
    "EarlyStopping": "fluid.handlers.EarlyStopping",
    "LearningRateFinder": "fluid.find_learning_rate",
    "LoRA": "fluid.LowRankParamAttr",
    "ModelCheckpoint": "fluid.handlers.SaveBest",
    "RMSprop": "fluid.optimizer.RMSProp",
    "TensorBoardLogger": "fluid.handlers.TensorBoard",
    "TensorDataset": "fluid.reader.arrays",
    "WandbLogger": "fluid.handlers.WandB",
    "bucket_by_sequence_length": "fluid.reader.bucket_by_length",
    "callbacks": "fluid.handlers",
    ".evaluate": "trainer.test",
    ".fit": "trainer.train",
    ".load_weights": "trainer.load_params",
    ".parameters": "trainer.params",
    ".save_weights": "trainer.save_params",
}


@pytest.fixture(scope="module")
def generated():
    """Import and return docs/generated.py by its path, because its folder is no package."""
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_have_every_public_method_of_the_main_classes(generated, tmp_path):
    sphinx = pytest.importorskip("sphinx.application", reason="needs Sphinx; `make docs` runs this test")
    pages = generated._reference()
    texts = [pages[f"reference/{page}"] for page in generated.CLASSES]
    directives = [text.split("```{eval-rst}\n")[1].split("```")[0] for text in texts]
    (tmp_path / "index.rst").write_text("Classes\n=======\n\n" + "\n".join(directives))
    (tmp_path / "conf.py").write_text("extensions = ['sphinx.ext.autodoc']\n")
    folders = [tmp_path, tmp_path, tmp_path / "html", tmp_path / "trees"]
    app = sphinx.Sphinx(*folders, "dummy", status=None, warning=None)
    app.build()
    found = app.env.get_domain("py").objects
    names = [f"{kind}.{name}" for kind in CLASSES for name in dir(getattr(fluid, kind)) if not name.startswith("_")]
    assert len(names) > 100
    assert not [name for name in names if f"fluid.{name}" not in found]


def test_every_public_name_of_fluid_is_on_one_page(generated):
    groups = generated.groups()
    values = [id(getattr(importlib.import_module(group.owner), name)) for group in groups for name in group.names]
    assert len(values) == len(set(values)), "no name is on two pages"
    public = {name: getattr(fluid, name) for name in fluid.__all__}
    missing = [n for n, v in public.items() if not inspect.ismodule(v) and callable(v) and id(v) not in values]
    assert not missing
    assert id(fluid.debug.eager) in values


def test_names_of_old_programs_have_a_separate_page(generated):
    for group in generated.groups():
        found = {"CPUPlace", "CUDAPlace", "LoDTensor", "create_lod_tensor"} & set(group.names)
        assert len(found) == (4 if group.page == "fluid-2018" else 0)
    assert "LoD" not in generated.table_of_names(known_names.names()["other_libraries"], generated.OWNERS)


@pytest.mark.parametrize(("name", "layer"), LAYERS.items())
def test_the_index_of_layers_has_names_of_other_libraries(name, layer):
    assert layer in [row.layer for row in layers.overview(name) if name in row.elsewhere]
    if name not in known_names.names()["other_libraries"]["fluid.lr"]:
        with pytest.raises(errors.MissingNameError, match=rf"has no attribute '{name}'; use layers\.{layer}\b"):
            getattr(layers, name)


def test_the_index_of_names_has_names_of_other_libraries(generated):
    rows = csv.reader(generated.table_of_names(known_names.names()["other_libraries"], generated.OWNERS).splitlines())
    found = {name.strip("`"): advice for name, advice in rows}
    wrong = {name: found.get(name) for name, path in NAMES.items() if not found.get(name, "").startswith(f"[`{path}")}
    assert not wrong


def test_names_that_are_elsewhere_in_fluid():
    with pytest.raises(errors.MissingNameError, match=r"use fluid\.io\.update_module"):
        fluid.update_module  # noqa: B018
    with pytest.raises(errors.MissingNameError, match=r"use fluid\.LowRankParamAttr\(rank=8\)"):
        layers.low_rank  # noqa: B018
