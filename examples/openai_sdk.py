"""The official OpenAI SDK against a gateway; base URL and key, all that is ours, come from the environment:

export OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=lr-...
python examples/openai_sdk.py
"""

from openai import OpenAI

with OpenAI() as client:
    tiers = [tier.id for tier in client.models.list()]
    print("tiers:", ", ".join(tiers))

    # A whole answer; the gateway's headers say who gave it, why, and for how much.
    raw = client.chat.completions.with_raw_response.create(
        model=tiers[0],
        messages=[{"role": "user", "content": "What is 17 + 25?"}],
        max_tokens=32,
        metadata={"team": "examples"},  # tags: rules can match them, and the ledger keeps them
    )
    print(raw.parse().choices[0].message.content)
    for name in ("model", "reason", "cost-usd"):
        print(f"  {name}: {raw.headers[f'x-llmrouter-{name}']}")

    # A streamed one, with its usage at the end.
    stream = client.chat.completions.create(
        model=tiers[0],
        messages=[{"role": "user", "content": "Suggest a good name for a cat."}],
        max_tokens=48,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        elif chunk.usage:
            print(f"\n  tokens: {chunk.usage.prompt_tokens} in, {chunk.usage.completion_tokens} out")
