"""Settings that contradict one another are named; defaults alone never do."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrouter.config import Config, parse
from llmrouter.config_checks import contradictions, oddities, refuse_contradictions
from llmrouter.errors import ConfigError
from tests.support import model, pool, tier

URL = "http://127.0.0.1:9/v1"


def config(*extra: str, model_extra: str = "", pool_extra: str = "", tier_extra: str = "") -> Config:
    """Models s and l in tier `auto`, with more keys for s, its pool and the tier."""
    parts = [
        *(model("s", extra=model_extra), model("l")),
        *(pool("s", [URL], extra=pool_extra), pool("l", [URL])),
        *(tier("auto", small="s", large="l", extra=tier_extra), *extra),
    ]
    return parse("\n".join(parts), environ={})


def runner(kind: str, *lines: str, able: str = "") -> Config:
    """Model s behind a runner with a window of 4096 tokens."""
    text = (
        model("s", extra=f"context_window = 4096\n{able}")
        + f'[pools.s]\nmodel = "s"\n[pools.s.runner]\nkind = "{kind}"\nmodel = "m"\n'
        + "\n".join(lines)
        + "\n"
        + tier("auto", small="s")
    )
    return parse(text, environ={})


def test_a_configuration_of_defaults_has_neither():
    assert contradictions(config()) == oddities(config()) == []


def test_a_low_time_limit_contradicts_no_default():
    """Pools wait ten seconds by default; nobody wrote that, so a request limit of five disappoints nobody."""
    assert contradictions(config("[server]\nrequest_timeout_s = 5")) == []


def cascade(*lines: str, more: str = "") -> Config:
    """Tier `auto` with the strategy `cascade`."""
    section = "\n".join(("[tiers.auto.cascade]", *lines)) if lines else ""
    return config(more, tier_extra=f'strategy = "cascade"\n{section}')


CONTRADICTORY = {
    "tiers.auto.cascade.hold_back_s: 20": cascade("hold_back_s = 20"),
    "tiers.auto.cascade.hold_back_s: 0.4": cascade(more="[server]\nkeepalive_comment_s = 0.3"),
    "tiers.auto.cascade.checks: agreement": cascade('checks = ["agreement"]'),
    "tiers.auto.cascade.checks: verifier": cascade('checks = ["verifier"]'),
    "tiers.auto.cascade.checks: self_check": config(
        model_extra="capabilities = []",
        tier_extra='strategy = "cascade"\n[tiers.auto.cascade]\nchecks = ["self_check"]',
    ),
    "tiers.auto.cascade.verifier: checks": cascade('verifier = "v"', 'checks = ["logprobs"]'),
    "tiers.auto.cascade.samples: checks": cascade("samples = 3", 'checks = ["logprobs"]'),
    "tiers.auto.cascade.max_peers: 2": cascade("max_peers = 2"),
    "pools.s.queue_timeout_s: 700": config(pool_extra="queue_timeout_s = 700\nmax_concurrency = 1"),
    "pools.s.timeouts.first_byte_s: 900": config(pool_extra="timeouts.first_byte_s = 900"),
    "pools.s.timeouts.connect_s: 6": config("[server]\nrequest_timeout_s = 5", pool_extra="timeouts.connect_s = 6"),
    "tiers.auto.max_wait_s: 20": config("[server]\nrequest_timeout_s = 5", tier_extra="max_wait_s = 20"),
    "pools.s.breaker: open_s = 300": config(pool_extra="breaker.open_s = 300"),
    "pools.s.breaker: open_s = 10": config(pool_extra="breaker.max_open_s = 5"),
    "models.s.max_output_tokens: 2048": config(model_extra="context_window = 2048\nmax_output_tokens = 2048"),
    "admin.listen: is the address": config('[server]\nlisten = "[::1]:80"\n[admin]\nlisten = "[::1]:80"'),
    "pools.s.headers: holds an authorization": config(pool_extra='api_key = "k"\nheaders = { Authorization = "x" }'),
    "tiers.auto.fallback: names frontier": config(tier_extra='fallback = ["small", "frontier"]'),
    "models.s.context_window is 4096": runner("llama_cpp", "context = 8192", "slots = 4"),
    "models.s.context_window: 4096": runner("vllm", "max_model_len = 2048"),
    "pools.s.runner.tool_parser: no request": runner("vllm", 'tool_parser = "hermes"'),
    'models.s.capabilities: lists "tools"': runner("vllm", able='capabilities = ["tools"]'),
}


@pytest.mark.parametrize("begins", CONTRADICTORY)
def test_g086_a_setting_that_another_one_disables_is_refused_by_name(begins: str):
    found = contradictions(CONTRADICTORY[begins])
    assert len(found) == 1
    assert found[0].startswith(begins)


def test_g086_a_wait_for_a_retry_that_is_never_made_is_refused():
    """The sibling of `max_retries = 5` with failover off: the wait is written, and retries = 0 takes it away."""
    assert (
        "retries = 0 allows no call after a wait" in contradictions(config(tier_extra="retries = 0\nmax_wait_s = 3"))[0]
    )
    assert contradictions(config(tier_extra="retries = 0")) == []
    assert contradictions(config(tier_extra="retries = 0\nmax_wait_s = 0")) == []


def test_the_same_address_twice_is_one_replica_and_refused():
    text = model("s") + pool("s", [URL, f"{URL}/"]) + tier("auto", small="s")
    assert contradictions(parse(text)) == [
        f"pools.s.urls: {URL} is listed more than once and would count as several replicas"
    ]


def test_an_address_that_is_probably_no_base_address_is_warned_of():
    def odd(url: str) -> list[str]:
        return oddities(parse(model("s") + pool("s", [url]) + tier("auto", small="s")))

    assert odd("http://127.0.0.1:9/v1") == odd("http://127.0.0.1:9/proxy/v1/") == []
    assert "has no path" in odd("http://127.0.0.1:9")[0]
    assert "names an endpoint" in odd("http://127.0.0.1:9/v1/chat/completions")[0]


def test_a_pool_that_the_gateway_starts_is_not_hosted():
    text = model("s") + '[pools.s]\nmodel = "s"\napi = "echo"\nhosted = true\n' + tier("auto", small="s")
    assert contradictions(parse(text))[0].startswith("pools.s.hosted:")


@pytest.mark.parametrize(
    "given",
    [
        runner("llama_cpp", "context = 16384", "slots = 4"),
        runner("vllm", "max_model_len = 4096", 'tool_parser = "hermes"', able='capabilities = ["tools", "logprobs"]'),
        runner("vllm", 'extra_args = ["--tool-call-parser=hermes"]', able='capabilities = ["tools"]'),
        config('[server]\nlisten = "127.0.0.1:0"\n[admin]\nlisten = "127.0.0.1:0"'),
        config(pool_extra="queue_timeout_s = 600\nmax_concurrency = 1"),
        config(tier_extra='fallback = ["large", "small"]'),
    ],
)
def test_settings_that_fit_are_left_alone(given: Config):
    assert contradictions(given) == []


ODD = {
    "server.drain_s: no request lives longer": config("[server]\ndrain_s = 700"),
    "pools.s.max_queue: without max_concurrency": config(pool_extra="max_queue = 10"),
    "pools.s.queue_timeout_s: without max_concurrency": config(pool_extra="queue_timeout_s = 10"),
    "models.spare: has no pool": config(model("spare")),
    "models.idle: plays no role": config(model("idle"), pool("idle", [URL])),
    'tiers.auto.peers: the strategy "rules"': config(tier_extra='peers = ["l"]'),
    'tiers.auto.cascade: the strategy "router"': config(
        tier_extra='strategy = "router"\n[tiers.auto.cascade]\nsamples = 2'
    ),
    'tiers.auto.artefact: the strategy "rules"': config(tier_extra='artefact = "generic"'),
    "routing.drift: no tier": config("[routing.drift]\nwatch = true"),
    "tiers.auto.retries: while pool s is down": config(tier_extra="retries = 2", pool_extra="breaker.failures = 2"),
}


@pytest.mark.parametrize("begins", ODD)
def test_what_is_probably_not_meant_is_warned_of(begins: str):
    assert contradictions(ODD[begins]) == []
    assert [line for line in oddities(ODD[begins]) if line.startswith(begins)]


def test_a_reference_model_needs_no_pool():
    assert oddities(config(model("gpt"), '[routing]\nreference_model = "gpt"')) == []


def test_all_contradictions_are_refused_together_with_the_file():
    given = config(pool_extra="timeouts.first_byte_s = 900", tier_extra='fallback = ["small", "frontier"]')
    with pytest.raises(ConfigError) as caught:
        refuse_contradictions(given, "llmrouter.toml")
    assert [line.split(": ")[:2] for line in caught.value.message.splitlines()] == [
        ["llmrouter.toml", "pools.s.timeouts.first_byte_s"],
        ["llmrouter.toml", "tiers.auto.fallback"],
    ]


def test_the_examples_contradict_nothing():
    for path in (Path(__file__).parents[1] / "examples").rglob("llmrouter.toml"):
        environ = dict.fromkeys(("LLMROUTER_SECRET", "VLLM_API_KEY", "OPENAI_API_KEY"), "x" * 20)
        assert contradictions(parse(path.read_text(), environ=environ)) == []


def test_a_price_that_no_token_can_cost_is_refused():
    text = '[models.s]\nprice.usd = { input_usd_per_mtok = "1e30", output_usd_per_mtok = "1" }\n'
    text += '[pools.s]\nmodel = "s"\napi = "echo"\n[tiers.auto]\nsmall = "s"\n'
    with pytest.raises(ConfigError, match=r"models\.s\.price\.usd\.input_usd_per_mtok: .*1000000"):
        parse(text, environ={})


@pytest.mark.parametrize(
    "address",
    [
        *('ledger_url = "postgresql://u:hun/ter2@h/d"', 'ledger_url = "postgresql://u:hun#ter2@h/d"'),
        *('ledger_url = "postgres://u:hun?ter2@h/d"', 'ledger_url = "postgresql://u:a@hun/ter2@h/d"'),
        *('limits_url = "redis://:hun/ter2@h:6379/0"', 'limits_url = "redis://u:hunter2@h:port/0"'),
        'limits_url = "redis://u:hunter2@[::1/0"',
    ],
)
def test_an_address_whose_password_is_not_encoded_is_refused_without_quoting_it(address: str):
    """Read as it stands, the rest of the password would be the name of a database, which messages may show."""
    with pytest.raises(ConfigError) as refused:
        config(f"[store]\n{address}")
    assert address.partition(" ")[0] in str(refused.value)
    assert not any(part in str(refused.value) for part in ("hun", "ter2"))


@pytest.mark.parametrize(
    "address",
    [
        *('ledger_url = "postgresql://u:p%2Fw@h1:5432,h2:5433/d?sslmode=require"', 'ledger_url = "postgresql:///d"'),
        *(
            'ledger_url = "postgresql://me%40server:pw@h/d?application_name=a@b"',
            'limits_url = "unix:///run/redis.sock"',
        ),
        *('limits_url = "rediss://:p%2Fw@h:6379/0"', 'limits_url = "redis://[::1]:6379/0"'),
    ],
)
def test_addresses_as_servers_have_them_are_taken(address: str):
    config(f"[store]\n{address}")


LEARNED = 'strategy = "router"\n'


@pytest.mark.parametrize(
    ("tier_extra", "says"),
    [
        (f"{LEARNED}default = 'frontier'", "the tier has no frontier model"),
        (f'{LEARNED}peers = ["l"]', "peers: 'l' has another place in this tier"),
        (f'{LEARNED}peers = ["p", "p"]', "peers: 'p' has another place"),
        (f'{LEARNED}peers = ["nobody"]', "no model 'nobody'"),
        (f"{LEARNED}escalation_share = 0", "tiers.auto.escalation_share"),
        (f'{LEARNED}[tiers.auto.cascade]\nchecks = ["agrement"]', "tiers.auto.cascade.checks"),
        (f"{LEARNED}[tiers.auto.cascade]\nhold_back_token = 3", "did you mean 'hold_back_tokens'"),
        ('strategy = "cascades"', "'rules', 'router' or 'cascade'"),
    ],
)
def test_a_learned_tier_with_a_part_that_does_not_fit_is_refused_by_name(tier_extra: str, says: str):
    with pytest.raises(ConfigError) as caught:
        config(model("p"), pool("p", [URL]), tier_extra=tier_extra)
    assert says in caught.value.message


def test_a_learned_tier_needs_two_models_to_choose_between():
    text = model("s") + pool("s", [URL]) + tier("auto", small="s", extra='strategy = "router"')
    with pytest.raises(ConfigError, match="chooses between small and large or frontier; give both"):
        parse(text, environ={})


def test_a_cascade_of_defaults_contradicts_nothing():
    assert contradictions(cascade()) == oddities(cascade()) == []
