"""Floor 3: devices over the network. Sessions on servers, pools of servers behind a tracker.

remote = tw.rpc.connect("board", 9090)
remote.upload("mylib.so")
module = remote.load_module("mylib.so")
module["matmul"](remote.array(a), remote.array(b), c)
"""

from __future__ import annotations

from tilewright.rpc.board import BoardSession, connect_board
from tilewright.rpc.client import RemoteArray, RemoteExecutable, RemoteModule, RemoteSession, connect
from tilewright.rpc.pool import TrackerClient, connect_tracker
from tilewright.rpc.wire import Disconnected, RemoteError, SessionDied

__all__ = [
    "BoardSession",
    "Disconnected",
    "RemoteArray",
    "RemoteError",
    "RemoteExecutable",
    "RemoteModule",
    "RemoteSession",
    "SessionDied",
    "TrackerClient",
    "connect",
    "connect_board",
    "connect_tracker",
]
