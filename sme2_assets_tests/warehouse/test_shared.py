"""A store that machines share: over a folder and over an S3 server alike."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import dagster as dg
import duckdb
import fsspec
import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.defs.jobs import compare_job, regressions_job
from sme2_assets.defs.partitions import MODEL_VARIANTS, pair_key
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.sequence import next_number
from sme2_assets.evidence.shared import SharedStore
from sme2_assets.launch import Jobs
from sme2_assets.store import Store, sha256_of_file
from sme2_assets.warehouse.check import check_store
from sme2_assets.warehouse.shared import CURRENT, catch_up, give, publish_shared
from sme2_assets.warehouse.store import Warehouse
from sme2_assets_tests.made.run_folder import MadeRun
from sme2_assets_tests.servers import BUCKET

# The other tests meet the server in `make test-all`.
BOTH = pytest.mark.parametrize("shared_url", ["file", "s3"], indirect=True)


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.thorough)])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty shared store: a folder, and a bucket of a server."""
    if request.param == "file":
        url = f"file://{tmp_path}/store"
    else:
        for name, value in request.getfixturevalue("s3").items():
            monkeypatch.setenv(name, value)
        url = f"s3://{BUCKET}/{tmp_path.name}"
    monkeypatch.setenv("SME2_STORE", url)
    return url


def silent(_: str) -> None: ...


def session(number: int) -> MadeRun:
    return MadeRun(session_id=f"20260101T{number:06d}-aaaaaa", sequence=number, rounds=1, iterations=1)


def measured(store: Store, number: int) -> MadeRun:
    """A pair as a session leaves it."""
    off = session(number)
    for run in (off, replace(off, sme2="on")):
        run.write(store.runs)
    return off


def shared(store: Store) -> SharedStore:
    found = SharedStore.of(store)
    assert found is not None
    return found


def sessions_in(store: Store) -> list[str]:
    rows = Warehouse(store.warehouse).query("SELECT session_id FROM runs ORDER BY run_id")
    return rows["session_id"].tolist()


@BOTH
def test_what_one_machine_measured_is_in_the_tables_of_another_once(shared_url: str, tmp_path: Path):
    one, two, reader = (Store(tmp_path / name) for name in ("one", "two", "reader"))
    pairs = [measured(one, 1), measured(two, 2)]
    for store in (one, two, one, two):
        catch_up(store, silent)
    assert catch_up(reader, silent).refused == {}
    assert sessions_in(reader) == [run.session_id for run in pairs for _ in range(2)]
    assert catch_up(reader, silent).folders == [], "what is here is not fetched again"
    for run in pairs:
        source = one if run.session_id == pairs[0].session_id else two
        there, here = source.run_dir(run.run_id), reader.run_dir(run.run_id)
        names = sorted(path.relative_to(there) for path in there.rglob("*") if path.is_file())
        assert names == sorted(path.relative_to(here) for path in here.rglob("*") if path.is_file())
        assert all((there / name).read_bytes() == (here / name).read_bytes() for name in names)


@pytest.mark.thorough
def test_a_session_that_was_given_twice_is_taken_once(shared_url: str, tmp_path: Path):
    """As by a machine that died after its entry was there and before it had noted that."""
    one, reader = Store(tmp_path / "one"), Store(tmp_path / "reader")
    off = measured(one, 1)
    catch_up(one, silent)
    shutil.rmtree(one.root / "shared")
    shared(one).push(one.runs, silent)
    assert shared(one)._end() == 3, "there are two entries"
    catch_up(reader, silent)
    assert sessions_in(reader) == [off.session_id] * 2


def test_what_was_removed_here_does_not_come_back(shared_url: str, tmp_path: Path):
    one, reader = Store(tmp_path / "one"), Store(tmp_path / "reader")
    off = measured(one, 1)
    catch_up(one, silent)
    catch_up(reader, silent)
    for path in list(reader.runs.iterdir()):
        shutil.rmtree(path)
    shutil.rmtree(one.root / "shared")
    shared(one).push(one.runs, silent)
    assert catch_up(reader, silent).folders == [], "not even where it was given twice"
    shutil.rmtree(reader.root / "shared")
    assert len(catch_up(reader, silent).folders) == 1
    assert sessions_in(reader) == [off.session_id] * 2


def test_numbers_of_two_machines_are_in_the_order_of_what_they_could_see(shared_url: str, tmp_path: Path):
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    measured(one, 70)
    catch_up(one, silent)
    shared(two).count_on(two.runs)
    assert next_number(two.runs) == 71
    measured(two, 71)
    catch_up(two, silent)
    measured(one, 3)
    catch_up(one, silent)
    assert shared(two).newest() == 71, "a later entry with a smaller number hides no larger one"


@pytest.mark.thorough
def test_many_machines_at_once_never_share_a_place_in_the_log(shared_url: str, tmp_path: Path):
    stores = [Store(tmp_path / f"machine{number}") for number in range(6)]
    for number, store in enumerate(stores):
        measured(store, number)
        measured(store, number + 100)
    with ThreadPoolExecutor(6) as together:
        list(together.map(lambda store: shared(store).push(store.runs, silent), stores))
    reader = Store(tmp_path / "reader")
    assert shared(reader)._end() == 13
    catch_up(reader, silent)
    assert sorted(set(sessions_in(reader))) == sorted(
        session(number + more).session_id for number in range(6) for more in (0, 100)
    )


@pytest.mark.parametrize("fault", ["changed", pytest.param("missing", marks=pytest.mark.thorough)])
def test_one_damaged_object_costs_its_own_session_until_it_is_mended(
    shared_url: str, tmp_path: Path, fault: str
):
    one, reader = Store(tmp_path / "one"), Store(tmp_path / "reader")
    first, second = measured(one, 1), measured(one, 2)
    catch_up(one, silent)
    fs, root = fsspec.core.url_to_fs(shared_url, use_listings_cache=False)
    [name] = [it for it in fs.find(f"{root}/runs") if first.run_id in it]
    whole = fs.cat_file(name)
    if fault == "changed":
        fs.pipe_file(name, whole[:-2] + b"##")
    else:
        fs.rm_file(name)
    pulled = catch_up(reader, silent)
    [error] = pulled.refused.values()
    assert first.run_id in error.what
    assert sessions_in(reader) == [second.session_id] * 2
    assert [path.name for path in reader.runs.iterdir() if first.session_id in path.name] == []
    fs.pipe_file(name, whole)
    assert catch_up(reader, silent).refused == {}
    assert sessions_in(reader) == sorted([first.session_id] * 2 + [second.session_id] * 2)


def test_a_lost_entry_is_named_and_costs_its_own_session_only(shared_url: str, tmp_path: Path):
    one, reader = Store(tmp_path / "one"), Store(tmp_path / "reader")
    pairs = [measured(one, number) for number in (1, 2, 3)]
    catch_up(one, silent)
    there = shared(one)
    entry = there.fs.cat_file(there._name(2))
    there.fs.rm_file(there._name(2))
    for _ in range(2):
        [error] = catch_up(reader, silent).refused.values()
        assert "0000000002.json is missing" in error.what
    assert sessions_in(reader) == [pairs[0].session_id] * 2 + [pairs[2].session_id] * 2
    assert ["0000000002.json is missing" in found.what for found in check_store(reader, silent)] == [True]
    there.fs.pipe_file(there._name(2), entry)
    assert catch_up(reader, silent).refused == {}
    assert sessions_in(reader) == [run.session_id for run in pairs for _ in range(2)]


def test_the_number_of_a_lost_entry_is_not_given_away(shared_url: str, tmp_path: Path):
    one, reader, new = (Store(tmp_path / name) for name in ("one", "reader", "new"))
    for number in (1, 2, 3):
        measured(one, number)
    for store in (one, reader):
        catch_up(store, silent)
    shared(one).fs.rm_file(shared(one)._name(2))
    measured(new, 4)
    shared(new).push(new.runs, silent)
    assert shared(new)._end() == 5
    assert shared(new).newest() == 4
    assert len(catch_up(reader, silent).folders) == 1


@pytest.mark.thorough
def test_an_entry_that_took_the_place_of_the_last_one_is_read(shared_url: str, tmp_path: Path):
    """A machine that has never seen the lost one cannot know that its number was taken."""
    one, reader, new = (Store(tmp_path / name) for name in ("one", "reader", "new"))
    for number in (1, 2):
        measured(one, number)
    for store in (one, reader):
        catch_up(store, silent)
    shared(one).fs.rm_file(shared(one)._name(2))
    assert ["0000000002.json is missing" in found.what for found in check_store(reader, silent)] == [True]
    measured(new, 3)
    shared(new).push(new.runs, silent)
    assert shared(new)._end() == 3
    assert len(catch_up(reader, silent).folders) == 1


@pytest.mark.thorough
def test_a_damaged_entry_that_is_removed_does_not_stop_those_after_it(shared_url: str, tmp_path: Path):
    one, reader = Store(tmp_path / "one"), Store(tmp_path / "reader")
    for number in (1, 2, 3):
        measured(one, number)
    catch_up(one, silent)
    there = shared(one)
    there.fs.pipe_file(there._name(2), b"garbage")
    assert len(catch_up(reader, silent).refused) == 1
    there.fs.rm_file(there._name(2))
    last = measured(one, 4)
    catch_up(one, silent)
    pulled = catch_up(reader, silent)
    assert [folder.name for folder in pulled.folders] == [last.run_id]
    assert [Path(name).name for name in pulled.refused] == ["0000000002.json"]


@pytest.mark.parametrize("had_id", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_store_that_was_emptied_gets_everything_again(shared_url: str, tmp_path: Path, had_id: bool):
    one, reader = Store(tmp_path / "one"), Store(tmp_path / "reader")
    pairs = [measured(one, 1), measured(one, 2)]
    for store in (one, reader):
        catch_up(store, silent)
        if not had_id:
            (shared(store).here / "store_id").unlink()
    publish_shared(reader, silent)
    there = shared(one)
    there.fs.rm(there.root, recursive=True)
    [finding] = check_store(reader, silent)
    assert "was emptied or made again" in finding.what
    # Without an id, only whoever comes first can tell that the log is not the one it knew.
    for store in (one, reader) if had_id else (reader, one):
        assert catch_up(store, silent).refused == {}
    publish_shared(reader, silent)
    assert list(check_store(reader, silent)) == []
    fresh = Store(tmp_path / "fresh")
    catch_up(fresh, silent)
    assert sessions_in(fresh) == sessions_in(reader) == [run.session_id for run in pairs for _ in range(2)]


@pytest.mark.thorough
@pytest.mark.parametrize("lost_by", ["all", "the store"])
def test_a_store_without_an_id_is_known_by_its_log(shared_url: str, tmp_path: Path, lost_by: str):
    """As those of earlier releases are; the next session that is given brings one."""
    one, reader = Store(tmp_path / "one"), Store(tmp_path / "reader")
    measured(one, 1)
    for store in (one, reader):
        catch_up(store, silent)
        if lost_by == "all":
            (shared(store).here / "store_id").unlink()
    there = shared(one)
    there.fs.rm_file(f"{there.root}/store_id")
    for store in (one, reader):
        assert catch_up(store, silent).folders == []
    assert not there.fs.exists(f"{there.root}/store_id"), "whoever gives nothing writes nothing"
    measured(one, 2)
    assert shared(one).push(one.runs, silent) != []
    assert len(catch_up(reader, silent).folders) == 1
    assert shared(reader)._end() == 3, "nothing was given twice"
    assert shared(one)._noted_id() == shared(reader)._noted_id() == there._id_there()


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"position": "x", "again": []}'])
def test_damaged_notes_count_as_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str):
    monkeypatch.setenv("SME2_STORE", f"file://{tmp_path}/store")
    one, reader = Store(tmp_path / "one"), Store(tmp_path / "reader")
    measured(one, 1)
    for store in (one, reader):
        catch_up(store, silent)
        (shared(store).here / "state.json").write_text(state)
        (shared(store).here / "end").write_text("")
    measured(one, 2)
    assert catch_up(one, silent).refused == {}
    assert len(catch_up(reader, silent).folders) == 1


def test_a_check_reads_the_evidence_in_the_store_too(shared_url: str, tmp_path: Path):
    one, reader = Store(tmp_path / "one"), Store(tmp_path / "reader")
    for number in (1, 2, 3):
        measured(one, number)
    catch_up(one, silent)
    catch_up(reader, silent)
    assert list(check_store(reader, silent)) == []
    there = shared(reader)
    archives = sorted(there.fs.find(f"{there.root}/runs"))
    content = bytearray(there.fs.cat_file(archives[0]))
    content[len(content) // 2] ^= 1
    there.fs.pipe_file(archives[0], bytes(content))
    there.fs.rm_file(archives[3])
    there.fs.pipe_file(there._name(3), b"{}")
    found = [finding.what for finding in check_store(reader, silent)]
    names = [Path(archives[0]).name, Path(archives[3]).name, "0000000003.json"]
    assert [name in what for name, what in zip(names, found, strict=True)] == [True] * 3


def test_an_entry_that_leads_out_of_the_folder_is_refused(shared_url: str, tmp_path: Path):
    reader = Store(tmp_path / "reader")
    there = shared(reader)
    packed = tmp_path / "packed"
    hostile = [
        ("../../evil", tarfile.REGTYPE),
        ("/tmp/sme2-evil", tarfile.REGTYPE),
        ("evil", tarfile.SYMTYPE),
    ]
    runs = [("../../evil", "runs/a"), ("run", "../../evil")] + [("run", f"runs/{n}") for n in range(3)]
    for number, (name, kind) in enumerate(hostile):
        with tarfile.open(packed, "w:gz") as archive:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member, io.BytesIO())
        there.put(packed, f"runs/{number}")
    for number, (run_id, archived) in enumerate(runs, start=1):
        run = {"archive": archived, "sha256": sha256_of_file(packed), "evidence": "0" * 64}
        if archived.startswith("runs/") and archived != "runs/a":
            fs, root = there.fs, there.root
            run["sha256"] = hashlib.sha256(fs.cat_file(f"{root}/{archived}")).hexdigest()
        entry = json.dumps({"schema": 1, "sequence": 0, "runs": {run_id: run}}).encode()
        there.create(there._name(number), entry)
    told = [error.what for error in catch_up(reader, silent).refused.values()]
    assert len(told) == len(runs)
    assert sum("is not the archive of a run" in text for text in told) == len(hostile)
    assert not Path("/tmp/sme2-evil").exists()
    assert not [path for path in tmp_path.rglob("*evil*") if "store" not in str(path)]


def put_entry(there: SharedStore, number: int, archive: bytes) -> None:
    """An entry that is in order, with whatever archive."""
    name, sha256 = f"runs/{number}", hashlib.sha256(archive).hexdigest()
    there.fs.makedirs(f"{there.root}/runs", exist_ok=True)
    there.fs.pipe_file(f"{there.root}/{name}", archive)
    run = {"archive": name, "sha256": sha256, "evidence": "0" * 64}
    content = json.dumps({"schema": 1, "sequence": 0, "runs": {f"run-{number}": run}}).encode()
    there.create(there._name(number), content)


def archive_of(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return made.getvalue()


def test_an_archive_that_is_none_costs_its_own_session_only(shared_url: str, tmp_path: Path):
    one, reader = Store(tmp_path / "one"), Store(tmp_path / "reader")
    first = measured(one, 1)
    catch_up(one, silent)
    whole = archive_of("a" * 50)
    hostile = [
        b"no gzip",
        whole[:-12],
        whole[:20] + b"####" + whole[24:],
        b"",
        gzip.compress(b"no tar" * 999),
        archive_of("a", "a"),
        archive_of("a", "a/b"),
        archive_of("x" * 300),
        archive_of("a\0b"),
    ]
    for number, archive in enumerate(hostile, start=2):
        put_entry(shared(one), number, archive)
    measured(one, 2)
    catch_up(one, silent)
    pulled = catch_up(reader, silent)
    assert len(pulled.folders) == 2
    assert sessions_in(reader)[0] == first.session_id
    told = [error.what for error in pulled.refused.values()]
    assert [f"runs/{number}" in what for number, what in enumerate(told, start=2)] == [True] * len(hostile), (
        told
    )
    assert not list(reader.runs.glob("run-*"))
    assert sorted(catch_up(reader, silent).refused) == sorted(pulled.refused), "they are tried again"


def test_a_folder_in_the_place_of_an_object_costs_its_own_session_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SME2_STORE", f"file://{tmp_path}/store")
    one, reader = Store(tmp_path / "one"), Store(tmp_path / "reader")
    there = shared(one)
    Path(there._name(1), "inner").mkdir(parents=True)
    put_entry(there, 2, b"")
    Path(there.root, "runs/2").unlink()
    Path(there.root, "runs/2").mkdir()
    off = measured(one, 1)
    assert len(catch_up(one, silent).refused) == 2
    pulled = catch_up(reader, silent)
    assert [Path(name).name for name in pulled.refused] == ["0000000001.json", "0000000002.json"]
    assert sessions_in(reader) == [off.session_id] * 2
    assert len(list(check_store(reader, silent))) == 2


def test_a_link_in_a_run_folder_is_not_followed_into_the_store(shared_url: str, tmp_path: Path):
    one = Store(tmp_path / "one")
    off, other = measured(one, 1), measured(one, 2)
    (tmp_path / "secret").write_text("private")
    (one.run_dir(off.run_id) / "id_rsa").symlink_to(tmp_path / "secret")
    lines: list[str] = []
    given = shared(one).push(one.runs, lines.append)
    assert {other.session_id} == {run_id[: len(other.session_id)] for run_id in given}
    assert any("is not shared" in line and "id_rsa is a symbolic link" in line for line in lines), lines


@pytest.mark.parametrize("fault", ["truncated", "list", "none", "binary"])
def test_a_damaged_list_of_published_files_is_written_anew(shared_url: str, tmp_path: Path, fault: str):
    one = Store(tmp_path / "one")
    measured(one, 1)
    catch_up(one, silent)
    there = shared(one)
    content = {
        "truncated": '{"files": ["publis',
        "list": "[]",
        "none": '{"files": null}',
        "binary": "\x00\xff",
    }[fault]
    there.fs.pipe_file(f"{there.root}/{CURRENT}", content.encode("latin1"))
    lines: list[str] = []
    address = publish_shared(one, lines.append)
    files = json.loads(there.fs.cat_file(f"{there.root}/{CURRENT}"))["files"]
    assert [address] == [f"{shared_url}/{name}" for name in files]
    assert any(CURRENT in line for line in lines), lines


def test_evidence_that_was_changed_is_not_shared(shared_url: str, tmp_path: Path):
    one = Store(tmp_path / "one")
    off = measured(one, 1)
    (one.run_dir(off.run_id) / "operators.json").write_text("{}")
    lines: list[str] = []
    assert shared(one).push(one.runs, lines.append) == []
    assert any("is not shared" in line and "content changed" in line for line in lines), lines
    assert shared(one)._end() == 1


def test_people_open_the_published_file_from_the_store_with_any_client(shared_url: str, tmp_path: Path):
    one, publisher = Store(tmp_path / "one"), Store(tmp_path / "publisher")
    for number in range(1, 8):
        measured(one, number)
        give(one, silent)
        catch_up(publisher, silent)
        address = publish_shared(publisher, silent)
    expected = Warehouse(publisher.warehouse).query("SELECT count(*) AS n FROM timeline")["n"].iloc[0]
    fs, root = fsspec.core.url_to_fs(shared_url, use_listings_cache=False)
    files = json.loads(fs.cat_file(f"{root}/{CURRENT}"))["files"]
    assert address == f"{shared_url}/{files[0]}"
    assert sorted(fs.find(f"{root}/published")) == sorted(f"{root}/{name}" for name in files)
    assert len(files) == 5, "older ones go"
    shutil.rmtree(publisher.root)
    shutil.rmtree(one.root)
    for name, sessions in zip(files, (7, 6, 5, 4, 3), strict=True):
        fs.get_file(f"{root}/{name}", str(tmp_path / "mine.duckdb"))
        with duckdb.connect(str(tmp_path / "mine.duckdb"), read_only=True) as connection:
            connection.register_filesystem(fs)
            [[runs]] = connection.execute("SELECT count(*) FROM runs").fetchall()
            [[events]] = connection.execute("SELECT count(*) FROM timeline").fetchall()
        assert (runs, events) == (2 * sessions, expected * sessions // 7)


def test_what_was_measured_elsewhere_is_compared_and_reported_here(shared_url: str, tmp_path: Path):
    """As the worker `lab` does after a session of another one."""
    one, lab = Store(tmp_path / "one"), Lab(data_root=str(tmp_path / "lab"))
    off = measured(one, 1)
    give(one, silent)
    with dg.instance_for_test() as instance:
        instance.add_dynamic_partitions(MODEL_VARIANTS, [off.variant])
        jobs = Jobs(lab, instance, silent)
        asked = {"sme2_comparison": {"config": {"session": off.session_id}}}
        jobs.run(compare_job.name, [pair_key(off.variant, off.platform)], asked)
        jobs.run(regressions_job.name)
    compared = lab.warehouse.query("SELECT session_id FROM comparisons WHERE level = 'model'")
    assert compared["session_id"].tolist() == [off.session_id]
    assert list((lab.store.reports / off.variant).rglob("report.md"))


@BOTH
def test_the_command_line_exchanges_and_publishes(shared_url: str, tmp_path: Path):
    one, mine = Store(tmp_path / "one"), tmp_path / "mine"
    off = measured(one, 1)
    catch_up(one, silent)
    done = CliRunner().invoke(main, ["--data", str(mine), "warehouse", "sync", "--publish", "--json"])
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (len(told["taken"]), told["compared"]) == (2, [off.session_id])
    fs, root = fsspec.core.url_to_fs(shared_url, use_listings_cache=False)
    assert fs.exists(f"{root}/{CURRENT}")


def test_without_a_shared_store_nothing_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SME2_STORE", raising=False)
    done = CliRunner().invoke(main, ["--data", str(tmp_path), "warehouse", "sync", "--publish"])
    assert done.exit_code == 1
    assert "Set SME2_STORE" in done.stderr


def test_a_store_that_does_not_answer_is_named_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = Store(tmp_path / "one")
    measured(one, 1)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("SME2_STORE", "s3://nowhere/lab")
    with pytest.raises(Sme2Error, match="s3://nowhere/lab does not answer") as caught:
        catch_up(one, silent)
    assert "sme2 warehouse sync" in str(caught.value.remedy)
    monkeypatch.setenv("SME2_STORE", f"file://{tmp_path}/store")
    catch_up(one, silent)
    assert shared(one)._end() == 2
    monkeypatch.setenv("SME2_STORE", "nonsense://x")
    with pytest.raises(Sme2Error, match="cannot be opened"):
        catch_up(one, silent)
