"""Limits, budgets and classes that contradict one another, or that were probably not meant, are named."""

from __future__ import annotations

import pytest

from llmrouter.config import Config, LimitSet, parse
from llmrouter.config_checks import contradictions, oddities
from llmrouter.tenancy_checks import limits_above
from tests.support import model, pool, tier

URL = "http://127.0.0.1:9/v1"


def config(*extra: str, pool_extra: str = "", tier_extra: str = "", api: str = "vllm", usd: str = "1") -> Config:
    """A cheap model s in the tier `cheap` and a dear one d in the tier `dear`; each writes up to 100 tokens."""
    parts = [
        model("s", usd_in=usd, usd_out=usd, extra="max_output_tokens = 100"),
        model(
            "d",
            usd_in="10" if usd != "0" else "0",
            usd_out="10" if usd != "0" else "0",
            extra="max_output_tokens = 100",
        ),
        *(pool("s", [URL], api=api, extra=pool_extra), pool("d", [URL])),
        *(tier("cheap", small="s", extra=tier_extra), tier("dear", large="d")),
        *extra,
    ]
    return parse("\n".join(parts), environ={})


def vllm_runner(*lines: str, send: str = "true") -> Config:
    text = f'[pools.s]\nmodel = "s"\nsend_priority = {send}\n[pools.s.runner]\nkind = "vllm"\nmodel = "m"\n'
    return parse("\n".join([model("s"), text, *lines, tier("auto", small="s")]), environ={})


CONTRADICTORY = {
    "pools.s.send_priority: only vLLM takes a priority, and this pool's api is openai": config(
        pool_extra="send_priority = true", api="openai"
    ),
    "pools.s.send_priority: vLLM refuses a priority": vllm_runner(),
    "tiers.cheap.latency_class: no tenant may use batch": config(
        '[tenants.a]\nclasses = ["standard"]', tier_extra='latency_class = "batch"'
    ),
    "tenants.a.degrade_to: tier_limits.cheap.usd_per_day = 0": config(
        '[tenants.a]\non_budget = "degrade"\ndegrade_to = "cheap"\ntier_limits.cheap.usd_per_day = 0'
    ),
    "tenants.a.degrade_to: auto is the only tier": parse(
        model("s") + pool("s", [URL]) + tier("auto", small="s") + '[tenants.a]\non_budget="degrade"\ndegrade_to="auto"',
        environ={},
    ),
    "classes.batch.request_timeout_s: 3600 s is longer": config("[classes.batch]\nrequest_timeout_s = 3600"),
}


@pytest.mark.parametrize("begins", CONTRADICTORY)
def test_g086_what_another_setting_disables_is_refused_by_name(begins: str):
    found = contradictions(CONTRADICTORY[begins])
    assert len(found) == 1
    assert found[0].startswith(begins)


@pytest.mark.parametrize(
    "fine",
    [
        config(pool_extra="send_priority = true"),
        vllm_runner("priority_scheduling = true"),
        vllm_runner('extra_args = ["--scheduling-policy", "priority"]'),
        config('[tenants.a]\nclasses = ["batch"]', tier_extra='latency_class = "batch"'),
        config('[tenants.a]\non_budget = "degrade"\ndegrade_to = "cheap"\nlimits.usd_per_day = 5'),
        config("[classes.batch]\nrequest_timeout_s = 60"),
        config("[tenants.a]\ngroup = 'g'\nlimits.usd_per_day = 5\n[groups.g]\nlimits.usd_per_day = 5"),
    ],
)
def test_settings_that_go_together_are_left_alone(fine: Config):
    assert contradictions(fine) == oddities(fine) == []


ODD = {
    "tenants.a.key_limits: usd_per_day = 9 is never reached, because tenants.a.limits has 5": config(
        "[tenants.a]\nlimits.usd_per_day = 5\nkey_limits.usd_per_day = 9"
    ),
    "tenants.a.user_limits: concurrent_requests = 9 is": config(
        "[tenants.a]\nlimits.concurrent_requests = 5\nuser_limits.concurrent_requests = 9"
    ),
    "tenants.a.tier_limits.dear: requests_per_minute = 9 is never reached, because tenants.a.limits": config(
        "[tenants.a]\nlimits.requests_per_minute = 5\ntier_limits.dear.requests_per_minute = 9"
    ),
    "tenants.a.tier_limits.cheap: requests_per_minute = 9 is never reached, because tiers.cheap.limits": config(
        "[tenants.a]\ntier_limits.cheap.requests_per_minute = 9", tier_extra="limits.requests_per_minute = 5"
    ),
    "tenants.a.limits: usd_per_month = 9 is never reached, because groups.g.limits has 5": config(
        "[tenants.a]\ngroup = 'g'\nlimits.usd_per_month = 9\n[groups.g]\nlimits.usd_per_month = 5"
    ),
    "groups.g: no tenant belongs to it": config("[groups.g]\nlimits.usd_per_month = 5"),
    "tenants.a.on_budget: no dollar limit": config('[tenants.a]\non_budget = "degrade"\ndegrade_to = "cheap"'),
    "tenants.a.degrade_to: a request may cost more on dear than on cheap": config(
        '[tenants.a]\non_budget = "degrade"\ndegrade_to = "dear"\nlimits.usd_per_day = 5'
    ),
    "tiers.cheap.limits.usd_per_hour: every model it covers has the price 0": config(
        tier_extra="limits.usd_per_hour = 1", usd="0"
    ),
    "tenants.a.limits.tokens_per_minute: 1000 is less than the": config("[tenants.a]\nlimits.tokens_per_minute = 1000"),
    "tenants.a.key_limits.tokens_burst: 1000 is less than the": config(
        "[tenants.a]\nkey_limits.tokens_per_minute = 100000\nkey_limits.tokens_burst = 1000"
    ),
    "tenants.a.user_limits.usd_per_day: 0.001 is less than the $": config(
        "[tenants.a]\nuser_limits.usd_per_day = 0.001"
    ),
    "tenants.a.limits.concurrent_requests: 5000 is never reached": config(
        "[tenants.a]\nlimits.concurrent_requests = 5000"
    ),
    "limits.on_store_down: matters only with": config('[limits]\non_store_down = "open"'),
    "limits.lease_s: matters only with": config("[limits]\nlease_s = 1"),
    "ledger.spool_entries: matters only with": config("[ledger]\nspool_entries = 5000"),
    "pools.s.runner.priority_scheduling: no priority is sent": vllm_runner("priority_scheduling = true", send="false"),
}


@pytest.mark.parametrize("begins", ODD)
def test_what_was_probably_not_meant_is_told(begins: str):
    assert contradictions(ODD[begins]) == []
    found = oddities(ODD[begins])
    assert len(found) == 1
    assert found[0].startswith(begins)


def test_the_worst_case_is_that_of_the_whole_plan():
    """Three calls (one, a retry, a wait) of 100 tokens and a prompt of some 343 each."""
    (found,) = oddities(config("[tenants.a]\nlimits.tokens_per_minute = 1000"))
    needed = 3 * (100 + 1000 // 3 + 1 + 8)
    assert f"the {needed} that a short request without max_tokens reserves on tier" in found
    assert oddities(config(f"[tenants.a]\nlimits.tokens_per_minute = {needed}")) == []


def test_many_gateways_may_hold_more_calls_than_one_has_room_for():
    several = config('[tenants.a]\nlimits.concurrent_requests = 5000\n[store]\nlimits_url = "redis://127.0.0.1/0"')
    assert oddities(several) == []


def test_only_a_kind_that_both_have_is_compared():
    inner, outer = LimitSet(usd_per_day=5, requests_per_minute=9), LimitSet(usd_per_hour=1, requests_per_minute=9)
    assert list(limits_above("in", inner, "out", outer)) == []
