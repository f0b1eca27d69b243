"""The page of a server in a real browser: it lists and runs models, shows live figures, and requests a token."""

import json
import os
import pathlib

import numpy as np
import pytest
from serving import browser
from serving.running_server import IMAGES, WORDS, digits, params_of, save, sentiment

import fluid

pytestmark = pytest.mark.skipif(browser.PROGRAM is None, reason="there is no browser here")
# The folder for the screenshot, which a person can view afterwards; by default a temporary folder.
PICTURES = os.environ.get("FLUID_PICTURES")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {f.__name__: save(folder / f"{f.__name__}.fluid", f) for f in (digits, sentiment)}


def answered(page, name, value):
    """Type `value` as JSON into the field `name` of the form, send the form, and return the answer."""
    page.run(f"document.querySelector('textarea[name={name}]').value = {json.dumps(json.dumps(value))}")
    page.run("document.querySelector('#answer').textContent = ''")
    page.run("document.querySelector('#ask button').click()")
    return page.wait_for("document.querySelector('#answer').textContent")


def test_the_page_runs_models_and_shows_figures(files, tmp_path):
    with fluid.serve(files, port=0, max_batch=4, buckets=(8,)) as server, browser.opened(server.url, tmp_path) as page:
        assert page.wait_for("document.querySelectorAll('#models tbody tr').length") == 2
        assert page.run("document.querySelector('#state').textContent") == "ready"
        rows = page.run("[...document.querySelectorAll('#models tbody tr')].map(r => r.innerText)")
        assert "image FP32 [-1, 1, 8, 8]" in rows[0] and "words INT64 [-1, -1, 1]" in rows[1]

        said = answered(page, "image", IMAGES[:2].tolist())
        name, _, numbers = said.partition("\n")
        assert name == "output_0: FP32 [2, 5]"
        want = fluid.Inferencer(digits, params=params_of(digits)).infer({"image": IMAGES[:2]})[0]
        np.testing.assert_allclose(json.loads(numbers), want.ravel(), rtol=1e-6)
        assert "expected rows of shape [1, 8, 8]" in answered(page, "image", [[1, 2]])
        assert "JSON" in page.run(
            "document.querySelector('textarea').value = '{'; document.querySelector('#ask button').click(); "
            "new Promise(done => setTimeout(() => done(document.querySelector('#answer').textContent), 50))"
        )

        page.run("[...document.querySelectorAll('#models button')].find(b => b.textContent == 'sentiment').click()")
        assert page.run("[...document.querySelectorAll('#inputs textarea')].map(t => t.value)") == ["[[[0],[0]]]"]
        said = answered(page, "words", [[[w] for w in row] for row in WORDS])
        assert "score: FP32 [3, 3]" in said and "states.lengths: INT32 [3]\n[3,1,5]" in said

        page.wait_for("document.querySelectorAll('#figures tbody tr').length == 2")
        page.wait_for("document.querySelector('#figures tbody tr td:nth-child(3)').textContent >= 2")
        assert page.run("performance.getEntriesByType('resource').every(e => e.name.startsWith(location.origin))")
        picture = pathlib.Path(PICTURES or tmp_path) / "page.png"
        page.picture(picture)
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_page_requests_a_token(files, tmp_path):
    with (
        fluid.serve(files["digits"], port=0, max_batch=1, token="s3cret") as server,
        browser.opened(server.url, tmp_path) as page,
    ):
        page.wait_for("document.querySelector('#access') && !document.querySelector('#access').hidden")
        assert page.run("document.querySelectorAll('#models tbody tr').length") == 0
        page.run("document.querySelector('#token').value = 's3cret'; document.querySelector('#access button').click()")
        assert page.wait_for("document.querySelectorAll('#models tbody tr').length") == 1
        assert page.run("document.querySelector('#access').hidden")
