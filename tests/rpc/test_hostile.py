"""Strangers and clients that send nonsense, in small; `make fuzz-rpc` sends ten thousand messages."""

from __future__ import annotations

import pytest

from tests.fuzz.rpc_frames import HOST, campaign, pool
from tilewright.rpc.connect import open_channel
from tilewright.rpc.security import CLIENT, DEVICE, Credentials
from tilewright.support.errors import UserError


@pytest.mark.parametrize(("tls", "count"), [(False, 100), (True, 30)])
def test_hostile_messages(tls: bool, count: int) -> None:
    found = campaign(count, 5, tls=tls)
    assert sum(found.sent.values()) == count and found.honest == 2


def test_wrong_tokens_learn_nothing_at_all() -> None:
    with pool(False) as (tracker, server):
        for token in ("", "another token of the length", "a token of some length "):
            for port in (tracker.port, server.port):
                for role in (CLIENT, DEVICE, "lease"):
                    with pytest.raises(UserError) as caught:
                        open_channel(HOST, port, Credentials(token, False, role), {"role": "query"})
                    assert caught.value.message == "the connection was refused"
