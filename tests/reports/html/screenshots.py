"""Screenshots of a page of every kind, 1280 and 400 px wide: ``python -m tests.reports.html.screenshots DIR``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.reports.html.browser import browse, framed, probed, returned
from tests.reports.html.every_page import EVERY_PAGE

WIDTHS = (1280, 400)
#: Chromium draws no larger picture.
_TALLEST = 16_000


def main(out: Path) -> None:
    """Write ``KIND-WIDTH.png`` of every kind into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind, write in EVERY_PAGE.items():
            page = Path(folder, f"{kind.replace(' ', '-')}.html")
            write(page)
            probe = probed(page, "return document.documentElement.scrollHeight;")
            around = framed(probe, *((width, 800) for width in WIDTHS))
            heights = returned(browse(around, "--dump-dom", "--window-size=1700,900")[0])
            for width in WIDTHS:
                height, picture = min(heights[str(width)], _TALLEST), out / f"{page.stem}-{width}.png"
                around = framed(page, (width, height))
                size = f"--window-size={max(width, 500)},{height}"
                browse(around, f"--screenshot={picture}", size, "--hide-scrollbars")
                print(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
