"""What a browser makes of a page: its Chromium is run as a command."""

import json
import shutil
import subprocess
from html import unescape

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

# a window is never narrower than 500 pixels, a frame may be
_FRAMES = """<!DOCTYPE html><html><body>
<script>
const views = %s;
const cut = (page, width) => [...page.querySelectorAll("body *")].filter(e => {
  const box = e.getBoundingClientRect();
  return !e.closest("svg, thead") && (box.right > width + 1 || box.left < -1);
}).map(e => e.outerHTML.slice(0, 80));
const beyond = page => [...page.querySelectorAll("svg g[id*=text_]")].filter(e => {
  const text = e.getBoundingClientRect(), picture = e.ownerSVGElement.getBoundingClientRect();
  return text.left < picture.left - 1 || text.right > picture.right + 1
    || text.top < picture.top - 1 || text.bottom > picture.bottom + 1;
}).map(e => e.ownerSVGElement.querySelector("title").textContent);
Promise.all(views.map(({url, width, scheme}) => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = `border: 0; width: ${width}px; height: 800px; color-scheme: ${scheme}`;
  frame.onload = () => {
    const page = frame.contentDocument, inside = frame.contentWindow;
    const look = e => inside.getComputedStyle(e);
    done({
      width: inside.innerWidth,
      scrolled: page.documentElement.scrollWidth,
      cut: cut(page, width),
      beyond: beyond(page),
      fetched: inside.performance.getEntriesByType("resource").map(e => e.name),
      ground: look(page.body).backgroundColor,
      ink: look(page.body).color,
      row: [...page.querySelectorAll("tr")].slice(-1).map(e => look(e).display)[0],
      fills: [...new Set([...page.querySelectorAll("svg use")].map(e => look(e).fill))],
    });
  };
  frame.src = url;
  document.body.append(frame);
}))).then(found => { document.documentElement.dataset.found = JSON.stringify(found); });
</script></body></html>"""


def views(page, folder, sizes=(1280, 390), schemes=("light", "dark")):
    """What each width and colour scheme shows of a page, by ``(width, scheme)``."""
    asked = [(width, scheme) for width in sizes for scheme in schemes]
    given = [{"url": page.resolve().as_uri(), "width": w, "scheme": s} for w, s in asked]
    frames = folder / "frames.html"
    frames.write_text(_FRAMES % json.dumps(given))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    options = ["--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}"]
    patience = ["--virtual-time-budget=20000", "--host-resolver-rules=MAP * ~NOTFOUND"]
    shown = subprocess.run(
        [*command, *options, *patience, frames.resolve().as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    found = json.loads(unescape(shown.partition('data-found="')[2].partition('"')[0]))
    return dict(zip(asked, found, strict=True))
