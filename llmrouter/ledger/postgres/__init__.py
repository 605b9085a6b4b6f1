"""The books of several gateways in one PostgreSQL database.

Every gateway books into its own SQLite file first, which needs no network and survives the death of its processes. With
`store.ledger_url` that file is a spool: `ship` copies finished entries to the server in batches and deletes them here
only after the server has committed them. A server that goes away costs nothing but the growth of the spool.
"""
