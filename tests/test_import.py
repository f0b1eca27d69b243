"""Import of fluid: it loads no optional library, and initialises no device."""

import ast
import importlib
import pathlib
import subprocess
import sys

import pytest

import fluid

ROOT = pathlib.Path(fluid.__file__).parent
LAZY = (
    "flatbuffers safetensors matplotlib sklearn scipy orbax tqdm torch IPython grain datasets tensorboard google "
    "starlette uvicorn httptools prometheus_client"
).split()


def python(code):
    """Run code in a fresh interpreter, and return its output."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def modules():
    """Return the names of the modules that `import fluid` loads."""
    return set(python("import sys, fluid; print(*sys.modules)").split())


@pytest.fixture(scope="module")
def loaded(modules):
    """Return the names of the libraries that `import fluid` loads in addition to `import jax, optax`."""
    before = python("import sys, jax, optax; print(*sys.modules)").split()
    return {name.partition(".")[0] for name in modules} - {name.partition(".")[0] for name in before}


@pytest.mark.sample(3)
@pytest.mark.parametrize("library", LAZY)
def test_optional_libraries_load_on_use(loaded, library):
    assert library not in loaded


def test_import_adds_only_fluid_and_lazy_loader(loaded):
    assert {name for name in loaded if name not in sys.stdlib_module_names} == {"fluid", "lazy_loader"}


@pytest.mark.parametrize("room", ["contrib", "handlers", "inspection", "nets", "serving", "static", "sweeps"])
def test_rooms_that_few_scripts_use_load_on_use(modules, room):
    assert "fluid" in modules and f"fluid.{room}" not in modules


def test_layer_access_loads_only_the_needed_modules():
    code = "import sys, fluid; {}; print(*sorted(m for m in sys.modules if m.startswith('fluid.layers.detection.')))"
    assert python(code.format("fluid.layers.conv2d")) == ""
    assert "fluid.layers.detection.ssd" in python(code.format("fluid.layers.ssd_loss")).split()


def test_dir_lists_only_public_names():
    packages = [".".join(stub.parent.relative_to(ROOT.parent).parts) for stub in ROOT.rglob("__init__.pyi")]
    code = "all({n for n in dir(m) if not n.startswith('__')} == {*m.__all__} for m in modules)"
    load = "[getattr(m, n) for m in modules for n in m.__all__]"
    modules = f"modules = [importlib.import_module(name) for name in {packages}]"
    assert python(f"import importlib; {modules}; print({code}); {load}; print({code})") == "True\nTrue"


def test_layer_is_not_hidden_by_its_module():
    code = "import fluid; from fluid.layers import *; print(fc is fluid.layers.fc, callable(fluid.layers.embedding))"
    assert python(code) == "True True"


OPTAX = """
import sys, threading
import fluid

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "optax":
            print(threading.current_thread().name, end=" ")
            if {fails}:
                raise ImportError("no optax here")

def program():
    return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))

sys.meta_path.insert(0, Finder())
fluid.Inferencer(program, params=dict(fluid.Session(program).scope)).infer(dict(x=[[1, 2]]))
print("optax" in sys.modules, end=" ")
try:
    fluid.Trainer(program, fluid.optimizer.Adam())
except ImportError as error:
    print(error, end=" ")
print("optax" in sys.modules)
"""


def test_optax_loads_in_the_background_for_training_only():
    assert python(OPTAX.replace("{fails}", "False")) == "False fluid-optax True"


def test_missing_optax_fails_at_its_first_use():
    assert python(OPTAX.replace("{fails}", "True")) == "False fluid-optax MainThread no optax here False"


def test_online_and_static_load_on_use():
    code = (
        "import sys, fluid; print({'fluid.online', 'fluid.static'} & set(sys.modules), "
        "fluid.OnlineTrainer.__name__, fluid.static.Executor.__name__)"
    )
    assert python(code) == "set() OnlineTrainer Executor"


def test_the_command_line_loads_no_exporter():
    code = "import sys, fluid.__main__; print({'fluid.export', 'jax.extend'} & set(sys.modules))"
    assert python(code) == "set()"


def test_a_module_beside_the_layers_loads_on_use():
    code = "import fluid; print(fluid.layers.learning_rate_scheduler.noam_decay.__name__)"
    assert python(code) == "noam_decay"


def test_no_device_is_initialised():
    """Check that JAX accepts a number of devices after `import fluid`; JAX refuses it once a device was used."""
    code = "import fluid, jax; jax.config.update('jax_num_cpu_devices', 3); print(len(jax.devices('cpu')))"
    assert python(code) == "3"


def test_no_warning_and_no_output():
    assert python("import warnings; warnings.simplefilter('error'); import fluid") == ""


def test_the_citation_names_this_version():
    assert f"\nversion: {fluid.__version__}\n" in (ROOT.parent / "CITATION.cff").read_text()


@pytest.mark.parametrize("stub", sorted(ROOT.rglob("*.pyi")), ids=lambda p: p.parent.name)
def test_stubs_list_the_names_that_they_import(stub):
    *_, public = ast.parse(stub.read_text()).body
    package = importlib.import_module(".".join(stub.parent.relative_to(ROOT.parent).parts))
    assert package.__all__ == sorted(ast.literal_eval(public.value))


@pytest.fixture(scope="module")
def used():
    """Return the names of the modules that a process loads to train a step and to infer."""
    return set(
        python(
            "import sys, numpy as np, fluid\n"
            "def program(): return fluid.layers.fc(fluid.layers.data('x', shape=[2]), size=1)\n"
            "def loss(): return fluid.layers.mean(program())\n"
            "data = fluid.reader.arrays({'x': np.ones((4, 2), 'float32')}, batch_size=4)\n"
            "trainer = fluid.Trainer(loss, fluid.optimizer.Adam(1e-3))\n"
            "trainer.train(data, num_epochs=1)\n"
            "fluid.Inferencer(program, params=trainer.params).infer({'x': np.ones((1, 2), 'float32')})\n"
            "print(*sys.modules)"
        ).split()
    )


# flatbuffers is left out, because JAX loads flatbuffers together with random keys.
@pytest.mark.sample(3)
@pytest.mark.parametrize("library", sorted({*LAZY, "jax.extend", "jax._src.pallas"} - {"flatbuffers"}))
def test_training_and_inference_load_no_optional_library(used, library):
    assert "fluid.trainer.loop" in used and library not in used


@pytest.mark.parametrize(
    "room", "artifact contrib handlers inspection online parallel planning population remote serving static".split()
)
def test_training_and_inference_load_no_unused_package(used, room):
    assert f"fluid.{room}" not in used
