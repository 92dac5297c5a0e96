"""Ray Serve: replicas of `moesaic serve`, scaled by the requests in flight. Needs `pip install "ray[serve]"`.

    serve run moesaic.ray_serve:application model=/srv/models/gpt-oss-20b num_gpus=1 max_replicas=4

Each replica runs a server process of its own and passes HTTP on to it as it is, so that clients see the same endpoints,
streams and errors as without Ray. Ray restarts a replica whose server has ended or no longer answers /health.
"""

from __future__ import annotations

import ctypes
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from typing import Any, AsyncIterator

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

_PR_SET_PDEATHSIG = 1  # prctl(2)
# Headers of one connection, which must not be passed on (RFC 9110, 7.6.1).
_HOP_BY_HOP = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
               "upgrade", "host", "content-length"}
_STREAMS = {"text/event-stream", "application/x-ndjson"}  # the latter is Ollama's
_BUSY = Response('{"error": {"message": "the worker is gone; try again", "type": "server_error", "param": null, "code": "worker_gone"}}',
                 status_code=503, media_type="application/json", headers={"Retry-After": "1"})


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_until_loaded(process: subprocess.Popen[str], url: str) -> None:
    local = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while process.poll() is None:
        try:
            with local.open(url + "/ready", timeout=10):
                return
        except OSError:  # 503, too
            time.sleep(0.2)


def _start(arguments: list[str]) -> tuple[subprocess.Popen[str], str]:
    """The server's process and its address, once the model is loaded: Ray sends requests to a replica as soon as it is made."""
    process = subprocess.Popen([sys.executable, "-m", "moesaic", "serve", "--port", "0", *arguments], stdout=subprocess.PIPE,
                               text=True, preexec_fn=_end_with_parent)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    if url.startswith("http://"):
        _wait_until_loaded(process, url)
    if not url.startswith("http://") or process.poll() is not None:
        raise RuntimeError(f"the server ended with status {process.wait()}; its log says why")
    return process, url


def _kept(headers: Any) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in _HOP_BY_HOP]


class MoesaicServer:
    """A replica. arguments: of `moesaic serve`, but for --port."""

    def __init__(self, arguments: list[str]) -> None:
        self._process, self._url = _start(arguments)
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, request: Request) -> Response:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None),
                                                  auto_decompress=False)  # without a limit: aiohttp's is 100 requests at once
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))  # without the prefix of an application
        url = self._url + path + (f"?{request.url.query}" if request.url.query else "")
        try:
            answer = await self._session.request(request.method, url, headers=_kept(request.headers), data=await request.body())
        except aiohttp.ClientError:
            return _BUSY
        if answer.content_type not in _STREAMS:
            return await self._whole(answer)
        return StreamingResponse(self._parts(answer), answer.status, dict(_kept(answer.headers)))

    async def check_health(self) -> None:
        """Ray calls it every few seconds."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the server ended with status {self._process.returncode}")
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            async with session.get(self._url + "/health") as answer:
                answer.raise_for_status()

    def __del__(self) -> None:
        process = getattr(self, "_process", None)
        if process is not None and process.poll() is None:
            process.terminate()  # answers in flight are finished first
            process.wait()

    @staticmethod
    async def _whole(answer: aiohttp.ClientResponse) -> Response:
        try:
            return Response(await answer.read(), answer.status, dict(_kept(answer.headers)))
        except aiohttp.ClientError:
            return _BUSY

    @staticmethod
    async def _parts(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        async with answer:
            async for part in answer.content.iter_any():
                yield part


def application(args: dict[str, Any]) -> serve.Application:
    """The application that `serve run` deploys. args: model (required), options (a string of further ones for `moesaic serve`), num_gpus,
    num_cpus, min_replicas, max_replicas, and target_ongoing_requests, of one replica, by which Ray scales."""
    autoscaling = {"min_replicas": int(args.get("min_replicas", 1)), "max_replicas": int(args.get("max_replicas", 1)),
                   "target_ongoing_requests": float(args.get("target_ongoing_requests", 16))}
    resources = {"num_gpus": float(args.get("num_gpus", 0)), "num_cpus": float(args.get("num_cpus", 1))}
    deployment = serve.deployment(MoesaicServer, name="moesaic", autoscaling_config=autoscaling, ray_actor_options=resources,
                                  max_ongoing_requests=int(args.get("max_ongoing_requests", 256)), health_check_period_s=5,
                                  graceful_shutdown_timeout_s=60)
    return deployment.bind(["-m", str(args["model"]), *shlex.split(str(args.get("options", "")))])
