"""The Ray Serve deployment with stand-ins for Ray, aiohttp and Starlette: which answers go on in parts."""

import asyncio
import importlib
import sys
import types

import pytest


class Response:
    def __init__(self, content, status=200, headers=None, **_):
        self.content = content


class StreamingResponse(Response):
    pass


class Answer:
    """The server's, of aiohttp."""

    status, headers = 200, {}

    def __init__(self, content_type):
        self.content_type = content_type

    async def read(self):
        return b"whole"


def module(name, **members):
    made = types.ModuleType(name)
    vars(made).update(members)
    return made


@pytest.fixture
def ray_serve(monkeypatch):
    for made in (module("aiohttp", ClientError=OSError, ClientResponse=Answer), module("ray", serve=types.SimpleNamespace(Application=None)),
                 module("starlette"), module("starlette.requests", Request=None),
                 module("starlette.responses", Response=Response, StreamingResponse=StreamingResponse)):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.delitem(sys.modules, "moesaic.ray_serve", raising=False)
    yield importlib.import_module("moesaic.ray_serve")
    sys.modules.pop("moesaic.ray_serve", None)


@pytest.mark.parametrize("content_type, kind", [
    ("text/event-stream", StreamingResponse), ("application/x-ndjson", StreamingResponse), ("application/json", Response)])
def test_streams_go_on_in_parts(ray_serve, content_type, kind):
    async def answer(*_, **__):
        return Answer(content_type)

    async def body():
        return b""
    server = ray_serve.MoesaicServer.__new__(ray_serve.MoesaicServer)
    server._url, server._session = "http://a", types.SimpleNamespace(request=answer)
    request = types.SimpleNamespace(url=types.SimpleNamespace(path="/api/chat", query=""), method="POST", headers={}, body=body)
    assert type(asyncio.run(server(request))) is kind
