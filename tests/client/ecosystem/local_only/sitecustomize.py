"""Python reads this file at its start, in the cases and in the programs that they start (run.py sets PYTHONPATH): it keeps
the clients on this machine."""

import sys

LOCAL = {"127.0.0.1", "::1", "localhost", "0.0.0.0", "", None}


def stay_here(event, args):
    """Refuses every address but this machine's: a client that would report home gets no further."""
    if event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] not in LOCAL:
        raise ConnectionRefusedError(f"these cases use this machine only, not {args[1][0]}")
    if event == "socket.getaddrinfo" and args[0] not in LOCAL and args[0] not in (b"127.0.0.1", b"localhost"):
        raise ConnectionRefusedError(f"these cases use this machine only, not {args[0]}")


sys.addaudithook(stay_here)
