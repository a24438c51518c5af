"""Port of the stand-alone lab. Imports nothing heavy: a port in use is reported before anything is loaded."""

from __future__ import annotations

import errno
import os
import socket

HOST = "127.0.0.1"
"""Loopback: not reachable from outside this computer."""
FIRST_PORT = 7867
"""First port to try, if none is given."""
NUM_PORTS = 20
"""Number of ports to try."""


def listen(port: int | None) -> socket.socket:
    """Listen at a port of this computer.

    Args:
        port: The port; None for 7867 or the next free one.

    Returns:
        The socket; clients wait until it is served.

    Raises:
        ValueError: If the port is in use or not available.
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
            # EACCES is Windows' error for its reserved ports
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or port is not None:
                raise ValueError(f"port {one} cannot be used: {error.strerror}; choose another with --port") from error
        except OverflowError as error:
            listening.close()
            raise ValueError(f"a port is a number from 0 to 65535; got {one}") from error
        else:
            return listening
    raise ValueError(f"no port from {tried[0]} to {tried[-1]} is free; choose one with --port")
