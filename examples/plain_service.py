"""An ordinary service without latfix, which rates texts. See docs/gates.md for gates on two versions of it.

pip install torch fastapi uvicorn
uvicorn plain_service:app --app-dir examples --port 8000

curl localhost:8000/rate -H 'content-type: application/json' -d '{"text": "a fine day"}'

LONGER=1.1 makes each request's computation a tenth longer, so that tools that compare versions can be tried.
"""

import os
import re
import zlib
from collections import Counter

import torch
from fastapi import FastAPI
from pydantic import BaseModel

WORDS, WIDTH, MOST = 5000, 256, 96
#: Layers of the model; each takes about an equal part of a request.
LAYERS = round(20 * float(os.environ.get("LONGER", "1")))

torch.set_num_threads(1)


class Rater(torch.nn.Module):
    """Words attend to each other in every layer; their average gives a score."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        self.mix = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.score = torch.nn.Linear(WIDTH, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for layer in self.mix:
            near = torch.softmax(x @ x.T / WIDTH**0.5, dim=-1)
            x = x + torch.relu(layer(near @ x))
            x = torch.nn.functional.layer_norm(x, (WIDTH,))
        return torch.sigmoid(self.score(x.mean(0)))


class Text(BaseModel):
    text: str


torch.manual_seed(0)
model = Rater().eval()
app = FastAPI()


def indices(text: str) -> torch.Tensor:
    """The text's words as numbers below ``WORDS``, the same in every process."""
    words = re.findall(r"[a-z']+", text.lower())[:MOST] or ["empty"]
    return torch.tensor([zlib.crc32(word.encode()) % WORDS for word in words])


@app.post("/rate")
def rate(body: Text) -> dict[str, object]:
    words = indices(body.text)
    with torch.inference_mode():
        score = float(model(words))
    frequent = Counter(re.findall(r"[a-z']+", body.text.lower())).most_common(3)
    return {"score": round(score, 4), "words": len(words), "frequent": frequent}
