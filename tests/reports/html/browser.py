"""Headless Chromium: what a page's scripts did, what it logged, and how it looks."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: Tests that need a browser are skipped without one, but fail in CI.
needs_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="needs Chromium"),
]

#: Runs ``look`` once the page is drawn, and adds what it returns to the page; in a frame, to the page around it.
PROBE = """addEventListener("load", async () => {
const over = document.querySelector(".u-over"), tip = document.querySelector(".tip");
const box = over && over.getBoundingClientRect();
const send = (kind, x, y) =>
  over.dispatchEvent(new MouseEvent(kind, { clientX: box.left + x, clientY: box.top + y, bubbles: true }));
const look = async () => { %s };
let result;
try { result = await look(); } catch (error) { result = { error: String(error.stack) }; }
if (parent !== window) parent.postMessage(result, "*");
const node = Object.assign(document.createElement("pre"), { id: "result", textContent: JSON.stringify(result) });
document.body.append(node);
});"""
#: Frames of several widths: Chromium's own window is at least 500 px wide.
_FRAMES = """<!DOCTYPE html><meta charset="utf-8"><body style="margin: 0">
%s<script>const found = {}; addEventListener("message", (event) => {
for (const frame of document.querySelectorAll("iframe"))
  if (frame.contentWindow === event.source) found[frame.width] = event.data;
if (Object.keys(found).length < document.querySelectorAll("iframe").length) return;
const node = Object.assign(document.createElement("pre"), { id: "result", textContent: JSON.stringify(found) });
document.body.append(node);
});</script>"""


def probed(page: Path, script: str) -> Path:
    """A copy of a page that runs a script; its policy allows that script, too."""
    code = PROBE % script
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    source = page.read_text(encoding="utf-8").replace("script-src ", f"script-src &#39;sha256-{digest}&#39; ", 1)
    copy = page.with_name(f"{page.stem}-probed.html")
    copy.write_text(f"{source}<script>{code}</script>", encoding="utf-8")
    return copy


def framed(page: Path, *sizes: tuple[int, int]) -> Path:
    """A page that shows another in frames of these widths and heights."""
    frames = (f'<iframe src="{page.name}" width="{w}" height="{h}" style="border: 0"></iframe>\n' for w, h in sizes)
    around = page.with_name(f"{page.stem}-framed.html")
    around.write_text(_FRAMES % "".join(frames), encoding="utf-8")
    return around


def browse(page: Path, *options: str) -> tuple[str, str]:
    """The page's text after its scripts ran, and what the browser logged."""
    assert CHROMIUM is not None, "CI needs Chromium: pages are tested in it"
    with tempfile.TemporaryDirectory() as profile:
        command = [
            CHROMIUM,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}"),
            *("--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=3000", "--timeout=60000"),
            *options,
            page.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


def result(page: Path, script: str, *options: str) -> Any:
    """What a script on a page returned."""
    return returned(browse(probed(page, script), "--dump-dom", "--window-size=1280,2400", *options)[0])


def returned(text: str) -> Any:
    """What the scripts of probed pages returned; by width, if they are in frames."""
    (found,) = re.findall('<pre id="result">(.*?)</pre>', text, flags=re.DOTALL)
    return json.loads(html.unescape(found))


def console(log: str) -> list[str]:
    """What pages wrote to the console: errors of scripts, and what the policy refused."""
    return [line for line in log.splitlines() if "CONSOLE" in line]
