"""What may happen to a request and pass: everything arrives all the same."""

from __future__ import annotations

from collections.abc import Callable

from emulators.google import GoogleEmulator

FAULTS: dict[str, Callable[[GoogleEmulator, str], None]] = {
    "unavailable three times": lambda google, method: google.fail(method, "UNAVAILABLE", 3),
    "quota": lambda google, method: google.fail(method, "RESOURCE_EXHAUSTED", 2),
    "quota, come again": lambda google, method: google.fail(method, "RESOURCE_EXHAUSTED", 1, retry_after_s=0.2),
    "deadline": lambda google, method: google.fail(method, "DEADLINE_EXCEEDED", 1),
    "internal": lambda google, method: google.fail(method, "INTERNAL", 1),
    "unknown": lambda google, method: google.fail(method, "UNKNOWN", 1),
    "an answer that is lost": lambda google, method: google.fail(method, "UNAVAILABLE", 1, after_write=True),
    "slow": lambda google, method: google.slow(method, 1.0),
}
