"""The page's Markdown in a headless Chromium: every element, hostile text, and long streams. Exit status 77 where there is
no Chromium."""

import json
import pathlib
import re
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from hostile import ELSEWHERE, PAYLOADS  # noqa: E402
from page_case import ENTER, Case, main  # noqa: E402

EVERYTHING = r"""# One

Setext
------

Text with *emphasis*, **strong**, ***both***, ~~gone~~, `code`, H<sub>2</sub>O, x<sup>2</sup>, <kbd>Ctrl</kbd>,
a hard break\
and another<br>one, \*no emphasis\*, &copy; and a [link](https://example.com "its title"), <https://example.org/auto>,
www.example.net, a [reference][r], ![a picture](https://example.com/p.png) and <b onclick="x()">no HTML</b>.

- one
  - two
    1. three
       - four
- [x] done
- [ ] to do

  a second paragraph

7. seven
8. eight

> quoted
>
> > twice
>
> - a list

| left | centre | right |
|:-----|:------:|------:|
| a \| b | **c** | `d` |
| line<br>break | $x^2$ | 1 |

```python
def f(x):
	return "tab"   # comment
```

~~~
no language
~~~

    indented

Costs $5 and $10, but \(a^2\), $b_1$ and

\[
\frac{1}{2}
\]

$$\sum_i i$$

***

###### Six

[r]: https://example.com/ref
"""


FENCES = """One
```python
code a
    code b

code c
```
- two
  ~~~
  code d

  code e
  ~~~
- ```
  code f
  ```

> three
> ````md
> code g
> code h
> ````

1. four

   ```js
   code i
"""


class Markdown(Case):
    def page_script(self, script):
        """Runs the body of an async function that has the page's own modules: stream."""
        return self.value("(async () => { const stream = await import(new URL('markdown_stream.js', $('script').src).href);"
                          f"{script} }})()")

    def attribute(self, selector, name):
        return self.value(f"$$('.assistant .body {selector}').map(e => e.getAttribute({name!r}))")

    def test_every_element(self):
        self.ask("everything", EVERYTHING)
        self.until("$$('.katex').length === 5 && $('.hljs-keyword')")
        body = ".assistant .body "
        for selector, count in {"h3.depth-1": 1, "h4.depth-2": 1, "h5.depth-6": 1, "em": 2, "strong": 3, "del": 1, "sub": 1,
                                "sup": 1, "kbd": 1, "br": 3, "blockquote": 2, "table": 1, "td": 6, "hr": 1, "pre": 3,
                                ".code-head button": 3, ".formula.display": 2, "b": 0, "img": 0,
                                "ul ul ol ul li": 1, "ol[start='7'] > li": 2}.items():
            with self.subTest(selector):
                self.assertEqual(self.count(body + selector), count)
        links = ["https://example.com", "https://example.org/auto", "http://www.example.net", "https://example.com/ref",
                 "https://example.com/p.png"]
        self.assertEqual(self.attribute("a", "href"), links)
        self.assertEqual(set(self.attribute("a", "rel")), {"noopener noreferrer nofollow"})
        self.assertEqual(self.attribute("th", "align"), ["left", "center", "right"])
        self.assertEqual(self.value("getComputedStyle($('td[align=right]')).textAlign"), "right")
        self.assertEqual(self.value(f"$$('{body}li input').map(e => e.checked)"), [True, False])
        self.assertIn('<b onclick="x()">no HTML', self.text(body))
        self.assertIn("Costs $5 and $10", self.text(body))
        self.assertIn('\treturn "tab"', self.value(f"$('{body}pre').textContent"))

    def test_addresses_are_escaped_once(self):
        self.ask("links", "https://e.com/?a=1&b=2 <https://e.org/?a=1&b=2> www.e.net/?a=1&b=2 [x](https://e.com/?c&d \"A & B's\") ![A & \"B\"](https://e.com/p)")
        self.assertEqual(self.attribute("a", "href"), ["https://e.com/?a=1&b=2", "https://e.org/?a=1&b=2", "http://www.e.net/?a=1&b=2",
                                                       "https://e.com/?c&d", "https://e.com/p"])
        self.assertEqual(self.value("$$('.assistant .body a').map(a => a.textContent)"),
                         ["https://e.com/?a=1&b=2", "https://e.org/?a=1&b=2", "www.e.net/?a=1&b=2", "x", '🖼 A & "B"'])
        self.assertEqual(self.attribute("a[title]", "title"), ["A & B's"])

    def test_a_model_that_runs_away_does_not_freeze_the_page(self):
        self.ask("one", "1")  # the libraries are there
        module = "await import($('script[type=module]').src.replace('main.js', 'markdown.js'))"
        for part, count in (("\t", 40000), (" ", 200000), ("a **", 30000), ("_*a", 20000), ("[", 40000), ("!", 60000), ("| ", 40000), ("x\n| | ", 20000),
                            ("```\n", 50000), ("\\[\n", 20000), ("- - ", 20000), ("$x$ ", 5000)):
            took = self.value(f"""(async () => {{
                const {{blocks, normalised, render}} = {module}, start = performance.now();
                render(blocks(normalised({json.dumps(part)}.repeat({count}) + "\\n\\nend")), {{}}, true);
                return performance.now() - start;
            }})()""")
            self.assertLess(took, 30000, part)  # most take minutes where time grows with the square

    def test_code_of_a_model_that_runs_away_does_not_freeze_the_page(self):
        self.ask("one", "```python\nx = 'a'\n```")
        self.until("$('.hljs-string')")
        for language, part in (("cpp", "int "), ("http", "\n"), ("cs", "a ")):
            start = time.time()
            self.ask(language, f"```{language}\n" + part * (56000 // len(part)) + "\n```")
            self.assertLess(time.time() - start, 30, language)
        self.assertEqual(self.value("$$('.assistant pre')[1].textContent.trim().length"), 55999)

    def test_a_long_paragraph_keeps_each_character(self):
        words = "".join(f"**w{i}** _and_ text " for i in range(700)) + "💡" * 5000
        self.ask("one", words)
        self.assertEqual(self.text(".assistant .body"), words.replace("*", "").replace("_", ""))
        self.assertGreater(self.count(".assistant strong"), 690)

    def test_formulas_that_define_macros_are_text(self):
        doubling = "\\edef\\a{11}" + "\\edef\\a{\\a\\a}" * 20
        chain = "".join(f"\\def\\{a}#1{{\\{b}{{#1#1}}}}" for a, b in zip("abcdefghijklmnopqrst", "bcdefghijklmnopqrstu")) + "\\def\\u#1{#1}\\a{x}"
        text = [doubling, chain, "\\newcommand{\\a}{" + "x" * 1900 + "}" + "\\a" * 400, "\\let\\a=b \\a", "\\gdef\\a{1}", "\\def%\n\\arraystretch{1}"]
        drawn = ["x^2", "\\newcommand{\\arraystretch}{1.5}\\begin{matrix}a\\end{matrix}", "\\def\\arraystretch{2} y", "\\leftarrow"]
        self.ask("formulas", "\n\n".join(f"$${formula}$$" for formula in drawn + text))
        self.until("$('.katex')")
        self.assertEqual(self.value("$$('.formula').map(f => !!f.querySelector('.katex'))"), [True] * len(drawn) + [False] * len(text))

    def test_what_is_nested_too_deep_is_plain_text(self):
        formulas = ["$$" + "\\sqrt{" * depth + "1" + "}" * depth + "$$" for depth in (160, 570)]
        self.ask("formulas", " and ".join(["$x$", *formulas, "after"]))
        self.until("$('.katex')")
        self.assertEqual(self.value("$$('.formula').map(f => !!f.querySelector('.katex'))"), [True, False, False])
        self.assertIn("after", self.text(".assistant .body"))
        for deltas in ([{"content": "start\n\n"}, {"content": "> " * 5000}, {"content": "x\n\nend"}], [{"content": "> " * 5000}]):
            self.ask("quotations", deltas=deltas)
            self.assertIn("> > > >", self.text(".assistant .body"))
        self.assertEqual(self.count(".assistant blockquote"), 0)
        self.reload()
        self.assertEqual(self.count(".message"), 6)
        self.ask("and then", "*fine*")
        self.assertEqual(self.text(".assistant .body"), "fine")

    def test_right_to_left(self):
        self.ask("שלום, one", "שלום עולם\n\nleft\n\n- אחת\n- שתיים\n\n```c\nint x; // שלום\n```\n\n| א | b |\n|---|--:|\n| ג | d |\n")
        sides = "$$('.assistant .body :is(p, li)').map(e => { const r = document.createRange(); r.selectNodeContents(e); const t = r.getBoundingClientRect();" \
                "const b = $('.assistant .body').getBoundingClientRect(); return t.left - b.left < b.right - t.right ? 'left' : 'right' })"
        self.assertEqual(self.value(sides), ["right", "left", "right", "right"])
        self.assertEqual(self.value("['.user .body', '#title', '#list .open', '.assistant ul', '.assistant table', '.assistant pre']"
                                    ".map(s => getComputedStyle($(s)).direction)"), ["rtl"] * 5 + ["ltr"])
        self.type("שלום")
        self.assertEqual(self.value("getComputedStyle($('#message')).direction"), "rtl")

    def test_copy(self):
        self.value("navigator.clipboard.writeText = async text => { globalThis.copied = text }")
        self.ask("code", "Look:\n\n```c\nint x;\n```\n")
        self.click(".code-head button")
        self.until("globalThis.copied === 'int x;\\n'")
        self.click(".assistant .tools [aria-label=Copy]")
        self.until("globalThis.copied.startsWith('Look:')")
        self.until("$('.assistant .tools [aria-label=Copied]')")

    def test_a_stream_ends_as_the_whole(self):
        # However it comes in pieces, an answer ends as the same elements.
        differing = self.page_script(f"""
            const text = {json.dumps(EVERYTHING)}, whole = document.createElement("div"), differing = [];
            document.body.append(whole);
            stream.drawMarkdown(whole, text);
            for (const size of [1, 7, 64, 1000]) {{
              const grown = document.createElement("div"), s = new stream.MarkdownStream(grown);
              document.body.append(grown);
              for (let i = 0; i < text.length; i += size) {{ s.append(text.slice(i, i + size)); s.draw(); clearTimeout(s.timer); }}
              s.end();
              await new Promise(done => setTimeout(done, 50));
              if (grown.textContent !== whole.textContent) differing.push(size);
            }}
            return differing;""")
        self.assertEqual(differing, [])

    def test_cut_off_code_stays_code(self):
        # Each beginning of an answer shows all code so far, with its newlines, and no fence.
        wrong = self.page_script(f"""
            const text = {json.dumps(FENCES)}, lines = text.split("\\n"), wrong = [];
            const box = document.createElement("div");
            document.body.append(box);
            for (let end = 1; end <= text.length; ++end) {{
              const begin = text.slice(0, end), shown = () => [...box.querySelectorAll("code")].map(c => c.textContent).join("");
              box.replaceChildren();
              stream.drawMarkdown(box, begin);
              const last = begin.slice(begin.lastIndexOf("\\n") + 1);
              if (/^[ >]*[`~]+$/.test(last)) continue;   // a fence that has begun, or code that is one
              if (/[`~]{{3}}/.test(box.textContent)) wrong.push(["fence", begin]);
              const want = begin.split("\\n").filter(line => /code/.test(line)).map(line => line.slice(line.indexOf("code")).trimEnd());
              const got = shown().split("\\n").filter(line => /code/.test(line)).map(line => line.trim());
              if (JSON.stringify(got) !== JSON.stringify(want)) wrong.push([begin, got, want]);
            }}
            return wrong.slice(0, 3);""")
        self.assertEqual(wrong, [])

    def test_growing_costs_what_is_new(self):
        # A settled block stays the same element while later text comes.
        self.assertTrue(self.page_script("""
            const box = document.createElement("div"), s = new stream.MarkdownStream(box);
            s.append("first\\n\\nsecond\\n\\n"); s.draw();
            s.append("third\\n"); s.draw();
            const first = box.firstElementChild;
            for (let i = 0; i < 50; ++i) { s.append(`more ${i}\\n\\n`); s.draw(); }
            s.append("```js\\nlet a;\\n"); s.draw();
            const code = box.querySelector("code");
            for (let i = 0; i < 50; ++i) { s.append(`let b${i};\\n`); s.draw(); }
            clearTimeout(s.timer);
            return box.firstElementChild === first && box.querySelector("code") === code && code.textContent.includes("b49");"""))

    def test_hostile(self):
        self.assertGreaterEqual(len(PAYLOADS), 60)
        self.page.events.clear()
        self.value("globalThis.hacked = 0; globalThis.alert = () => { hacked = 1 }")
        wrong = self.page_script(f"""
            const wrong = [], room = $("#thread");
            for (const payload of {json.dumps(PAYLOADS)}) {{
              const whole = room.appendChild(document.createElement("div")), grown = room.appendChild(document.createElement("div"));
              stream.drawMarkdown(whole, payload);
              const s = new stream.MarkdownStream(grown);
              for (const c of payload) {{ s.append(c); s.draw(); clearTimeout(s.timer); }}
              s.end();
              await new Promise(done => setTimeout(done, 5));
              for (const box of [whole, grown]) {{
                if (box.querySelector("script,img,svg:not(.icon):not(.katex svg),iframe,object,embed,video,audio,link,style,form,base,meta,select,textarea,template"))
                  wrong.push(["element", payload, box.innerHTML]);
                for (const element of box.querySelectorAll("*")) {{
                  element.dispatchEvent(new Event("mouseover", {{bubbles: true}}));
                  for (const {{name, value}} of element.attributes)
                    if (/^on/.test(name) || /script:/i.test(value) && name === "href") wrong.push([name, payload]);
                  if (element.id) wrong.push(["id", payload]);
                  if (element.localName === "a" && element.href && !/^(https?|mailto):/.test(element.href)) wrong.push([element.href, payload]);
                }}
              }}
              if (globalThis.hacked !== 0) {{ wrong.push(["ran", payload]); globalThis.hacked = 0; }}
            }}
            return wrong;""")
        self.assertEqual(wrong, [])
        self.ask("all", "\n\n".join(PAYLOADS))
        self.assertEqual(self.value("globalThis.hacked"), 0)
        asked = [event["params"]["request"]["url"] for event in self.page.events if event["method"] == "Network.requestWillBeSent"]
        self.assertEqual([url for url in asked if not url.startswith(self.url)], [])
        self.assertNotIn(ELSEWHERE, self.value("performance.getEntriesByType('resource').map(e => e.name).join()"))

    def test_without_libraries(self):
        path = self.value("new URL('library/libraries.js', $('script').src).pathname")
        status, headers, _ = self.stub.get(path)
        plain = b"export const markdown = false, highlighting = false, mathematics = false;"
        self.stub.kept[path] = (status, {"Content-Type": headers["Content-Type"]}, plain)
        self.page.call("Network.setCacheDisabled", cacheDisabled=True)
        try:
            self.load()
            self.ask("one", "**two** <b>three</b> $x$\n\nfour")
            self.assertEqual(self.text(".assistant .body"), "**two** <b>three</b> $x$\n\nfour")
        finally:
            del self.stub.kept[path]
            self.page.call("Network.setCacheDisabled", cacheDisabled=False)

    def test_policy_is_a_wall_of_its_own(self):
        # Scripts that would come through the others do not run either.
        self.value("globalThis.hacked = 0")
        self.value("$('#thread').append(Object.assign(document.createElement('img'), {src: 'http://elsewhere.invalid/a.png'}))")
        self.value("(() => { try { $('#thread').innerHTML = '<img src=x onerror=hacked=1>' } catch { hacked = 2 } })()")
        self.assertEqual(self.value("hacked"), 2)
        self.until("broken.some(what => what.startsWith('img-src'))")
        self.page.events.clear()
        self.value("broken.length = 0")

    def test_twenty_thousand_tokens(self):
        section = "## Part {}\n\nSome *words* with `code`, **more** and a formula $x_{{1}}^2$ in it.\n\n- one\n- two\n  - three\n\n" \
                  "| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nfor i in range({}):\n    print(i)\n```\n\n"
        tokens = [piece for part in range(500) for piece in self.pieces(section.format(part, part))][:20000]
        self.assertEqual(len(tokens), 20000)
        gate = threading.Event()
        self.stub.answers.append({"deltas": [{"content": token} for token in tokens], "gate": gate})
        self.value("globalThis.drawings = 0; new MutationObserver(() => ++drawings).observe($('#thread'), {subtree: true, childList: true})")
        self.type("long")
        start = time.time()
        self.page.press(*ENTER)
        # All is drawn while the answer is still open, and the page answers meanwhile.
        last = re.findall(r"Part \d+", "".join(tokens))[-1]
        while not self.value(f"$('.assistant .body')?.textContent.includes({last!r})"):
            self.assertLess(time.time() - start, 90)  # a page that draws all anew for each token takes minutes
        seconds = time.time() - start
        gate.set()
        self.idle("long")
        self.assertGreater(self.value("drawings"), 3)
        print(f"20,000 tokens drawn after {seconds:.1f} s", file=sys.stderr)

    @staticmethod
    def pieces(text):
        """Some four characters each, as tokens have."""
        return [text[i:i + 4] for i in range(0, len(text), 4)]


if __name__ == "__main__":
    main()
