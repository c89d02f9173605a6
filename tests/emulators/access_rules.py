"""Who may call, and for which project, one row a rule."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import grpc

from emulators.records import Records, Rule


class CallerCase(NamedTuple):
    """`tokens` None: whoever calls is welcome."""

    authorization: str
    tokens: Collection[str] | None


class ProjectCase(NamedTuple):
    project: str
    projects: Collection[str]


def _auth(case: CallerCase) -> str | None:
    scheme, _, token = case.authorization.partition(" ")
    if case.tokens is None or (scheme == "Bearer" and token in case.tokens):
        return None
    return (
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid "
        "authentication credential."
    )


def _project(case: ProjectCase) -> str | None:
    if case.project in case.projects:
        return None
    return f"Permission denied on resource project {case.project}."


CALLER_RULES: tuple[Rule[CallerCase], ...] = (Rule("auth", grpc.StatusCode.UNAUTHENTICATED, _auth),)
PROJECT_RULES: tuple[Rule[ProjectCase], ...] = (Rule("project", grpc.StatusCode.PERMISSION_DENIED, _project),)


def admit_project(records: Records, name: str, projects: Collection[str]) -> str:
    """The project of a resource name such as `projects/P/traces/T`; Refused where it is none of those."""
    project = name.removeprefix("projects/").partition("/")[0] if name.startswith("projects/") else ""
    refused = records.refuse(PROJECT_RULES, ProjectCase(project, projects), name)
    if refused is not None:
        raise refused
    return project
