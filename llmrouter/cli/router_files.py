"""What the commands about routers are given on the command line: an artefact, and which models play its roles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmrouter.offline.roles import Roles
    from llmrouter.routing.artifact import Artefact

__all__ = ["read_router", "roles_for"]


def read_router(name: str) -> Artefact:
    """The folder of that name, or the package's own artefact for `generic`; raises `ArtefactError`."""
    from llmrouter.routing.artifact import generic_artefact, load_artefact

    return generic_artefact() if name == "generic" else load_artefact(Path(name))


def roles_for(artefact: Artefact, models: str | None, path: Path | None) -> Roles:
    """As given; else the artefact's own models, where each role has one."""
    from llmrouter.offline.roles import Roles

    trained = artefact.manifest["roles"]
    main = [trained[role] for role in ("small", "large", "frontier") if trained.get(role)]
    if models is None and path is None and not artefact.manifest["generic"] and all(len(each) == 1 for each in main):
        return Roles.of_models(",".join(each[0] for each in main))
    return Roles.given(models, path)
