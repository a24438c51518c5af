"""The stand-alone lab: its page on a server that is reachable only from this computer, at an address with a secret.

A Content-Security-Policy forbids the browser to load anything from elsewhere, and gradio's reporting is disabled.
"""

from __future__ import annotations

import contextlib
import logging
import mimetypes
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from functools import partial
from pathlib import Path
from typing import Any

from ...studio.dalle.dvae import DVAE
from ...studio.dalle.full_model import DALLE
from .access import HOST, Guard
from .model import LabError, ModelSource
from .native import Shelf

_ROOT = Path(__file__).resolve().parents[2]
_POLLING, _SHOWING = 0.02, 0.1
"""Seconds between looks at the queue of events and at what is to be told of their progress."""
_SCRIPTS = ("javascript", "web/comfyui/ruler", "web/lab/scripts")


def serve(
    source: ModelSource,
    listening: socket.socket,
    *,
    open_browser: bool,
    is_private: bool = False,
    dvae: DVAE | None = None,
    dalle: DALLE | None = None,
    shelf: Shelf | None = None,
) -> None:
    """Serve the lab until Ctrl-C. One line with its address is printed.

    Args:
        source: Function that returns the model.
        listening: Socket from `access.listen`.
        open_browser: Whether to open it in the user's browser.
        is_private: Whether the browser stores nothing of the prompt and forgets what it stored before.
        dvae: Model for images as tokens, or None.
        dalle: Model for images of a caption, or None.
        shelf: Choice of other weights, or None.

    Raises:
        LabError: If gradio is not installed.
    """
    secret = secrets.token_hex(16)
    copies = tempfile.TemporaryDirectory(prefix="weighted-clip-", ignore_cleanup_errors=True)
    with contextlib.suppress(KeyboardInterrupt), copies as folder, contextlib.ExitStack() as opened:
        # read by gradio when it is imported or its page is built
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=folder, HF_HUB_DISABLE_TELEMETRY="1")
        os.environ.pop("GRADIO_VIBE_MODE", None)  # lets a request rewrite the program
        server = _server(_app(source, dvae, dalle, shelf, secret, is_private=is_private))
        address = f"http://{HOST}:{listening.getsockname()[1]}/{secret}/"
        sys.stdout.write(f"Prompt Lab: {address} (Ctrl-C ends it)\n")
        sys.stdout.flush()
        if open_browser:
            threading.Timer(0.5, webbrowser.open, [_unseen(address, opened)]).start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the folder is removed then, too
        server.run(sockets=[listening])


def _unseen(address: str, opened: contextlib.ExitStack) -> str:
    """Address of a file that leads to another address: every user can see what a browser was started with.

    The file is there until ``opened`` ends, and only this user can read it.
    """
    if os.name != "posix":  # other users do not see it there
        return address
    make = partial(tempfile.NamedTemporaryFile, "w", prefix="prompt-lab-", suffix=".html")
    try:
        file = opened.enter_context(make(dir=Path.home()))  # browsers in a sandbox see no temporary files
    except (OSError, RuntimeError):
        file = opened.enter_context(make())
    file.write(f'<meta http-equiv="refresh" content="0; url={address}">')
    file.flush()
    return Path(file.name).as_uri()


def _app(
    source: ModelSource, dvae: DVAE | None, dalle: DALLE | None, shelf: Shelf | None, secret: str, *, is_private: bool
) -> Any:
    """The page, and the files for drawing its strip."""
    try:
        import gradio as gr
        from fastapi import FastAPI
        from gradio.themes import Default
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.responses import FileResponse
        from starlette.staticfiles import StaticFiles
    except ModuleNotFoundError as error:
        raise LabError(f"{error.name} is not installed: start the lab with run.py, which installs it") from error
    from .page import build_page
    from .tabs.image_tokens import TokenLab
    from .tabs.text_to_image import TextToImageLab

    app = FastAPI(openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    app.add_middleware(Guard, secret=secret)

    # Windows may map them differently, and browsers accept no script or style sheet of another type
    for suffix, kind in ((".js", "javascript"), (".mjs", "javascript"), (".css", "css")):
        mimetypes.add_type(f"text/{kind}", suffix)
    for folder in _SCRIPTS:
        app.mount(f"/weighted-clip/{folder}", StaticFiles(directory=_ROOT / folder))
    app.add_api_route("/weighted-clip/style.css", lambda: FileResponse(_ROOT / "style.css"))
    head = (
        f"<script>globalThis.weightedClipIsPrivate = {str(is_private).lower()}</script>"
        '<script src="weighted-clip/web/lab/scripts/keeping.js"></script>'
        '<script src="weighted-clip/web/lab/scripts/attention.js" defer></script>'
        '<script src="weighted-clip/web/lab/scripts/lists.js"></script>'
        '<script type="module" src="weighted-clip/javascript/weighted_clip.mjs"></script>'
        '<link rel="stylesheet" href="weighted-clip/style.css">'
    )
    drawing = None if dalle is None else TextToImageLab(dalle)
    tokens = None if dvae is None else TokenLab(dvae)
    page = build_page(source, image_tokens=tokens, text_to_image=drawing, is_alone=True, shelf=shelf).queue()
    queue = page._queue  # its own intervals, 1 and 10 ms, keep an idle processor busy
    queue.sleep_when_free, queue.progress_update_sleep_when_free = _POLLING, _SHOWING
    sans, mono = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]
    theme = Default(primary_hue="teal", font=sans, font_mono=mono)
    # by default small text and button labels are too pale to read
    theme.set(
        block_info_text_color="*neutral_500",
        body_text_color_subdued="*neutral_500",
        color_accent="#19847f",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_600",
    )
    return gr.mount_gradio_app(
        app,
        page,
        path="/",
        server_name=HOST,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        theme=theme,
        head=head,
    )


def _server(app: Any) -> Any:
    import uvicorn

    for name in ("uvicorn.error", "uvicorn.access", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
    # when it ends, it complains about pages that are still open
    logging.getLogger("uvicorn.error").addFilter(lambda record: not server.should_exit)
    return server
