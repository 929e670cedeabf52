"""A service's accuracy, compared with the original's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from fractions import Fraction
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from latfix.errors import InputError, RunnerError
from latfix.request import Request
from latfix.results.answer_check import AnswerCheck
from latfix.runners.answers import plain_archive
from latfix.runners.answers.agreement import yardstick_of
from latfix.runners.answers.named_outputs import Answer, outputs_of
from latfix.runners.measure import own_answers
from latfix.runners.measure.accuracy import AGREEMENT_SAMPLE, Accuracy, Reference, evaluate, sample_requests
from latfix.runners.measure.accuracy_guard import judge, score_of
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from tests.conftest import write_workload
from tests.runners.engine.served import loaded_service

#: The class is that of the largest of three products; evaluate knows the right one of each request.
LABELLED = """
import torch
from latfix import Request, Workload

class Labelled(Workload):
    def load(self, device):
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 3)
        model.weight.data += NOISE * torch.randn(3, 6, generator=torch.Generator().manual_seed(7))
        return model

    def prepare(self, request):
        return torch.randn(6, generator=torch.Generator().manual_seed(int(request.features["value"])))

    def finish(self, output, request):
        return {"class": int(output.argmax()), "scores": output}

    def evaluate(self, predict):
        requests = [Request(id=str(k), arrival_s=0.0, features={"value": k}) for k in range(CASES)]
        answers = predict(requests)
        return sum(answer["class"] == k % 3 for k, answer in enumerate(answers)) / len(answers)
"""


def traffic(n: int) -> Traffic:
    return Traffic.plain(np.arange(n) * 1_000_000, features={"value": np.arange(n)})


@pytest.fixture
def labelled(tmp_path: Path) -> Callable[..., Service]:
    def make(noise: float = 0.0, cases: int = 120, *, scored: bool = True) -> Service:
        source = LABELLED.replace("NOISE", repr(noise)).replace("CASES", repr(cases))
        if not scored:
            source = source[: source.index("    def evaluate")]
        folder = tmp_path / f"w{noise}-{cases}-{scored}"
        if not folder.exists():
            write_workload(folder, adapter=source)
        return loaded_service(folder, "adapter:Labelled", max_batch_size=16)

    return make


def test_a_reference_is_read_as_it_was_saved(tmp_path: Path) -> None:
    sample: tuple[Answer | None, ...] = (outputs_of({"a": [1.0, 2.0], "b": "x"}), None, [])
    whole = Reference(
        sample=sample,
        agreements=np.array([0.5, 1.0, 1.0]),
        yardstick=yardstick_of(sample, {}),
        ids=("a", "b"),
        answers=({"class": 1}, torch.ones(2)),
        score=0.5,
    )
    whole.save(tmp_path / "r.npz")
    read = Reference.load(tmp_path / "r.npz")
    assert read.ids == ("a", "b") and read.score == 0.5 and read.answers[0] == {"class": 1}
    first, *others = read.sample
    assert first is not None and others == [None, []]
    assert [(name, values.tolist()) for name, values in first] == [("a", [1.0, 2.0]), ("b", "x")]
    assert read.agreements.tolist() == [0.5, 1.0, 1.0] and read.yardstick == whole.yardstick


def test_answers_of_a_users_own_class_are_not_paired(tmp_path: Path) -> None:
    whole = Reference(sample=(outputs_of(1),), ids=("a",), answers=(Fraction(1, 2),), score=0.5)
    whole.save(tmp_path / "r.npz")
    read = Reference.load(tmp_path / "r.npz")
    assert len(read.sample) == 1 and read.ids == () and read.score is None


@pytest.mark.parametrize("held", [None, {"scored": ((), (), None), "sample": 3}, {"scored": 1}])
def test_a_file_that_holds_no_answers_is_one_line(tmp_path: Path, held: object) -> None:
    plain_archive.save(tmp_path / "r.npz", held)
    with pytest.raises(InputError, match=r"found something else than a model's answers.*start again"):
        Reference.load(tmp_path / "r.npz")


@pytest.mark.parametrize("score", ["None", "'0.9 of 1'", "float('nan')"])
def test_a_score_that_is_no_number_is_refused(score: str, tmp_path: Path) -> None:
    source = LABELLED.replace("NOISE", "0.0").replace("CASES", "3").rpartition("        return sum(")[0]
    write_workload(tmp_path / "w", adapter=f"{source}        return {score}\n")
    with pytest.raises(RunnerError, match=r"Labelled.evaluate returned .*; expected a finite number"):
        evaluate(loaded_service(tmp_path / "w", "adapter:Labelled"), traffic(20), None)


def test_a_score_that_no_answer_was_asked_for_is_refused(tmp_path: Path) -> None:
    source = LABELLED.replace("NOISE", "0.0").rpartition("        answers = predict(")[0]
    write_workload(tmp_path / "w", adapter=f"{source}        return 0.9\n".replace("CASES", "3"))
    with pytest.raises(RunnerError, match=r"Labelled.evaluate returned 0.9 without calling predict"):
        evaluate(loaded_service(tmp_path / "w", "adapter:Labelled"), traffic(20), None)


def test_a_score_is_paired_with_the_originals(labelled: Callable[..., Service], tmp_path: Path) -> None:
    original = labelled()
    own = evaluate(original, traffic(20), None, save=tmp_path / "r.npz")
    assert own.kind == "evaluate" and own.loss is None and own.lo is not None and own.hi is not None
    assert own.lo < own.score < own.hi and own.samples == 120
    same = evaluate(original, traffic(20), tmp_path / "r.npz")
    assert (same.score, same.loss, same.agreement, same.deviation) == (own.score, 0.0, 1.0, 0.0)
    assert same.loss_hi is not None and 0 < same.loss_hi < 0.05
    other = labelled(noise=1.5)
    changed = evaluate(other, traffic(20), tmp_path / "r.npz")
    assert changed.loss == pytest.approx(own.score - changed.score)
    assert changed.loss_lo is not None and changed.loss_hi is not None and changed.loss is not None
    assert changed.loss_lo < changed.loss < changed.loss_hi
    assert changed.agreement is not None and changed.agreement < 0.9
    assert changed.deviation is not None and changed.deviation > 0.05


def test_a_score_of_other_requests_is_not_paired(labelled: Callable[..., Service], tmp_path: Path) -> None:
    evaluate(labelled(), traffic(20), None, save=tmp_path / "r.npz")
    assert evaluate(labelled(cases=90), traffic(20), tmp_path / "r.npz").loss is None


def test_more_requests_are_compared_if_the_first_do_not_decide(
    labelled: Callable[..., Service], tmp_path: Path
) -> None:
    many = traffic(2 * 2 * AGREEMENT_SAMPLE)
    original = evaluate(labelled(scored=False), many, None, save=tmp_path / "r.npz")
    assert original.samples == 2 * AGREEMENT_SAMPLE
    same = evaluate(labelled(scored=False), many, tmp_path / "r.npz", max_drop=0.01)
    assert same.samples == AGREEMENT_SAMPLE and same.agreement == 1.0
    near = labelled(noise=0.01, scored=False)
    assert evaluate(near, many, tmp_path / "r.npz").samples == AGREEMENT_SAMPLE
    unclear = evaluate(near, many, tmp_path / "r.npz", max_drop=0.01)
    assert unclear.samples == 2 * AGREEMENT_SAMPLE and unclear.agreement is not None
    far = evaluate(labelled(noise=3.0, scored=False), many, tmp_path / "r.npz", max_drop=0.01)
    assert far.samples == AGREEMENT_SAMPLE, "no further request can save it"


@pytest.mark.parametrize(("available", "seconds", "looked_at"), [(0, 0.0, 200), (1000, 0.0, 8), (0, 40.0, 16)])
def test_few_answers_are_compared_of_a_slow_model_or_if_they_are_large(
    labelled: Callable[..., Service], monkeypatch: pytest.MonkeyPatch, available: int, seconds: float, looked_at: int
) -> None:
    """Pictures of hundreds of requests would fill the memory; one after another of two seconds takes all the time."""
    monkeypatch.setattr(own_answers, "available_bytes", lambda: available)
    clock = count(0.0, seconds)
    monkeypatch.setattr(own_answers, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    alone, own = own_answers.compare_own(labelled(scored=False), sample_requests(traffic(400)))
    assert len(alone) == own.check.compared == looked_at


def test_choices_are_made_on_other_requests_than_they_are_judged_by() -> None:
    judged, chosen = (
        {request.id for request in sample_requests(traffic(400), spare=spare)} for spare in (False, True)
    )
    assert len(judged) == len(chosen) == 200 and not judged & chosen
    few = [{request.id for request in sample_requests(traffic(40), spare=spare)} for spare in (False, True)]
    assert few[0] == few[1] and len(few[0]) == 40
    assert sample_requests(traffic(0)) == []


#: Its answer depends on the padding: the mean includes it.
READS_PADDING = """
import torch
from latfix import Workload

class Padded(Workload):
    def load(self, device):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Embedding(90, 32), torch.nn.Linear(32, 32), torch.nn.ReLU())

    def prepare(self, request):
        value = int(request.features["value"])
        return (torch.arange(2 + value * 7 % 40) * (value + 1)) % 89 + 1

    def finish(self, output, request):
        return output.mean(0)[:5]
"""


def padded(folder: Path, size: int) -> Service:
    return loaded_service(folder, "adapter:Padded", max_batch_size=size)


def test_a_model_that_reads_its_padding_answers_differently_in_larger_batches(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "w", adapter=READS_PADDING)
    evaluate(padded(folder, 1), traffic(120), None, save=tmp_path / "r.npz")
    alone = evaluate(padded(folder, 1), traffic(120), tmp_path / "r.npz", max_drop=0.01)
    assert alone.agreement == 1.0 and alone.same
    shared = evaluate(padded(folder, 8), traffic(120), tmp_path / "r.npz", max_drop=0.01)
    assert shared.agreement is not None and shared.agreement < 0.9
    assert shared.deviation is not None and shared.deviation > 0.1
    assert not judge(asdict(shared), 1.0, 0.01)[0]


def test_a_service_whose_padding_leaks_is_reported_and_fixes_are_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_workload(tmp_path / "w", adapter=READS_PADDING)
    trained_otherwise = write_workload(tmp_path / "v", adapter=READS_PADDING.replace("seed(0)", "seed(1)"))

    def judged(made: Service) -> tuple[bool | None, Accuracy]:
        found = evaluate(made, traffic(120), tmp_path / "r.npz", max_drop=0.01)
        return judge(asdict(found), original.score, 0.01)[0], found

    original = evaluate(padded(folder, 8), traffic(120), None, save=tmp_path / "r.npz")
    check = AnswerCheck.from_json(original.answers)
    assert (
        check.padded and check.differing > 12 and check.compared == 120 and check.unrepeatable == 0 < check.repeated
    )
    assert original.score < 0.9 and original.kind == "agreement: scores"
    assert check.example is not None and f"request {check.example.request!r}" in check.faults()[0]
    slow = padded(folder, 8)
    prepare = slow.models.adapter.prepare

    def prepare_slowly(request: Request) -> Any:
        time.sleep(0.002)
        return prepare(request)

    monkeypatch.setattr(slow.models.adapter, "prepare", prepare_slowly)
    again, repeated = judged(slow)
    assert again and repeated.score == original.score, "batches do not depend on the machine's speed"
    cured, single = judged(padded(folder, 1))
    assert cured and single.score == 1.0 and single.same
    kept, other = judged(padded(trained_otherwise, 8))
    assert not kept and other.agreement is not None and other.agreement < 0.5


SAMPLES = """
import torch
from latfix import Workload

class Samples(Workload):
    def load(self, device):
        model = torch.nn.Module()
        model.forward = lambda x: torch.multinomial(torch.softmax(x, -1), 8, replacement=True)
        return model

    def prepare(self, request):
        return torch.zeros(100)
"""


def test_a_service_that_samples_its_answers_is_reported(tmp_path: Path) -> None:
    service = loaded_service(write_workload(tmp_path / "w", adapter=SAMPLES), "adapter:Samples", max_batch_size=4)
    original = evaluate(service, traffic(40), None, save=tmp_path / "r.npz")
    check = AnswerCheck.from_json(original.answers)
    assert check.repeated == check.unrepeatable == 4 and not check.stateful
    assert check.faults()[0].startswith("This service answers the same request differently each time")
    assert "It samples. " in check.faults()[0]
    again = asdict(evaluate(service, traffic(40), tmp_path / "r.npz", max_drop=0.01))
    allowed, reason = judge(again, original.score, 0.01)
    assert allowed is None and "no answer could be compared" in reason, "what differs anyway is no loss"
    assert score_of(asdict(original)) is None and score_of(again) is None


REMEMBERS = """
import torch
from latfix import Workload

class Sum(torch.nn.Module):
    total = 0.0

    def forward(self, x):
        answer, self.total = torch.sin(x + self.total), KEEP * self.total + float(x.sum())
        return answer

class Remembers(Workload):
    def load(self, device):
        return Sum()

    def prepare(self, request):
        return torch.arange(3.0) + float(request.features["value"])
"""


@pytest.mark.parametrize("keep", [1, 0], ids=["all requests", "the last request"])
def test_a_service_that_keeps_state_between_requests_is_told_from_one_that_samples(tmp_path: Path, keep: int) -> None:
    """State of the last request only is the same again when the same requests are repeated."""
    folder = write_workload(tmp_path / "w", adapter=REMEMBERS.replace("KEEP", str(keep)))
    service = Service(folder, "adapter:Remembers", RunnerSettings(device="cpu"))
    service.load()
    check = AnswerCheck.from_json(evaluate(service, traffic(20), None, save=tmp_path / "r.npz").answers)
    assert check.stateful and check.unrepeatable
    assert "The random seed is not why: it keeps state between requests. " in check.faults()[0]


def test_a_service_that_answers_none_has_no_accuracy(tmp_path: Path) -> None:
    adapter = SAMPLES.replace("torch.multinomial(torch.softmax(x, -1), 8, replacement=True)", "None")
    service = loaded_service(write_workload(tmp_path / "w", adapter=adapter), "adapter:Samples")
    original = evaluate(service, traffic(40), None, save=tmp_path / "r.npz")
    again = asdict(evaluate(service, traffic(40), tmp_path / "r.npz", max_drop=0.01))
    assert score_of(asdict(original)) is None and score_of(again) is None and judge(again, 1.0, 0.01)[0] is None


EMBEDS = """
import torch
from latfix import Workload

class Embeds(Workload):
    def load(self, device):
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 48)
        model.weight.data *= FACTOR
        model.bias.data *= FACTOR
        return model

    def prepare(self, request):
        return torch.randn(6, generator=torch.Generator().manual_seed(int(request.features["value"])))

    def finish(self, output, request):
        return {"NAME": output}
"""


@pytest.mark.parametrize(
    ("name", "declared", "kind"),
    [
        ("embedding", "", "vectors"),
        ("x", "", "scores"),  # indistinguishable from logits
        ("x", 'kind = "vectors"', "vectors"),
        ("x", 'x = { kind = "numbers" }', "numbers"),
    ],
)
def test_embeddings_that_are_30_percent_off_are_rejected(tmp_path: Path, name: str, declared: str, kind: str) -> None:
    def service(folder: str, factor: float) -> Service:
        source = EMBEDS.replace("FACTOR", str(factor)).replace("NAME", name)
        spec = write_workload(tmp_path / folder, adapter=source) / "workload.toml"
        spec.write_text(f"{spec.read_text()}[outputs]\n{declared}\n")
        return loaded_service(spec.parent, "adapter:Embeds", max_batch_size=4)

    original = evaluate(service("original", 1.0), traffic(640), None, save=tmp_path / "r.npz")
    assert original.score == 1.0 and original.answers["differing"] == 0
    for factor, allowed in ((1.0, True), (1.01, True), (1.3, False), (0.7, False)):
        found = evaluate(service(f"times{factor}", factor), traffic(640), tmp_path / "r.npz", max_drop=0.01)
        assert found.kind == f"agreement: {kind}"
        assert judge(asdict(found), 1.0, 0.01)[0] is allowed, found


def test_no_disagreement_in_a_small_sample_is_not_certainty(labelled: Callable[..., Service], tmp_path: Path) -> None:
    """Of n answers that all agree, one in 3.84 / (n + 3.84) may still not, by Wilson's interval."""
    few = traffic(100)
    evaluate(labelled(scored=False), few, None, save=tmp_path / "r.npz")
    found = evaluate(labelled(scored=False), few, tmp_path / "r.npz")
    assert found.agreement == 1.0 and found.loss == 0.0
    assert found.loss_hi == pytest.approx(3.84 / 103.84, rel=0.01)
    numbers = {"score": 1.0, "samples": 100, "loss": 0.0, "loss_lo": 0.0, "loss_hi": found.loss_hi, "agreement": 1.0}
    allowed, said = judge({**numbers, "deviation": 0.05}, 1.0, 0.01)
    assert not allowed and said.startswith("100 requests are too few to exclude a loss of 0.02")
    assert found.same and judge({**numbers, "same": found.same}, 1.0, 0.01)[0], "the very same numbers"


#: The answer is three numbers; evaluate asks whether the largest is the unmodified model's.
NUMBERS = """
import torch
from latfix import Request, Workload

class Numbers(Workload):
    def load(self, device):
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 3)
        self.original = [weight.detach().clone() for weight in model.parameters()]
        model.weight.data += NOISE * torch.randn(3, 6, generator=torch.Generator().manual_seed(7))
        return model

    def prepare(self, request):
        return torch.randn(6, generator=torch.Generator().manual_seed(int(request.features["value"])))

    def finish(self, output, request):
        return output

    def evaluate(self, predict):
        requests = [Request(id=str(k), arrival_s=0.0, features={"value": k}) for k in range(100)]
        right = [torch.nn.functional.linear(self.prepare(each), *self.original).argmax() for each in requests]
        return sum(int(answer.argmax() == each) for answer, each in zip(predict(requests), right)) / 100
"""


@pytest.mark.parametrize("scored", [True, False], ids=["evaluate", "agreement"])
@pytest.mark.parametrize(("with_class", "allowed"), [(False, True), (True, None)], ids=["numbers", "class"])
def test_numbers_that_hardly_deviate_need_no_large_sample(
    tmp_path: Path, with_class: bool, allowed: bool | None, scored: bool
) -> None:
    """100 answers cannot exclude a loss of 0.02; exaggerated deviations of numbers can, those of classes cannot."""

    def service(noise: float) -> Service:
        source = NUMBERS.replace("NOISE", repr(noise))
        if with_class:
            source = source.replace("return output", 'return {"class": int(output.argmax()), "scores": output}')
            source = source.replace("answer.argmax()", 'answer["class"]')
        source = source if scored else source[: source.index("    def evaluate")]
        folder = tmp_path / f"w{noise}"
        write_workload(folder, adapter=source)
        return loaded_service(folder, "adapter:Numbers", max_batch_size=16)

    evaluate(service(0.0), traffic(100), None, save=tmp_path / "r.npz")
    found = evaluate(service(0.0001), traffic(100), tmp_path / "r.npz", max_drop=0.01)
    assert found.samples == 100 and found.loss == 0.0 and not found.same
    assert judge(asdict(found), 1.0, 0.01)[0] is allowed, found
