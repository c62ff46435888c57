"""Trials in a process of their own, which may crash: `python -m tilewright.cli.trial_process` is that process.

It reads trials from stdin and writes what became of them to stdout.
"""

from __future__ import annotations

import select
import subprocess

from tilewright.cli.trial import Failure, Trial, attempt
from tilewright.lower.worker import own_output, receive, send, serve
from tilewright.support.children import python_command, python_environment
from tilewright.support.interrupts import ignore_interrupts

_LONGEST_TRIAL = 300.0
"""Seconds after which a trial is taken to hang."""


class TrialProcess:
    """Runs trials in a child process, a new one after a crash."""

    def __init__(self, longest: float = _LONGEST_TRIAL) -> None:
        self.longest = longest
        self.child: subprocess.Popen[bytes] | None = None

    def attempt(self, trial: Trial) -> Failure | None:
        """Run a trial; a process that dies or does not answer is a failure like any other."""
        child = self.child = self.child or _start_child()
        assert child.stdin is not None and child.stdout is not None
        try:
            send(child.stdin, trial)
            ready, _, _ = select.select([child.stdout], [], [], self.longest)
            if not ready:
                self.stop()
                return Failure("hang", f"no result after {self.longest:.0f} s")
            reply = receive(child.stdout)
        except OSError:
            reply = None
        if isinstance(reply, tuple):
            found = reply[0]
            assert found is None or isinstance(found, Failure)
            return found
        code = child.wait()
        self.child = None
        return Failure("crash", f"the process ended with the code {code}")

    def stop(self) -> None:
        """End the process."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            for stream in (self.child.stdin, self.child.stdout):
                if stream is not None:
                    stream.close()
            self.child = None


def _start_child() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        python_command("-m", "tilewright.cli.trial_process"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=python_environment(),
        # An interrupt from the keyboard is for this process alone: the child ends when its stdin does.
        process_group=0,
    )


def _attempted(request: object) -> object:
    assert isinstance(request, Trial)
    return (attempt(request),)


def main() -> None:
    """Serve trials until the stream ends; a reply is a tuple of the failure or None."""
    ignore_interrupts()
    serve(_attempted, own_output())


if __name__ == "__main__":
    main()
