"""0004: what learned tiers have learned, as a part of routing versions."""

from __future__ import annotations

__all__ = ["DOWN", "UP"]

# `content` is one file as `llmrouter.routing.artifact` packs it, `about` the part of its manifest that lists show, and
# `signature` vouches for both. One that a version refers to stays as long as the version, which is for good.
_ARTEFACTS = (
    """
    CREATE TABLE artefacts (
        digest TEXT PRIMARY KEY CHECK (length(digest) = 64),
        content BLOB NOT NULL,
        about TEXT NOT NULL,
        signature TEXT NOT NULL,
        created_at TEXT NOT NULL
    ) STRICT
    """,
    """
    CREATE TRIGGER artefacts_no_update BEFORE UPDATE ON artefacts
    BEGIN SELECT RAISE(ABORT, 'an artefact is immutable'); END
    """,
)

_VERSIONS = (
    "ALTER TABLE routing_versions ADD COLUMN artefact_digest TEXT REFERENCES artefacts (digest)",
    "ALTER TABLE routing_versions ADD COLUMN point INTEGER CHECK (point >= 0)",
)

# Tiers that drift has moved to their safe operating point; over as soon as another version is in force.
_FALLBACKS = (
    """
    CREATE TABLE routing_fallbacks (
        version INTEGER NOT NULL REFERENCES routing_versions (version),
        tier_id TEXT NOT NULL,
        reason TEXT NOT NULL,
        raised_at TEXT NOT NULL,
        PRIMARY KEY (version, tier_id)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TRIGGER routing_fallbacks_insert_counts AFTER INSERT ON routing_fallbacks
    BEGIN UPDATE change_counters SET value = value + 1 WHERE name = 'routing'; END
    """,
)

UP = (*_ARTEFACTS, *_VERSIONS, *_FALLBACKS)
DOWN = (
    "DROP TABLE routing_fallbacks",
    "ALTER TABLE routing_versions DROP COLUMN point",
    "ALTER TABLE routing_versions DROP COLUMN artefact_digest",
    "DROP TABLE artefacts",
)
