"""Where a service account's key is exchanged for access tokens."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import jwt
from http_server import HttpServer, Request, Response

ACCOUNT = "trainer@test-project.iam.gserviceaccount.com"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class Tokens(set[str]):
    """Tokens that were issued and have not expired, and those that the account's key signed itself.

    Google's clients sign for themselves where they can, without asking anybody. `clear`, `discard` revoke what was
    issued; `signed` False takes no more of the others.
    """

    def __init__(self, public_key: bytes) -> None:
        super().__init__()
        self.signed = True
        self.expiries: dict[str, float] = {}
        self._public_key = public_key

    def __contains__(self, token: object) -> bool:
        if super().__contains__(token):
            return time.time() < self.expiries.get(str(token), float("inf"))
        return self.signed and _signed(str(token), self._public_key)


class TokenServer:
    """A token endpoint on loopback with a key of its own; a context manager.

    `lifetime`: seconds that a token is good for, of those issued from then on. `tokens` is for GoogleEmulator.
    """

    def __init__(self, lifetime: float = 3600.0, project: str = "test-project") -> None:
        self.lifetime = lifetime
        self.issued = 0
        self._project = project
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._public = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.tokens = Tokens(self._public)
        self._refusal: tuple[int, bytes] | None = None
        self._server = HttpServer(self._answer)
        self.endpoint = f"{self._server.url}/token"

    def __enter__(self) -> TokenServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def key_file(self, path: Path) -> Path:
        """Write the account's key where GOOGLE_APPLICATION_CREDENTIALS may point to; gives the path."""
        pem = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        key = {
            "type": "service_account",
            "project_id": self._project,
            "private_key_id": "1",
            "private_key": pem.decode(),
            "client_email": ACCOUNT,
            "client_id": "1",
            "token_uri": self.endpoint,
        }
        path.write_text(json.dumps(key))
        return path

    def fail(self, status: int = 400, body: str | dict[str, Any] | None = None) -> None:
        """The key is no good: whoever asks gets this (default: invalid_grant), and what the key signs is not taken."""
        answer = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."} if body is None else body
        self._refusal = status, (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.tokens.signed = False

    def heal(self) -> None:
        self._refusal = None
        self.tokens.signed = True

    def _grant(self, form: dict[str, list[str]]) -> tuple[int, bytes]:
        if self._refusal is not None:
            return self._refusal
        if form.get("grant_type") != [GRANT] or not _signed(form.get("assertion", [""])[0], self._public):
            return 400, b'{"error": "invalid_grant", "error_description": "Invalid JWT."}'
        self.issued += 1
        token = f"ya29.{self.issued}"
        self.tokens.expiries[token] = time.time() + self.lifetime
        self.tokens.add(token)
        answer = {"access_token": token, "expires_in": int(self.lifetime), "token_type": "Bearer"}
        return 200, json.dumps(answer).encode()

    def _answer(self, request: Request) -> Response:
        status, body = self._grant(parse_qs(request.body.decode()))
        return Response(status, body, {"Content-Type": "application/json"})


def _signed(token: str, public_key: bytes) -> bool:
    """Whether the account's key signed this and its time has not passed."""
    try:
        jwt.decode(token, certs=public_key.decode())
    except ValueError:
        return False
    return True
