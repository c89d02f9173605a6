"""Package metadata that a package index needs: the project's addresses, and a description without relative links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURES = (".png", ".svg", ".gif", ".jpg", ".webp")
# The targets of Markdown's links and pictures, and of HTML's attributes.
TARGET = re.compile(r"(\]\(|\b(?:src|srcset|href)=\")([^)\"\s]+)")


class AddressHook(MetadataHookInterface):
    """Reads the address of the repository from ``[tool.hatch.metadata.hooks.custom]`` in pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add ``readme`` and ``urls`` to `metadata`."""
        repository = self.config["repository"]
        tag = f"v{metadata['version']}"
        metadata["urls"] = {
            "Repository": repository,
            "Documentation": f"{repository}/blob/{tag}/README.md",
            "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository, tag)}


def absolute(text: str, repository: str, tag: str) -> str:
    """Return Markdown `text` with links to files of the repository as of `tag`. Fenced code stays as it is."""

    def replaced(found: re.Match[str]) -> str:
        before, target = found.groups()
        if re.match(r"[a-z][a-z+.-]*:|#|//", target, re.IGNORECASE):
            return found[0]
        kind = "raw" if target.partition("#")[0].lower().endswith(PICTURES) else "blob"
        return f"{before}{repository}/{kind}/{tag}/{target.removeprefix('./')}"

    pieces = re.split(r"(^```.*?^```[^\n]*$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(piece if piece.startswith("```") else TARGET.sub(replaced, piece) for piece in pieces)
