"""Every example runs small and does better than knowing nothing."""

import importlib.util
import pathlib

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"


def load(name):
    """Import an example by its file name."""
    spec = importlib.util.spec_from_file_location(f"examples.{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested_here():
    tested = {"fit_a_line.py", "recognize_digits.py", "recognize_digits.ipynb"}
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")} == tested


def test_fit_a_line(capsys):
    errors = load("fit_a_line").main(num_epochs=40)
    assert errors["fluid"] < 0.7 * errors["always the mean"]
    assert errors["fluid"] < 1.05 * errors["least squares"]
    assert "predicted   true" in capsys.readouterr().out


@pytest.mark.parametrize(("net", "accuracy"), [("mlp", 0.9), pytest.param("conv", 0.95, marks=pytest.mark.slow)])
def test_recognize_digits(net, accuracy, in_tmp, capsys):
    reached, by_guessing = load("recognize_digits").main(net=net, num_epochs=6, path=str(in_tmp / "digits.params"))
    assert reached > accuracy > 5 * by_guessing
    assert f"test accuracy {reached:.4f}" in capsys.readouterr().out


@pytest.mark.slow
def test_recognize_digits_as_it_is_shown(in_tmp):
    """What `make demo` promises."""
    accuracy, _ = load("recognize_digits").main()
    assert accuracy >= 0.98


@pytest.mark.slow
def test_notebook(in_tmp):
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
