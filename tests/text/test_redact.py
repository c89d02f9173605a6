"""What is hidden of texts and attributes, and what stays: a table for each way to know a secret."""

from __future__ import annotations

import logging
import string
import time
from typing import Any

import pytest

from otel_goodput._text import redact
from otel_goodput._text.redact import (
    FORMS,
    HIDDEN,
    Redacted,
    secrets,
    without,
    without_credentials,
    without_secrets,
)

# Put together here, so that scanners of repositories do not take them for leaks.
MIXED = (string.ascii_letters + string.digits) * 2
HEX = "0123456789abcdef" * 4
UPPER = (string.ascii_uppercase + string.digits) * 2
ISSUED = {
    "PEM": ["-----BEGIN RSA PRIVATE" + " KEY-----\nMIIEow\n-----END RSA PRIVATE" + " KEY-----"],
    "JSON web token": ["ey" + "JhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF_123"],
    "Hugging Face": ["hf" + "_" + MIXED[:34], "api_org" + "_" + MIXED[:34]],
    "GitHub": [*(f"gh{kind}_{MIXED[:36]}" for kind in "pousr"), "github_pat" + f"_{MIXED[:22]}_{MIXED[:59]}"],
    "GitLab": ["glpat" + "-" + MIXED[:20], "glrt" + "-" + MIXED[:20]],
    "AWS": ["AKIA" + "IOSFODNN7EXAMPLE", "ASIA" + "IOSFODNN7EXAMPLE"],
    "Google": ["AIza" + MIXED[:35], "ya29" + "." + MIXED[:40], "GOCSPX" + "-" + MIXED[:28], "1//0" + MIXED[:40]],
    "OpenAI": ["sk-" + MIXED[20:60], "sk-proj" + "-" + MIXED[:40]],
    "Anthropic, OpenRouter": ["sk-ant" + "-api03-" + MIXED[:60], "sk-or" + "-v1-" + HEX],
    "Groq": ["gsk" + "_" + MIXED[:52]],
    "Replicate": ["r8" + "_" + MIXED[:37]],
    "Perplexity": ["pplx" + "-" + MIXED[:48]],
    "xAI": ["xai" + "-" + MIXED[:80]],
    "Weights & Biases": ["wandb" + "_v1_" + MIXED[:40]],
    "Neptune": ["eyJhcGlf" + "YWRkcmVzcyI6Imh0dHBzOi8vYXBwIn0="],
    "LangSmith": ["lsv2" + "_pt_" + HEX[:32] + "_" + HEX[:10]],
    "Kaggle": ["KGAT" + "_" + HEX[:32]],
    "Databricks": ["dapi" + HEX[:32], "dapi" + HEX[:32] + "-2"],
    "Slack": ["xoxb" + "-123456789012-" + MIXED[:24], "xapp" + "-1-" + UPPER[:20]],
    "Slack's webhooks": ["services" + "/T00000000/B00000000/" + MIXED[:24]],
    "Discord's webhooks": ["123456789012345678" + "/" + MIXED[:60]],
    "Telegram": ["123456789" + ":AA" + MIXED[:33]],
    "npm": ["npm" + "_" + MIXED[:36]],
    "PyPI": ["pypi" + "-AgEIcHlwaS5vcmc" + MIXED[:60]],
    "Docker": ["dckr" + "_pat_" + MIXED[:27]],
    "Grafana": ["glsa" + "_" + MIXED[:32] + "_" + HEX[:8], "glc" + "_" + MIXED[:60]],
    "New Relic": ["NRAK" + "-" + UPPER[:27]],
    "Honeycomb": ["hcaik" + "_" + HEX[:58]],
    "Sentry": ["sntrys" + "_" + MIXED[:60]],
    "Stripe": ["sk" + "_live_" + MIXED[:24], "rk" + "_test_" + MIXED[:24], "whsec" + "_" + MIXED[:32]],
    "SendGrid": ["SG." + MIXED[:22] + "." + MIXED[:43]],
    "Mailgun": ["key-" + HEX[:32]],
    "Twilio": ["SK" + HEX[:32]],
    "DigitalOcean": ["dop" + "_v1_" + HEX],
    "Pulumi": ["pul-" + HEX[:40]],
    "Linear": ["lin_api" + "_" + MIXED[:40]],
    "Shopify": ["shpat" + "_" + HEX[:32]],
    "HashiCorp": ["hvs" + "." + MIXED[:24], MIXED[:14] + ".atlasv1." + MIXED[:60]],
    "age": ["AGE-SECRET-KEY-1" + UPPER[:58]],
}
AROUND = {
    "Slack's webhooks": "to https://hooks.slack.com/{}",
    "Discord's webhooks": "to https://discord.com/api/webhooks/{}",
}


@pytest.mark.parametrize("issuer", dict.fromkeys(form.issuer for form in FORMS))
def test_secrets_that_have_the_form_of_an_issuer(issuer: str) -> None:
    for one in ISSUED[issuer]:
        text = AROUND.get(issuer, "401 for {}, asked again")
        assert without_credentials(text.format(one)) == text.format(HIDDEN), one
        assert without_credentials(f"phase '{text.format(one)}'") == f"phase '{text.format(HIDDEN)}'"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("train.py --password hunter2 --lr 3", "train.py --password (hidden) --lr 3"),
        ("train.py --api-key=hunter2", "train.py --api-key=(hidden)"),
        ("train.py --hf_token 'hunter 2' x", "train.py --hf_token (hidden) x"),
        ("-token hunter2", "-token (hidden)"),
        ("Command '['a.py', '--api-key', 'hunter2']' failed", "Command '['a.py', '--api-key', (hidden)]' failed"),
        ('["--secret", "hunter2", "--x", "1"]', '["--secret", (hidden), "--x", "1"]'),
        ("HF_TOKEN=hunter2 python train.py", "HF_TOKEN=(hidden) python train.py"),
        ("export WANDB_API_KEY='hunter2'", "export WANDB_API_KEY=(hidden)"),
        ("{'secret_key': 'hunter2', 'user': 'me'}", "{'secret_key': (hidden), 'user': 'me'}"),
        ('{"access_key": "hunter2"}', '{"access_key": (hidden)}'),
        (r'{"password": "hun\"ter2"}', '{"password": (hidden)}'),
        ('{"private_key_id": "hunter2"}', '{"private_key_id": (hidden)}'),
        ("{'token': b'hunter2'}", "{'token': (hidden)}"),
        ("password: hunter2", "password: (hidden)"),
        ("password: hunter\nuser: me", "password: (hidden)\nuser: me"),
        ("-H 'X-Api-Key: hunter2' http://a", "-H 'X-Api-Key: (hidden)' http://a"),
        ("token: hunter2hunter2", "token: (hidden)"),
        ("Password = hunter2", "Password = (hidden)"),
        ("Client(api_key='hunter2', region='eu')", "Client(api_key=(hidden), region='eu')"),
        ("Cookie: session=hunter2; b=c", "Cookie: (hidden)"),
        ("postgres://me:hunter2@db/x", "postgres://***@db/x"),
        ("Authorization: Token hunter2", "Authorization: (hidden)"),
        ("password=hunter2 and password=hunter2", "password=(hidden) and password=(hidden)"),
        ("password=(hidden)", "password=(hidden)"),
        ("password='hunter2", "password=(hidden)"),
    ],
)
def test_secrets_that_are_called_so(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
    assert without_credentials(shown) == shown, "what is hidden stays as it is"


STAY = [
    "c0ffee254729296a45a3885639ac7e10f6d54979", HEX,  # hashes of commits and of files
    "sha256:" + HEX, "registry/image@sha256:" + HEX, "550e8400-e29b-41d4-a716-446655440000",
    "llama-70b-2026-11-26-r3", "run-20261126_143022-1a2b3c4d", "checkpoint-00010000", "job-4711.0", "k8s-node-7:4317",
    "gs://bucket/tokens/part-00001.parquet", "s3://bucket/key/tokenizer.json", "/home/me/password_reset.py",
    "model.embed_tokens.weight", "token_embedding=3", "max_new_tokens=5", "--max-tokens 2048 --tokenizer bpe",
    "--pad-token <pad> --eos_token '</s>'", "pad_token=<pad>", "mask_token: '[MASK]'", "{'bos_token': '<s>'}",
    "--token-limit 5", "--secret-santa-mode on", "--password", "--token --next", "hf_transformers_cache_directory",
    "hf_hub_download", "npm_config_registry_of_the_company_mirror", "sk-learn-model-version-2-large", "task-force-1",
    "pypi-mirror-internal-cache", "AKIA", "glut-free", "dapi", "key-value store", "primary_key=5", "cache_key=a1b2",
    "KeyError: 'token'", "unexpected token: ')'", "unexpected token: EOF", "Invalid token: expected an identifier",
    "password: must not be empty", "password=None", "token=null", "signature: (a, b) -> c", "signature: foo(a, b)",
    "basic authentication", "a bearer token is missing", "me@example.org", "jit(train_step)", "step=5, loss=0.1",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/keys/train.bin'", "SG.1", "1//2", "ya29",
    "ValueError: secret sauce is missing", "NCCL error in: /opt/pytorch/torch/csrc/ProcessGroupNCCL.cpp:1970",
    "the keys: a, b", "passwords are hashed", "compass: north", "monkey=1", "", "é" * 300, "İ password is no value",
]  # fmt: skip


@pytest.mark.parametrize("text", STAY)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_credentials(text) == text
    assert without_secrets("note", text) == text


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("secret_key", "hunter2", HIDDEN),
        ("minio.access_key", "hunter2", HIDDEN),
        ("X-API-Key", "hunter2", HIDDEN),
        ("hfToken", "hunter2", HIDDEN),
        ("password", 4711, HIDDEN),
        ("db.password", ("a", "b"), HIDDEN),
        ("password", "", ""),
        ("password", None, None),
        ("use_password", True, True),
        ("max_tokens", 2048, 2048),
        ("pad_token", "<pad>", "<pad>"),
        ("eos_token_id", 2, 2),
        ("tokenizer", "bpe", "bpe"),
        ("tokens", "gs://bucket/tokens", "gs://bucket/tokens"),
        ("train_tokens", "1.4T", "1.4T"),
        ("api_tokens", "hunter2", HIDDEN),
        ("key_dim", 64, 64),
        ("argv", ["a.py", "--api-key", "hunter2", "--lr", "3"], ["a.py", "--api-key", HIDDEN, "--lr", "3"]),
        ("argv", ("--pad-token", "<pad>"), ["--pad-token", "<pad>"]),
        ("notes", ["HF_TOKEN=hunter2", 3, None], ["HF_TOKEN=(hidden)", 3, None]),
        ("config", {"db": {"password": "hunter2", "port": 1}}, {"db": {"password": HIDDEN, "port": 1}}),
    ],
)
def test_attributes_by_their_names(name: str, value: Any, shown: Any) -> None:
    assert without_secrets(name, value) == shown


def test_values_of_the_environment_are_hidden_wherever_they_stand() -> None:
    """A key of W&B looks like the hash of a commit: only the environment says that it is one."""
    environ = {
        "WANDB_API_KEY": HEX[:40], "DB_PASSWORD": "correct horse", "HF_TOKEN": "short", "PAD_TOKEN": "<|endoftext|>",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json", "GIT_COMMIT": HEX[8:48], "NUM_TOKENS": "20000000",
    }  # fmt: skip
    hidden = secrets(environ)
    assert hidden == [HEX[:40], "correct horse"]
    assert without(hidden, f"401 for {HEX[:40]} at {HEX[8:48]}") == f"401 for {HIDDEN} at {HEX[8:48]}"


def test_a_log_record_with_a_traceback_over_lines() -> None:
    key = ISSUED["PEM"][0]
    try:
        raise ValueError(f"cannot read\n{key}\nHF_TOKEN=hunter2")
    except ValueError as error:
        record = logging.LogRecord("a", logging.WARNING, "a.py", 1, "%s", (error,), (type(error), error, None))
    assert Redacted().filter(record)
    assert record.exc_text is not None
    for text in (record.getMessage(), record.exc_text):
        assert "MIIEow" not in text and "hunter2" not in text and HIDDEN in text
    assert "cannot read\n" in record.exc_text


@pytest.mark.parametrize(
    "piece",
    [
        "a.",
        "--",
        "password ",
        "token: ",
        "'",
        "password='",
        "a-",
        "eyJa",
        "://a@",
        "x:y@",
        "-----BEGIN PRIVATE KEY-----",
    ],
)
def test_time_grows_with_the_length_and_not_with_its_square(piece: str) -> None:
    def took(count: int) -> float:
        text, best = piece * count, float("inf")
        for _ in range(3):
            began = time.process_time()
            without_credentials(text)
            best = min(best, time.process_time() - began)
        return best

    assert took(16_000) < 60 * max(took(1000), 0.0005)  # 16 times the text; the square would be 256 times the time


@pytest.mark.parametrize(
    ("text", "secret", "plain"),
    [
        ("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", ("A1BRTD4JD", "TIiajkdnlazkcOXrIdevi7FQ"), ("slack",)),
        ("mailto://me:pa55@example.com", ("pa55",), ("example.com", "me")),
        ("json://localhost:8080/hook?-X-Key=a%2Fb12345", ("a%2Fb12345", "a/b12345"), ("localhost", "hook")),
        (
            "slack://a/TIiajkdnlazkcOX1, discord://123456789/Xyz12345678",
            ("TIiajkdnlazkcOX1", "Xyz12345678"),
            ("discord",),
        ),
    ],
)
def test_the_tokens_of_urls_to_notify(text: str, secret: tuple[str, ...], plain: tuple[str, ...]) -> None:
    hidden = redact.secrets({"OTEL_GOODPUT_NOTIFY": text})
    assert {*secret} <= {*hidden} and not {*plain} & {*hidden}
    message = redact.without(hidden, f"the request to {text} failed")
    assert not any(one in message for one in secret)
    assert redact.without_address(text).count("://(hidden)") == text.count("://")
    assert redact.secret("OTEL_GOODPUT_NOTIFY") and not redact.secret("OTEL_GOODPUT_NOTIFY_ONLY")
