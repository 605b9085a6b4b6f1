"""`llmrouter samples`: listed, shown, exported, and deleted for good."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from llmrouter.database import migrate
from llmrouter.quality.encryption import Vault, key_id
from tests.cli.command import llmrouter, two_models
from tests.cli.test_labels import written
from tests.quality.test_sample_store import fill

KEY = bytes(range(32))
LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    migrate(tmp_path / "llmrouter.db")
    return two_models(tmp_path, "[tenants.a]\n[tenants.b]")


def filled(config: Path, *ids: str, **fields: Any) -> None:
    fill(config.parent / "llmrouter.db", *ids, **{"expires_at": LATER, **fields})


def samples(config: Path, *arguments: str | Path) -> Any:
    return llmrouter("samples", *arguments, "--config", config)


def listed(config: Path, *arguments: str) -> list[str]:
    return [each["request_id"] for each in samples(config, "list", "--json", *arguments).json["samples"]]


def test_list_shows_the_newest_first_without_what_is_in_them(config: Path):
    filled(config, "r1", "r2", request='{"prompt":"secret words"}')
    filled(config, "r3", tenant_id="b")
    assert listed(config) == ["r3", "r2", "r1"]
    assert listed(config, "--tenant", "a", "--limit", "1") == ["r2"]
    shown = samples(config, "list")
    assert "2 email" in shown.out
    assert "secret" not in shown.out


def test_what_has_expired_is_not_shown(config: Path, tmp_path: Path):
    filled(config, "r1", expires_at=datetime.now(UTC) - timedelta(seconds=1), request='{"prompt":"old"}')
    assert listed(config) == []
    assert samples(config, "show", "r1").code == 2
    assert samples(config, "export", "--out", tmp_path / "out.jsonl").err.startswith("0 samples written")


def test_show_prints_one_with_its_words(config: Path):
    filled(config, "r1", request='{"prompt":"Hi"}')
    shown = samples(config, "show", "r1").json
    assert (shown["request_id"], shown["request"], shown["choices"]) == ("r1", {"prompt": "Hi"}, None)
    missing = samples(config, "show", "r2")
    assert missing.code == 2
    assert "no sample 'r2'" in missing.err


def test_sealed_samples_are_shown_with_the_key_and_named_without(config: Path, tmp_path: Path):
    sealed = Vault(KEY).seal(b'{"prompt":"Hi"}', request_id="r1", part="request")
    filled(config, "r1", request=sealed, sealed_by=key_id(KEY))
    refused = samples(config, "show", "r1")
    assert refused.code == 1
    assert f"sealed under key {key_id(KEY)}; set samples.key" in refused.err
    two_models(tmp_path, f'[samples]\nold_keys = ["{base64.b64encode(KEY).decode()}"]')
    assert samples(config, "show", "r1").json["request"] == {"prompt": "Hi"}


def test_export_writes_items_that_labels_can_be_made_of(config: Path, tmp_path: Path):
    filled(config, "r1", request='{"messages":[{"role":"user","content":"Hi"}]}')
    filled(config, "r2", tenant_id="b")
    out = tmp_path / "out.jsonl"
    assert samples(config, "export", "--out", out, "--tenant", "a").code == 0
    [row] = [json.loads(line) for line in out.read_text().splitlines()]
    assert (row["id"], row["source"], row["messages"]) == ("r1", "samples", [{"role": "user", "content": "Hi"}])
    assert row["inclusion_probability"] == 0.25


def test_labels_take_their_prompts_from_samples_when_asked(config: Path, tmp_path: Path):
    filled(config, "r1", request='{"prompt":"Hi"}')
    llmrouter("labels", "import", written(tmp_path, {"id": "r1", "scores": {"s": 1}}), "--config", config)
    out = tmp_path / "labels.jsonl"
    for flags, expected in ([], {}), (["--with-samples"], {"prompt": "Hi"}):
        llmrouter("labels", "export", "--out", out, *flags, "--config", config)
        assert json.loads(out.read_text()) == {"id": "r1", "scores": {"s": 1}, **expected}


def test_delete_takes_one_user_one_request_or_all_of_a_tenant(config: Path):
    filled(config, "r1", "r2", user="u1")
    filled(config, "r3", "r4")
    filled(config, "r5", tenant_id="b")
    assert samples(config, "delete", "--tenant", "a", "--user", "u1", "--json").json == {"tenant": "a", "deleted": 2}
    assert samples(config, "delete", "--tenant", "a", "--request", "r3").err == "1 samples of a deleted\n"
    assert samples(config, "delete", "--tenant", "a", "--dry-run").err == "1 samples of a would be deleted\n"
    assert listed(config) == ["r5", "r4"]
    assert samples(config, "delete", "--tenant", "a", "--yes").code == 0
    assert listed(config) == ["r5"]


def test_all_of_a_tenant_are_not_deleted_by_a_slip(config: Path):
    filled(config, "r1")
    done = samples(config, "delete", "--tenant", "a")
    assert done.code == 2
    assert "say --yes" in done.err
    assert listed(config) == ["r1"]


def test_what_has_expired_is_deleted_too(config: Path):
    filled(config, "r1", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert samples(config, "delete", "--tenant", "a", "--yes", "--json").json["deleted"] == 1
