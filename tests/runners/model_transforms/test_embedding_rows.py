"""Hot rows of embedding tables: chosen by use, read while idle, without changing answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from latfix.runners.model_transforms import embedding_rows as hot_rows
from latfix.runners.model_transforms.embedding_rows import HotRows, attach_hot_rows, embedding_tables, table_bytes
from latfix.settings import RunnerSettings
from tests.runners.engine.served import instance_of


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = torch.nn.Embedding(100, 8)
        self.items = torch.nn.EmbeddingBag(40, 4, mode="sum")
        self.head = torch.nn.Linear(12, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.users(users), self.items(items)], dim=1))  # type: ignore[no-any-return]


def look_up(model: Any, times: int = 1) -> None:
    with torch.no_grad():
        for _ in range(times):
            model(torch.tensor([7, 7, 9]), torch.tensor([[1, 1, 1, 1], [1, 2, 3, 1], [1, 1, 1, 1]]))


def learned(model: Any, rows: int) -> HotRows:
    """The rows that a first batch looks up."""
    hot = HotRows(model, rows)
    with hot.learning():
        look_up(model)
    return hot


def test_the_most_used_rows_of_all_tables_are_chosen_once() -> None:
    model = Model()
    hot = learned(model, 3)
    assert (hot.tables, hot.lookups, hot.rows) == (2, 15, 3)
    chosen = {len(weight): sorted(rows.tolist()) for weight, rows in hot._parts}
    # Row 1 of the items was looked up ten times, row 7 of the users twice, all others once.
    assert chosen[40][0] == 1 and 7 in chosen[100]
    assert hot.share == pytest.approx(13 / 15)
    hot.watch()
    look_up(model)
    assert hot.lookups == 15
    by_name = HotRows(model, 10)
    with by_name.learning(), torch.no_grad():
        model.users(input=torch.tensor([4, 4, 2]))
    assert (by_name.rows, by_name.lookups) == (2, 3)


def test_unused_rows_are_not_hot() -> None:
    hot = learned(Model(), 1000)
    assert hot.rows == 5 and hot.share == 1.0
    assert hot.touch_all() == 5


def test_rows_that_a_wrong_request_asks_for_are_not_kept() -> None:
    """The request fails; without a check, reading its row would fail as well, and no row would be kept."""
    table = torch.nn.Embedding(10, 4)
    hot = HotRows(table, 5)
    with hot.learning(), torch.no_grad():
        table(torch.tensor([3, 3]))
        with pytest.raises(IndexError):
            table(torch.tensor([3, 99, -1]))
    assert (hot.rows, hot.touch_all()) == (1, 1)


def test_counting_takes_memory_only_for_used_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of a billion rows has no billion counters, during the lookups or after them."""
    monkeypatch.setattr(
        hot_rows, "_read", lambda part: len(part[1])
    )  # no kernel reads a table that is one expanded row
    weight = torch.zeros(1, 4).expand(1 << 36, 4)
    table = torch.nn.Embedding(2, 4)
    table.weight = torch.nn.Parameter(weight, requires_grad=False)
    hot = HotRows(table, 2)
    with hot.learning(), torch.no_grad():
        table(torch.tensor([1 << 35, 7, 7]))
    assert (hot.rows, hot.share, hot.touch_all()) == (2, 1.0, 2)
    assert not hot._tables[0].rows, "counts are dropped after the choice"


def test_reading_goes_round_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_rows, "_AT_ONCE", 32)  # one row of the users, two of the items
    hot = learned(Model(), 1000)
    touched = [hot.touch_some() for _ in range(4)]
    assert sorted(touched) == [1, 1, 1, 2]
    assert hot.touch_some() == touched[0], "starts again"


def test_without_lookups_there_is_nothing_and_it_may_still_learn() -> None:
    model = Model()
    hot = HotRows(model, 5)
    with hot.learning():
        pass
    assert (hot.rows, hot.touch_some(), hot.touch_all()) == (0, 0, 0)
    hot.watch()
    look_up(model, hot_rows._ENOUGH_CALLS)
    assert hot.rows == 5
    assert not any(module._forward_pre_hooks for module in model.modules()), "counting stops by itself"


def test_a_table_that_is_never_called_does_not_keep_the_others_waiting() -> None:
    model = Model()
    hot = HotRows(model, 2)
    hot.watch()
    with torch.no_grad():
        for _ in range(hot_rows._NEVER_CALLED * hot_rows._ENOUGH_CALLS):
            model.users(torch.tensor([4]))
    assert hot.rows == 1
    assert not model.users._forward_pre_hooks


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_counting_changes_no_answer(mode: Any) -> None:
    model = Model().eval()
    users, items = torch.tensor([5, 6]), torch.tensor([[1, 2], [3, 4]])
    with mode():
        before = model(users, items)
        hot = HotRows(model, 4)
        with hot.learning():
            during = model(users, items)
        hot.touch_all()
        assert torch.equal(model(users, items), before) and torch.equal(during, before)


def test_rows_of_a_kind_that_cannot_be_summed_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("not implemented for this dtype")

    model = Model()
    hot = HotRows(model, 4)
    monkeypatch.setattr(torch.nn.functional, "embedding_bag", refuse)
    with hot.learning(), torch.no_grad():
        model.users(torch.tensor([1]))
    assert (hot.rows, hot.share, hot.touch_all()) == (0, 0.0, 0)


def test_tables_are_found_once_and_measured() -> None:
    model = Model()
    twin = torch.nn.Embedding(100, 8)
    twin.weight = model.users.weight
    whole = torch.nn.ModuleList([model, twin, torch.nn.Embedding(3, 2, device="meta")])
    assert len(embedding_tables(whole)) == 2
    assert table_bytes([model]) == (2, 140, 4 * (800 + 160))
    assert embedding_tables("no module") == []


def test_instances_that_share_a_model_share_its_rows() -> None:
    model = Model()
    instances = [instance_of(model), instance_of(model), instance_of(Model()), instance_of(torch.nn.Identity())]
    attach_hot_rows(instances, RunnerSettings(hot_rows=5))
    assert instances[0].hot is instances[1].hot is not None
    assert instances[2].hot is not instances[0].hot
    assert instances[3].hot is None, "there is no table"


@pytest.mark.parametrize(
    "settings",
    [
        RunnerSettings(),
        RunnerSettings(hot_rows=5, backend="onnxruntime"),
        RunnerSettings(hot_rows=5, compile="dynamic"),
    ],
)
def test_rows_that_are_not_used_or_cannot_be_seen_are_not_kept(settings: RunnerSettings) -> None:
    instance = instance_of(Model())
    attach_hot_rows([instance], settings)
    assert instance.hot is None


def test_lookups_of_a_compiled_model_are_counted_on_the_original() -> None:
    original, compiled = Model(), torch.nn.Module()
    compiled._orig_mod = original
    instance = instance_of(compiled)
    attach_hot_rows([instance], RunnerSettings(hot_rows=5, compile="dynamic"))
    assert instance.hot is not None and instance.hot.model is original
