"""Real requests to a tier with a cascade, and what the headers of the answers say became of each.

export OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=lr-...
python ask.py [TIER]
"""

import sys
import time
from typing import Any

from openai import OpenAI

APPLES = "Tom has 3 apples and buys 2 more. How many apples does he have now? Answer with the number only."
TRAIN = "A train travels 60 miles in one hour. How many miles does it travel in 3 hours? Give only the number."
CLIPS = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
    "How many clips did Natalia sell altogether in April and May?"
)
LETTER = "Answer with the letter only.\n"
CAR = (
    "A car of 1000 kg goes from rest to 20 m/s in 5 s. What is the net force on it?\n"
    "(A) 400 N\n(B) 2000 N\n(C) 4000 N\n(D) 20000 N"
)
GROUPS = (
    "Statement 1: every group of prime order is cyclic. Statement 2: every abelian group is cyclic.\n"
    "(A) True, True\n(B) False, False\n(C) True, False\n(D) False, True"
)
CELL = "What is the powerhouse of the cell?\n(A) Nucleus\n(B) Mitochondria\n(C) Ribosome\n(D) Membrane"
CAT = "Suggest a good name for a cat."
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
JSON = {"type": "json_object"}

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (APPLES, {"max_tokens": 16}),
    (TRAIN, {"max_tokens": 16}),
    (CLIPS, {"max_tokens": 160}),
    ("What is 17 + 25?", {"max_tokens": 32}),
    (LETTER + CAR, {"max_tokens": 8}),
    (LETTER + GROUPS, {"max_tokens": 8}),
    (LETTER + CELL, {"max_tokens": 8}),
    (CAT, {"max_tokens": 32}),
    ("What is the capital of France?", {"max_tokens": 32}),
    ("Write a Python function that reverses a string. Only the code.", {"max_tokens": 80}),
    ("Give the city and country of the Eiffel Tower as JSON.", {"max_tokens": 60, "response_format": JSON}),
    ("How is the weather in Oslo?", {"max_tokens": 60, "tools": [WEATHER]}),
    (LETTER + CAR, {"max_tokens": 8, "stream": True}),
    (CLIPS, {"max_tokens": 160, "stream": True}),
    (CAT, {"stream": True}),
]


def main(tier: str) -> None:
    with OpenAI(timeout=300.0) as client:
        for prompt, options in REQUESTS:
            ask(client, tier, prompt, options)


def ask(client: OpenAI, tier: str, prompt: str, options: dict[str, Any]) -> None:
    began = time.perf_counter()
    messages = [{"role": "user", "content": prompt}]
    raw = client.chat.completions.with_raw_response.create(model=tier, messages=messages, **options)
    said, first_s = "", None
    if options.get("stream"):
        for chunk in raw.parse():
            piece = (chunk.choices[0].delta.content if chunk.choices else None) or ""
            if piece and first_s is None:
                first_s = time.perf_counter() - began
            said += piece
    else:
        message = raw.parse().choices[0].message
        said = str([call.function for call in message.tool_calls] if message.tool_calls else message.content)
    took_s = time.perf_counter() - began
    told = {name: raw.headers.get(f"x-llmrouter-{name}") for name in ("route", "score", "check", "model", "attempts")}
    how = "stream" if options.get("stream") else "whole"
    print(f"\n{how}: {' '.join(prompt.split())[:60]} -> {' '.join(said.split())[:60]}")
    print("  " + ", ".join(f"{name} {value}" for name, value in told.items() if value))
    first = f", first token after {first_s:.1f} s" if first_s is not None else ""
    print(f"  because {raw.headers['x-llmrouter-reason']}; {took_s:.1f} s{first}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "auto")
