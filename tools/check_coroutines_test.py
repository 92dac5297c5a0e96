#!/usr/bin/env python3
"""check_coroutines.py on samples: the operands that it refuses, and those that it lets pass."""
import unittest

from check_coroutines import faults


class Coroutines(unittest.TestCase):
    def test_temporaries_that_are_destroyed_twice(self):
        for line in ('co_await send_error(exchange, {.http = 404, .message = "no"});', "co_await send(HttpAnswer{.body = text});",
                     "const bool sent = co_await run([work] { work->run(); });", "co_await send(failed ? refusal() : Refusal());",
                     "co_return co_await send(\n  std::exchange(answer, {}));", "while (co_await next(Event{.end = true})) {"):
            self.assertEqual(len(list(faults(f"\n{line}\n"))), 1, line)
        self.assertEqual(list(faults("// a\nco_await send(\n    {.body = text});")), [(3, "{")])

    def test_what_is_named_first(self):
        for line in ("const HttpAnswer answer{.body = text};\nco_await exchange.send(answer);", "if (co_await next()) { stop(); }",
                     "for (bool more = true; more; more = co_await read(kFirst)) {\n  x ? y : z;\n}", 'co_await send("{?}");',
                     "// co_await send({.http = 404});", "co_await timer.async_wait(into(error));  // {?"):
            self.assertEqual(list(faults(line)), [], line)


if __name__ == "__main__":
    unittest.main()
