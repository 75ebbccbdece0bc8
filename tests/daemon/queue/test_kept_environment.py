"""Environment that an entry keeps."""

from autotune.daemon.queue import kept_environment

SECRETS = {
    **dict.fromkeys(("CONDA_TOKEN", "TF_API_KEY", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY"), "hunter2"),
    **{"AUTOTUNE_STORAGE": "postgresql://me:hunter2@host/db", "PYTHON_PROXY": "http://me:hunter2@host"},
}
USUAL = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3", "OMP_NUM_THREADS": "2", "TF_GPU_ALLOCATOR": "cuda_malloc_async"}
USUAL |= {"XLA_FLAGS": "--x", "PYTHONPATH": "/project", "LD_LIBRARY_PATH": "/lib", "CONDA_PREFIX": "/conda"}
OTHERS = {"EDITOR": "vi", "MY_FLAG": "1"}


def test_what_trainers_depend_on_is_kept_and_secrets_are_not() -> None:
    """Of the environment only usual variables come to disk, none that looks like a secret, and what is named."""
    given = {**USUAL, **SECRETS, **OTHERS}
    assert kept_environment(given) == USUAL
    assert kept_environment(given, ["MY_FLAG"]) == {**USUAL, "MY_FLAG": "1"}


def test_an_address_without_a_password_is_kept() -> None:
    """A study in a database or a folder is the same one for the search; a password stays where it is."""
    address = {"AUTOTUNE_STORAGE": "sqlite:/data/studies.db"}
    assert kept_environment(address) == address
    assert kept_environment({"AUTOTUNE_STORAGE": "postgresql://host/db?password=hunter2"}) == {}
