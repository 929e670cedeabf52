"""The sample workload ``assistant``: its adapter, weights, validation texts and traffic."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from latfix import Request
from latfix.request import PRIORITIES
from tests.sample_workloads.conftest import ASSISTANT, batch_output


@pytest.fixture(scope="module")
def module() -> Any:
    return ASSISTANT.module()


@pytest.fixture(scope="module")
def train() -> Any:
    return ASSISTANT.module("train")


@pytest.fixture(scope="module")
def mixed() -> list[Request]:
    lengths = [(3, 5), (64, 16), (250, 1), (31, 40), (33, 0), (120, 7)]
    return [request(f"m{k}", input_tokens=i, output_tokens=o) for k, (i, o) in enumerate(lengths)]


def request(name: str = "r", payload: Any = None, session: str | None = None, **features: Any) -> Request:
    return Request(id=name, arrival_s=0.0, features=features, payload=payload, session=session)


def run(model: Any, workload: Any, requests: Sequence[Request]) -> dict[str, torch.Tensor]:
    output = batch_output(workload, model, requests)
    assert isinstance(output, dict)
    return output


def answers(model: Any, workload: Any, requests: Sequence[Request]) -> list[dict[str, Any]]:
    output = run(model, workload, requests)
    return [workload.finish({k: v[row] for k, v in output.items()}, r) for row, r in enumerate(requests)]


def predictor(model: Any, workload: Any) -> Callable[[list[Request]], list[Any]]:
    def predict(requests: list[Request]) -> list[Any]:
        """In batches of similar lengths, with little padding."""
        order = sorted(range(len(requests)), key=lambda k: requests[k].features["input_tokens"])
        found: dict[int, Any] = {}
        for group in (order[i : i + 25] for i in range(0, len(order), 25)):
            found.update(zip(group, answers(model, workload, [requests[k] for k in group]), strict=True))
        return [found[k] for k in range(len(requests))]

    return predict


def damaged(model: Any, part: str) -> Any:
    """A copy of the model with noise only on the weights that ``part`` uses."""
    model = copy.deepcopy(model)
    submodule = getattr(model, part)
    submodule.decoder = copy.deepcopy(submodule.decoder)
    generator = torch.Generator().manual_seed(0)
    for parameter in submodule.parameters():
        parameter += parameter.std() * torch.randn(parameter.shape, generator=generator)
    return model


def test_each_request_gets_the_requested_number_of_tokens(model: Any, workload: Any, mixed: list[Request]) -> None:
    found = answers(model, workload, mixed)
    assert [len(a["tokens"]) for a in found] == [r.features["output_tokens"] for r in mixed]
    assert all(0 < token < 160 for a in found for token in a["tokens"])
    assert found[1]["text"].count(" ") == 15


def test_padding_and_neighbors_do_not_change_an_answer(model: Any, workload: Any, mixed: list[Request]) -> None:
    together = answers(model, workload, mixed)
    alone = [answers(model, workload, [r])[0] for r in mixed]
    assert together == alone


def test_cached_decoding_equals_reading_the_whole_text_again(model: Any, workload: Any) -> None:
    prompt = workload.prepare(request(input_tokens=45, output_tokens=0))["tokens"].tolist()
    cached = answers(model, workload, [request(payload={"tokens": prompt}, output_tokens=12)])[0]["tokens"]
    text = list(prompt)
    for _ in range(12):
        text += answers(model, workload, [request(payload={"tokens": text}, output_tokens=1)])[0]["tokens"]
    assert text[45:] == cached


def test_first_and_last_logits_belong_to_the_rows_own_tokens(model: Any, workload: Any, mixed: list[Request]) -> None:
    output = run(model, workload, mixed)
    assert output["first_logits"].dtype == torch.float32
    for row, r in enumerate(mixed):
        wanted = int(r.features["output_tokens"])
        if wanted:
            assert output["first_logits"][row].argmax() == output["tokens"][row, 0]
            assert output["last_logits"][row].argmax() == output["tokens"][row, wanted - 1]
        assert not output["tokens"][row, wanted:].any()


def test_a_request_is_answered_the_same_by_a_fresh_adapter(module: Any, workload: Any, model: Any) -> None:
    again = module.AssistantWorkload()
    asked = [request("same", input_tokens=70, output_tokens=9)]
    assert answers(again.load("cpu"), again, asked) == answers(model, workload, asked)


def test_prompts_of_a_session_grow_and_differ_between_sessions(workload: Any) -> None:
    first = workload.prepare(request("a", session="s1", input_tokens=40))["tokens"].tolist()
    second = workload.prepare(request("b", session="s1", input_tokens=90))["tokens"].tolist()
    other = workload.prepare(request("c", session="s2", input_tokens=90))["tokens"].tolist()
    assert second[:40] == first and other != second


@pytest.mark.parametrize(
    ("features", "prompt", "new"),
    [
        ({}, 64, 16),
        ({"input_tokens": 12.6, "output_tokens": 3.4}, 13, 3),
        ({"input_tokens": 0, "output_tokens": 0}, 1, 0),
        ({"input_tokens": 7437, "output_tokens": 1899}, 256, 64),
        ({"input_tokens": "30", "output_tokens": "4"}, 30, 4),
        ({"input_tokens": 0.2, "output_tokens": 0.4, "unknown": "x"}, 1, 0),
    ],
)
def test_odd_lengths_are_served(model: Any, workload: Any, features: dict[str, Any], prompt: int, new: int) -> None:
    asked = request(**features)
    prepared = workload.prepare(asked)
    assert prepared["tokens"].shape == (prompt,) and int(prepared["prompt_lengths"]) == prompt
    assert len(answers(model, workload, [asked])[0]["tokens"]) == new


def test_a_given_prompt_above_the_context_keeps_its_last_tokens(workload: Any) -> None:
    tokens = [1] * 10 + list(range(20, 100)) * 4
    prepared = workload.prepare(request(payload={"tokens": tokens}))
    assert prepared["tokens"].tolist() == tokens[-256:]


@pytest.mark.parametrize(
    ("features", "payload"),
    [
        ({"input_tokens": -1}, None),
        ({"output_tokens": -0.6}, None),
        ({"input_tokens": "many"}, None),
        ({"output_tokens": float("nan")}, None),
        ({"output_tokens": float("inf")}, None),
        ({}, {"tokens": []}),
        ({}, {"tokens": "abc"}),
        ({}, {"tokens": [1, 160]}),
        ({}, {"tokens": [1, -1]}),
        ({}, {"tokens": [1, 2.5]}),
    ],
)
def test_nonsense_is_refused_with_the_requests_id(workload: Any, features: dict[str, Any], payload: Any) -> None:
    with pytest.raises(ValueError, match=r"^request odd: .*found"):
        workload.prepare(request("odd", payload=payload, **features))


@pytest.mark.slow
def test_score_is_near_the_best_possible_one(workload: Any, model: Any, train: Any) -> None:
    score = workload.evaluate(predictor(model, workload))
    best = train.best_accuracy()
    assert 0.7 < best < 0.85
    assert best - 0.03 < score <= best + 0.02


@pytest.mark.slow
def test_score_falls_when_either_part_is_damaged(
    monkeypatch: pytest.MonkeyPatch, module: Any, workload: Any, model: Any
) -> None:
    some = module.validation()[:50]
    monkeypatch.setattr(module, "validation", lambda: some)
    whole = workload.evaluate(predictor(model, workload))
    for part in ("prefill", "decode_step"):
        assert workload.evaluate(predictor(damaged(model, part), workload)) < whole - 0.05, part


def test_score_counts_only_tokens_after_correct_ones(
    monkeypatch: pytest.MonkeyPatch, module: Any, workload: Any
) -> None:
    cases = [{"tokens": [1], "next": [5, 6, 7]}, {"tokens": [1], "next": [5, 6, 7]}]
    monkeypatch.setattr(module, "validation", lambda: cases)
    given = iter([[5, 6, 7], [5, 9, 7]])
    score = workload.evaluate(lambda requests: [{"tokens": next(given)} for _ in requests])
    assert score == 4 / 5


@pytest.mark.slow
def test_bfloat16_keeps_most_answers(model: Any, workload: Any, mixed: list[Request]) -> None:
    halved = copy.deepcopy(model).to(torch.bfloat16)
    output = run(halved, workload, mixed)
    assert output["last_logits"].dtype == torch.float32 and output["last_logits"].isfinite().all()
    assert agreement(answers(model, workload, mixed), answers(halved, workload, mixed)) > 0.7


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_dynamic_int8_keeps_most_answers(model: Any, workload: Any, mixed: list[Request]) -> None:
    quantize: Any = torch.ao.quantization.quantize_dynamic
    quantized = quantize(model, {torch.nn.Linear}, dtype=torch.qint8)
    assert not any(type(part) is torch.nn.Linear for part in quantized.modules())
    assert agreement(answers(model, workload, mixed), answers(quantized, workload, mixed)) > 0.7


def agreement(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> float:
    pairs = [pair for a, b in zip(one, two, strict=True) for pair in zip(a["tokens"], b["tokens"], strict=True)]
    return float(sum(a == b for a, b in pairs) / len(pairs))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_parts_compile_whole_and_once_for_all_lengths(model: Any, workload: Any, mixed: list[Request]) -> None:
    graphs: list[str] = []

    def counting(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        graphs.append(str(graph.graph))
        return graph.forward

    compiled = copy.deepcopy(model)
    assert compiled.compile_parts() == ["prefill", "decode_step"]
    for name in compiled.compile_parts():
        getattr(compiled, name).compile(dynamic=True, fullgraph=True, backend=counting)
    for group in (mixed[1:2], mixed[:3]):  # one row, and several: the compiler tells these two apart
        answers(compiled, workload, group)
    known = len(graphs)
    assert 2 <= known <= 4
    for group in (mixed, mixed[3:4], mixed[3:]):
        assert answers(compiled, workload, group) == answers(model, workload, group)
    assert len(graphs) == known


def test_traffic_consists_of_growing_conversations() -> None:
    requests = ASSISTANT.records()
    assert {r["priority"] for r in requests} == set(PRIORITIES)
    assert all(1 <= r["input_tokens"] <= 256 and 1 <= r["output_tokens"] <= 64 for r in requests)
    grown = 0
    seen: dict[str, int] = {}
    for r in requests:
        before = seen.get(r["session"], 0)
        assert r["input_tokens"] > before or before == 256
        grown += before > 0
        seen[r["session"]] = r["input_tokens"]
    assert grown > 200


def test_training_writes_weights_that_the_adapter_can_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, train: Any, model: Any
) -> None:
    from safetensors.torch import load_file

    monkeypatch.setattr(train, "STEPS", 1)
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        train.train_weights(tmp_path / name)
        made.append(load_file(tmp_path / name / "model.safetensors"))
    assert made[0].keys() == model.decoder.state_dict().keys()
    assert all(torch.equal(made[0][key], made[1][key]) for key in made[0])


def test_the_page_explains_each_setting() -> None:
    settings = tomllib.loads((ASSISTANT.folder / "workload.toml").read_text())
    page = (ASSISTANT.folder / "README.md").read_text()
    assert [key for key in settings["runner"] if f"`{key}" not in page] == []
