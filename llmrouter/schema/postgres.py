"""The numbered migrations of the PostgreSQL database; a released one is never edited, a change is a further one.

Columns have the names and meanings that they have in the SQLite file, so the same questions can be asked of both: money
is BIGINT pico-dollars (`sum` of it is an exact NUMERIC), flags are 0 or 1. Two differ: the `ts` of the books is
TIMESTAMPTZ, since the books are partitioned by its day (UTC), and their `tags` are JSONB. An attempt hangs on its
entry's `request_id` and `ts`.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["numbered", "statements_down", "statements_up"]

_USAGE_COLUMNS = """
        input_tokens BIGINT NOT NULL CHECK (input_tokens >= 0),
        cached_tokens BIGINT NOT NULL,
        cache_write_tokens BIGINT NOT NULL,
        output_tokens BIGINT NOT NULL CHECK (output_tokens >= 0),
        reasoning_tokens BIGINT NOT NULL,
        estimated SMALLINT NOT NULL,
        cost_picousd BIGINT NOT NULL CHECK (cost_picousd >= 0),
"""

# A primary key of a partitioned table has to hold its partition column. That an entry has one `ts` for good makes the
# pair as unique as the `request_id` alone. No foreign key: it would make dropping a day scan the other table, and both
# sides are written in one transaction.
_BOOKS = (
    f"""
    CREATE TABLE ledger (
        request_id TEXT NOT NULL,
        ts TIMESTAMPTZ NOT NULL,
        tenant_id TEXT NOT NULL,
        key_id TEXT NOT NULL,
        endpoint TEXT NOT NULL,
        tier TEXT NOT NULL,
        model_id TEXT,
        strategy TEXT NOT NULL,
        reason TEXT NOT NULL,
        rule_id TEXT,
        routing_version BIGINT NOT NULL,
        config_version BIGINT NOT NULL,
        intent TEXT NOT NULL,
        tags JSONB NOT NULL,
        stream SMALLINT NOT NULL,
        status INTEGER NOT NULL,
        finish TEXT,
        error_code TEXT,
        aborted SMALLINT NOT NULL,
        {_USAGE_COLUMNS}
        reference_model_id TEXT,
        reference_cost_picousd BIGINT CHECK (reference_cost_picousd >= 0),
        queue_s DOUBLE PRECISION NOT NULL,
        ttft_s DOUBLE PRECISION,
        total_s DOUBLE PRECISION NOT NULL,
        latency_class TEXT NOT NULL,
        user_id TEXT,
        degraded_to TEXT,
        PRIMARY KEY (request_id, ts)
    ) PARTITION BY RANGE (ts)
    """,
    "CREATE INDEX ledger_tenant_ts ON ledger (tenant_id, ts)",
    "CREATE INDEX ledger_ts ON ledger (ts)",
    f"""
    CREATE TABLE attempts (
        request_id TEXT NOT NULL,
        ts TIMESTAMPTZ NOT NULL,
        seq INTEGER NOT NULL,
        model_id TEXT NOT NULL,
        pool_id TEXT NOT NULL,
        replica TEXT NOT NULL,
        role TEXT NOT NULL,
        reason TEXT NOT NULL,
        outcome TEXT NOT NULL,
        status INTEGER NOT NULL,
        {_USAGE_COLUMNS}
        price_id TEXT NOT NULL,
        queue_s DOUBLE PRECISION NOT NULL,
        ttft_s DOUBLE PRECISION,
        total_s DOUBLE PRECISION NOT NULL,
        committed SMALLINT NOT NULL,
        PRIMARY KEY (request_id, ts, seq)
    ) PARTITION BY RANGE (ts)
    """,
    """
    CREATE VIEW usage AS
    SELECT ledger.tenant_id, attempts.model_id, attempts.input_tokens AS tokens_in,
        attempts.output_tokens AS tokens_out, ledger.ts, ledger.request_id, attempts.seq, ledger.key_id, ledger.tier,
        attempts.pool_id, attempts.outcome, attempts.committed, attempts.cached_tokens, attempts.cache_write_tokens,
        attempts.reasoning_tokens, attempts.estimated, attempts.cost_picousd, attempts.price_id,
        ledger.latency_class, ledger.user_id, ledger.tags
    FROM ledger JOIN attempts USING (request_id, ts)
    """,
    """
    CREATE TABLE prices (
        price_id TEXT PRIMARY KEY,
        price TEXT NOT NULL,
        first_seen TEXT NOT NULL
    )
    """,
    # How far each gateway's file has been shipped; written in the transaction that brings the rows.
    """
    CREATE TABLE spools (
        name TEXT PRIMARY KEY,
        last_id BIGINT NOT NULL,
        last_request_id TEXT NOT NULL,
        shipped_at TIMESTAMPTZ NOT NULL
    )
    """,
    # Rows that the database would not take; they stay in their spool.
    """
    CREATE TABLE spool_refused (
        name TEXT NOT NULL REFERENCES spools (name) ON DELETE CASCADE,
        entry_id BIGINT NOT NULL,
        reason TEXT NOT NULL,
        refused_at TIMESTAMPTZ NOT NULL,
        PRIMARY KEY (name, entry_id)
    )
    """,
    """
    CREATE FUNCTION llmrouter_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$
    """,
    """
    CREATE TRIGGER ledger_no_update BEFORE UPDATE ON ledger
    FOR EACH ROW EXECUTE FUNCTION llmrouter_append_only()
    """,
    """
    CREATE TRIGGER attempts_no_update BEFORE UPDATE ON attempts
    FOR EACH ROW EXECUTE FUNCTION llmrouter_append_only()
    """,
)

_BOOKS_DOWN = (
    "DROP VIEW usage",
    "DROP TABLE attempts",
    "DROP TABLE ledger",
    "DROP TABLE prices",
    "DROP TABLE spool_refused",
    "DROP TABLE spools",
    "DROP FUNCTION llmrouter_append_only()",
)

_CHANGE_COUNTERS = (
    "CREATE TABLE change_counters (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
    "INSERT INTO change_counters VALUES ('keys', 0), ('routing', 0)",
    """
    CREATE FUNCTION llmrouter_count_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN UPDATE change_counters SET value = value + 1 WHERE name = TG_ARGV[0]; RETURN NULL; END $$
    """,
    """
    CREATE FUNCTION llmrouter_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION '%', TG_ARGV[0]; END $$
    """,
)

# Instants stay TEXT here, as the file has them: `revoked_at` and the like are read by the same code.
_API_KEYS = (
    """
    CREATE TABLE api_keys (
        key_id TEXT PRIMARY KEY,
        digest BYTEA NOT NULL UNIQUE,
        tenant_id TEXT NOT NULL,
        tiers TEXT,
        admin BOOLEAN NOT NULL,
        acl TEXT NOT NULL,
        created_at TEXT NOT NULL,
        expires_at TEXT,
        revoked_at TEXT,
        note TEXT NOT NULL,
        created_by TEXT,
        policy TEXT NOT NULL DEFAULT '{}'
    )
    """,
    """
    CREATE TRIGGER api_keys_scopes_are_fixed
    BEFORE UPDATE OF key_id, digest, tenant_id, tiers, admin, acl, created_at, expires_at, note, created_by, policy
    ON api_keys FOR EACH ROW EXECUTE FUNCTION llmrouter_refuse('a key is never changed, only revoked')
    """,
    """
    CREATE TRIGGER api_keys_stay_revoked BEFORE UPDATE OF revoked_at ON api_keys
    FOR EACH ROW WHEN (OLD.revoked_at IS NOT NULL) EXECUTE FUNCTION llmrouter_refuse('the key is already revoked')
    """,
    """
    CREATE TRIGGER api_keys_count AFTER INSERT OR UPDATE OR DELETE ON api_keys
    FOR EACH ROW EXECUTE FUNCTION llmrouter_count_change('keys')
    """,
)

# As in the file, a version's own row comes after its rules and seals it.
# What must be the same at every gateway, e.g. a digest of the secret that the keys were made with.
_MARKS = ("CREATE TABLE marks (name TEXT PRIMARY KEY, value TEXT NOT NULL)",)

_ROUTING = (
    """
    CREATE TABLE routing_versions (
        version BIGINT PRIMARY KEY CHECK (version > 0),
        created_at TEXT NOT NULL,
        author TEXT NOT NULL,
        note TEXT NOT NULL,
        base_version BIGINT NOT NULL,
        rolled_back_to BIGINT REFERENCES routing_versions (version)
    )
    """,
    """
    CREATE TABLE routing_rules (
        version BIGINT NOT NULL REFERENCES routing_versions (version) DEFERRABLE INITIALLY DEFERRED,
        position BIGINT NOT NULL,
        rule_id TEXT NOT NULL,
        match TEXT NOT NULL,
        model_id TEXT,
        tier_role TEXT,
        weight DOUBLE PRECISION NOT NULL,
        priority BIGINT NOT NULL,
        PRIMARY KEY (version, rule_id)
    )
    """,
    """
    CREATE FUNCTION llmrouter_version_counts_up() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.version <> 1 + (SELECT coalesce(max(version), 0) FROM routing_versions) THEN
            RAISE EXCEPTION 'version numbers go up by one and are never reused';
        END IF;
        RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER routing_versions_count_up BEFORE INSERT ON routing_versions
    FOR EACH ROW EXECUTE FUNCTION llmrouter_version_counts_up()
    """,
    """
    CREATE TRIGGER routing_versions_count AFTER INSERT ON routing_versions
    FOR EACH ROW EXECUTE FUNCTION llmrouter_count_change('routing')
    """,
    """
    CREATE TRIGGER routing_versions_immutable BEFORE UPDATE OR DELETE ON routing_versions
    FOR EACH ROW EXECUTE FUNCTION llmrouter_refuse('a routing version is immutable')
    """,
    """
    CREATE FUNCTION llmrouter_rule_sealed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS (SELECT 1 FROM routing_versions WHERE version = NEW.version) THEN
            RAISE EXCEPTION 'a routing version is immutable';
        END IF;
        RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER routing_rules_sealed BEFORE INSERT ON routing_rules
    FOR EACH ROW EXECUTE FUNCTION llmrouter_rule_sealed()
    """,
    """
    CREATE TRIGGER routing_rules_immutable BEFORE UPDATE OR DELETE ON routing_rules
    FOR EACH ROW EXECUTE FUNCTION llmrouter_refuse('a routing version is immutable')
    """,
)

_KEYS_RULES_DOWN = (
    "DROP TABLE marks",
    "DROP TABLE routing_rules",
    "DROP TABLE routing_versions",
    "DROP TABLE api_keys",
    "DROP TABLE change_counters",
    "DROP FUNCTION llmrouter_rule_sealed()",
    "DROP FUNCTION llmrouter_version_counts_up()",
    "DROP FUNCTION llmrouter_refuse()",
    "DROP FUNCTION llmrouter_count_change()",
)

# As in the file.
_ARTEFACTS = (
    """
    CREATE TABLE artefacts (
        digest TEXT PRIMARY KEY CHECK (length(digest) = 64),
        content BYTEA NOT NULL,
        about TEXT NOT NULL,
        signature TEXT NOT NULL,
        created_at TEXT NOT NULL
    )
    """,
    """
    CREATE TRIGGER artefacts_no_update BEFORE UPDATE ON artefacts
    FOR EACH ROW EXECUTE FUNCTION llmrouter_refuse('an artefact is immutable')
    """,
    "ALTER TABLE routing_versions ADD COLUMN artefact_digest TEXT REFERENCES artefacts (digest)",
    "ALTER TABLE routing_versions ADD COLUMN point BIGINT CHECK (point >= 0)",
    """
    CREATE TABLE routing_fallbacks (
        version BIGINT NOT NULL REFERENCES routing_versions (version),
        tier_id TEXT NOT NULL,
        reason TEXT NOT NULL,
        raised_at TEXT NOT NULL,
        PRIMARY KEY (version, tier_id)
    )
    """,
    """
    CREATE TRIGGER routing_fallbacks_count AFTER INSERT ON routing_fallbacks
    FOR EACH ROW EXECUTE FUNCTION llmrouter_count_change('routing')
    """,
)

_ARTEFACTS_DOWN = (
    "DROP TABLE routing_fallbacks",
    "ALTER TABLE routing_versions DROP COLUMN point",
    "ALTER TABLE routing_versions DROP COLUMN artefact_digest",
    "DROP TABLE artefacts",
)

_ROUTE_SCORE_CHECKS = (
    "ALTER TABLE ledger ADD COLUMN route TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE ledger ADD COLUMN score DOUBLE PRECISION",
    "ALTER TABLE ledger ADD COLUMN checks TEXT NOT NULL DEFAULT ''",
)

_ROUTE_SCORE_CHECKS_DOWN = (
    "ALTER TABLE ledger DROP COLUMN checks",
    "ALTER TABLE ledger DROP COLUMN score",
    "ALTER TABLE ledger DROP COLUMN route",
)

_NUMBERED: tuple[tuple[str, Sequence[str], Sequence[str]], ...] = (
    ("0001_books", _BOOKS, _BOOKS_DOWN),
    ("0002_keys_rules", (*_CHANGE_COUNTERS, *_API_KEYS, *_ROUTING, *_MARKS), _KEYS_RULES_DOWN),
    ("0003_artefacts", _ARTEFACTS, _ARTEFACTS_DOWN),
    ("0004_route_score_checks", _ROUTE_SCORE_CHECKS, _ROUTE_SCORE_CHECKS_DOWN),
)


def numbered() -> list[str]:
    """The names of all migrations, oldest first."""
    return [name for name, _, _ in _NUMBERED]


def statements_up(name: str) -> Sequence[str]:
    """What makes a migration's change."""
    return next(up for each, up, _ in _NUMBERED if each == name)


def statements_down(name: str) -> Sequence[str]:
    """What undoes a migration; data that only the newer schema can hold is lost."""
    return next(down for each, _, down in _NUMBERED if each == name)
