"""Makes the pictures of docs/user/page.md: the page of a server with models/tiny, with a prepared answer. Run by hand:
MOESAIC=build/release/apps/moesaic python3 -B tests/client/page_pictures.py"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_case import Case, main  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs" / "user" / "pictures"
QUESTION = "How does a mixture of experts choose its experts?"
ANSWER = r"""Each token goes to a few of the layer's experts only. A small **router** chooses them.

## The router

A token $x$ gets a score from every expert, $s = W_r x$, and the best $k$ are kept:

\[ y = \sum_{i \in \mathrm{top}_k(s)} \frac{e^{s_i}}{\sum_{j \in \mathrm{top}_k(s)} e^{s_j}} \, E_i(x) \]

| model | experts | top k | active parameters |
|:--|--:|--:|--:|
| gpt-oss-20b | 32 | 4 | 3.6 B |
| gpt-oss-120b | 128 | 4 | 5.1 B |

```python
def route(x, router, k=4):
    scores = x @ router.T            # [tokens, experts]
    best = scores.topk(k, dim=-1)
    return best.indices, best.values.softmax(-1)
```

1. The scores cost one small dense product.
2. Only the chosen experts' weights are read, which is why
   - decoding is quick, and
   - memory is what limits the size.
"""


class Pictures(Case):
    def picture(self, name, scheme, **size):
        self.page.call("Emulation.setDeviceMetricsOverride", **size)
        self.scheme(scheme)
        self.value("document.fonts.ready.then(() => new Promise(done => setTimeout(done, 300)))")
        self.screenshot(FOLDER / name)

    def test_pictures(self):
        for title in ("Bread with rye", "Raft in ten lines", "A regex for ISO dates"):
            self.ask(title, "ok")
            self.click("#new")
            self.until("$$('.message').length === 0")
        self.ask(QUESTION, deltas=[{"reasoning_content": "A short overview."}] + [{"content": w} for w in re.findall(r"\S+\s*", ANSWER)])
        self.until("$('.katex') && $('.hljs-keyword')")
        desktop = {"width": 1100, "height": 760, "deviceScaleFactor": 1, "mobile": False}
        phone = {"width": 390, "height": 740, "deviceScaleFactor": 1.4, "mobile": True}
        self.value("$('.stats').textContent = '214 tokens'")   # this machine's speed says nothing
        self.value("document.activeElement.blur(); $('#scroll').scrollTop = 0")
        self.picture("page-desktop.png", "light", **desktop)
        self.picture("page-phone.png", "dark", **phone)
        self.page.call("Emulation.setDeviceMetricsOverride", **desktop)
        self.click("#open-settings")
        self.value("$$('#settings details').forEach((d, i) => d.open = i === 1); document.activeElement.blur()")
        self.picture("page-settings.png", "dark", **desktop)


if __name__ == "__main__":
    main()
