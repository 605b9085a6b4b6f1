from llmrouter.routing.conversations import ConversationMemory


def test_it_tells_the_role_that_answered_last():
    memory = ConversationMemory()
    memory.keep("acme", "c", "large")
    memory.keep("acme", "c", "small")
    assert memory.role("acme", "c") == "small"


def test_tenants_do_not_share_conversations():
    memory = ConversationMemory()
    memory.keep("acme", "c", "large")
    assert memory.role("globex", "c") is None


def test_the_one_used_longest_ago_is_forgotten_first():
    memory = ConversationMemory(most=2)
    for name in ("a", "b"):
        memory.keep("acme", name, "small")
    memory.keep("acme", "a", "small")
    memory.keep("acme", "c", "small")
    assert [memory.role("acme", name) for name in "abc"] == ["small", None, "small"]
