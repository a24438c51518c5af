"""Where the stand-alone lab listens. Imports nothing: a port that is taken is known before anything is loaded."""

from __future__ import annotations

import errno
import os
import socket

HOST = "127.0.0.1"
"""Loopback: nothing outside this computer reaches it."""
FIRST_PORT = 7867
"""Of the ports that are tried, if none is asked for."""
NUM_PORTS = 20
"""How many."""


def listen(port: int | None) -> socket.socket:
    """Listen at a port of this computer.

    Args:
        port: Which one; None takes 7867 or the next that is free.

    Returns:
        The socket; who connects waits until it is served.

    Raises:
        ValueError: If the port is taken or cannot be had.
    """
    tried = range(FIRST_PORT, FIRST_PORT + NUM_PORTS) if port is None else [port]
    for one in tried:
        listening = socket.socket()
        if os.name == "posix":  # elsewhere it would share the port with another program
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, one))
            listening.listen(128)
        except OSError as error:
            listening.close()
            # the second is what Windows says of the ports that it keeps for itself
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or port is not None:
                raise ValueError(f"port {one} cannot be used: {error.strerror}; choose another with --port") from error
        except OverflowError as error:
            listening.close()
            raise ValueError(f"a port is a number from 0 to 65535; got {one}") from error
        else:
            return listening
    raise ValueError(f"no port from {tried[0]} to {tried[-1]} is free; choose one with --port")
