"""Writes the gate's answer on a pull request, in place of the one from before: what the action runs.

Needs nothing but the standard library. Of the environment: GITHUB_API_URL, GITHUB_REPOSITORY, GITHUB_TOKEN,
and PULL_REQUEST, the number.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

# The first line of the answer: by it the comment from before is found. As in sme2_assets/gate/summary.py.
MARK = "<!-- sme2 gate -->"
PER_PAGE = 100
# What GitHub takes of a comment.
LONGEST = 65_000


def main() -> None:
    path = Path(sys.argv[1])
    if not path.is_file():
        sys.exit("There is no answer to write: the gate could not be run. Its own message says why.")
    text = path.read_text(encoding="utf-8")[:LONGEST]
    repository = f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    try:
        number = find_comment(f"{repository}/{int(os.environ['PULL_REQUEST'])}/comments")
        if number is None:
            ask("POST", f"{repository}/{int(os.environ['PULL_REQUEST'])}/comments", {"body": text})
        else:
            ask("PATCH", f"{repository}/comments/{number}", {"body": text})
    except urllib.error.HTTPError as error:
        # A pull request from a fork has a token that may only read: the answer is on the page of the job.
        print(f"::notice::The answer could not be written on the pull request: {error.code} {error.reason}.")


def find_comment(comments: str) -> int | None:
    page = 1
    while found := ask("GET", f"{comments}?per_page={PER_PAGE}&page={page}"):
        for each in found:
            if each["body"].startswith(MARK) and each["user"]["type"] == "Bot":
                return int(each["id"])
        page += 1
    return None


def ask(method: str, path: str, content: dict[str, str] | None = None) -> Any:
    request = urllib.request.Request(
        os.environ.get("GITHUB_API_URL", "https://api.github.com") + path,
        method=method,
        data=None if content is None else json.dumps(content).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
            "Accept": "application/vnd.github+json",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


if __name__ == "__main__":
    main()
