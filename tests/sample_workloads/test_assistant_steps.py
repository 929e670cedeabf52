"""The sample assistant in steps: the same answers as in a static batch, while requests join and leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from latfix import Request
from latfix.runners.engine.continuous_batching import Steps


@pytest.fixture(scope="module", autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def request(k: int, prompt: int, new: int) -> Request:
    return Request(id=f"s{k}", arrival_s=0.0, features={"input_tokens": prompt, "output_tokens": new})


def alone(model: Any, workload: Any, asked: Request) -> dict[str, Any]:
    output = model(**workload.collate([workload.prepare(asked)]))
    return {name: tensor[0] for name, tensor in output.items()}


def serve(model: Any, workload: Any, groups: dict[int, list[Request]]) -> dict[str, Any]:
    """Outputs by request; groups join after these numbers of steps."""
    answers: dict[str, Any] = {}
    state, names, step = None, list[str](), 0
    while groups or names:
        if step in groups:
            group = groups.pop(step)
            fresh = model.start(**workload.collate([workload.prepare(one) for one in group]))
            state = fresh if state is None else model.join(state, fresh)
            names += [one.id for one in group]
        done = [k for k, complete in enumerate(model.done(state)) if complete] if names else []
        if done:
            outputs, state = model.leave(state, done)
            answers |= {names[k]: output for k, output in zip(done, outputs, strict=True)}
            names = [name for k, name in enumerate(names) if k not in done]
        if names:
            model.step(state)
        step += 1
    return answers


def test_the_model_works_in_steps(model: Any) -> None:
    assert isinstance(model, Steps)


def test_answers_equal_those_of_a_separate_batch(model: Any, workload: Any) -> None:
    sizes = [(3, 5), (64, 16), (250, 1), (31, 40), (33, 0), (120, 7), (256, 64), (12, 64), (90, 3)]
    asked = [request(k, prompt, new) for k, (prompt, new) in enumerate(sizes)]
    found = serve(model, workload, {0: asked[:3], 2: asked[3:5], 9: asked[5:7], 10: asked[7:8], 60: asked[8:]})
    assert set(found) == {one.id for one in asked}
    for one in asked:
        expected = alone(model, workload, one)
        output = found[one.id]
        assert workload.finish(output, one) == workload.finish(expected, one)
        assert len(output["tokens"]) == one.features["output_tokens"]
        for name in ("first_logits", "last_logits"):
            assert torch.allclose(output[name], expected[name], atol=2e-3)
            assert output[name].argmax() == expected[name].argmax()


def test_under_a_steady_stream_the_cache_stays_bounded(model: Any, workload: Any) -> None:
    """The service is never empty, so the cache is never started anew."""
    state = model.start(**workload.collate([workload.prepare(request(0, 100, 64))]))
    widest = 0
    for k in range(1, 120):
        if k % 2 == 0:
            fresh = model.start(**workload.collate([workload.prepare(request(k, 10 + k % 60, 20))]))
            state = model.join(state, fresh)
        model.step(state)
        done = [row for row, complete in enumerate(model.done(state)) if complete]
        if done:
            _, state = model.leave(state, done)
        widest = max(widest, state.mask.shape[-1])
    assert widest <= 384
    assert len(state.made) > 4
