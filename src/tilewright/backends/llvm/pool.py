"""The thread pool of compiled code, as LLVM IR text: no C compiler is needed to build it.

It provides what generated kernels call (see docs/abi.md):

    int32_t tw_parallel(int32_t (*fn)(void*, int64_t, int64_t), void* closure, int64_t extent)
    void    tw_set_num_threads(int64_t)        int64_t tw_get_num_threads(void)
    void*   tw_alloc(int64_t bytes)            void    tw_free(void*)

How a parallel region runs. The caller takes the pool's lock (whoever finds it taken, a nested or concurrent call, runs
its loop serially), writes the region, opens it and bumps the *signal* word. Workers spin on the signal for a bounded
time and then sleep on it (`pool_system.py`). A worker enters the open region by adding itself to the *running* count,
and claims chunks of the range until none is left; so does the caller, which then closes the region and waits only for
the workers that are inside. Each thread starts in a part of the range that is its own, by its number, and takes chunks
of the other parts when that is done: the same thread meets the same data in region after region, and finds it in its
cache.
A worker that the system has not scheduled in time is never waited for: it finds the region closed. That is what keeps
a loaded machine, and a child process whose workers did not survive `fork`, safe.

Words shared between threads, each on a cache line of its own:

    signal   generation << 10 | workers wanted          what idle workers wait on
    state    signal << 32 | waiter << 17 | open << 16 | running
    claims   for each thread's part of the range, how many of its chunks have been claimed (all on a line or two)
    epoch    what workers beyond the wanted number sleep on, so that regions do not wake them
"""

from __future__ import annotations

import re
import threading
from functools import cache

from tilewright.backends.llvm import toolchain
from tilewright.backends.llvm.cache import compile_cached
from tilewright.backends.llvm.jit import JitLibrary
from tilewright.backends.llvm.object_format import architecture
from tilewright.backends.llvm.pool_system import pool_system
from tilewright.backends.llvm.toolchain import plain_features
from tilewright.support.errors import CompilerBug

EXPORTED = ("tw_parallel", "tw_set_num_threads", "tw_get_num_threads", "tw_alloc", "tw_free")

_OFFSETS = {
    "signal": 0,
    "sleepers": 128,
    "state": 256,
    "claims": 384,
    "epoch": 640,
    "lock": 768,
    # Written under the lock, read by workers that are inside the region.
    "fn": 896,
    "closure": 904,
    "extent": 912,
    "chunk": 920,
    "parts": 928,
    "count": 936,
    "error": 940,
    # Written rarely.
    "workers": 1024,
    "active": 1032,
    "threads": 1040,
    "marker": 1048,
    # For each worker, by its number: where it fell asleep (0: it is awake), and the system's number of it.
    "cpus": 1152,
    "ids": 5248,
}
_POOL_BYTES = 9344
_MAX_PARTS = 64
"""Parts of a range that have a claim counter (4 bytes) each; more threads than that share parts."""
_MAX_THREADS = 1023

_INTRINSICS = """
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""

_SERIAL = """
define {visibility} i32 @tw_parallel(ptr %fn, ptr %closure, i64 %extent) {{
  %some = icmp sgt i64 %extent, 0
  br i1 %some, label %run, label %none
run:
  %code = call i32 %fn(ptr %closure, i64 0, i64 %extent)
  ret i32 %code
none:
  ret i32 0
}}

define {visibility} void @tw_set_num_threads(i64 %count) {{
  ret void
}}

define {visibility} i64 @tw_get_num_threads() {{
  ret i64 1
}}
"""

_THREADED = """
@tw.pool = internal global [{pool_bytes} x i8] zeroinitializer, align 128
@tw.variable = private unnamed_addr constant [23 x i8] c"TILEWRIGHT_NUM_THREADS\\00"

declare ptr @getenv(ptr)
declare {long} @strtol(ptr, ptr, i32)
{declare_pause}

; Claim chunks of the open region and run them until none is left or one fails: those of the caller's own part of the
; range first (part `number`), then those of the parts after it.
define internal void @tw.claim(i64 %number) {{
entry:
  %fn = load ptr, ptr {fn}, align 8
  %closure = load ptr, ptr {closure}, align 8
  %extent = load i64, ptr {extent}, align 8
  %chunk = load i64, ptr {chunk}, align 8
  %parts = load i64, ptr {parts}, align 8
  %count = load i32, ptr {count}, align 4
  %home = urem i64 %number, %parts
  br label %part
part:
  %tried = phi i64 [ 0, %entry ], [ %tried.next, %exhausted ]
  %straight = add i64 %home, %tried
  %past = icmp uge i64 %straight, %parts
  %around = sub i64 %straight, %parts
  %here = select i1 %past, i64 %around, i64 %straight
  %claims = getelementptr i32, ptr {claims}, i64 %here
  %own = icmp eq i64 %tried, 0
  br i1 %own, label %bounds, label %look
look:
  ; A look costs less than a claim that comes too late, and most parts of others are finished.
  %taken = load atomic i32, ptr %claims monotonic, align 4
  %some = icmp ult i32 %taken, %count
  br i1 %some, label %bounds, label %exhausted
bounds:
  %scaled = mul i64 %here, %extent
  %first = udiv i64 %scaled, %parts
  %scaled.next = add i64 %scaled, %extent
  %last = udiv i64 %scaled.next, %parts
  br label %claim
claim:
  %mine = atomicrmw add ptr %claims, i32 1 monotonic, align 4
  %mine.wide = zext i32 %mine to i64
  %mine.size = mul i64 %mine.wide, %chunk
  %begin = add i64 %first, %mine.size
  %left = icmp slt i64 %begin, %last
  br i1 %left, label %run, label %exhausted
run:
  %stop = add i64 %begin, %chunk
  %end = call i64 @llvm.smin.i64(i64 %stop, i64 %last)
  %code = call i32 %fn(ptr %closure, i64 %begin, i64 %end)
  %fine = icmp eq i32 %code, 0
  br i1 %fine, label %again, label %failed
again:
  %code.seen = load atomic i32, ptr {error} monotonic, align 4
  %unfailed = icmp eq i32 %code.seen, 0
  br i1 %unfailed, label %another, label %done
another:
  %taken.now = load atomic i32, ptr %claims monotonic, align 4
  %some.now = icmp ult i32 %taken.now, %count
  br i1 %some.now, label %claim, label %exhausted
failed:
  %exchange = cmpxchg ptr {error}, i32 0, i32 %code monotonic monotonic, align 4
  br label %done
exhausted:
  %tried.next = add i64 %tried, 1
  %more = icmp ult i64 %tried.next, %parts
  br i1 %more, label %part, label %done
done:
  ret void
}}

; A worker: its argument is its number, from 1. Whatever the signal is when it starts, it looks for an open region once.
define internal ptr @tw.worker(ptr %argument) {{
entry:
  %packed = ptrtoint ptr %argument to i64
  %number = trunc i64 %packed to i32
  %cpu.at = getelementptr i32, ptr {cpus}, i64 %packed
  %id.at = getelementptr i32, ptr {ids}, i64 %packed
  %id = call i32 @tw.thread()
  store atomic i32 %id, ptr %id.at monotonic, align 4
  br label %wait
wait:
  %last = phi i32 [ 0, %entry ], [ %now, %enter ], [ %now, %leave ], [ %now, %tell ], [ %now, %surplus.sleep ]
  br label %spin
spin:
  %turn = phi i32 [ 0, %wait ], [ %turn.next, %spin.pause ]
  %seen = load atomic i32, ptr {signal} acquire, align 4
  %changed = icmp ne i32 %seen, %last
  br i1 %changed, label %awake, label %spin.pause
spin.pause:
  {pause}
  %turn.next = add i32 %turn, 1
  %more = icmp ult i32 %turn.next, {spin}
  br i1 %more, label %spin, label %sleep
sleep:
  %cpu = call i32 @tw.cpu()
  store atomic i32 %cpu, ptr %cpu.at monotonic, align 4
  %before = atomicrmw add ptr {sleepers}, i32 1 seq_cst, align 4
  br label %sleep.check
sleep.check:
  %seen.slept = load atomic i32, ptr {signal} seq_cst, align 4
  %same = icmp eq i32 %seen.slept, %last
  br i1 %same, label %sleep.wait, label %sleep.end
sleep.wait:
  call void @tw.sleep(ptr {signal}, i32 %last)
  br label %sleep.check
sleep.end:
  %after = atomicrmw sub ptr {sleepers}, i32 1 seq_cst, align 4
  store atomic i32 0, ptr %cpu.at monotonic, align 4
  br label %awake
awake:
  %now = phi i32 [ %seen, %spin ], [ %seen.slept, %sleep.end ]
  %wanted = and i32 %now, {max_threads}
  %surplus = icmp ugt i32 %number, %wanted
  br i1 %surplus, label %surplus.check, label %enter.load
surplus.check:
  ; The epoch is read before the signal: growth bumps the signal first and the epoch second.
  %epoch = load atomic i32, ptr {epoch} seq_cst, align 4
  %latest = load atomic i32, ptr {signal} seq_cst, align 4
  %latest.wanted = and i32 %latest, {max_threads}
  %still = icmp ugt i32 %number, %latest.wanted
  br i1 %still, label %surplus.wait, label %surplus.sleep
surplus.wait:
  call void @tw.sleep(ptr {epoch}, i32 %epoch)
  br label %surplus.check
surplus.sleep:
  br label %wait
enter.load:
  %state = load atomic i64, ptr {state} monotonic, align 8
  br label %enter
enter:
  %current = phi i64 [ %state, %enter.load ], [ %found, %enter.try ]
  %current.high = lshr i64 %current, 32
  %region = trunc i64 %current.high to i32
  %mine = icmp eq i32 %region, %now
  %open.bit = and i64 %current, 65536
  %open = icmp ne i64 %open.bit, 0
  %may = and i1 %mine, %open
  br i1 %may, label %enter.try, label %wait
enter.try:
  %plus = add i64 %current, 1
  %exchange = cmpxchg ptr {state}, i64 %current, i64 %plus acquire monotonic, align 8
  %found = extractvalue {{ i64, i1 }} %exchange, 0
  %entered = extractvalue {{ i64, i1 }} %exchange, 1
  br i1 %entered, label %leave, label %enter
leave:
  %number.wide = zext i32 %number to i64
  call void @tw.claim(i64 %number.wide)
  %old = atomicrmw sub ptr {state}, i64 1 acq_rel, align 8
  %old.low = and i64 %old, 262143
  %caller.sleeps = icmp eq i64 %old.low, 131073
  br i1 %caller.sleeps, label %tell, label %wait
tell:
  call void @tw.wake_one(ptr {state})
  br label %wait
}}

; Start workers until `count` run (fewer when the system refuses); returns how many run. Needs the lock.
define internal i64 @tw.grow(i64 %count) {{
entry:
  %mask = alloca [128 x i8], align 8
  %running = load i64, ptr {workers}, align 8
  %enough = icmp sge i64 %running, %count
  br i1 %enough, label %done, label %mask.signals
mask.signals:
  ; Workers inherit the mask: signals belong to the program's own threads.
  call void @tw.block_signals(ptr %mask)
  br label %start
start:
  %have = phi i64 [ %running, %mask.signals ], [ %number, %create ]
  %full = icmp sge i64 %have, %count
  br i1 %full, label %unmask, label %create
create:
  %number = add i64 %have, 1
  %refused = call i1 @tw.start(i64 %number)
  br i1 %refused, label %unmask, label %start
unmask:
  call void @tw.restore_signals(ptr %mask)
  store i64 %have, ptr {workers}, align 8
  br label %done
done:
  %result = phi i64 [ %running, %entry ], [ %have, %unmask ]
  ret i64 %result
}}

; Make the word that shows a forked child that it is one. Needs the lock.
define internal void @tw.mark() {{
  %marker = call ptr @tw.make_marker()
  store atomic i32 1, ptr %marker monotonic, align 4
  store atomic ptr %marker, ptr {marker} release, align 8
  ret void
}}

; Forget the parent's workers after a fork. One thread wins the marker; the others run serially meanwhile.
define internal void @tw.after_fork(ptr %marker) {{
entry:
  %exchange = cmpxchg ptr %marker, i32 0, i32 2 acquire monotonic, align 4
  %won = extractvalue {{ i32, i1 }} %exchange, 1
  br i1 %won, label %reset, label %done
reset:
  store i64 0, ptr {workers}, align 8
  store i64 0, ptr {active}, align 8
  store atomic i32 0, ptr {sleepers} monotonic, align 4
  call void @llvm.memset.p0.i64(ptr align 64 {cpus}, i8 0, i64 4096, i1 false)
  store atomic i64 0, ptr {state} monotonic, align 8
  store atomic i32 0, ptr {lock} monotonic, align 4
  store atomic i32 1, ptr %marker release, align 4
  br label %done
done:
  ret void
}}

; How many threads a region may use: what was set, else the environment's word, else the cores this process may use.
define {visibility} i64 @tw_get_num_threads() {{
entry:
  %set = load atomic i64, ptr {threads} monotonic, align 8
  %known = icmp ne i64 %set, 0
  br i1 %known, label %answer, label %environment
answer:
  ret i64 %set
environment:
  %text = call ptr @getenv(ptr @tw.variable)
  %absent = icmp eq ptr %text, null
  br i1 %absent, label %cores, label %number
number:
  %long = call {long} @strtol(ptr %text, ptr null, i32 10)
  %parsed = {widened}
  %useful = icmp sgt i64 %parsed, 0
  br i1 %useful, label %keep, label %cores
cores:
  %found = call i64 @tw.cores()
  br label %keep
keep:
  %wanted = phi i64 [ %parsed, %number ], [ %found, %cores ]
  %least = call i64 @llvm.smax.i64(i64 %wanted, i64 1)
  %value = call i64 @llvm.smin.i64(i64 %least, i64 {max_threads})
  store atomic i64 %value, ptr {threads} monotonic, align 8
  ret i64 %value
}}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define {visibility} void @tw_set_num_threads(i64 %count) {{
  ; Zero or less goes back to the default.
  %least = call i64 @llvm.smax.i64(i64 %count, i64 0)
  %value = call i64 @llvm.smin.i64(i64 %least, i64 {max_threads})
  store atomic i64 %value, ptr {threads} monotonic, align 8
  ret void
}}

define {visibility} i32 @tw_parallel(ptr %fn, ptr %closure, i64 %extent) {{
entry:
  %none = icmp slt i64 %extent, 1
  br i1 %none, label %nothing, label %check.one
nothing:
  ret i32 0
check.one:
  %one = icmp eq i64 %extent, 1
  br i1 %one, label %serial, label %check.threads
check.threads:
  %threads = call i64 @tw_get_num_threads()
  %alone = icmp eq i64 %threads, 1
  br i1 %alone, label %serial, label %check.fork
check.fork:
  %marker = load atomic ptr, ptr {marker} acquire, align 8
  %fresh = icmp eq ptr %marker, null
  br i1 %fresh, label %try.lock, label %check.mark
check.mark:
  %mark = load atomic i32, ptr %marker acquire, align 4
  %settled = icmp eq i32 %mark, 1
  br i1 %settled, label %try.lock, label %forked
forked:
  call void @tw.after_fork(ptr %marker)
  %mark.again = load atomic i32, ptr %marker acquire, align 4
  %settled.now = icmp eq i32 %mark.again, 1
  br i1 %settled.now, label %try.lock, label %serial
try.lock:
  %exchange = cmpxchg ptr {lock}, i32 0, i32 1 acquire monotonic, align 4
  %locked = extractvalue {{ i32, i1 }} %exchange, 1
  br i1 %locked, label %check.marked, label %serial
serial:
  %serial.code = call i32 %fn(ptr %closure, i64 0, i64 %extent)
  ret i32 %serial.code

check.marked:
  %marker.now = load atomic ptr, ptr {marker} monotonic, align 8
  %unmarked = icmp eq ptr %marker.now, null
  br i1 %unmarked, label %make.mark, label %size
make.mark:
  call void @tw.mark()
  br label %size
size:
  %helpers = sub i64 %threads, 1
  %others = sub i64 %extent, 1
  %useful = call i64 @llvm.smin.i64(i64 %helpers, i64 %others)
  %running = call i64 @tw.grow(i64 %useful)
  %active = call i64 @llvm.smin.i64(i64 %useful, i64 %running)
  %lonely = icmp eq i64 %active, 0
  br i1 %lonely, label %unlock.serial, label %publish
unlock.serial:
  store atomic i32 0, ptr {lock} release, align 4
  br label %serial

publish:
  ; About four chunks a thread: even enough when chunks differ in cost, few enough to cost nothing.
  %all = add i64 %active, 1
  %parts = call i64 @llvm.smin.i64(i64 %all, i64 {max_parts})
  %pieces = shl i64 %all, 2
  %share = udiv i64 %extent, %pieces
  %chunk = call i64 @llvm.smax.i64(i64 %share, i64 1)
  store ptr %fn, ptr {fn}, align 8
  store ptr %closure, ptr {closure}, align 8
  store i64 %extent, ptr {extent}, align 8
  store i64 %chunk, ptr {chunk}, align 8
  store atomic i32 0, ptr {error} monotonic, align 4
  store i64 %parts, ptr {parts}, align 8
  ; Chunks of the largest part; the last of a smaller one may be empty.
  %parts.less = sub i64 %parts, 1
  %part.sum = add i64 %extent, %parts.less
  %part.size = udiv i64 %part.sum, %parts
  %chunk.less = sub i64 %chunk, 1
  %chunk.sum = add i64 %part.size, %chunk.less
  %count.wide = udiv i64 %chunk.sum, %chunk
  %count = trunc i64 %count.wide to i32
  store i32 %count, ptr {count}, align 8
  %claim.bytes = shl i64 %parts, 2
  call void @llvm.memset.p0.i64(ptr align 64 {claims}, i8 0, i64 %claim.bytes, i1 false)
  %signal.old = load atomic i32, ptr {signal} monotonic, align 4
  %generation.old = lshr i32 %signal.old, 10
  %generation = add i32 %generation.old, 1
  %generation.high = shl i32 %generation, 10
  %active.small = trunc i64 %active to i32
  %signal = or i32 %generation.high, %active.small
  %signal.wide = zext i32 %signal to i64
  %state.high = shl i64 %signal.wide, 32
  %state.open = or i64 %state.high, 65536
  store atomic i64 %state.open, ptr {state} release, align 8
  store atomic i32 %signal, ptr {signal} seq_cst, align 4
  %sleeping = load atomic i32, ptr {sleepers} seq_cst, align 4
  %nobody = icmp eq i32 %sleeping, 0
  br i1 %nobody, label %check.growth, label %wake
wake:
  call void @tw.wake_workers(ptr {signal}, ptr {cpus}, ptr {ids}, i64 %active)
  br label %check.growth
check.growth:
  %active.before = load i64, ptr {active}, align 8
  store i64 %active, ptr {active}, align 8
  %grown = icmp sgt i64 %active, %active.before
  br i1 %grown, label %wake.surplus, label %work
wake.surplus:
  %epoch = atomicrmw add ptr {epoch}, i32 1 seq_cst, align 4
  call void @tw.wake_all(ptr {epoch})
  br label %work
work:
  call void @tw.claim(i64 0)
  %closed = atomicrmw and ptr {state}, i64 -65537 acq_rel, align 8
  br label %join

join:
  %turn = phi i32 [ 0, %work ], [ %turn.next, %join.pause ], [ 0, %join.sleep ]
  %state = load atomic i64, ptr {state} acquire, align 8
  %inside = and i64 %state, 65535
  %empty = icmp eq i64 %inside, 0
  br i1 %empty, label %finish, label %join.pause
join.pause:
  {pause}
  %turn.next = add i32 %turn, 1
  %more = icmp ult i32 %turn.next, {spin}
  br i1 %more, label %join, label %join.announce
join.announce:
  %announced = atomicrmw or ptr {state}, i64 131072 acq_rel, align 8
  %inside.late = and i64 %announced, 65535
  %empty.late = icmp eq i64 %inside.late, 0
  br i1 %empty.late, label %finish, label %join.sleep
join.sleep:
  %expected.wide = or i64 %announced, 131072
  %expected = trunc i64 %expected.wide to i32
  call void @tw.sleep(ptr {state}, i32 %expected)
  br label %join
finish:
  %error = load atomic i32, ptr {error} monotonic, align 4
  store atomic i32 0, ptr {lock} release, align 4
  ret i32 %error
}}
"""


def has_threads(triple: str) -> bool:
    """Whether the pool of this triple runs threads; elsewhere it is the serial version."""
    return bool(pool_system(triple).threads)


def pool_ir(triple: str, *, hidden: bool) -> str:
    """The pool's IR text; `hidden` keeps its symbols inside the library it is linked into."""
    visibility = "hidden" if hidden else "default"
    system = pool_system(triple)
    memory = _INTRINSICS + system.memory.format(visibility=visibility)
    if not system.threads:
        return memory + _SERIAL.format(visibility=visibility)
    places = {name: f"getelementptr (i8, ptr @tw.pool, i64 {offset})" for name, offset in _OFFSETS.items()}
    threaded = _THREADED.format(
        visibility=visibility,
        pool_bytes=_POOL_BYTES,
        max_threads=_MAX_THREADS,
        max_parts=_MAX_PARTS,
        long=system.long,
        widened="add i64 %long, 0" if system.long == "i64" else f"sext {system.long} %long to i64",
        pause=system.pause,
        declare_pause=re.sub(r"i32 \d+", "i32 immarg", system.pause.replace("call", "declare")),
        spin=system.spin,
        **places,
    )
    return memory + threaded + system.threads.format()


def pool_object(triple: str, *, hidden: bool) -> bytes:
    """The pool compiled for `triple` (its plainest processor), through the object cache."""
    features = plain_features(triple)
    if architecture(triple) == "riscv64":
        features += ",+zihintpause"
    return compile_cached(pool_ir(triple, hidden=hidden), triple=triple, features=features)


_start_lock = threading.Lock()


@cache
def _shared_pool() -> JitLibrary:
    library = JitLibrary([pool_object(toolchain.host_triple(), hidden=False)])
    if any(library.find(name) is None for name in EXPORTED):
        raise CompilerBug("the thread pool lacks one of its symbols")
    return library


def runtime_imports() -> dict[str, int]:
    """Addresses of the one pool of this process: the imports of every JIT library."""
    # The lock keeps two threads from starting two pools; the library is never freed, its workers run in it.
    with _start_lock:
        library = _shared_pool()
    return {name: library.symbol(name) for name in EXPORTED}
