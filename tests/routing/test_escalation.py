from hypothesis import given
from hypothesis import strategies as st

from llmrouter.routing.escalation import EscalationShare


@given(st.floats(0.01, 0.9), st.lists(st.booleans(), max_size=300))
def test_a_tenant_never_escalates_more_than_its_share_and_the_burst(share, wishes):
    cap = EscalationShare(share, burst=5)
    taken = 0
    for count, wish in enumerate(wishes, start=1):
        cap.came("acme")
        taken += wish and cap.take("acme")
        assert taken <= share * count + 5


def test_one_tenants_escalations_are_not_anothers():
    cap = EscalationShare(0.0, burst=1)
    assert cap.take("acme")
    assert not cap.take("acme")
    assert cap.take("globex")


def test_a_share_of_one_is_no_cap():
    cap = EscalationShare(1.0, burst=1)
    assert all(cap.take("acme") for _ in range(100))
