"""The remote serial protocol of GDB, as probes (OpenOCD, pyOCD, J-Link) and emulators (QEMU) speak it: a client.

$m20000000,4#..   ->   $01020304#..        a packet, with the sum of its bytes modulo 256
"""

from __future__ import annotations

import socket
from typing import Final

from tilewright.support.errors import UserError

_CHUNK: Final = 512
"""Bytes of memory that a packet holds; every server takes packets of that size."""
_ESCAPE, _REPEAT = ord("}"), ord("*")


class GdbRemote:
    """A connection to a server that holds a processor."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._socket = connection
        self._socket.settimeout(seconds)
        self._received = b""
        self._breakpoint = "1"
        self._acknowledges = True
        if self.ask("QStartNoAckMode") == "OK":
            self._acknowledges = False
        # QEMU lets only those set registers who have read what registers there are.
        self.ask("qXfer:features:read:target.xml:0,400")

    @classmethod
    def connect(cls, address: str, seconds: float = 60.0) -> GdbRemote:
        """The server at HOST:PORT."""
        host, separator, port = address.rpartition(":")
        if not separator or not port.isdecimal():
            raise UserError(f"'{address}' is no address of a debugger", hint="write it as HOST:PORT: localhost:3333")
        try:
            return cls(socket.create_connection((host or "localhost", int(port)), seconds), seconds)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"no debugger answers at {address}: {error}",
                hint="start its server first: openocd, pyocd gdbserver, JLinkGDBServer, or qemu-system-arm -gdb",
            ) from None

    def close(self) -> None:
        """Leave the processor as it is."""
        self._socket.close()

    # ---------------------------------------------------------------- memory and registers

    def read(self, address: int, size: int) -> bytes:
        """Bytes of memory."""
        parts = []
        for offset in range(0, size, _CHUNK):
            count = min(_CHUNK, size - offset)
            answer = self._checked(f"m{address + offset:x},{count:x}", f"reading memory at {address + offset:#x}")
            parts.append(bytes.fromhex(answer))
        return b"".join(parts)

    def write(self, address: int, data: bytes) -> None:
        """Put bytes into memory."""
        for offset in range(0, len(data), _CHUNK):
            part = data[offset : offset + _CHUNK]
            packet = f"M{address + offset:x},{len(part):x}:{part.hex()}"
            self._checked(packet, f"writing memory at {address + offset:#x}")

    def set_register(self, number: int, value: int) -> None:
        """Give a register of 32 bits a value."""
        self._checked(f"P{number:x}={value.to_bytes(4, 'little').hex()}", f"setting register {number}")

    # ---------------------------------------------------------------- running

    def set_breakpoint(self, address: int) -> None:
        """Stop where an instruction of 16 bits is about to run: by hardware, else by software."""
        if self.ask(f"Z{self._breakpoint},{address:x},2") != "OK":
            self._breakpoint = "0"
            self._checked(f"Z0,{address:x},2", f"a breakpoint at {address:#x}")

    def clear_breakpoint(self, address: int) -> None:
        """Stop there no longer."""
        self._checked(f"z{self._breakpoint},{address:x},2", f"the end of a breakpoint at {address:#x}")

    def resume(self) -> None:
        """Run until the processor stops."""
        self._stopped(self.ask("c"))

    def step(self) -> None:
        """Run one instruction."""
        self._stopped(self.ask("s"))

    def _stopped(self, answer: str) -> None:
        while answer.startswith("O"):
            # What the program prints.
            answer = self._packet()
        if not answer.startswith(("T05", "S05")):
            raise UserError(
                f"the program did not stop where it should: the debugger says '{answer}'",
                hint="a fault of the processor? is the memory of this board where the linker script says?",
            )

    def _checked(self, packet: str, what: str) -> str:
        answer = self.ask(packet)
        if answer == "" or (answer.startswith("E") and len(answer) == len("E01")):
            raise UserError(
                f"the debugger refused {what}: '{answer}'",
                hint="is it the board that the program was built for? flash is written by the probe's own command",
            )
        return answer

    # ---------------------------------------------------------------- packets

    def ask(self, packet: str) -> str:
        """Send a packet and give the answer."""
        data = packet.encode()
        try:
            self._socket.sendall(b"$" + data + b"#" + f"{sum(data) % 256:02x}".encode())
            return self._packet()
        except TimeoutError:
            raise UserError("the debugger does not answer", hint="does the program run for that long?") from None
        except OSError as error:
            raise UserError(f"the debugger went away: {error}") from None

    def _packet(self) -> str:
        """The next packet; what it says of packets before it is passed over."""
        while True:
            start = self._received.find(b"$")
            end = self._received.find(b"#", start + 1) if start >= 0 else -1
            if end >= 0 and len(self._received) >= end + 3:
                body, given = self._received[start + 1 : end], self._received[end + 1 : end + 3]
                self._received = self._received[end + 3 :]
                if f"{sum(body) % 256:02x}".encode() != given.lower():
                    raise UserError("a packet of the debugger came with a wrong sum", hint="is the line good?")
                if self._acknowledges:
                    self._socket.sendall(b"+")
                return _expanded(body).decode("latin-1")
            part = self._socket.recv(1 << 16)
            if not part:
                raise ConnectionResetError("the connection is closed")
            self._received += part


def _expanded(body: bytes) -> bytes:
    """A packet with what is escaped and what is repeated written out."""
    result = bytearray()
    place = 0
    while place < len(body):
        byte = body[place]
        if byte == _ESCAPE and place + 1 < len(body):
            result.append(body[place + 1] ^ 0x20)
            place += 2
        elif byte == _REPEAT and result and place + 1 < len(body):
            result += result[-1:] * (body[place + 1] - 29)
            place += 2
        else:
            result.append(byte)
            place += 1
    return bytes(result)
