"""Shape profiles, the batch to trace, partitions of a graph, and the lock around an engine."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from latfix.errors import RunnerError
from latfix.runners.backends.tensorrt.convert import _most_deviation
from latfix.runners.backends.tensorrt.partition import Partition, engine_sizes, partition_of, partition_words
from latfix.runners.backends.tensorrt.program import StreamTurn
from latfix.runners.backends.tensorrt.shape_profile import Shapes, example_index, profile_of
from latfix.runners.calls.call_counters import Outside

SEEN: list[Shapes] = [((1, 4), (1,)), ((8, 4), (8,)), ((1, 90), (1,)), ((8, 90), (8,))]


def test_a_profile_covers_exactly_the_seen_range() -> None:
    profile = profile_of(SEEN, ((8, 30), (8,)))
    assert profile.words() == ["(1..8..8, 4..30..90)", "(1..8..8)"]
    assert all(profile.holds(shapes) for shapes in SEEN)
    for shapes in (((9, 30), (9,)), ((8, 91), (8,)), ((8, 3), (8,)), ((8, 30),), ((8, 30, 1), (8,)), ((0, 30), (0,))):
        assert not profile.holds(shapes), shapes


def test_sizes_that_an_exporter_cannot_vary() -> None:
    assert profile_of([((1,),), ((2,),)], ((2,),)).words() == ["(1..2..3)"]
    assert profile_of([((0,),), ((1,),)], ((1,),)).words() == ["(1)"], "there are no empty tensors in an engine"
    with pytest.raises(RunnerError, match="different numbers of dimensions"):
        profile_of([((1,),), ((1, 2),)], ((1,),))


def test_the_batch_to_trace_is_the_nearest_without_a_one_that_varies() -> None:
    wanted: Shapes = ((8, 30), (8,))
    batches: list[Shapes] = [((1, 30), (1,)), ((2, 28), (2,)), ((8, 90), (8,)), ((8, 33), (8,))]
    assert example_index(batches, SEEN, wanted) == 3
    assert example_index(batches[:2], SEEN, wanted) == 1
    with pytest.raises(RunnerError, match="none can be traced"):
        example_index(batches[:1], SEEN, wanted)
    fixed: list[Shapes] = [((1, 30), (1,))]
    assert example_index(fixed, fixed, fixed[0]) == 0, "a one that never varies is no obstacle"


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 1e-3), (torch.float16, 0.00977), (torch.bfloat16, 0.0781)]
)
def test_a_model_may_deviate_by_ten_roundings_of_its_own_floats(dtype: torch.dtype, limit: float) -> None:
    """A model of 16-bit floats rounds more coarsely than float32, whatever runs it."""
    case: Any = SimpleNamespace(model=torch.nn.Linear(2, 2).to(dtype), expected=[], device="cpu")
    assert _most_deviation(case) == pytest.approx(limit, rel=1e-2)


def graph_with(*targets: Any) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    last: Any = graph.placeholder("x")
    for target in targets:
        last = (
            graph.call_module(target, (last,)) if isinstance(target, str) else graph.call_function(target, (last, 0))
        )
    graph.output(last)
    root = torch.nn.Module()
    for target in targets:
        if isinstance(target, str):
            part = torch.nn.Identity() if "acc" in target else graph_with(torch.ops.aten.cumsum.default)
            root.add_module(target, part)
    return torch.fx.GraphModule(root, graph)


def test_a_graph_is_read_part_by_part() -> None:
    graph = graph_with(
        "_run_on_acc_0", "_run_on_gpu_1", torch.ops.aten.cumsum.default, operator.getitem, "_guards_fn"
    )
    found = partition_of(graph, [7])
    assert found == Partition(engines=1, inside=7, outside={"aten.cumsum": 2})
    assert found.share == pytest.approx(7 / 9)
    assert Partition.from_json(found.to_json()) == found
    assert partition_words(found.to_json()) == "7 operators in 1 engine, 2 left in PyTorch (aten.cumsum ×2)"
    unknown = partition_of(graph)
    assert unknown.inside is None and unknown.share is None
    assert partition_of(graph, [3, 4]).inside is None, "sizes of other engines than there are"
    assert partition_words(unknown.to_json()).startswith("operators in 1 engine")
    assert (
        partition_words(Partition(engines=1, inside=3).to_json()) == "3 operators in 1 engine, none left in PyTorch"
    )


def test_sizes_are_read_from_the_log_and_the_log_stays_as_it_was() -> None:
    tracker = logging.getLogger("torch_tensorrt.dynamo._DryRunTracker")
    tracker.setLevel(logging.ERROR)
    seen: list[logging.LogRecord] = []
    handler = logging.Handler()

    def see(message: logging.LogRecord) -> bool:
        seen.append(message)
        return False

    handler.addFilter(see)
    logging.getLogger("torch_tensorrt").addHandler(handler)
    with engine_sizes() as sizes:
        tracker.debug("a\n  Number of Operators in Engine: 12\n …\n  Number of Operators in Engine: 3\n")
        tracker.debug("nothing of use")
    tracker.debug("Number of Operators in Engine: 9")
    logging.getLogger("torch_tensorrt").removeHandler(handler)
    assert sizes == [12, 3] and not seen and not tracker.handlers and tracker.level == logging.ERROR


def test_turns_are_taken_one_by_one_and_given_back_after_a_failure() -> None:
    turn, inside, most = StreamTurn("cpu"), [0], [0]

    def enter() -> None:
        with turn:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.002)
            inside[0] -= 1

    with ThreadPoolExecutor(8) as pool:
        for entered in [pool.submit(enter) for _ in range(8)]:
            entered.result()
    assert most == [1]
    with pytest.raises(ValueError, match="broken"), turn:
        raise ValueError("broken")
    with turn:
        pass


def test_another_stream_waits_on_the_device_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def stream(name: str) -> SimpleNamespace:
        waits: Callable[[str], None] = lambda event: log.append(f"{name} waits for {event}")  # noqa: E731
        return SimpleNamespace(wait_event=waits, record_event=lambda: f"the end of {name}")

    a, b = stream("a"), stream("b")
    turn = StreamTurn("cuda:0")
    for current in (a, a, b, b, a):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _, current=current: current)
        with turn:
            pass
    assert log == ["b waits for the end of a", "a waits for the end of b"]


def test_what_lies_outside_is_counted_by_every_thread() -> None:
    outside = Outside()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: outside.add(f"({k % 50},)"), range(200)))
    assert outside.to_json()["batches"] == 200 and len(outside.to_json()["shapes"]) == 6
    outside.reset()
    assert outside.note() == "" and outside.to_json() == {"batches": 0, "shapes": []}
