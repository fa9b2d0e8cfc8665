"""Who may use the UI: a real `sme2 dev`, real requests, and pages of another site in a real browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urljoin

import pytest
import websockets.exceptions
from playwright.sync_api import sync_playwright
from starlette.types import Scope
from websockets.sync.client import connect

from sme2_assets.defs.assets.guide import GUIDES
from sme2_assets.store import CHECKOUT
from sme2_assets.ui.guard import Guard
from sme2_assets_tests.browser import PATIENCE_MS
from sme2_assets_tests.servers import free_port

PAUSE = "mutation { setAutoMaterializePaused(paused: true) }"
IS_PAUSED = "{ instance { autoMaterializePaused } }"
RESUME = "mutation { setAutoMaterializePaused(paused: false) }"
JSON = {"Content-Type": "application/json"}
FOREIGN = "evil.example"
# A module in somebody's data folder; the program that imports it works on.
STRAY = """
import sys
open("{seen}", "a").write("imported")
here, sys.path = sys.path, [each for each in sys.path if each not in ("", sys.path[0])]
del sys.modules["click"]
import click
sys.path = here
"""


class Served:
    """A running `sme2 dev`, asked as the test says."""

    def __init__(self, port: int, data: Path, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.data = data
        self.process = process
        self.here = f"127.0.0.1:{port}"

    def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: str | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Host": self.here, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")

    def graphql(self, query: str, **headers: str) -> tuple[int, str]:
        return self.ask("POST", "/graphql", {**JSON, **headers}, json.dumps({"query": query}))

    def is_paused(self) -> bool:
        return bool(json.loads(self.graphql(IS_PAUSED)[1])["data"]["instance"]["autoMaterializePaused"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with begun(tmp_path_factory.mktemp("guarded")) as running:
        yield running


@contextlib.contextmanager
def begun(folder: Path) -> Iterator[Served]:
    """`sme2 dev` on a data folder of its own, in a group of processes of its own."""
    # Nothing to load: it is about the server alone.
    (folder / "empty.py").write_text("import dagster\ndefs = dagster.Definitions()\n")
    (folder / "workspace.yaml").write_text("load_from: [{python_file: empty.py}]\n")
    port = free_port()
    (folder / "data").mkdir()
    (folder / "data" / ".env").write_text("SME2_TRUST_MODELS=1\n")
    (folder / "data" / "click.py").write_text(STRAY.format(seen=folder / "seen"))
    command = [sys.executable, "-m", "sme2_assets.cli", "--data", str(folder / "data"), "dev"]
    command += [
        "--port",
        str(port),
        "--workspace",
        str(folder / "workspace.yaml"),
        "--allow-host",
        "lab.example",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        running, deadline = Served(port, folder / "data", process), time.monotonic() + 600
        while True:
            with contextlib.suppress(OSError):
                if running.graphql("{ version }")[0] == 200:
                    break
            assert time.monotonic() < deadline, (folder / "log").read_text()[-3000:]
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            time.sleep(0.3)
        running.graphql(RESUME)
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_programs_and_the_page_itself_are_served(served: Served):
    assert served.ask("GET", "/runs")[0] == 200
    assert served.ask("GET", "/graphql", {"Accept": "text/html"})[0] == 200
    assert served.graphql("{ version }")[0] == 200
    assert served.graphql("{ version }", Origin=f"http://{served.here}")[0] == 200
    for host in (
        "localhost",
        "localhost:8080",
        "[::1]:3000",
        "192.168.1.7:3000",
        "lab.example",
        "LAB.example:80",
    ):
        assert served.graphql("{ version }", Host=host)[0] == 200, host
    linked = {"Sec-Fetch-Site": "cross-site", "Accept": "text/html"}
    assert served.ask("GET", "/runs", linked)[0] == 200, "a link"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": FOREIGN}, 421),
        ({"Host": f"{FOREIGN}:3000", "Origin": f"http://{FOREIGN}:3000"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "localhost.evil.example"}, 421),
        ({"Host": "user@127.0.0.1@evil.example"}, 421),
        ({"Host": ""}, 421),
        ({"Host": "[::1"}, 421),
        ({"Origin": f"http://{FOREIGN}"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
    ids=str,
)
def test_a_request_of_another_site_changes_nothing(served: Served, headers: dict[str, str], status: int):
    assert served.graphql(PAUSE, **headers)[0] == status
    asked = f"/graphql?query={quote(PAUSE)}"
    assert served.ask("GET", asked, headers)[0] == status
    assert served.ask("POST", asked, {"Content-Type": "text/plain", **headers})[0] == status
    assert not served.is_paused()


def test_nothing_in_the_data_folder_is_taken_for_code_or_settings(served: Served):
    assert not (served.data.parent / "seen").exists()
    assert "environment variables" not in (served.data.parent / "log").read_text()


def test_no_page_of_another_site_shows_the_ui_within_itself(served: Served):
    framed = {"Sec-Fetch-Site": "cross-site", "Accept": "text/html", "Sec-Fetch-Dest": "iframe"}
    assert served.ask("GET", "/runs", framed)[0] == 403
    opened = {**framed, "Sec-Fetch-Dest": "document"}
    assert served.ask("GET", "/runs", opened)[0] == 200, "a link"
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)
    with contextlib.closing(connection):
        for path in ("/runs", "/graphql", "/sme2/docs/README.md"):
            # Also for a browser that does not tell what the page is for.
            connection.request("GET", path, headers={"Host": served.here, "Accept": "text/html"})
            answer = connection.getresponse()
            answer.read()
            assert answer.getheader("X-Frame-Options") == "SAMEORIGIN", path
            assert "frame-ancestors 'self'" in answer.getheader("Content-Security-Policy", ""), path


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_what_a_page_can_send_without_being_asked_is_no_query(served: Served, method: str):
    """Of a browser too old to say where a request comes from."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "text/plain; application/json"):
        asked = f"/graphql?query={quote(PAUSE)}"
        assert served.ask(method, asked, {"Content-Type": kind})[0] == 405
    assert not served.is_paused()


def test_web_sockets_are_for_pages_of_the_ui(served: Served):
    def answers(origin: str | None, host: str = served.here) -> bool:
        with socket.create_connection(("127.0.0.1", served.port)) as line:
            address = f"ws://{host}/graphql"
            with connect(  # type: ignore[call-overload]
                address, sock=line, origin=origin, subprotocols=["graphql-ws"], open_timeout=None
            ) as channel:
                channel.send('{"type": "connection_init"}')
                return json.loads(channel.recv())["type"] == "connection_ack"

    assert answers(f"http://{served.here}")
    assert answers(None), "a program"
    for origin, host in ((f"http://{FOREIGN}", served.here), ("null", served.here), (None, FOREIGN)):
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            answers(origin, host)
        assert refused.value.response.status_code == 403


@pytest.fixture(scope="module")
def report(served: Served) -> str:
    """The path of a page under which reports are shown; its script wants to use the UI."""
    folder = served.data / "reports" / "toy_cnn-fp32" / "emulated"
    folder.mkdir(parents=True)
    script = ATTACK.replace("TARGET", served.here).replace("MUTATION", json.dumps(PAUSE))
    (folder / "report.html").write_text(f"<title>a report</title>{script}")
    (folder / "outside.html").symlink_to(served.data.parent / "log")
    (served.data / "reports" / "index.html").write_text("<title>all models</title>")
    return "/sme2/reports/toy_cnn-fp32/emulated/report.html"


def test_reports_open_beside_the_ui_and_nothing_else_of_the_disk(served: Served, report: str):
    assert "a report" in served.ask("GET", report)[1]
    assert "all models" in served.ask("GET", "/sme2/reports/")[1]
    for path in (
        "/sme2/reports/missing.html",
        "/sme2/reports/toy_cnn-fp32",
        "/sme2/reports/toy_cnn-fp32/emulated/outside.html",
        "/sme2/reports/%2e%2e/dagster_home/dagster.yaml",
        "/sme2/reports/..%2f..%2flog",
        "/sme2/reports//etc/passwd",
        "/sme2/docs/..%2fpyproject.toml",
        "/sme2/docs/..%2fREADME.md",
        "/sme2/reports/%00.html",
        "/sme2/docs/%00.md",
    ):
        status, text = served.ask("GET", path)
        assert status == 404, path
        assert "There is no such" in text


def test_every_asset_leads_to_a_section_of_a_page_that_opens(served: Served):
    for guide in GUIDES.values():
        address = re.findall(r"\]\((.*)\)", guide.link("/sme2"))[0]
        path, _, anchor = address.partition("#")
        status, text = served.ask("GET", path)
        assert status == 200, path
        assert f'id="{anchor}"' in text, address


@pytest.mark.thorough
def test_every_document_is_a_page_whose_links_open(served: Served, report: str):
    for page in (CHECKOUT / "docs").glob("*.md"):
        address = f"/sme2/docs/{page.name}"
        status, text = served.ask("GET", address)
        assert status == 200
        links = set(re.findall(r'(?:href|src)="(?!https?:)([^"#]+)', text))
        assert all(served.ask("GET", urljoin(address, link))[0] == 200 for link in links), (page, links)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": FOREIGN}, 421),
        ({"Origin": f"http://{FOREIGN}"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
    ids=str,
)
def test_pages_beside_the_ui_are_guarded_like_it(
    served: Served, report: str, headers: dict[str, str], status: int
):
    assert served.ask("GET", report, headers)[0] == status
    assert served.ask("GET", "/sme2/docs/README.md", headers)[0] == status


ATTACK = """<body><script>
const target = "http://TARGET", mutation = MUTATION, said = [];
const get = target + "/graphql?query=" + encodeURIComponent(mutation);
const body = JSON.stringify({query: mutation});
const tried = [
  new Promise(done => { const image = new Image(); image.onload = image.onerror = done; image.src = get; }),
  fetch(get, {mode: "no-cors"}).catch(() => 0),
  fetch(get, {method: "POST", mode: "no-cors"}).catch(() => 0),
  fetch(target + "/graphql", {method: "POST", mode: "no-cors", body}).catch(() => 0),
  fetch(target + "/graphql", {method: "POST", headers: {"Content-Type": "application/json"}, body})
    .then(() => said.push("fetch"), () => 0),
  new Promise(done => {
    const channel = new WebSocket("ws://TARGET/graphql", "graphql-ws");
    channel.onopen = () => { said.push("socket"); done(); };
    channel.onerror = done;
  }),
];
Promise.all(tried).then(() => { document.title = "done " + said.join(","); });
</script>"""


@pytest.mark.thorough
def test_a_hostile_page_in_a_real_browser_gets_nowhere(served: Served, report: str, chromium):
    program, variables = chromium
    page_text = ATTACK.replace("TARGET", served.here).replace("MUTATION", json.dumps(PAUSE))

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page_text.encode())

        def log_message(self, *_: object) -> None:
            pass

    other = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    with sync_playwright() as playwright, contextlib.closing(other.socket):
        # The name of the other site points to this machine, as one does that was rebound.
        rules = f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1"
        browser = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", rules],
            env={**os.environ, **variables},
            timeout=PATIENCE_MS,
        )
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        for site in (FOREIGN, "localhost"):
            page.goto(f"http://{site}:{other.server_port}/")
            page.wait_for_function("document.title.startsWith('done')")
            assert page.title() == "done", "a page of another site was answered"
            assert not served.is_paused()
        rebound = page.goto(f"http://{FOREIGN}:{served.port}/")
        assert rebound is not None
        assert rebound.status == 421
        assert "--allow-host" in page.inner_text("body")

        # Nor does what got into a report, though its page comes from the same server.
        page.goto(f"http://{served.here}{report}")
        page.wait_for_function("document.title.startsWith('done')")
        assert page.title() == "done", "a report was answered as if it were the UI"
        assert not served.is_paused()

        # A document is read with its pictures, and leads on.
        page.goto(f"http://{served.here}/sme2/docs/reports.md")
        page.wait_for_function(
            "[...document.images].length && [...document.images].every(it => it.naturalWidth)"
        )
        page.get_by_text("All documents").click()
        page.wait_for_url("**/sme2/docs/README.md")

        # A folder in which nothing was measured begins with the guide.
        page.goto(f"http://{served.here}/")
        page.get_by_role("heading", name="The UI in five clicks").wait_for()

        # And the UI itself works in the same browser, its socket included.
        sockets: list[str] = []
        page.on("websocket", lambda channel: sockets.append(channel.url))
        page.goto(f"http://localhost:{served.port}/runs")
        page.get_by_text("Runs").first.wait_for()
        answer = page.evaluate(
            "fetch('/graphql', {method: 'POST', headers: {'Content-Type': 'application/json'},"
            " body: JSON.stringify({query: '{ version }'})}).then(a => a.status)"
        )
        assert answer == 200
        opened = page.evaluate(
            "new Promise(done => { const it = new WebSocket(`ws://${location.host}/graphql`, 'graphql-ws');"
            " it.onopen = () => done(true); it.onerror = () => done(false); })"
        )
        assert opened
        browser.close()
    other.shutdown()


def test_servers_end_with_a_killed_dev_and_until_then_say_only_where_they_are(tmp_path: Path):
    with begun(tmp_path) as running:
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        deadline = time.monotonic() + 600
        while is_there(running.process.pid) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not is_there(running.process.pid), "a server is left"
    said = (tmp_path / "log").read_text()
    assert running.here in said
    assert "INFO" not in said, "each tick of a sensor would be a line"


def is_there(group: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def refusal_of(*hosts: str) -> tuple[int, str] | None:
    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [(b"host", host.encode()) for host in hosts],
    }
    return Guard(lambda *_: None, names=["lab.example"]).refusal(scope)  # type: ignore[arg-type, return-value]


def test_two_hosts_in_one_request_are_none():
    refusal = refusal_of("localhost", FOREIGN)
    assert refusal is not None
    assert refusal[0] == 421


@pytest.mark.parametrize(
    "place", ["127.0.0.1", "127.0.0.1:3000", "[::1]:3000", "Lab.example", "localhost:80"]
)
def test_a_host_is_an_address_or_a_name_of_ours_and_nothing_around_it(place: str):
    assert refusal_of(place) is None
    for odd in (
        f"evil@{place}",
        f"evil:secret@{place}",
        f"@{place}",
        f"{place}/evil.example",
        f"{place}?evil.example",
        f"{place}#evil.example",
        f"{place}\\@evil.example",
        f" {place}",
        f"{place} ",
        f"{place}:3000:3000",
    ):
        refusal = refusal_of(odd)
        assert refusal is not None, odd
        assert refusal[0] == 421, odd
