"""Serve a digit recognizer by HTTP: train, export to one file, serve it in a separate process, query it, and stop it.

The data are the 1797 digits of 8 x 8 pixels that come with scikit-learn. The server needs
`pip install 'fluid-jax[serve,examples]'`. Run

    python examples/serve_digits.py
    python examples/serve_digits.py --epochs 12
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from sklearn.datasets import load_digits

import fluid


def inference_program():
    """Return the probabilities of digits from one convolution and one layer."""
    image = fluid.layers.data("image", shape=[1, 8, 8])
    hidden = fluid.nets.simple_img_conv_pool(image, 20, 3, 2, 2, act="relu")
    return {"digit": fluid.layers.fc(fluid.layers.batch_norm(hidden), size=10, act="softmax")}


def train_program():
    """Return the outputs of the training: the loss, and the probabilities of the ten digits."""
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    digit = inference_program()["digit"]
    return {"loss": fluid.layers.mean(fluid.layers.cross_entropy(digit, label)), "digit": digit}


def train(num_epochs, path):
    """Train, and export the model to `path`; return the test images and their labels."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, labels = (data.images[order, None] / 16).astype("float32"), data.target[order]
    trainer = fluid.Trainer(train_program, fluid.optimizer.Adam(3e-3))
    reader = fluid.reader.arrays({"image": images[:1437], "label": labels[:1437]}, batch_size=64, shuffle=True, seed=0)
    trainer.train(reader, num_epochs=num_epochs)
    trainer.save_inference_model(path, fetch=["digit"])
    return images[1437:], labels[1437:]


def wait_until_ready(url):
    """Poll the server until every model is compiled."""
    while True:
        try:
            with urllib.request.urlopen(f"{url}/v2/health/ready"):
                return
        except urllib.error.HTTPError as error:  # status 503: the server is not ready yet
            error.close()
            time.sleep(0.1)


def main(num_epochs=6, path="digits.fluid", clients=8):
    """Train, export, serve, query and stop; return the accuracy of the responses and the exit status of the server."""
    images, labels = train(num_epochs, path)
    print(f"{path}: {pathlib.Path(path).stat().st_size:,} bytes")
    command = [sys.executable, "-m", "fluid", "serve", path, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            url = server.stdout.readline().strip()
            wait_until_ready(url)
            print(f"serving at {url}")
            inferencer = fluid.Inferencer(url=url)
            with ThreadPoolExecutor(clients) as threads:
                answers = list(threads.map(lambda image: inferencer.infer({"image": image[None]})["digit"][0], images))
            accuracy = float(np.mean(np.argmax(answers, axis=1) == labels))
            print(f"{len(images)} requests of {clients} clients: accuracy {accuracy:.4f}")
            with urllib.request.urlopen(f"{url}/metrics") as metrics:
                figures = dict(line.rsplit(" ", 1) for line in metrics.read().decode().splitlines() if line[0] != "#")
            batches = figures['fluid_batch_rows_count{model="digits",version="1"}']
            print(f"they ran in {float(batches):.0f} batches")
        finally:
            server.send_signal(signal.SIGTERM)
        status = server.wait()
    print(f"the server has answered all, and ended with {status}")
    return accuracy, status


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(given.epochs, os.path.join(folder, "digits.fluid"))
