"""0001: keys, routing versions and the books."""

from __future__ import annotations

__all__ = ["DOWN", "UP"]

_CHANGE_COUNTERS = (
    "CREATE TABLE change_counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    "INSERT INTO change_counters VALUES ('keys', 0), ('routing', 0)",
)

_API_KEYS = (
    """
    CREATE TABLE api_keys (
        key_id TEXT PRIMARY KEY,
        digest BLOB NOT NULL UNIQUE,
        tenant_id TEXT NOT NULL,
        tiers TEXT,
        admin INTEGER NOT NULL CHECK (admin IN (0, 1)),
        acl TEXT NOT NULL,
        created_at TEXT NOT NULL,
        expires_at TEXT,
        revoked_at TEXT,
        note TEXT NOT NULL,
        created_by TEXT
    ) STRICT
    """,
    """
    CREATE TRIGGER api_keys_scopes_are_fixed
    BEFORE UPDATE OF key_id, digest, tenant_id, tiers, admin, acl, created_at, expires_at, note, created_by ON api_keys
    BEGIN SELECT RAISE(ABORT, 'a key is never changed, only revoked'); END
    """,
    """
    CREATE TRIGGER api_keys_stay_revoked BEFORE UPDATE OF revoked_at ON api_keys WHEN OLD.revoked_at IS NOT NULL
    BEGIN SELECT RAISE(ABORT, 'the key is already revoked'); END
    """,
    """
    CREATE TRIGGER api_keys_insert_counts AFTER INSERT ON api_keys
    BEGIN UPDATE change_counters SET value = value + 1 WHERE name = 'keys'; END
    """,
    """
    CREATE TRIGGER api_keys_update_counts AFTER UPDATE ON api_keys
    BEGIN UPDATE change_counters SET value = value + 1 WHERE name = 'keys'; END
    """,
    """
    CREATE TRIGGER api_keys_delete_counts AFTER DELETE ON api_keys
    BEGIN UPDATE change_counters SET value = value + 1 WHERE name = 'keys'; END
    """,
)

# The rules of a version are inserted before its row in routing_versions, which seals it: no rule joins afterwards.
_ROUTING = (
    """
    CREATE TABLE routing_versions (
        version INTEGER PRIMARY KEY CHECK (version > 0),
        created_at TEXT NOT NULL,
        author TEXT NOT NULL,
        note TEXT NOT NULL,
        base_version INTEGER NOT NULL,
        rolled_back_to INTEGER REFERENCES routing_versions (version)
    ) STRICT
    """,
    """
    CREATE TABLE routing_rules (
        version INTEGER NOT NULL REFERENCES routing_versions (version) DEFERRABLE INITIALLY DEFERRED,
        position INTEGER NOT NULL,
        rule_id TEXT NOT NULL,
        match TEXT NOT NULL,
        model_id TEXT,
        tier_role TEXT,
        weight REAL NOT NULL,
        priority INTEGER NOT NULL,
        PRIMARY KEY (version, rule_id)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TRIGGER routing_versions_count_up BEFORE INSERT ON routing_versions
    WHEN NEW.version <> 1 + (SELECT coalesce(max(version), 0) FROM routing_versions)
    BEGIN SELECT RAISE(ABORT, 'version numbers go up by one and are never reused'); END
    """,
    """
    CREATE TRIGGER routing_versions_insert_counts AFTER INSERT ON routing_versions
    BEGIN UPDATE change_counters SET value = value + 1 WHERE name = 'routing'; END
    """,
    """
    CREATE TRIGGER routing_versions_no_update BEFORE UPDATE ON routing_versions
    BEGIN SELECT RAISE(ABORT, 'a routing version is immutable'); END
    """,
    """
    CREATE TRIGGER routing_versions_no_delete BEFORE DELETE ON routing_versions
    BEGIN SELECT RAISE(ABORT, 'a routing version is immutable'); END
    """,
    """
    CREATE TRIGGER routing_rules_sealed BEFORE INSERT ON routing_rules
    WHEN EXISTS (SELECT 1 FROM routing_versions WHERE version = NEW.version)
    BEGIN SELECT RAISE(ABORT, 'a routing version is immutable'); END
    """,
    """
    CREATE TRIGGER routing_rules_no_update BEFORE UPDATE ON routing_rules
    BEGIN SELECT RAISE(ABORT, 'a routing version is immutable'); END
    """,
    """
    CREATE TRIGGER routing_rules_no_delete BEFORE DELETE ON routing_rules
    BEGIN SELECT RAISE(ABORT, 'a routing version is immutable'); END
    """,
)

# Attempts hang on the entry's number, not on its request_id: ids are random, and a second index in random order costs
# more than the rest of the insert. Rows go only by retention (DELETE), attempts along with their entry.
_LEDGER = (
    """
    CREATE TABLE ledger (
        id INTEGER PRIMARY KEY,
        request_id TEXT NOT NULL UNIQUE,
        ts TEXT NOT NULL,
        tenant_id TEXT NOT NULL,
        key_id TEXT NOT NULL,
        endpoint TEXT NOT NULL,
        tier TEXT NOT NULL,
        model_id TEXT,
        strategy TEXT NOT NULL,
        reason TEXT NOT NULL,
        rule_id TEXT,
        routing_version INTEGER NOT NULL,
        config_version INTEGER NOT NULL,
        intent TEXT NOT NULL,
        tags TEXT NOT NULL,
        stream INTEGER NOT NULL,
        status INTEGER NOT NULL,
        finish TEXT,
        error_code TEXT,
        aborted INTEGER NOT NULL,
        input_tokens INTEGER NOT NULL CHECK (input_tokens >= 0),
        cached_tokens INTEGER NOT NULL,
        cache_write_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL CHECK (output_tokens >= 0),
        reasoning_tokens INTEGER NOT NULL,
        estimated INTEGER NOT NULL,
        cost_picousd INTEGER NOT NULL CHECK (cost_picousd >= 0),
        reference_model_id TEXT,
        reference_cost_picousd INTEGER CHECK (reference_cost_picousd >= 0),
        queue_s REAL NOT NULL,
        ttft_s REAL,
        total_s REAL NOT NULL
    ) STRICT
    """,
    "CREATE INDEX ledger_ts ON ledger (ts)",
    "CREATE INDEX ledger_tenant_ts ON ledger (tenant_id, ts)",
    """
    CREATE TABLE attempts (
        entry_id INTEGER NOT NULL REFERENCES ledger (id),
        seq INTEGER NOT NULL,
        model_id TEXT NOT NULL,
        pool_id TEXT NOT NULL,
        replica TEXT NOT NULL,
        role TEXT NOT NULL,
        reason TEXT NOT NULL,
        outcome TEXT NOT NULL,
        status INTEGER NOT NULL,
        input_tokens INTEGER NOT NULL CHECK (input_tokens >= 0),
        cached_tokens INTEGER NOT NULL,
        cache_write_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL CHECK (output_tokens >= 0),
        reasoning_tokens INTEGER NOT NULL,
        estimated INTEGER NOT NULL,
        cost_picousd INTEGER NOT NULL CHECK (cost_picousd >= 0),
        price_id TEXT NOT NULL,
        queue_s REAL NOT NULL,
        ttft_s REAL,
        total_s REAL NOT NULL,
        committed INTEGER NOT NULL,
        PRIMARY KEY (entry_id, seq)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TRIGGER ledger_no_update BEFORE UPDATE ON ledger
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END
    """,
    """
    CREATE TRIGGER attempts_no_update BEFORE UPDATE ON attempts
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END
    """,
    """
    CREATE TRIGGER ledger_delete_takes_attempts BEFORE DELETE ON ledger
    BEGIN DELETE FROM attempts WHERE entry_id = OLD.id; END
    """,
    """
    CREATE VIEW usage AS
    SELECT ledger.tenant_id, attempts.model_id, attempts.input_tokens AS tokens_in,
        attempts.output_tokens AS tokens_out, ledger.ts, ledger.request_id, attempts.seq, ledger.key_id, ledger.tier,
        attempts.pool_id, attempts.outcome, attempts.committed, attempts.cached_tokens, attempts.cache_write_tokens,
        attempts.reasoning_tokens, attempts.estimated, attempts.cost_picousd, attempts.price_id
    FROM ledger JOIN attempts ON attempts.entry_id = ledger.id
    """,
    """
    CREATE TABLE prices (
        price_id TEXT PRIMARY KEY,
        price TEXT NOT NULL,
        first_seen TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
)

UP = (*_CHANGE_COUNTERS, *_API_KEYS, *_ROUTING, *_LEDGER)
DOWN = (
    "DROP VIEW usage",
    "DROP TABLE attempts",
    "DROP TABLE ledger",
    "DROP TABLE prices",
    "DROP TABLE routing_rules",
    "DROP TABLE routing_versions",
    "DROP TABLE api_keys",
    "DROP TABLE change_counters",
)
