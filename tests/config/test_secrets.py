"""Secrets on a command line."""

import pytest

from autotune.config.secrets import is_secret_name, masked, masked_text, secrets_of, without


@pytest.mark.parametrize(
    "name",
    [
        "--password", "HF_TOKEN", "--api-key", "wandb.api_key", "apiKey", "+logger.wandb.apikey",
        "AWS_SECRET_ACCESS_KEY", "--db-passwd", "client_secret",
        "--token", "private_key", "Authorization", "google_credentials",
    ],
)  # fmt: skip
def test_the_usual_names(name: str) -> None:
    """In any spelling of a flag, a key or a variable."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["--eos_token", "max_token", "--num-tokens", "--use_auth_token", "token_file", "tokenizer", "--key", "monkey",
     "TOKENIZERS_PARALLELISM", "--password-file", "num_keys"],
)  # fmt: skip
def test_names_that_only_look_like_it(name: str) -> None:
    """Tokens of a language model, switches, files that hold a secret."""
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["t.py", "--password=hunter2", "x"], ["t.py", "--password=***", "x"]),
        (["--api-key", "hunter2", "x"], ["--api-key", "***", "x"]),
        (["wandb.api_key=hunter2"], ["wandb.api_key=***"]),
        (["env", "WANDB_API_KEY=hunter2", "t"], ["env", "WANDB_API_KEY=***", "t"]),
        (["s3://me:hunter2@host/x"], ["s3://me:***@host/x"]),
        (["--db=mysql://me:hunter2@host/x"], ["--db=mysql://me:***@host/x"]),
        (["https://host/x?api_key=hunter2&b=1"], ["https://host/x?api_key=***&b=1"]),
        (["--header=Authorization: Bearer hunter2"], ["--header=Authorization: ***"]),
        (["python t.py --password hunter2 --lr 1"], ["python t.py --password *** --lr 1"]),
        (["--password={db.password}", "--token=$HF_TOKEN"], ["--password={db.password}", "--token=$HF_TOKEN"]),
        (["python", "t.py", "--config", "{config}", "a=b"], ["python", "t.py", "--config", "{config}", "a=b"]),
        (["git@host:a/b", "C:/x", "http://host:80/a@b"], ["git@host:a/b", "C:/x", "http://host:80/a@b"]),
    ],
)
def test_what_is_masked(typed: list[str], shown: list[str]) -> None:
    """The secret, and nothing else; what is masked once stays as it is."""
    assert masked(typed) == tuple(shown)
    assert masked(shown) == tuple(shown)
    assert [secret.value for secret in secrets_of(typed)] in ([], ["hunter2"], ["Bearer hunter2"])
    assert "hunter2" not in masked_text(" ".join(typed))


def test_a_message_that_quotes_one() -> None:
    """Is shown without it."""
    typed = secrets_of(["--password", "hunter2", "--token=abc"])
    assert without("no such file: hunter2", typed) == "no such file: ***"
    assert without("abc: too short to be looked for", typed) == "abc: too short to be looked for"
