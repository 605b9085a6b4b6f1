"""0003: samples of requests, and the labels that say how good answers were."""

from __future__ import annotations

__all__ = ["DOWN", "LABEL_TABLES", "UP"]

# Request and answer are JSON: readable text, or a BLOB sealed under the key that `sealed_by` names. Of the end user
# only a digest is kept, enough to find his samples again.
_SAMPLES = (
    """
    CREATE TABLE samples (
        id INTEGER PRIMARY KEY,
        request_id TEXT NOT NULL UNIQUE,
        ts TEXT NOT NULL,
        tenant_id TEXT NOT NULL,
        key_id TEXT NOT NULL,
        user_digest TEXT,
        endpoint TEXT NOT NULL,
        tier TEXT NOT NULL,
        model_id TEXT NOT NULL,
        routing_version INTEGER NOT NULL,
        config_version INTEGER NOT NULL,
        request ANY NOT NULL CHECK (typeof(request) = CASE WHEN sealed_by IS NULL THEN 'text' ELSE 'blob' END),
        answer ANY CHECK (answer IS NULL OR typeof(answer) = typeof(request)),
        redacted TEXT NOT NULL,
        sealed_by TEXT,
        inclusion_probability REAL NOT NULL CHECK (inclusion_probability > 0 AND inclusion_probability <= 1),
        expires_at TEXT NOT NULL
    ) STRICT
    """,
    "CREATE INDEX samples_tenant ON samples (tenant_id, id)",
    "CREATE INDEX samples_expires ON samples (expires_at)",
    """
    CREATE TRIGGER samples_no_update BEFORE UPDATE ON samples
    BEGIN SELECT RAISE(ABORT, 'a sample is never changed, only deleted'); END
    """,
)

# What was answered, by every model that was asked: a request, or an item of a golden set. NULL is what nobody has said
# yet, so a later file may say it; `content` is emptied when the sample it came from is deleted.
_ITEMS = (
    """
    CREATE TABLE label_items (
        id INTEGER PRIMARY KEY,
        item_id TEXT NOT NULL UNIQUE,
        group_id TEXT,
        source TEXT,
        content TEXT,
        tags TEXT,
        extra TEXT
    ) STRICT
    """,
    """
    CREATE TRIGGER label_items_say_it_once BEFORE UPDATE ON label_items
    WHEN NEW.id <> OLD.id OR NEW.item_id <> OLD.item_id
        OR (OLD.group_id IS NOT NULL AND NEW.group_id IS NOT OLD.group_id)
        OR (OLD.source IS NOT NULL AND NEW.source IS NOT OLD.source)
        OR (OLD.content IS NOT NULL AND NEW.content IS NOT OLD.content AND NEW.content IS NOT '')
        OR (OLD.tags IS NOT NULL AND NEW.tags IS NOT OLD.tags)
        OR (OLD.extra IS NOT NULL AND NEW.extra IS NOT OLD.extra AND NEW.extra IS NOT '')
    BEGIN SELECT RAISE(ABORT, 'what is known of an item is never changed'); END
    """,
)

# Judging again adds a row. `digest` is over all that a label says, so that the same label comes in once.
_LABELS = (
    """
    CREATE TABLE quality_labels (
        id INTEGER PRIMARY KEY,
        item INTEGER NOT NULL REFERENCES label_items (id),
        model_id TEXT NOT NULL,
        score REAL NOT NULL CHECK (score >= 0 AND score <= 1),
        kind TEXT NOT NULL CHECK (kind IN ('eval', 'shadow', 'human', 'import')),
        judge TEXT,
        judged_at TEXT,
        routing_version INTEGER,
        inclusion_probability REAL CHECK (inclusion_probability > 0 AND inclusion_probability <= 1),
        usage TEXT NOT NULL,
        answer TEXT,
        digest BLOB NOT NULL UNIQUE,
        created_at TEXT NOT NULL
    ) STRICT
    """,
    "CREATE INDEX quality_labels_item ON quality_labels (item, model_id)",
    "CREATE INDEX quality_labels_created ON quality_labels (created_at)",
    """
    CREATE TRIGGER quality_labels_no_update BEFORE UPDATE OF id, item, model_id, score, kind, judge, judged_at,
        routing_version, inclusion_probability, usage, digest, created_at ON quality_labels
    BEGIN SELECT RAISE(ABORT, 'a label is never changed; judging again adds one'); END
    """,
    """
    CREATE TRIGGER quality_labels_answers_only_go BEFORE UPDATE OF answer ON quality_labels WHEN NEW.answer IS NOT NULL
    BEGIN SELECT RAISE(ABORT, 'a label is never changed; judging again adds one'); END
    """,
)

# The scores stay; what was said does not outlive the sample that it was said in.
_DELETION = (
    """
    CREATE TRIGGER samples_take_words_along AFTER DELETE ON samples
    BEGIN
        UPDATE quality_labels SET answer = NULL
            WHERE answer IS NOT NULL AND item = (SELECT id FROM label_items WHERE item_id = OLD.request_id);
        UPDATE label_items SET content = '', extra = '' WHERE item_id = OLD.request_id;
    END
    """,
)

# For people and their tools, as `usage` is for the ledger.
_VIEW = (
    """
    CREATE VIEW labels AS
    SELECT label_items.item_id, label_items.group_id, label_items.source, quality_labels.model_id, quality_labels.score,
        quality_labels.kind, quality_labels.judge, quality_labels.judged_at, quality_labels.routing_version,
        quality_labels.inclusion_probability, quality_labels.usage, quality_labels.created_at, quality_labels.id
    FROM quality_labels JOIN label_items ON label_items.id = quality_labels.item
    """,
)

LABEL_TABLES = (*_ITEMS, *_LABELS)
"""What a dry run of an import makes in a database of its own."""
UP = (*_SAMPLES, *LABEL_TABLES, *_DELETION, *_VIEW)
DOWN = (
    "DROP VIEW labels",
    "DROP TABLE samples",
    "DROP TABLE quality_labels",
    "DROP TABLE label_items",
)
