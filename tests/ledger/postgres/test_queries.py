"""Single calls looked up in a spool and its server: the answers of one file, however much of it is shipped."""

from llmrouter.ledger.postgres.queries import shared_entries
from llmrouter.ledger.queries import recent_entries
from tests.ledger.postgres.server import BOOKED


def test_entries_come_newest_first_wherever_they_are(both_ways, server):
    alone, path = both_ways
    assert shared_entries(path, server, 10) == recent_entries(alone, 10)
    assert shared_entries(path, server, 2) == recent_entries(alone, 2)
    for booked in BOOKED:
        assert shared_entries(path, server, 10, booked.request_id) == [booked]
    assert shared_entries(path, server, 10, "nobody's") == []
