"""The page while the server loads its model: it says how far that is, and keeps what is sent meanwhile. Exit status 77 where
there is no Chromium."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_case import ENTER, ESCAPE, Case, main  # noqa: E402

QUESTION = "What is 2 + 3?"


class Loading(Case):
    def loading(self, percent):
        """What the server answers while it loads (src/server/handlers.cpp)."""
        self.refusal = {"message": f"the model is being loaded ({percent}%)", "code": "model_loading"}
        body = json.dumps({"error": self.refusal}).encode()
        for path in ("/server_info", "/ready"):
            self.stub.kept[path] = (503, {"Content-Type": "application/json"}, body)

    def loaded(self):
        for path in ("/server_info", "/ready"):
            self.stub.kept.pop(path, None)

    def setUp(self):
        super().setUp()
        self.addCleanup(self.loaded)
        self.loading(42)
        self.page.call("Page.reload")
        self.page.until("document.documentElement?.dataset.ready === 'true' && $('#server-device').textContent.includes('(42%)')")

    def send(self):
        self.stub.answers.append({"status": 503, **self.refusal})
        self.type(QUESTION)
        self.page.press(*ENTER)
        self.until("$('.assistant .foot')?.innerText.includes('(42%)')")
        self.assertEqual(self.value("$('#message').value"), "")

    def test_how_far_it_is(self):
        self.loading(87)
        self.until("$('#server-device').textContent.includes('(87%)')")
        self.loaded()
        self.until("$('#server-model').textContent === 'tiny'")

    def test_a_message_is_sent_when_the_model_is_there(self):
        self.send()
        self.loading(87)
        self.until("$('.assistant .foot').innerText.includes('(87%)')")
        self.stub.answers.append({"content": "five"})
        self.loaded()
        self.idle(QUESTION)
        self.assertEqual(self.text(".assistant .body"), "five")
        self.assertEqual((self.count(".user"), self.count(".assistant"), self.count(".refused")), (1, 1, 0))
        self.assertEqual([body["messages"] for body in self.stub.bodies], [[{"role": "user", "content": QUESTION}]] * 2)

    def test_it_is_kept_over_a_reload(self):
        self.send()
        self.stub.answers.append({"status": 503, **self.refusal})
        self.page.call("Page.reload")
        self.page.until("document.documentElement?.dataset.ready === 'true' && !!$('.assistant')")
        self.stub.answers.append({"content": "five"})
        self.loaded()
        self.until("$('.assistant .body')?.innerText === 'five'")
        self.idle(QUESTION)
        self.assertEqual((self.count(".user"), self.count(".assistant"), self.count(".trouble")), (1, 1, 0))

    def test_it_can_be_taken_back(self):
        self.send()
        self.page.press(*ESCAPE)
        self.idle(QUESTION)
        self.assertIn("Stopped", self.text(".assistant .foot"))
        self.assertEqual(len(self.stub.bodies), 1)


if __name__ == "__main__":
    main()
