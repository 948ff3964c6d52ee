#!/usr/bin/env python3
"""MiniStack, an AWS emulator that others wrote, on a free port of the loopback and for as long as stdin is open.

    aws.py SERVICES     such as: aws.py ses
    prints              listening 127.0.0.1:PORT
    GET /_ministack/ses/messages    what it recorded as sent, by account
"""

import asyncio
import os
import socket
import sys
import threading


def main(services):
    # Read when the emulator is imported. It would open further ports for services nobody asked for.
    os.environ.update(SERVICES=services, LOG_LEVEL="ERROR", SFTP_ENABLED="0", IOT_MTLS_ENABLED="0")
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    asyncio.run(serve(listener))


async def serve(listener):
    from hypercorn.asyncio import serve as serve_app
    from hypercorn.config import Config
    from ministack.app import app

    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.loglevel = "ERROR"
    threading.Thread(target=end_with_stdin, daemon=True).start()
    print(f"listening 127.0.0.1:{listener.getsockname()[1]}", flush=True)
    await serve_app(app, config)


def end_with_stdin():
    """At once: the emulator keeps nothing, and an orderly end takes seconds and complains."""
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
