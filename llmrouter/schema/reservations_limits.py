"""0002: reservations and limits, policies of keys, and what the books say of them."""

from __future__ import annotations

__all__ = ["DOWN", "UP"]

# A reservation lives from admission to its ledger entry, so the table is as small as what is under way. Its body is
# the JSON of a `Reservation`. An owner is a process that reserves; it holds a lock on a file for as long as it lives.
_RESERVATIONS = (
    """
    CREATE TABLE owners (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        started_at TEXT NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE reservations (
        request_id TEXT PRIMARY KEY,
        owner INTEGER NOT NULL REFERENCES owners (id),
        taken_ms INTEGER NOT NULL,
        body TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TRIGGER reservations_no_update BEFORE UPDATE ON reservations
    BEGIN SELECT RAISE(ABORT, 'a reservation is never changed, only ended'); END
    """,
)

# What must be the same at every start, e.g. a digest of the secret that the keys were made with.
_MARKS = ("CREATE TABLE marks (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID",)

# Integers whose meaning depends on the kind; `llmrouter.buckets` is the one place that knows it.
_LIMITS = (
    """
    CREATE TABLE limit_counters (
        scope TEXT NOT NULL,
        kind TEXT NOT NULL,
        value INTEGER NOT NULL,
        mark INTEGER NOT NULL,
        PRIMARY KEY (scope, kind)
    ) STRICT, WITHOUT ROWID
    """,
)

_KEY_TRIGGER = """
    CREATE TRIGGER api_keys_scopes_are_fixed
    BEFORE UPDATE OF key_id, digest, tenant_id, tiers, admin, acl, created_at, expires_at, note, created_by{more}
    ON api_keys
    BEGIN SELECT RAISE(ABORT, 'a key is never changed, only revoked'); END
    """

_KEYS = (
    "ALTER TABLE api_keys ADD COLUMN policy TEXT NOT NULL DEFAULT '{}'",
    "DROP TRIGGER api_keys_scopes_are_fixed",
    _KEY_TRIGGER.format(more=", policy"),
)

_USAGE_VIEW = """
    CREATE VIEW usage AS
    SELECT ledger.tenant_id, attempts.model_id, attempts.input_tokens AS tokens_in,
        attempts.output_tokens AS tokens_out, ledger.ts, ledger.request_id, attempts.seq, ledger.key_id, ledger.tier,
        attempts.pool_id, attempts.outcome, attempts.committed, attempts.cached_tokens, attempts.cache_write_tokens,
        attempts.reasoning_tokens, attempts.estimated, attempts.cost_picousd, attempts.price_id{more}
    FROM ledger JOIN attempts ON attempts.entry_id = ledger.id
    """

_LEDGER = (
    "ALTER TABLE ledger ADD COLUMN latency_class TEXT NOT NULL DEFAULT 'standard'",
    "ALTER TABLE ledger ADD COLUMN user_id TEXT",
    "ALTER TABLE ledger ADD COLUMN degraded_to TEXT",
    # A dollar limit begins with what its key or user has spent: that must not read all calls of a month.
    "CREATE INDEX ledger_key_ts ON ledger (key_id, ts)",
    "CREATE INDEX ledger_user_ts ON ledger (tenant_id, user_id, ts) WHERE user_id IS NOT NULL",
    "DROP VIEW usage",
    _USAGE_VIEW.format(more=", ledger.latency_class, ledger.user_id, ledger.tags"),
)

# With a ledger in PostgreSQL, this one is a spool; the name by which the server knows it is made at first use.
_SPOOL = (
    """
    CREATE TABLE spool (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        name TEXT NOT NULL
    ) STRICT
    """,
)

UP = (*_RESERVATIONS, *_LIMITS, *_KEYS, *_LEDGER, *_SPOOL, *_MARKS)
DOWN = (
    "DROP TABLE marks",
    "DROP TABLE spool",
    "DROP VIEW usage",
    _USAGE_VIEW.format(more=""),
    "DROP INDEX ledger_user_ts",
    "DROP INDEX ledger_key_ts",
    "ALTER TABLE ledger DROP COLUMN degraded_to",
    "ALTER TABLE ledger DROP COLUMN user_id",
    "ALTER TABLE ledger DROP COLUMN latency_class",
    "DROP TRIGGER api_keys_scopes_are_fixed",
    "ALTER TABLE api_keys DROP COLUMN policy",
    _KEY_TRIGGER.format(more=""),
    "DROP TABLE limit_counters",
    "DROP TABLE reservations",
    "DROP TABLE owners",
)
