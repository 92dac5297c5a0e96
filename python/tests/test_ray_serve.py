"""The Ray Serve deployment with stand-ins for Ray, aiohttp and Starlette."""

import asyncio
import importlib
import subprocess
import sys
import types
import urllib.request

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


def answer_of(content_type):
    async def answer(*_, **__):
        return Answer(content_type)
    return answer


def ask(ray_serve, session, path="/api/chat", prefix=""):
    async def body():
        return b""
    server = ray_serve.MoesaicServer.__new__(ray_serve.MoesaicServer)
    server._url, server._session = "http://a", session
    request = types.SimpleNamespace(url=types.SimpleNamespace(path=path, query=""), method="POST", headers={}, body=body,
                                    scope={"root_path": prefix})
    return asyncio.run(server(request))


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
    assert type(ask(ray_serve, types.SimpleNamespace(request=answer_of(content_type)))) is kind


def test_the_session_sets_no_limit_of_its_own(ray_serve, monkeypatch):
    def record(**options):
        return options
    for name in ("ClientTimeout", "TCPConnector"):
        monkeypatch.setattr(sys.modules["aiohttp"], name, record, raising=False)
    made = []
    monkeypatch.setattr(sys.modules["aiohttp"], "ClientSession", raising=False,
                        value=lambda **options: made.append(options) or types.SimpleNamespace(request=answer_of("application/json")))
    ask(ray_serve, None)
    assert made == [{"connector": {"limit": 0}, "timeout": {"total": None}, "auto_decompress": False}]


@pytest.mark.parametrize("path, prefix, asked", [("/v1/models", "", "/v1/models"), ("/b/v1/models", "/b", "/v1/models"), ("/b", "/b", "")])
def test_an_applications_prefix_is_not_the_servers(ray_serve, path, prefix, asked):
    urls = []

    async def request(_, url, **__):
        urls.append(url)
        return Answer("application/json")
    ask(ray_serve, types.SimpleNamespace(request=request), path, prefix)
    assert urls == ["http://a" + asked]


LOADS = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(200 if Handler.asked > 2 else 503)
        self.send_header("asked", str(Handler.asked))
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""


@pytest.fixture
def started(monkeypatch):
    """Lets a program stand for the server."""
    processes, popen = [], subprocess.Popen

    def of(program):
        monkeypatch.setattr(subprocess, "Popen", lambda _, **options: processes.append(popen([sys.executable, "-c", program], **options)) or processes[-1])
    yield of
    for process in processes:
        process.kill()
        process.communicate()


def test_a_replica_is_there_when_its_model_is_loaded(ray_serve, started):
    started(LOADS)
    _, url = ray_serve._start([])
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.headers["asked"] == "4"  # it was the third that said so


@pytest.mark.parametrize("program", ["", "print('http://127.0.0.1:1')"])
def test_a_server_that_ends_is_an_error(ray_serve, started, program):
    started(program)
    with pytest.raises(RuntimeError, match="ended with status 0"):
        ray_serve._start([])
