"""`python -m fluid convert`: PaddlePaddle models become exported models with equal outputs."""

import numpy as np
import pytest
from paddle_programs import FOLDER, Written, batch, case

import fluid
from fluid.__main__ import main


def recorded(net):
    with np.load(FOLDER / net / "io.npz") as file:
        return dict(file)


def test_a_net_of_images(tmp_path, capsys):
    new = tmp_path / "lenet.fluid"
    assert main(["convert", str(FOLDER / "lenet" / "inference"), str(new)]) == 0
    assert capsys.readouterr().out == f"{new}: img -> save_infer_model/scale_0.tmp_0\n"
    arrays = recorded("lenet")
    for count in (len(arrays["out"]), 3):
        (got,) = fluid.Inferencer(param_path=new).infer({"img": arrays["in_img"][:count]})
        np.testing.assert_allclose(got, arrays["out"][:count], atol=1e-5)


def test_a_net_of_sequences(tmp_path):
    new = tmp_path / "sentiment.fluid"
    assert main(["convert", str(FOLDER / "sentiment" / "inference"), str(new)]) == 0
    arrays = recorded("sentiment")
    inferencer = fluid.Inferencer(param_path=new)
    (got,) = inferencer.infer({"words": batch(arrays["in_words"], [3, 5, 2])})
    np.testing.assert_allclose(got, arrays["out"], atol=1e-5)
    (got,) = inferencer.infer({"words": batch(arrays["in_words"][:3], [3])})
    np.testing.assert_allclose(got, arrays["out"][:1], atol=1e-5)


@pytest.mark.parametrize("name", ["net/attention", "net/ocr", "net/recommender", "net/unet"])
def test_nets_of_many_ops(name, tmp_path):
    written, feeds, wanted = case(name)
    assert main(["convert", str(written.save(tmp_path / "old")), str(tmp_path / "new")]) == 0
    for got, want in zip(fluid.Inferencer(param_path=tmp_path / "new").infer(feeds), wanted, strict=True):
        got = got.data[got.mask] if hasattr(got, "mask") else got
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_feed_used_only_for_its_size_stays(tmp_path):
    written, *_ = case("random/gaussian_random_batch_size_like")
    assert main(["convert", str(written.save(tmp_path / "old")), str(tmp_path / "new")]) == 0
    (got,) = fluid.Inferencer(param_path=tmp_path / "new").infer({"x": np.zeros((3, 2), "float32")})
    assert got.shape == (3, 400)


def test_other_names_of_files(tmp_path):
    written = Written().feed("x", (-1, 2)).param("w", np.float32([1, 2]))
    written.op("elementwise_mul", {"X": "x", "Y": "w"}, {"Out": "y"}).fetch("y").save(tmp_path / "old", "weights")
    (tmp_path / "old" / "__model__").rename(tmp_path / "old" / "net")
    arguments = ["--model-filename", "net", "--params-filename", "weights"]
    assert main(["convert", str(tmp_path / "old"), str(tmp_path / "new"), *arguments]) == 0
    assert fluid.Inferencer(param_path=tmp_path / "new").infer({"x": [[3, 4]]})[0].tolist() == [[3, 8]]


@pytest.mark.parametrize("old", ["nowhere", "lenet/params"])
def test_unconvertible_input_prints_an_error_without_files(old, tmp_path, capsys):
    assert main(["convert", str(FOLDER / old), str(tmp_path / "new")]) == 1
    assert capsys.readouterr().err and not list(tmp_path.iterdir())


def test_folder_becomes_stablehlo_of_a_fixed_size(tmp_path):
    new = tmp_path / "new.mlir"
    assert (
        main(["convert", str(FOLDER / "lenet" / "inference"), str(new), "--to", "stablehlo", "--sizes", "batch=2"]) == 0
    )
    assert new.read_bytes().startswith(b"ML\xefR")
