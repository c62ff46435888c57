"""The command `tilewright rpc`: a server on a device, a tracker for a pool of them, and a look at the pool."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import signal
from pathlib import Path

from tilewright.rpc.isolation import hide_memory
from tilewright.rpc.pool import connect_tracker
from tilewright.rpc.security import given_token
from tilewright.rpc.server import DEFAULT_PORT, Server, ServerOptions
from tilewright.rpc.tracker import Tracker, TrackerOptions
from tilewright.rpc.tracker_link import DEFAULT_TRACKER_PORT, split_address
from tilewright.support.errors import UserError
from tilewright.support.settings import read_bytes
from tilewright.target import Target

DESCRIPTION = """\
Run compiled programs on other machines.

  tilewright rpc server                                      serve this machine to local clients
  tilewright rpc server --host 0.0.0.0 --token-file FILE     ... to the network, with TLS
  tilewright rpc tracker --host 0.0.0.0 --token-file CLIENTS --device-token-file DEVICES
  tilewright rpc server --host 0.0.0.0 --tracker farm:9190 --key rpi5 --device-token-file DEVICES
  tilewright rpc query farm:9190 --token-file CLIENTS        who is in the pool

A server runs the code that its clients send. Off loopback it asks for a token and speaks TLS.
Other users of this machine see the command line: keep tokens in files (mode 0600) or in the environment.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    roles = parser.add_subparsers(title="roles", metavar="ROLE", dest="role", required=True, help="what to be")
    server = roles.add_parser("server", help="serve this machine")
    _add_listening(server, DEFAULT_PORT)
    _add_device_token(server)
    server.add_argument("--tracker", metavar="HOST:PORT", help="register with a tracker; then only leases get in")
    server.add_argument("--key", default="default", help="the kind of device, for the tracker (default: default)")
    server.add_argument(
        "--advertise", metavar="HOST", help="the address clients reach this server at (default: --host)"
    )
    server.add_argument("--target", help="this device's target (default: detected, if the compiler is installed)")
    server.add_argument(
        "--request-seconds", type=_seconds, default=3600.0, help="the longest that one request may take (default: 3600)"
    )
    server.add_argument(
        "--memory", metavar="SIZE", default="0", help="memory limit of a session, e.g. 4GB (default: none)"
    )
    tracker = roles.add_parser("tracker", help="lease a pool of devices to clients")
    _add_listening(tracker, DEFAULT_TRACKER_PORT)
    _add_device_token(tracker)
    query = roles.add_parser("query", help="show the devices of a tracker")
    query.add_argument("tracker", metavar="HOST:PORT", help="the address of the tracker")
    _add_token(query)


def _add_listening(parser: argparse.ArgumentParser, port: int) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=port, help=f"0: any free one (default: {port})")
    parser.add_argument(
        "--certificate", type=Path, metavar="PEM", help="TLS certificate (default: a new self-signed one)"
    )
    parser.add_argument("--certificate-key", type=Path, metavar="PEM", help="the certificate's key, if in another file")
    _add_token(parser)


def _add_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--token", help="the secret of clients (default: the setting TILEWRIGHT_RPC_TOKEN)")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="a file that holds it, readable by you alone")
    parser.add_argument("--tls", action=argparse.BooleanOptionalAction, help="TLS (default: on, off on loopback)")


def _add_device_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device-token", help="the secret with which devices join a tracker (default: TILEWRIGHT_RPC_DEVICE_TOKEN)"
    )
    parser.add_argument(
        "--device-token-file", type=Path, metavar="FILE", help="a file that holds it, readable by you alone"
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time above 0 s")
    return value


def execute(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if options.role == "query":
        host, port = split_address(options.tracker, DEFAULT_TRACKER_PORT)
        token = given_token(options.token, options.token_file, "token")
        print(connect_tracker(host, port, token=token, tls=options.tls).text_summary())
        return 0
    if not 0 <= options.port < 65536:
        raise UserError(f"{options.port} is no port", hint="0 to 65535")
    if asyncio.run(_serve(_service(options), options)):
        raise KeyboardInterrupt
    return 0


def _service(options: argparse.Namespace) -> Server | Tracker:
    token = given_token(options.token, options.token_file, "token")
    device_token = given_token(options.device_token, options.device_token_file, "device-token")
    if options.role == "tracker":
        return Tracker(
            TrackerOptions(
                host=options.host,
                port=options.port,
                token=token,
                device_token=device_token,
                tls=options.tls,
                certificate=options.certificate,
                key_file=options.certificate_key,
                say=_say,
            )
        )
    try:
        memory = read_bytes(options.memory)
    except ValueError as error:
        raise UserError(f"--memory {options.memory!r}: {error}") from None
    return Server(
        ServerOptions(
            host=options.host,
            port=options.port,
            token=token,
            device_token=device_token,
            tls=options.tls,
            certificate=options.certificate,
            key_file=options.certificate_key,
            tracker=options.tracker,
            key=options.key,
            advertise=options.advertise,
            target=_device_target(options.target),
            request_seconds=options.request_seconds,
            memory_bytes=memory,
            say=_say,
        )
    )


def _device_target(given: str | None) -> str | None:
    """What clients compile for. A device that carries the runtime alone cannot tell: LLVM knows processors' names."""
    if given is not None:
        return str(Target(given))
    if importlib.util.find_spec("llvmlite") is None:
        return None
    return str(Target("native"))


async def _serve(service: Server | Tracker, options: argparse.Namespace) -> bool:
    """Serve until a signal; returns whether it came from the keyboard."""
    # Sessions run the code of clients, as this user: they shall not find the tokens here.
    hide_memory()
    stopped: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def stop(interrupted: bool) -> None:
        if not stopped.done():
            stopped.set_result(interrupted)

    # Before anything is there that must be ended in order.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number == signal.SIGINT)
    await service.start()
    security = ", ".join(["TLS"] * service.tls + ["token" if service.has_token else "no token"])
    _say(f"{options.role} on {options.host}:{service.port} ({security})")
    interrupted = await stopped
    await service.close()
    return interrupted


def _say(text: str) -> None:
    print(text, flush=True)
