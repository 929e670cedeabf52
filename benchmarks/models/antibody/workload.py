"""A language model of antibodies (AntiBERTy: BERT, Hugging Face Transformers): masked residues are restored.

Score: share of masked residues restored in variable domains of published therapeutic antibodies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from latfix import Request, Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pretrained import PACKAGES, case_of, labeled

FILES = PACKAGES / "antiberty" / "trained_models"
#: Of heavy and light chains.
DOMAINS = [
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQGIRNYLAWYQQKPGKAPKLLIYAASTLQSGVPSRFSGSGSGTDFTLTISSLQPEDVATYYCQRYNRAPYTFGQGTKVEIK",
    "QVQLQQPGAELVKPGASVKMSCKASGYTFTSYNMHWVKQTPGRGLEWIGAIYPGNGDTSYNQKFKGKATLTADKSSSTAYMQLSSLTSEDSAVYYCARSTYYGGDWYFNVWGAGTTVTVSA",
    "QIVLSQSPAILSASPGEKVTMTCRASSSVSYIHWFQQKPGSSPKPWIYATSNLASGVPVRFSGSGSGTSYSLTISRVEAEDAATYYCQQWTSNPPTFGGGTKLEIK",
    "EVQLVESGGGLVQPGGSLRLSCAASGYTFTNYGMNWVRQAPGKGLEWVGWINTYTGEPTYAADFKRRFTFSLDTSKSTAYLQMNSLRAEDTAVYYCAKYPHYYGSSHWYFDVWGQGTLVTVSS",
    "QVQLVQSGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMGGINPSNGGTNFNEKFKNRVTLTTDSSTTTAYMELKSLQFDDTAVYYCARRDYRFDMGFDYWGQGTTVTVSS",
]
LINKER, MASK = "GGGGSGGGGSGGGGS", "[MASK]"
#: Distance of masked residues.
EVERY = 9


class Antibody(Workload):
    """Adapter. Feature ``residues``: length of the sequence, which is two domains with a linker, cut off."""

    def load(self, device: str) -> torch.nn.Module:
        from antiberty import AntiBERTy
        from transformers import BertTokenizer, logging

        logging.set_verbosity_error()
        self._tokenizer = BertTokenizer(vocab=str(FILES / "vocab.txt"), do_lower_case=False)
        AntiBERTy.all_tied_weights_keys = {}  # as transformers 5 wants; the file contains all weights
        return AntiBERTy.from_pretrained(FILES / "AntiBERTy_md_smooth").to(device).eval()

    def prepare(self, request: Request) -> dict[str, torch.Tensor]:
        tokens = self._tokenizer(" ".join(_residues(request)))
        return {name: torch.tensor(tokens[name]) for name in ("input_ids", "attention_mask")}

    def finish(self, output: Any, request: Request) -> str:
        residues = _residues(request)
        best = output.prediction_logits.argmax(-1).tolist()[1 : len(residues) + 1]
        restored = self._tokenizer.convert_ids_to_tokens(best)
        return "".join(new if old == MASK else old for old, new in zip(residues, restored, strict=True))

    def evaluate(self, predict: Callable[[list[Request]], list[Any]]) -> float:
        cases = [(domain, offset) for domain in DOMAINS for offset in range(EVERY)]
        right = total = 0
        for (domain, offset), answer in zip(cases, predict(labeled(cases, residues=120)), strict=True):
            places = range(offset, len(domain), EVERY)
            right += sum(answer[place] == domain[place] for place in places)
            total += len(places)
        return right / total


def _residues(request: Request) -> list[str]:
    case = case_of(request)
    if case is None:
        offset = sum(map(ord, request.id))
        heavy, light = DOMAINS[offset % len(DOMAINS)], DOMAINS[offset // 7 % len(DOMAINS)]
        sequence = (heavy + LINKER + light)[: int(request.features["residues"])]
    else:
        sequence, offset = case
    return [MASK if place % EVERY == offset % EVERY else one for place, one in enumerate(sequence)]
