"""The compilation cache: the folder of compiled programs, and their reuse by JAX."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import fluid
from fluid import errors
from fluid.runtime import compilation_cache
from fluid.runtime.compilation_cache import keep_compilations

pytestmark = pytest.mark.usefixtures("own_compilation_cache")


@pytest.fixture
def untold(monkeypatch, tmp_path):
    """Remove all settings of the cache folder, and return the empty folder that replaces the user's cache folder."""
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FLUID_COMPILATION_CACHE", raising=False)
    return tmp_path


@pytest.fixture
def happened():
    """Return a list that collects the events of JAX's compilation cache, "hits" or "misses", in order."""
    seen = []

    def listen(event, **_):
        if event.startswith("/jax/compilation_cache/cache_"):
            seen.append(event.rpartition("_")[2])

    jax.monitoring.register_event_listener(listen)
    yield seen
    jax.monitoring.unregister_event_listener(listen)


def folder_in_use():
    return jax.config.jax_compilation_cache_dir


def compiled_anew():
    """Clear JAX's caches in memory, as in a new process; compile and call a function, and return its result."""
    jax.clear_caches()
    return float(jax.jit(lambda x: jnp.sum(jnp.cos(x)))(jnp.zeros(3)))


def test_cached_programs_are_read_and_damaged_files_replaced(tmp_path, happened):
    fluid.set_compilation_cache(tmp_path)
    assert compiled_anew() == 3 and happened and set(happened) == {"misses"}
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    count = len(happened)
    happened.clear()
    assert compiled_anew() == 3 and happened == ["hits"] * count
    for path, content in files.items():
        path.write_bytes(content[:100])
    happened.clear()
    assert compiled_anew() == 3 and happened == ["misses"] * count
    assert {path for path in tmp_path.iterdir()} == set(files)
    happened.clear()
    assert compiled_anew() == 3 and happened == ["hits"] * count


def test_a_session_uses_the_folder_of_the_user(untold):
    normal = fluid.initializer.Normal()  # drawing these initial values is a compiled program
    fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, param_attr=normal))
    assert folder_in_use() == str(untold / "fluid" / "xla")
    assert list((untold / "fluid" / "xla").glob("*.xla"))


@pytest.mark.parametrize(
    ("platform", "variable", "parts"),
    [
        ("linux", "XDG_CACHE_HOME", ["fluid", "xla"]),
        ("linux", "HOME", [".cache", "fluid", "xla"]),
        ("darwin", "HOME", ["Library", "Caches", "fluid", "xla"]),
        ("win32", "LOCALAPPDATA", ["fluid", "xla"]),
    ],
)
def test_the_default_folder_follows_the_platform(monkeypatch, tmp_path, platform, variable, parts):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    assert compilation_cache._own() == tmp_path.joinpath(*parts)


def test_the_environment_names_a_folder_or_off(untold, monkeypatch):
    monkeypatch.setenv("FLUID_COMPILATION_CACHE", str(untold / "mine"))
    keep_compilations()
    assert folder_in_use() == str(untold / "mine") and (untold / "mine").is_dir()
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("FLUID_COMPILATION_CACHE", "off")
    keep_compilations()
    assert folder_in_use() is None


def test_settings_of_jax_are_kept(untold, monkeypatch):
    monkeypatch.setenv("FLUID_COMPILATION_CACHE", str(untold / "mine"))
    jax.config.update("jax_compilation_cache_dir", str(untold / "others"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 5.0)
    keep_compilations()
    assert folder_in_use() == str(untold / "others")
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 5.0
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    keep_compilations()
    assert folder_in_use() is None


def test_a_disabled_cache_writes_and_reads_nothing(untold, happened):
    fluid.set_compilation_cache(untold / "mine")
    fluid.set_compilation_cache(None)
    keep_compilations()
    assert compiled_anew() == 3 and happened == [] and not list((untold / "mine").iterdir())
    fluid.set_compilation_cache(untold / "mine")
    assert compiled_anew() == 3 and "misses" in happened


def test_an_unwritable_home_disables_the_cache(untold, monkeypatch, caplog):
    (untold / "fluid").write_text("a file")
    with caplog.at_level("INFO", "fluid"):
        keep_compilations()
    assert folder_in_use() is None and compiled_anew() == 3
    monkeypatch.setenv("FLUID_COMPILATION_CACHE", str(untold / "fluid" / "mine"))
    with caplog.at_level("INFO", "fluid"):
        keep_compilations()
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_a_folder_of_another_user_is_not_read(untold, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: pathlib.Path(untold).stat().st_uid + 1)
    keep_compilations()
    assert folder_in_use() is None


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_row_67_a_folder_writable_by_other_users_is_refused(untold, monkeypatch, mode, caplog):
    folder = untold / "fluid" / "xla"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    keep_compilations()
    monkeypatch.setenv("FLUID_COMPILATION_CACHE", str(folder))
    keep_compilations()
    with pytest.raises(
        errors.ArgumentError, match="other users can write to .*xla', and what lies there is run; .*go-w"
    ):
        fluid.set_compilation_cache(folder)
    assert folder_in_use() is None and not list(folder.iterdir()) and compiled_anew() == 3
    assert [r.levelname for r in caplog.records if "other users can write" in r.message] == ["WARNING"] * 2


def test_wrong_arguments(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.ArgumentError, match="the folder cannot be made.*None to keep nothing"):
        fluid.set_compilation_cache(tmp_path / "file" / "inside")
    for bound in (0, -1, 1.5, True):
        with pytest.raises(errors.ArgumentError, match="expected a number of bytes above 0"):
            fluid.set_compilation_cache(tmp_path, max_bytes=bound)


def test_nothing_is_set_before_the_first_session(tmp_path):
    code = (
        "import fluid, jax; print(jax.config.jax_compilation_cache_dir); "
        "fluid.Session(lambda: fluid.layers.data('x', shape=[2])); print(jax.config.jax_compilation_cache_dir)"
    )
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))}
    environment |= {"FLUID_COMPILATION_CACHE": str(tmp_path / "mine")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["None", str(tmp_path / "mine")]
