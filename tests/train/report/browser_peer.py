"""browser_peer.py FSDP WRITE_RUN: the report in headless Chromium, light and dark.

Checks that curves are drawn where the values put them, that colours can be told from their background, that nothing
is wider than the window, and that values are shown under the pointer.
"""

import html
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from png import Picture

FSDP, WRITE_RUN = sys.argv[1:3]
STEPS = 200
LIGHT, DARK = 1, 0  # values of Chromium's preferredColorScheme

# Writes what the browser made of the page into its <body data-seen="...">.
PROBE = """<script>
const rgb = color => color.match(/[0-9.]+/g).slice(0, 3).map(Number);
const charts = [...document.querySelectorAll('.chart')].map(chart => {
  const box = chart.querySelector('.area').getBoundingClientRect();
  const shapes = [...chart.querySelectorAll('svg .line, svg .fill')].map(shape => {
    const style = getComputedStyle(shape);
    return rgb(shape.classList.contains('fill') ? style.fill : style.stroke);
  });
  return {id: chart.id, box: [box.left, box.top, box.width, box.height], colors: shapes};
});
const loss = document.querySelector('#loss .area'), box = loss.getBoundingClientRect();
loss.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 2, clientY: box.top + 9}));
const tip = document.querySelector('#loss .tip');
document.body.dataset.seen = JSON.stringify({
  charts, tip: tip && tip.textContent, wide: document.documentElement.scrollWidth - innerWidth,
  text: rgb(getComputedStyle(document.body).color), soft: rgb(getComputedStyle(document.querySelector('.sub')).color),
  back: rgb(getComputedStyle(document.body).backgroundColor),
  card: rgb(getComputedStyle(document.querySelector('section')).backgroundColor),
});
if (tip) loss.dispatchEvent(new PointerEvent('pointerleave'));
</script></body>"""


def luminance(color):
    """WCAG 2.1, relative luminance."""
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def near(a, b):
    return max(abs(x - y) for x, y in zip(a, b)) <= 40


class Browser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temp.cleanup)
        cls.folder = pathlib.Path(cls.temp.name)
        (cls.folder / "run").mkdir()
        subprocess.run([WRITE_RUN, cls.folder / "run", str(STEPS)], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([FSDP, "report", cls.folder / "run"], check=True, stdout=subprocess.DEVNULL)
        cls.page = (cls.folder / "run/report.html").read_text()
        (cls.folder / "probe.html").write_text(cls.page.replace("</body>", PROBE))
        cls.seen = {}
        for scheme in (LIGHT, DARK):
            cls.seen[scheme] = cls.dump(scheme)
            cls.chromium(scheme, f"--screenshot={cls.folder}/{scheme}.png")

    @classmethod
    def chromium(cls, scheme, *options, width=1200):
        profile = f"--user-data-dir={cls.folder}/profile"
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", profile,
                   f"--window-size={width},3600", f"--blink-settings=preferredColorScheme={scheme}",
                   "--enable-logging=stderr", *options, f"file://{cls.folder}/probe.html"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        assert not messages, messages  # an error of the script, or something that the page's policy refused
        return done.stdout

    @classmethod
    def dump(cls, scheme, **options):
        found = re.search('data-seen="([^"]*)"', cls.chromium(scheme, "--dump-dom", **options))
        return json.loads(html.unescape(found[1]))

    def test_every_chart_has_content_in_its_colours(self):
        for scheme, seen in self.seen.items():
            picture = Picture(self.folder / f"{scheme}.png")
            self.assertGreaterEqual(len(seen["charts"]), 6)
            for chart in seen["charts"]:
                left, top, width, height = map(round, chart["box"])
                self.assertGreater(min(width, height), 100, chart["id"])
                pixels = [picture.pixel(x, y) for y in range(top, top + height) for x in range(left, left + width)]
                for i, color in enumerate(chart["colors"]):
                    count = sum(near(pixel, color) for pixel in pixels)
                    # The first is a curve or a pile of bars; later ones may be one dot.
                    self.assertGreater(count, 9 if i else 200, f"{chart['id']} has nothing of {color}")

    def test_the_loss_is_drawn_where_its_values_are(self):
        """write_run's loss is 4 / step, and its axis logarithmic: from the lowest / 1.2 to the highest x 1.2."""
        low, high = 4 / STEPS / 1.2, 4 * 1.2
        for scheme, seen in self.seen.items():
            picture = Picture(self.folder / f"{scheme}.png")
            chart = next(chart for chart in seen["charts"] if chart["id"] == "loss")
            left, top, width, height = chart["box"]
            for step in (2, 10, 50, 100, 150):
                x = round(left + width * (step - 1) / (STEPS - 1))
                y = round(top + height * (1 - math.log(4 / step / low) / math.log(high / low)))
                area = [picture.pixel(x + i, y + j) for i in (-1, 0, 1) for j in range(-3, 4)]
                self.assertTrue(any(contrast(pixel, seen["card"]) > 1.4 for pixel in area), f"step {step}: {area}")
                far = [picture.pixel(x, y + j) for j in (-20, 20)]
                self.assertTrue(any(near(pixel, seen["card"]) for pixel in far), f"step {step}: {far}")

    def test_text_and_lines_can_be_told_from_their_background(self):
        self.assertGreater(luminance(self.seen[LIGHT]["back"]), 0.8)
        self.assertLess(luminance(self.seen[DARK]["back"]), 0.05)
        for seen in self.seen.values():
            self.assertGreater(contrast(seen["text"], seen["card"]), 7)
            self.assertGreater(contrast(seen["soft"], seen["card"]), 4.5)
            for chart in seen["charts"]:
                for color in chart["colors"]:
                    self.assertGreater(contrast(color, seen["card"]), 2.5, (chart["id"], color))

    def test_nothing_is_wider_than_the_window(self):
        self.assertLessEqual(self.seen[LIGHT]["wide"], 0)
        self.assertLessEqual(self.dump(LIGHT, width=500)["wide"], 0)

    def test_values_are_shown_under_the_pointer(self):
        middle = 1 + STEPS // 2
        self.assertRegex(self.seen[LIGHT]["tip"], f"^step {middle}train{4 / middle:.4f}")


if __name__ == "__main__":
    os.environ.setdefault("DBUS_SESSION_BUS_ADDRESS", "disabled:")
    unittest.main(argv=sys.argv[:1])
