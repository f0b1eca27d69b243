"""A notebook of a user: the outputs of its cells after all cells have run twice, from the top."""

import re

import nbformat
import pytest
import training_notebook
from training_notebook import Table


@pytest.fixture(scope="module")
def notebook():
    return training_notebook.run(times=2)


def outputs(notebook, words):
    """Return the outputs of the only notebook cell whose source contains `words`."""
    (cell,) = [cell for cell in notebook.cells if words in cell.source]
    return cell.outputs


@pytest.mark.full
class TestNotebookThatIsRunAgainFromTheTop:
    def test_only_the_interrupted_cell_fails_without_stderr(self, notebook):
        every = [output for cell in notebook.cells for output in cell.outputs]
        assert not [output for output in every if output.output_type == "stream"]
        (error,) = [output for output in every if output.output_type == "error"]
        assert error.ename == "KeyboardInterrupt"

    def test_each_training_has_a_single_output(self, notebook):
        interrupted = outputs(notebook, training_notebook.FAILS)
        assert [output.output_type for output in interrupted] == ["display_data", "error"]
        assert len(outputs(notebook, "history = ")) == 1
        assert len(outputs(notebook, "slow, fast")) == 2

    def test_interrupted_cell_is_continued_by_the_next_cell(self, notebook):
        table = Table(outputs(notebook, training_notebook.FAILS)[0].data["text/html"])
        assert table.text[0].startswith("epoch 4/25, KeyboardInterrupt: ") and table.rows[-1][:2] == ["4", "21"]
        table = Table(outputs(notebook, "history = ")[0].data["text/html"])
        assert "training continues after 3 epochs and 21 steps" in table.text
        assert table.text[0].startswith("epoch 25/25: 100%") and table.rows[-1][:2] == ["25", "45"]

    def test_notebook_renders_as_an_html_page(self, notebook):
        nbformat.validate(notebook)
        page = training_notebook.rendered(notebook)
        assert len(re.findall(r"epoch (\d+)/\1: 100%", page)) == 3 and "epoch 4/25, KeyboardInterrupt: " in page
        assert page.count("image/png") >= 1 and "Trainer(program: 4,810 parameters" in page
