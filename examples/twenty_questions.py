# /// script
# requires-python = ">=3.11"
# dependencies = ["openai"]
# ///
"""Twenty questions: you ask, and the model of an OpenAI-compatible endpoint answers yes or no.

    .venv/bin/python examples/twenty_questions.py                         the endpoint of ./scripts/demo
    uv run examples/twenty_questions.py http://spark-1a2b.local:8000/v1   another one; its key in SPARK_API_KEY

A turn is a prompt of about a hundred tokens and a streamed answer of two: prefill, and hardly any decoding. The vLLM
team tried a DGX Spark with such a game (https://vllm.ai/blog/2026-06-01-vllm-dgx-spark). In another terminal,
`sparkcluster status INVENTORY --watch` shows what the engine does.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import time

try:
    import openai
except ModuleNotFoundError:
    sys.exit("error: the package openai is not installed\nhint: uv run examples/twenty_questions.py")

QUESTIONS = 20
SECRETS = {
    "cat": "a living animal with four legs, fur, whiskers and a tail, smaller than a person, which hunts mice",
    "bicycle": "a machine of metal with two wheels, pedals and a saddle, without an engine, which carries one person",
    "apple": "a fruit that grows on trees, round, red or green, sweet, small enough for a hand, eaten raw",
    "piano": "a musical instrument of wood with black and white keys and strings, heavier than a person",
    "moon": "a natural body of rock in the sky, round, far larger than a house, which shines at night",
}
RULES = """You are the host of a game of twenty questions. The secret is a {secret}: {facts}.
The player does not know it and asks about it. Answer the last question truthfully, with yes or no."""


def answer(client: openai.OpenAI, model: str, messages: list[dict[str, str]]) -> str:
    """Ask for the next answer, print it as it comes, and return it; what it took follows on the same line."""
    began, written, first_s, usage = time.monotonic(), "", 0.0, None
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        temperature=0,
        max_tokens=2048,  # of which a model that reasons needs most
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"structured_outputs": {"choice": ["yes", "no"]}},  # vLLM's own
    )
    for chunk in stream:
        usage = chunk.usage or usage
        text = chunk.choices[0].delta.content if chunk.choices else None
        if text:
            first_s = first_s or time.monotonic() - began
            written += text
            print(text, end="", flush=True)
    tokens = f"{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} output tokens, " if usage else ""
    print(f"   ({tokens}first after {first_s:.2f} s)")
    return written


def play(client: openai.OpenAI, secret: str) -> None:
    """Play one game on the terminal."""
    model = client.models.list().data[0].id
    print(f"Guess the secret: ask {model} yes-or-no questions; Ctrl-D ends the game")
    if model.startswith("smollm2-135m"):
        print("This model is too small to play well: it answers no to nearly every question")
    messages = [{"role": "system", "content": RULES.format(secret=secret, facts=SECRETS[secret])}]
    for number in range(1, QUESTIONS + 1):
        question = ""
        while not question:
            question = input(f"{number:2}> ").strip()
        if re.search(rf"\b{secret}\b", question.lower()):
            print(f"yes: the secret was {secret}, found with question {number}")
            return
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer(client, model, messages)})
    print(f"no questions left: the secret was {secret}")


def main() -> int:
    """Play: 0 played, 1 if the endpoint does not answer, 130 interrupted."""
    parser = argparse.ArgumentParser(description="twenty questions with the model of an OpenAI-compatible endpoint")
    parser.add_argument(
        "url",
        nargs="?",
        default="http://127.0.0.1:8000/v1",
        help="base URL of the endpoint (default: that of ./scripts/demo)",
    )
    parser.add_argument("--secret", choices=SECRETS, help="the secret (default: chosen at random)")
    given = parser.parse_args()
    secret = given.secret or random.choice(list(SECRETS))
    key = os.environ.get("SPARK_API_KEY") or "none"
    near = openai.DefaultHttpxClient(trust_env=False)  # on this network: a proxy would not reach it
    client = openai.OpenAI(base_url=given.url, api_key=key, max_retries=0, http_client=near)
    try:
        play(client, secret)
    except (EOFError, KeyboardInterrupt) as ended:
        print(f"\nthe secret was {secret}")
        return 0 if isinstance(ended, EOFError) else 130
    except openai.AuthenticationError:
        print(f"error: {given.url} rejected the API key\nhint: export SPARK_API_KEY=KEY", file=sys.stderr)
        return 1
    except openai.APIConnectionError:
        print(f"error: cannot reach {given.url}\nhint: ./scripts/demo serves at the default URL", file=sys.stderr)
        return 1
    except openai.OpenAIError as error:
        print(f"error: {given.url}: {error}\nhint: sparkcluster status INVENTORY", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
