"""The trace for the Perfetto UI, read by its published messages: no nanosecond is lost or there twice."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from sme2_assets.evidence.folder import TRACE_FILE
from sme2_assets.evidence.foreign import Facts
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.exchange.ingest import ingest_paths
from sme2_assets.exchange.perfetto import faults_of_trace, read_packets, write_trace
from sme2_assets.exchange.slices import Process, shown
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import run_of_id
from sme2_assets_tests.exchange.measured_pair import Exported
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.made.traces import Delegate, inference, trace_bytes
from sme2_assets_tests.warehouse.conftest import paired, real_run, real_warehouse
from sme2_assets_tests.warehouse.newest import newest_run

__all__ = ["paired", "real_run", "real_warehouse"]

KERNELS = ", kernels pass (sampled)"


@dataclass(frozen=True)
class Read:
    """A trace as the schema's documentation tells a reader to understand it."""

    tracks: dict[int, Any]
    slices: pd.DataFrame
    counters: pd.DataFrame

    def track(self, *names: str) -> int:
        """The track with this path below the root."""
        [uuid] = [uuid for uuid in self.tracks if self.path(uuid)[1:] == names]
        return uuid

    def path(self, uuid: int) -> tuple[str, ...]:
        track = self.tracks[uuid]
        return (*(self.path(track.parent_uuid) if track.parent_uuid else ()), track.name)

    def of(self, *names: str) -> pd.DataFrame:
        return self.slices[self.slices["track"] == self.track(*names)]


def read_trace(path: Path) -> Read:
    """By `Trace`, the whole file at once. Texts are numbered by the packets of a sequence, in their order."""
    texts: dict[tuple[str, int], str] = {}
    tracks: dict[int, Any] = {}
    opened: dict[int, list[dict[str, Any]]] = {}
    slices: list[dict[str, Any]] = []
    counters = []
    for number, packet in enumerate(Trace.FromString(path.read_bytes()).packet):
        cleared = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        assert bool(packet.sequence_flags & cleared) == (number == 0)
        assert packet.trusted_packet_sequence_id == 1
        for field, entries in packet.interned_data.ListFields():
            for entry in entries:
                assert (field.name, entry.iid) not in texts, "a number is given twice"
                texts[field.name, entry.iid] = entry.str.decode() if hasattr(entry, "str") else entry.name
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        told = {texts["debug_annotation_names", it.name_iid]: it for it in event.debug_annotations}
        stack = opened.setdefault(event.track_uuid, [])
        if event.type == TrackEvent.TYPE_COUNTER:
            counters.append((event.track_uuid, packet.timestamp, event.double_counter_value))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            stack[-1]["length"] = packet.timestamp - stack[-1]["start"]
            slices.append(stack.pop())
        else:
            row = {
                "track": event.track_uuid,
                "name": texts["event_names", event.name_iid],
                "cat": texts["event_categories", event.category_iids[0]],
                "start": packet.timestamp,
                "flow": event.flow_ids[0] if event.flow_ids else None,
                **{name: _value(annotation, texts) for name, annotation in told.items()},
            }
            if event.type == TrackEvent.TYPE_INSTANT:
                slices.append({**row, "length": 0})
            else:
                stack.append(row)
    assert not any(opened.values()), "a slice has no end"
    return Read(tracks, pd.DataFrame(slices), pd.DataFrame(counters, columns=["track", "at", "value"]))


def _value(annotation: Any, texts: dict[tuple[str, int], str]) -> Any:
    kind = annotation.WhichOneof("value")
    value = getattr(annotation, kind)
    return texts["debug_annotation_string_values", value] if kind == "string_value_iid" else value


@pytest.fixture(scope="module")
def trace_file(pair_files: Exported) -> Path:
    return pair_files.folder / "toy_cnn_xnnpack_fp32.pftrace"


@pytest.fixture(scope="module")
def trace(trace_file: Path) -> Read:
    return read_trace(trace_file)


def faults_of(path: Path) -> list[str]:
    return faults_of_trace(read_packets(path))[1]


def check_against_timeline(warehouse: Warehouse, run_id: str, drawn: pd.DataFrame) -> None:
    """Slices of one arm's etdump pass against its timeline, inference by inference."""
    wholes = drawn[drawn["cat"] == "inference"]
    assert len(wholes)
    for _, whole in wholes.iterrows():
        inside = drawn[
            (drawn["start"] >= whole["start"])
            & (drawn["start"] + drawn["length"] <= whole["start"] + whole["length"])
            & drawn["cat"].isin(["operator", "delegate_overhead", "framework_overhead"])
        ]
        assert inside["length"].sum() == whole["length"], "a nanosecond is in no slice, or in two"
        measured = warehouse.query(
            "SELECT kind, delegate, position, name, coalesce(duration_ns, emulated_ns) AS duration_ns "
            "FROM timeline WHERE run_id = ? AND round = ? AND iteration = ?",
            [run_id, int(whole["round"]), int(whole["iteration"])],
        )
        assert measured["duration_ns"].sum() == whole["length"]
        operators = inside[inside["cat"] == "operator"]
        expected = measured[measured["kind"] == "operator"]
        assert sorted(
            zip(
                operators["name"],
                operators["position"].astype(int),
                operators["duration_ns"].astype(int),
                strict=True,
            )
        ) == sorted(zip(expected["name"], expected["position"], expected["duration_ns"], strict=True))
        if not inside.get("cut", pd.Series(dtype=object)).notna().any():
            for kind in ("delegate_overhead", "framework_overhead"):
                assert (
                    inside.loc[inside["cat"] == kind, "length"].sum()
                    == measured.loc[measured["kind"] == kind, "duration_ns"].sum()
                )


def test_both_arms_are_side_by_side_and_their_slices_are_the_timeline(
    pair_files: Exported, trace: Read, trace_file: Path
):
    assert faults_of(trace_file) == []
    groups = [track for uuid, track in trace.tracks.items() if len(trace.path(uuid)) == 2]
    groups.sort(key=lambda track: track.sibling_order_rank)
    names = [f"SME2 {sme2}{what}" for what in ("", KERNELS) for sme2 in ("off", "on")]
    assert [track.name for track in groups] == names
    [root] = {trace.path(uuid)[0] for uuid in trace.tracks}
    assert root == "toy_cnn-fp32 on linux"
    for sme2 in ("off", "on"):
        of_arm = trace.of(f"SME2 {sme2}", "inference")
        # Six rounds of three timed inferences, warm-up left out.
        assert (of_arm["cat"] == "inference").sum() == 18
        check_against_timeline(pair_files.warehouse, pair_files.run(sme2)["run_id"], of_arm)
    starts = trace.slices[(trace.slices["cat"] == "inference") & (trace.slices["iteration"] == 1)]
    assert (starts.groupby("round")["start"].nunique() <= 2).all(), "rounds of the arms do not start together"


def test_an_operator_tells_where_it_comes_from_and_what_shows_sme2(trace: Read):
    drawn = trace.slices
    [convolution] = (
        drawn[(drawn["cat"] == "operator") & (drawn["name"] == "Convolution (NHWC, PF32) IGEMM #1")][
            ["category", "sme2_evidence", "module", "source", "input_shape"]
        ]
        .drop_duplicates()
        .to_dict("records")
    )
    assert convolution == {
        "category": "CONV",
        "sme2_evidence": "executed",
        "module": "features.0.conv",
        "source": "model.py:2",
        "input_shape": "1x16x8x8",
    }


def samples_of(trace: Read, sme2: str) -> pd.DataFrame:
    group = trace.track(f"SME2 {sme2}{KERNELS}")
    below = [uuid for uuid, track in trace.tracks.items() if track.parent_uuid == group]
    return trace.slices[trace.slices["track"].isin(below) & (trace.slices["cat"] == "sample")]


def test_every_sample_of_the_kernels_pass_is_a_slice_on_its_thread(pair_files: Exported, trace: Read):
    for sme2 in ("off", "on"):
        of_arm = samples_of(trace, sme2)
        [expected] = pair_files.warehouse.query(
            "SELECT sum(samples)::BIGINT AS n FROM kernel_samples WHERE run_id = ?",
            [pair_files.run(sme2)["run_id"]],
        )["n"]
        assert len(of_arm) == expected
        in_sme2 = of_arm[of_arm["name"].str.contains("sme2_mopa")]
        assert len(in_sme2) == (6 if sme2 == "on" else 0)
        assert set(in_sme2["unit"]) <= {"SME"}


def test_a_flow_leads_from_an_operator_to_the_samples_in_it_and_to_no_other(trace: Read):
    for sme2 in ("off", "on"):
        samples = samples_of(trace, sme2)
        inside = samples[samples["in"] == "operator"]
        assert len(inside)
        assert inside["flow"].notna().all()
        assert samples.loc[samples["in"] != "operator", "flow"].isna().all()
        operators = trace.of(f"SME2 {sme2}{KERNELS}", "inference").set_index("flow")
        operators = operators[operators.index.notna()]
        assert operators.index.is_unique
        assert set(operators.index) == set(inside["flow"])
        for _, sample in inside.iterrows():
            operator = operators.loc[sample["flow"]]
            assert operator["cat"] == "operator"
            delegate = -1 if pd.isna(operator["delegate"]) else operator["delegate"]
            assert (delegate, operator["position"]) == (sample["delegate"], sample["position"])
            assert operator["round"] == sample["round"]
    etdump = trace.of("SME2 on", "inference")
    assert etdump["flow"].isna().all(), "samples are of another pass, with other times"


def test_counters_have_units_and_the_values_of_the_machine(
    real_run: tuple[Store, Manifest], real_warehouse: Warehouse, tmp_path: Path
):
    """And a run that was really measured adds up."""
    store, manifest = real_run
    run = run_of_id(real_warehouse, manifest.run_id)
    path = tmp_path / "real.pftrace"
    write_trace(path, real_warehouse, [(run, store.run_dir(manifest.run_id))])
    assert faults_of(path) == []
    trace = read_trace(path)
    arm = f"SME2 {run['sme2']}" if run["fidelity"] != "reference" else f"reference ({run['arch']})"
    [name] = {path[1] for path in map(trace.path, trace.tracks) if len(path) > 1 and KERNELS not in path[1]}
    assert name.startswith(arm)
    check_against_timeline(real_warehouse, manifest.run_id, trace.of(name, "inference"))
    assert (trace.slices["cat"] == "sample").any()
    load = trace.track(name, "load")
    assert trace.tracks[load].counter.unit_name == "1 min"
    expected = real_warehouse.query(
        "SELECT load_1m FROM environment WHERE run_id = ? AND load_1m IS NOT NULL", [manifest.run_id]
    )
    shown = trace.counters[trace.counters["track"] == load]["value"]
    assert sorted(shown) == pytest.approx(sorted(expected["load_1m"]))


def test_operators_that_seem_longer_than_their_call_are_cut_and_keep_their_time(tmp_path: Path):
    """XNNPACK's microseconds can add up to more than the call took."""
    calls = [Delegate([("Softmax (NC, F32) #1", 3000), ("HardSwish (NC) #2", 4000)], 6500)]
    (tmp_path / "rounded.etdump").write_bytes(trace_bytes(inference(calls, 9000)))
    store = Store(tmp_path / "data")
    [taken] = ingest_paths(store, [tmp_path / "rounded.etdump"], Facts()).traces
    warehouse = Warehouse(store.warehouse)
    path = tmp_path / "rounded.pftrace"
    write_trace(path, warehouse, [(run_of_id(warehouse, taken.run_id), store.run_dir(taken.run_id))])
    assert faults_of(path) == []
    trace = read_trace(path)
    check_against_timeline(warehouse, taken.run_id, trace.of("SME2 state unknown", "inference"))
    last = trace.slices[trace.slices["name"] == "HardSwish (NC) #2"].iloc[0]
    assert (last["length"], last["duration_ns"], last["cut"]) == (3500, 4000, True)


def test_what_is_emulated_says_so_in_the_name_of_every_track(paired: Warehouse, tmp_path: Path):
    store = Store(paired.root.parent)
    arms = [newest_run(paired, "toy_cnn-fp32", "emulated", sme2) for sme2 in ("off", "on")]
    path = tmp_path / "emulated.pftrace"
    write_trace(path, paired, [(run, store.run_dir(run["run_id"])) for run in arms])
    trace = read_trace(path)
    paths = [trace.path(uuid) for uuid in trace.tracks if len(trace.path(uuid)) > 1]
    assert paths
    assert all("emulated: times mean nothing" in path[1] for path in paths)


def test_a_trace_of_many_rounds_takes_the_memory_of_one(tmp_path: Path):
    """Ten times the rounds: what is held at once grows by what is known of each round, not by its slices."""

    def peak(rounds: int) -> tuple[int, int]:
        store = Store(tmp_path / f"data{rounds}")
        warehouse = Warehouse(store.warehouse)
        made = MadeRun(platform="emulated", fidelity="emulated", sme2="on", rounds=rounds, paired=False)
        ingest(warehouse, made.write(store.runs))
        warehouse.publish()
        run = run_of_id(warehouse, made.run_id)
        path = tmp_path / f"{rounds}.pftrace"
        arms = [(run, store.run_dir(run["run_id"]))]
        # The first one fills what is kept for all.
        write_trace(path, warehouse, arms)
        tracemalloc.start()
        write_trace(path, warehouse, arms)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held, path.stat().st_size

    (few, small), (many, large) = peak(2), peak(20)
    assert large > 5 * small
    assert many < 2 * few


def test_the_checker_sees_what_perfetto_would_misplace(trace_file: Path, tmp_path: Path):
    packets = list(read_packets(trace_file))
    assert [*Trace.FromString(trace_file.read_bytes()).packet] == packets
    events = [number for number, packet in enumerate(packets) if packet.HasField("track_event")]

    def with_fault(change: Callable[[TracePacket], None], number: int) -> str:
        changed = [TracePacket.FromString(packet.SerializeToString()) for packet in packets]
        change(changed[number])
        return " ".join(faults_of_trace(iter(changed))[1])

    def to_end(packet: TracePacket) -> None:
        packet.track_event.type = TrackEvent.TYPE_SLICE_END

    def elsewhere(packet: TracePacket) -> None:
        packet.track_event.track_uuid = 999

    def late(packet: TracePacket) -> None:
        packet.timestamp += 10**12

    assert "a slice ends that never began" in with_fault(to_end, events[0])
    assert "on a track that is not there" in with_fault(elsewhere, events[3])
    assert "comes after what is later" in with_fault(late, events[3])
    assert "have no end" in " ".join(faults_of_trace(iter(packets[: events[2]]))[1])
    assert faults_of_trace(iter([])) == (0, ["there are no events"])
    for content in (b"not a trace", trace_file.read_bytes()[:-3], b"\x0a\xff"):
        (tmp_path / "broken.pftrace").write_bytes(content)
        with pytest.raises(ValueError, match="packet"):
            list(read_packets(tmp_path / "broken.pftrace"))


def test_a_delegate_call_without_rows_is_an_operator_as_in_the_timeline(tmp_path: Path):
    calls = [Delegate([("Add (ND) #1", 5000)], 6000), Delegate([], 9000)]
    (tmp_path / TRACE_FILE).write_bytes(trace_bytes(inference(calls, 16_000)))
    slices = shown(Process(0, "etdump", tmp_path, 0, 1), {(1, 0): {"backend": "CoreMLBackend"}}).slices
    opaque = [each for each in slices if each.args.get("delegate") == 1]
    assert [(each.name, each.kind, each.end - each.start) for each in opaque] == [
        ("DELEGATE_CALL", "call", 9000),
        ("DELEGATE_CALL", "operator", 9000),
    ]
    assert (opaque[1].place, opaque[1].args["backend"]) == ((0, 1, 0), "CoreMLBackend")
    assert [each.end - each.start for each in slices if each.kind == "delegate_overhead"] == [1000]
