"""Answers from the engine's deltas: what a stream sees that takes while a step is told, with stand-ins for the deltas."""

import types

import pytest

from moesaic import SamplingParams
from moesaic.outputs import RequestStateStats, _Collector


def delta(*tokens, finish=None, stop_string="", last_stops=False):
    made = [types.SimpleNamespace(token=token, is_stop=last_stops and i + 1 == len(tokens)) for i, token in enumerate(tokens)]
    end = finish and types.SimpleNamespace(finish=finish, stop_string=stop_string, cached_tokens=0)
    return types.SimpleNamespace(tokens=made, pieces=[], prompt_tokens=[], end=end, begun=1.0, first_token=1.0, latest_token=1.0)


@pytest.mark.parametrize("deltas, reason", [
    ([delta(5, 2, finish="stop", last_stops=True)], 2),
    ([delta(5, 2, last_stops=True), delta(finish="stop")], 2),  # the end comes behind its token
    ([delta(5, 9, last_stops=True), delta(finish="stop")], None),  # one of the model's own
    ([delta(5), delta(finish="stop", stop_string="42")], "42"),
    ([delta(5, 2), delta(finish="length")], None),
])
def test_why_an_answer_stopped(deltas, reason):
    collector = _Collector("id", None, SamplingParams(n=2, stop=["42", "2"], stop_token_ids=[2]), bytes, RequestStateStats())
    for one in deltas:
        collector.add(1, one)
    other, stopped = collector.take().outputs
    assert (stopped.stop_reason, stopped.finish_reason) == (reason, deltas[-1].end.finish)
    assert (other.stop_reason, other.finish_reason) == (None, None)
