"""The whole accelerator: its units, memories and token queues, and the ports that a board sees."""

from __future__ import annotations

from typing import Any

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.hardware.compute import Compute
from tilewright.accel.hardware.fetch import Fetch
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.hardware.load import LoadUnit
from tilewright.accel.hardware.memories import Accumulators, plain_memory
from tilewright.accel.hardware.port import MemoryPort
from tilewright.accel.hardware.queues import TokenQueue
from tilewright.accel.hardware.store import StoreUnit
from tilewright.accel.hardware.watch import COUNTER_BITS
from tilewright.accel.instructions import Unit

TOKEN_QUEUES = ("load_to_compute", "compute_to_load", "compute_to_store", "store_to_compute")
INPUTS = ("start", "start_address", "start_count", "request_ready", "response_valid", "response_data")
UNIT_COUNTERS = ("instructions", "busy_cycles", "memory", "token")


class Core:
    """One accelerator. `ports` names all inputs and outputs; clock and reset are called clk and rst."""

    def __init__(self, config: AccelConfig) -> None:
        m = self.module = hdl.Module()
        self._port = port = MemoryPort(config)
        self._fetch = Fetch(config, port)
        self._tokens = {name: TokenQueue(config.token_queue) for name in TOKEN_QUEUES}
        memories = {memory: plain_memory(memory, config) for memory in (Memory.INP, Memory.WGT, Memory.OUT, Memory.PAR)}
        accumulators = Accumulators(config)
        tokens, queues = self._tokens, self._fetch.queues
        self._load = LoadUnit(config, queues[Unit.LOAD], port, tokens["compute_to_load"], tokens["load_to_compute"])
        self._compute = Compute(
            config,
            queues[Unit.COMPUTE],
            port,
            memories[Memory.INP],
            memories[Memory.WGT],
            accumulators,
            (tokens["load_to_compute"], tokens["store_to_compute"]),
            (tokens["compute_to_load"], tokens["compute_to_store"]),
        )
        self._store = StoreUnit(
            config,
            queues[Unit.STORE],
            port,
            accumulators,
            memories[Memory.OUT],
            memories[Memory.PAR],
            tokens["compute_to_store"],
            tokens["store_to_compute"],
        )
        parts: dict[str, Any] = {"port": port, "fetch": self._fetch, "load": self._load, "compute": self._compute}
        parts |= {"store": self._store, "acc": accumulators, **tokens}
        parts |= {memory.name.lower(): item for memory, item in memories.items()}
        for name, part in parts.items():
            m.submodules[name] = part.module
        self._write_memories(memories)
        self._units: dict[Unit, Any] = {Unit.LOAD: self._load, Unit.COMPUTE: self._compute, Unit.STORE: self._store}
        self.ports: dict[str, Any] = self._control()

    def _write_memories(self, memories: dict[Memory, Any]) -> None:
        """What the load unit writes; EPI's results go before what is loaded to OUT."""
        m, reader, epilogue = self.module, self._load.reader, self._store.epilogue
        for memory, item in memories.items():
            is_its = reader.write_valid & (reader.write_memory == memory)
            item.write_words(m, reader, is_its)
        out = memories[Memory.OUT].write
        with m.If(epilogue.writes):
            m.d.comb += [out.addr.eq(epilogue.write_index), out.data.eq(epilogue.write_data), out.en.eq(~0)]
        m.d.comb += reader.write_ready.eq(~(epilogue.writes & (reader.write_memory == Memory.OUT)))

    def _control(self) -> dict[str, Any]:
        m, port, fetch = self.module, self._port, self._fetch
        cycles, running, done = hdl.Signal(COUNTER_BITS), hdl.Signal(), hdl.Signal()
        overflow, progress = hdl.Signal(), hdl.Signal()
        with m.If(fetch.start):
            m.d.sync += [running.eq(1), cycles.eq(0)]
        with m.Elif(running & ~done):
            m.d.sync += cycles.eq(cycles + 1)
        watches = {unit: part.watch for unit, part in self._units.items()}
        m.d.comb += [
            done.eq(self._store.finished),
            overflow.eq(hdl.Cat(*(queue.overflow for queue in self._tokens.values())).any()),
            progress.eq(
                fetch.is_active
                | port.outstanding
                | (port.request_valid & port.request_ready)
                | hdl.Cat(*(watch.busy | watch.started for watch in watches.values())).any()
            ),
        ]
        ports = {
            "start": fetch.start,
            "start_address": fetch.address,
            "start_count": fetch.count,
            "done": done,
            "illegal": fetch.illegal,
            "overflow": overflow,
            "progress": progress,
            "cycles": cycles,
            "request_valid": port.request_valid,
            "request_ready": port.request_ready,
            "request_write": port.request_write,
            "request_fetch": port.request_fetch,
            "request_address": port.request_address,
            "request_data": port.store_data,
            "response_valid": port.response_valid,
            "response_data": port.data,
        }
        for unit, watch in watches.items():
            name = unit.name.lower()
            ports |= {f"{name}_{counter}": watch.counts[counter] for counter in UNIT_COUNTERS}
            ports |= {f"{name}_wants_prev": watch.wants_prev, f"{name}_wants_next": watch.wants_next}
            ports[f"{name}_working"] = watch.working
        return ports | {name: queue.count for name, queue in self._tokens.items()}
