"""Makes `train.jsonl.gz` and `dev.jsonl.gz` here from a folder with the five source files that README.md names.

    python examples/labels/make.py FOLDER

Only rows marked `train` and `dev` are taken. Of the large sources a share of the questions is kept, chosen by a hash of
the question, so that one question which several sources have is in all of them or in none. What is kept of a row is
named in README.md; the same folder always gives the same bytes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmrouter.offline.question import question_group
from llmrouter.offline.roles import Roles
from llmrouter.quality.label_files import read_objects, write_objects
from llmrouter.quality.labels import Faulty

HERE = Path(__file__).parent
SHARES = {
    "train": {
        "zeroeval_gsm8k": 1.0,
        "zeroeval_crux": 1.0,
        "mmlu_pro": 0.4,
        "routellm_mmlu": 0.25,
        "mmlu_redux_helm": 0.3,
    },
    "dev": {
        "zeroeval_gsm8k": 1.0,
        "zeroeval_crux": 1.0,
        "mmlu_pro": 0.25,
        "routellm_mmlu": 0.15,
        "mmlu_redux_helm": 0.25,
    },
}


def main(folder: Path) -> None:
    """Write both files."""
    roles = Roles.load(HERE / "roles.json")
    for split, shares in SHARES.items():
        out = HERE / f"{split}.jsonl.gz"
        count = write_objects(out, rows(folder, roles, split, shares))
        out.chmod(0o644)
        print(f"{out.name}: {count} rows, {out.stat().st_size} bytes")


def rows(folder: Path, roles: Roles, split: str, shares: dict[str, float]) -> Iterator[dict[str, Any]]:
    """What is kept of one split, source by source."""
    for source, share in shares.items():
        models = list(roles.of(source).values())
        for at, row in read_objects(folder / f"{source}.jsonl.gz"):
            if isinstance(row, Faulty):
                raise SystemExit(f"{source}: {at}: {row}")
            if row["split"] == split and kept(row["prompt"], share):
                yield trimmed(row, models)


def kept(prompt: str, share: float) -> bool:
    """Whether the question is in the share."""
    drawn = hashlib.blake2b(question_group(prompt).encode(), digest_size=8, person=b"example labels").digest()
    return int.from_bytes(drawn, "big") < share * 2**64


def trimmed(row: dict[str, Any], models: list[str]) -> dict[str, Any]:
    """The row with the models of the roles only."""
    made = {name: row[name] for name in ("id", "source", "split", "prompt")}
    made["tags"] = {"subject": row["domain"]}
    for name in ("scores", "out_chars", "answers"):
        if found := {model: row[name][model] for model in models if model in row.get(name, {})}:
            made[name] = found
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]))
