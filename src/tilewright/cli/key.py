"""`tilewright key`: keys that sign exported libraries."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.runtime.core.keys import SigningKey
from tilewright.support.errors import UserError

DESCRIPTION = """\
Make a key that signs libraries, and the public key that checks them.

  tilewright key generate release.key                      the secret key, and release.pub beside it
  tilewright compile resnet18.onnx --sign release.key
  tilewright run resnet18.so --require signed --trust release.pub

Keep the secret key where you compile for release, and nowhere else. The public key goes to the machines that load:
tw.load("resnet18.so", require="signed", trust="release.pub").
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("action", choices=("generate",), help="what to do: make a new key")
    parser.add_argument(
        "output", type=Path, metavar="FILE.key", help="the secret key to write; FILE.pub goes beside it"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    secret: Path = options.output
    public = secret.with_suffix(".pub")
    if public == secret:
        raise UserError(f"{secret.name} is the name of the public key", where=str(secret), hint="name it release.key")
    if public.exists():
        raise UserError(f"{public.name} is there already", where=str(public), hint="name another file")
    key = SigningKey.new()
    key.save(secret)
    key.public.save(public)
    print(f"{secret}: the secret key {key.public.fingerprint()}, for `tilewright compile --sign`")
    print(f"{public}: its public key, for tw.load(..., require='signed', trust='{public}')")
    return 0
