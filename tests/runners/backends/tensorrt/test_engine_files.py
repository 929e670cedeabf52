"""``.engine`` files as workloads: inputs, profiles and their bounds, contexts, and refusals in one line."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.errors import InputError
from latfix.runners.model_files import open_model
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from tests.runners.backends.tensorrt.conftest import WriteEngine


def traffic(*lengths: int) -> Traffic:
    n = len(lengths)
    return Traffic.plain(np.arange(n) * 1_000_000, features={"length": np.array(lengths)})


def service_of(file: Path, **values: Any) -> Service:
    settings = RunnerSettings(device="cpu", **{"max_batch_size": 4, "batch_window_ms": 2.0, **values})
    service = Service(file.parent, file.name, settings)
    service.load()
    return service


def test_an_engine_serves_its_traffic(engine_package: Any, write_engine: WriteEngine) -> None:
    service = service_of(write_engine(), workers=2)
    requests = traffic(1, 6, 3, 2, 5, 4, 4, 4)
    service.warm_shapes(requests)
    outcomes = service.predict([requests.request(k) for k in range(8)])
    assert [outcome.error for outcome in outcomes] == [""] * 8
    for k, outcome in enumerate(outcomes):
        length = int(requests.features["length"][k])
        y, total = outcome.output
        given = service.models.adapter.prepare(requests.request(k))
        assert torch.allclose(y[:length], given * 2 + 1) and y.shape[0] >= length
        assert total.item() == pytest.approx(float((given * 2 + 1).sum()) + (len(y) - length), rel=1e-4)
    threads = [context.thread for engine in engine_package.engines for context in engine.contexts]
    assert len(threads) == len(set(threads)) >= 1, "an execution context for each worker that served"


def test_sizes_beyond_the_profile_are_refused_before_the_replay(
    engine_package: Any, write_engine: WriteEngine
) -> None:
    service = service_of(write_engine())
    with pytest.raises(InputError, match=r"min\(length, 6\)|at most 6"):
        service.warm_shapes(traffic(3, 7))
    with pytest.raises(InputError, match="max_batch_size = 5, but the file takes batches of at most 4"):
        service_of(write_engine(), max_batch_size=5)
    assert not any(engine.contexts for engine in engine_package.engines)


def test_a_batch_smaller_than_the_least_is_filled_up(engine_package: Any, write_engine: WriteEngine) -> None:
    service = service_of(write_engine(profiles=[{"x": [[3, 1], [4, 4], [4, 6]]}]))
    (outcome,) = service.predict([traffic(5).request(0)])
    assert outcome.error == "" and outcome.output[0].shape == (5,) and outcome.output[1].shape == ()
    assert engine_package.engines


def test_the_profile_that_fits_is_chosen(engine_package: Any, write_engine: WriteEngine) -> None:
    file = write_engine(profiles=[{"x": [[1, 1], [1, 2], [1, 2]]}, {"x": [[1, 3], [4, 4], [4, 6]]}])
    model = open_model(file)
    (given,) = model.inputs
    assert (model.backend, given.name, given.dtype) == ("TensorRT", "x", "float32")
    assert given.axes is not None and [(axis.least, axis.most) for axis in given.axes] == [(1, 4), (1, 6)]
    module = model.load("cpu")
    for size, length, number in ((1, 2, 0), (4, 6, 1), (1, 1, 0)):
        x = torch.rand(size, length)
        y, total = module(x)
        assert torch.allclose(y, x * 2 + 1) and total.shape == (size,)
        (context,) = engine_package.engines[-1].contexts
        assert context.active_optimization_profile == number
    x = torch.rand(3, 4).t()  # not contiguous
    assert torch.allclose(module(x)[0], x * 2 + 1)
    with pytest.raises(ValueError, match=r"found x \(4, 2\); expected .* x \(1, 1\.\.2\) or x \(1\.\.4, 3\.\.6\)"):
        module(torch.rand(4, 2))
    with pytest.raises(ValueError, match=r"found x of torch\.int64; expected torch\.float32"):
        module(torch.ones(1, 2, dtype=torch.int64))


def test_each_thread_has_a_context(engine_package: Any, write_engine: WriteEngine) -> None:
    module = open_model(write_engine()).load("cpu")
    meeting = threading.Barrier(4)

    def work(k: int) -> bool:
        meeting.wait(20)  # all four threads run at once
        given = [torch.full((2, 1 + (k + n) % 6), float(k)) for n in range(20)]
        return all(torch.equal(module(x)[0], x * 2 + 1) for x in given)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [True] * 4
    assert len(engine_package.engines[-1].contexts) == 4


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"inputs": [{"name": "x", "dtype": "FP8", "shape": [-1, 2]}]}, "'x' of type FP8; expected one of FLOAT"),
        (
            {"inputs": [{"name": "x", "dtype": "INT64", "shape": [2], "location": "HOST"}]},
            "whose values are sizes that TensorRT reads on the host",
        ),
        ({"inputs": []}, "an engine without inputs"),
    ],
)
def test_engines_that_are_refused(
    engine_package: Any, write_engine: WriteEngine, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        open_model(write_engine(**more))
    assert engine_package.engines


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"by_value": True}, "the size of output 'y' depends on values"),
        ({"fails": True}, r"TensorRT refused to run \(Error Code 1: Cuda Runtime \(out of memory\)\)"),
        ({"memory": 0}, "refused an execution context; it may need more memory"),
    ],
)
def test_failed_runs_give_their_reason(
    engine_package: Any, write_engine: WriteEngine, more: dict[str, Any], message: str
) -> None:
    module = open_model(write_engine(**more)).load("cpu")
    with pytest.raises(RuntimeError, match=message):
        module(torch.ones(1, 2))
    assert engine_package.engines


def test_an_engine_of_another_version(engine_package: Any, tmp_path: Path) -> None:
    (tmp_path / "model.engine").write_bytes(b"ftrt" + bytes(64))
    with pytest.raises(
        InputError, match=r"does not load \(.*version tag does not match\); expected one built by"
    ) as caught:
        open_model(tmp_path / "model.engine")
    assert "\n" not in caught.value.message and not engine_package.engines


def test_it_keeps_its_precision_and_its_device(
    engine_package: Any, write_engine: WriteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = open_model(write_engine()).load("cpu")
    assert module.to("cpu") is module
    with pytest.raises(ValueError, match="fixes its precision and device"):
        module.to(torch.bfloat16)
    monkeypatch.setattr("latfix.runners.model_files.formats.engine_file.DEVICE_KIND", "cuda")
    with pytest.raises(InputError, match=r"model\.engine: a TensorRT engine runs on a GPU; found device cpu"):
        service_of(write_engine())
    assert engine_package.engines


@pytest.mark.parametrize(
    ("requirements", "line"),
    [
        (None, "pip install tensorrt"),
        (["numpy", "torch<2.12.0,>=2.11.0", "tensorrt-cu13<10.16.0,>=10.15.1"], "pip install tensorrt"),
        (
            ["numpy", "tensorrt-cu13<10.16.0,>=10.15.1", "tensorrt<10.16.0,>=10.15.1"],
            'pip install "tensorrt<10.16.0,>=10.15.1"',
        ),
        (['tensorrt (>=10.3,<10.4) ; platform_machine != "aarch64"'], 'pip install "tensorrt>=10.3,<10.4"'),
    ],
)
def test_the_command_installs_the_version_that_torch_tensorrt_requires(
    requirements: list[str] | None, line: str, monkeypatch: pytest.MonkeyPatch, write_engine: WriteEngine
) -> None:
    """The newest has another major version, with which torch-tensorrt does not load."""

    def requires(name: str) -> list[str]:
        if requirements is None:
            raise metadata.PackageNotFoundError(name)
        return requirements

    monkeypatch.setattr("latfix.config.tensorrt_requirements.metadata.requires", requires)
    monkeypatch.setattr("latfix.config.tensorrt_requirements.installed", lambda _: False)
    with pytest.raises(InputError) as caught:
        open_model(write_engine())
    assert caught.value.message.endswith(f"which is not installed; {line}")


def test_the_command_line_refuses_before_torch_is_loaded(write_engine: WriteEngine) -> None:
    file = write_engine()
    (file.parent / "traffic.jsonl").write_text('{"arrival_s": 0.0}\n')
    program = (
        "import sys, latfix.config.tensorrt_requirements as n; n.installed = lambda _: False;"
        " from latfix.cli.app import main;"
        f" code = main(['diagnose', {str(file)!r}, '--traffic', {str(file.parent / 'traffic.jsonl')!r}]);"
        " assert 'torch' not in sys.modules; sys.exit(code)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=file.parent, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert "pip install tensorrt" in ended.stderr and len(ended.stderr.strip().splitlines()) == 1
    assert not (file.parent / "latfix-runs").exists()
