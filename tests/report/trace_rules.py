"""The rules of the trace-event format, held strictly: what breaks one is shown wrongly, or not."""

from __future__ import annotations

import json
from typing import Any

FIELDS = {
    "X": {"name", "ph", "pid", "tid", "ts", "dur", "cat", "args"},
    "i": {"name", "ph", "pid", "tid", "ts", "s", "cat", "args"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "s": {"name", "ph", "pid", "tid", "ts", "cat", "id"},
    "f": {"name", "ph", "pid", "tid", "ts", "cat", "id", "bp"},
}
NAMES = {
    "process_name": "name",
    "process_labels": "labels",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}
Event = dict[str, Any]


def checked(text: str) -> list[Event]:
    """Hold a trace to the rules, and return its events."""
    trace = json.loads(text)
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] == "ms"
    events: list[Event] = trace["traceEvents"]
    for event in events:
        _check_fields(event)
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    assert timed == sorted(timed)
    _check_names(events)
    _check_nesting(events)
    _check_arrows(events)
    return events


def named(events: list[Event], what: str) -> dict[int, str]:
    """What processes or threads are called."""
    key = "pid" if what == "process_name" else "tid"
    return {e[key]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == what}


def _check_fields(event: Event) -> None:
    assert event["ph"] in FIELDS
    assert set(event) <= FIELDS[event["ph"]]
    assert FIELDS[event["ph"]] - {"args", "dur", "cat"} <= set(event)
    for field in {"pid", "tid", "ts", "dur", "id"} & set(event):
        assert type(event[field]) is int
        assert 0 <= event[field] < 2**53
    assert event["pid"] > 0
    assert event["ph"] != "X" or "dur" in event
    assert event["ph"] != "i" or event["s"] in ("t", "p", "g")
    assert event["ph"] != "f" or event["bp"] == "e"
    assert isinstance(event["name"], str)
    assert event["name"]
    assert all(type(arg) in (str, int, float) for arg in event.get("args", {}).values())


def _check_names(events: list[Event]) -> None:
    """Each process and each thread has a name, told once; an id of a thread is in one process."""
    told = [event for event in events if event["ph"] == "M"]
    keys = [(e["name"], e["pid"], e["tid"] if "thread" in e["name"] else 0) for e in told]
    assert len(keys) == len(set(keys))
    assert all(list(event["args"]) == [NAMES[event["name"]]] for event in told)
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] != "M"}
    assert {pid for pid, _ in used} <= set(named(events, "process_name"))
    assert {tid for _, tid in used} <= set(named(events, "thread_name"))
    assert len({tid for _, tid in used}) == len(used)


def _check_nesting(events: list[Event]) -> None:
    """On one thread, what lasts lies apart or one within the other."""
    threads: dict[int, list[Event]] = {}
    for event in events:
        if event["ph"] == "X":
            threads.setdefault(event["tid"], []).append(event)
    for lasting in threads.values():
        outer: list[int] = []
        for event in sorted(lasting, key=lambda one: (one["ts"], -one["dur"])):
            while outer and outer[-1] <= event["ts"]:
                outer.pop()
            assert not outer or event["ts"] + event["dur"] <= outer[-1]
            outer.append(event["ts"] + event["dur"])


def _check_arrows(events: list[Event]) -> None:
    """Each has one begin and one end, not before it, and both within something that lasts."""
    begins, ends = ({e["id"]: e for e in events if e["ph"] == kind} for kind in "sf")
    arrows = [event for event in events if event["ph"] in "sf"]
    assert len(arrows) == len(begins) + len(ends)
    assert set(begins) == set(ends)
    lasting = [event for event in events if event["ph"] == "X"]
    for number, begin in begins.items():
        end = ends[number]
        assert (begin["name"], begin["cat"]) == (end["name"], end["cat"])
        assert begin["ts"] <= end["ts"]
    for event in arrows[:200]:
        assert any(
            one["tid"] == event["tid"] and one["ts"] <= event["ts"] < one["ts"] + one["dur"]
            for one in lasting
        )
