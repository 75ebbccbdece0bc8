"""Environment that an entry keeps."""

from autotune.daemon.queue import kept_environment

GIVEN = {
    "PATH": "/bin",
    "CUDA_VISIBLE_DEVICES": "3",
    "OMP_NUM_THREADS": "2",
    "TF_GPU_ALLOCATOR": "cuda_malloc_async",
    "XLA_FLAGS": "--x",
    "PYTHONPATH": "/project",
    "LD_LIBRARY_PATH": "/lib",
    "CONDA_PREFIX": "/conda",
    "CONDA_TOKEN": "hunter2",
    "TF_API_KEY": "hunter2",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "WANDB_API_KEY": "hunter2",
    "AUTOTUNE_STORAGE": "postgresql://me:hunter2@host/db",
    "PYTHON_PROXY": "http://me:hunter2@host",
    "EDITOR": "vi",
    "MY_FLAG": "1",
}


def test_what_trainers_depend_on_is_kept_and_secrets_are_not() -> None:
    """Of the environment only usual variables come to disk, and none that looks like a secret."""
    kept = kept_environment(GIVEN)
    assert set(kept) == {
        *("PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TF_GPU_ALLOCATOR", "XLA_FLAGS", "PYTHONPATH"),
        *("LD_LIBRARY_PATH", "CONDA_PREFIX"),
    }
    assert "hunter2" not in str(kept)


def test_a_variable_that_is_named_is_kept() -> None:
    """Who names a variable gets it, whatever it is called."""
    assert kept_environment(GIVEN, ["MY_FLAG"])["MY_FLAG"] == "1"


def test_an_address_without_a_password_is_kept() -> None:
    """A study in a database or a folder is the same one for the search; a password stays where it is."""
    address = {"AUTOTUNE_STORAGE": "sqlite:/data/studies.db"}
    assert kept_environment(address) == address
    for secret in ("postgresql://me:hunter2@host/db", "postgresql://host/db?password=hunter2"):
        assert kept_environment({"AUTOTUNE_STORAGE": secret}) == {}
