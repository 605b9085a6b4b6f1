"""An engine for tests: answers /health after a while, and misbehaves when it is told to.

GET /arguments gives the command line and the environment, POST /crash ends the process with exit code 3.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--loading-answers", type=int, default=2, help="so many 503 before the first 200")
    parser.add_argument("--fail-with", type=int, help="end at once with this exit code")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--with-helper", action="store_true", help="start a process of its own and print its pid")
    return parser.parse_known_args()[0]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Handler(BaseHTTPRequestHandler):
    loading_answers = 0

    def do_GET(self) -> None:
        if self.path == "/health":
            loading = Handler.loading_answers > 0
            Handler.loading_answers -= 1
            self.answer(503 if loading else 200, {"status": "loading" if loading else "ok"})
        else:
            self.answer(200, {"argv": sys.argv, "env": dict(os.environ)})

    def do_POST(self) -> None:
        say("asked to crash")
        os._exit(3)

    def answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    given = options()
    say(f"stand-in {os.getpid()}")
    if given.fail_with is not None:
        say("no such checkpoint")
        sys.exit(given.fail_with)
    if given.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if given.with_helper:
        helper = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
        say(f"helper {helper.pid}")
    Handler.loading_answers = given.loading_answers
    ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
