"""What the thread pool asks of an operating system, as LLVM IR: sleeping and waking, threads, cores, memory.

void @tw.sleep(ptr place, i32 expected)      sleep while the word at `place` has that value, or for no reason
void @tw.wake_one(ptr place)                 wake a thread that sleeps on it
void @tw.wake_all(ptr place)                 wake them all
i1   @tw.start(i64 number)                   start worker `number`; true if the system refuses
void @tw.block_signals(ptr mask)             what this thread starts from here on gets no signals
void @tw.restore_signals(ptr mask)
i64  @tw.cores()                             cores that this process may use
     @tw.cpu, @tw.thread, @tw.wake_workers   where workers wake up (`pool_placement.py`)
ptr  @tw.make_marker()                       a word of 1 that is 0 in a forked child, where the system can do that
ptr  @tw_alloc(i64 bytes), void @tw_free(ptr)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilewright.backends.llvm.object_format import architecture, is_macos, is_windows
from tilewright.backends.llvm.pool_placement import ANYWHERE, LINUX


@dataclass(frozen=True, slots=True)
class PoolSystem:
    """An operating system on one architecture, as the pool meets it."""

    memory: str
    """IR of `tw_alloc` and `tw_free`."""
    threads: str = ""
    """IR of everything else; empty where the pool is the serial one."""
    word: str = "i64"
    """The type of `long` in C on most systems, and of sizes."""
    long: str = "i64"
    """The type of `long` in C."""
    pause: str = ""
    """One polite turn of a spin loop.

    An intrinsic: llvmlite can assemble inline assembly only for the machine it runs on.
    """
    spin: int = 0
    """How many turns make about 50 us."""


_ALIGNED_ALLOC: Final = """
declare noalias ptr @aligned_alloc({word}, {word})
declare void @free(ptr)

define {visibility} ptr @tw_alloc(i64 %bytes) {{
  %positive = call i64 @llvm.smax.i64(i64 %bytes, i64 1)
  %more = add i64 %positive, 63
  %rounded = and i64 %more, -64
  %too.large = icmp ugt i64 %rounded, {most_bytes}
  br i1 %too.large, label %refuse, label %allocate
refuse:
  ret ptr null
allocate:
  %size = {to_word}
  %memory = call ptr @aligned_alloc({word} 64, {word} %size)
  ret ptr %memory
}}

define {visibility} void @tw_free(ptr %memory) {{
  call void @free(ptr %memory)
  ret void
}}
"""

_WINDOWS_ALLOC: Final = """
declare noalias ptr @_aligned_malloc(i64, i64)
declare void @_aligned_free(ptr)

define {visibility} ptr @tw_alloc(i64 %bytes) {{
  %positive = call i64 @llvm.smax.i64(i64 %bytes, i64 1)
  %memory = call ptr @_aligned_malloc(i64 %positive, i64 64)
  ret ptr %memory
}}

define {visibility} void @tw_free(ptr %memory) {{
  call void @_aligned_free(ptr %memory)
  ret void
}}
"""

_POSIX_THREADS: Final = """
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach({word})
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)

define internal i1 @tw.start(i64 %number) {{
  %thread = alloca {word}, align 8
  %argument = inttoptr i64 %number to ptr
  %code = call i32 @pthread_create(ptr %thread, ptr null, ptr @tw.worker, ptr %argument)
  %refused = icmp ne i32 %code, 0
  br i1 %refused, label %done, label %detach
detach:
  %handle = load {word}, ptr %thread, align 8
  %r = call i32 @pthread_detach({word} %handle)
  br label %done
done:
  ret i1 %refused
}}

define internal void @tw.block_signals(ptr %mask) {{
  %all = alloca [128 x i8], align 8
  %r0 = call i32 @sigfillset(ptr %all)
  %r1 = call i32 @pthread_sigmask(i32 {set_mask}, ptr %all, ptr %mask)
  ret void
}}

define internal void @tw.restore_signals(ptr %mask) {{
  %r = call i32 @pthread_sigmask(i32 {set_mask}, ptr %mask, ptr null)
  ret void
}}
"""

# The page of the marker is one that the kernel zeroes in a forked child (where it cannot, a child runs serially).
_LINUX_THREADS: Final = (
    _POSIX_THREADS
    + """
declare {word} @syscall({word}, ...)
declare i32 @sched_getaffinity(i32, {word}, ptr)
declare ptr @mmap(ptr, {word}, i32, i32, i32, {word})
declare i32 @madvise(ptr, {word}, i32)
declare i64 @llvm.ctpop.i64(i64)
@tw.never = internal global i32 1, align 4

define internal void @tw.futex(ptr %place, {word} %what, i32 %value) {{
  %r = call {word} ({word}, ...) @syscall({word} {futex}, ptr %place, {word} %what, i32 %value, ptr null)
  ret void
}}

define internal void @tw.sleep(ptr %place, i32 %expected) {{
  call void @tw.futex(ptr %place, {word} 128, i32 %expected)
  ret void
}}

define internal void @tw.wake_one(ptr %place) {{
  call void @tw.futex(ptr %place, {word} 129, i32 1)
  ret void
}}

define internal void @tw.wake_all(ptr %place) {{
  call void @tw.futex(ptr %place, {word} 129, i32 2147483647)
  ret void
}}

define internal i64 @tw.cores() {{
entry:
  %mask = alloca [128 x i8], align 8
  call void @llvm.memset.p0.i64(ptr align 8 %mask, i8 0, i64 128, i1 false)
  %code = call i32 @sched_getaffinity(i32 0, {word} 128, ptr %mask)
  br label %count
count:
  %index = phi i64 [ 0, %entry ], [ %index.next, %count ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %count ]
  %place = getelementptr i64, ptr %mask, i64 %index
  %word = load i64, ptr %place, align 8
  %bits = call i64 @llvm.ctpop.i64(i64 %word)
  %sum.next = add i64 %sum, %bits
  %index.next = add i64 %index, 1
  %more = icmp ult i64 %index.next, 16
  br i1 %more, label %count, label %done
done:
  ret i64 %sum.next
}}

define internal ptr @tw.make_marker() {{
  %page = call ptr @mmap(ptr null, {word} 4096, i32 3, i32 34, i32 -1, {word} 0)
  %failed = icmp eq ptr %page, inttoptr ({word} -1 to ptr)
  br i1 %failed, label %give.up, label %advise
advise:
  %r = call i32 @madvise(ptr %page, {word} 4096, i32 18)
  ret ptr %page
give.up:
  ret ptr @tw.never
}}
"""
    + LINUX
)

# The calls that libc++ waits on atomics with. A child of a fork has none of the workers, and does their part itself.
_MACOS_THREADS: Final = (
    _POSIX_THREADS
    + """
declare i32 @__ulock_wait(i32, ptr, i64, i32)
declare i32 @__ulock_wake(i32, ptr, i64)
declare i64 @sysconf(i32)
@tw.never = internal global i32 1, align 4

define internal void @tw.sleep(ptr %place, i32 %expected) {{
  %value = zext i32 %expected to i64
  %r = call i32 @__ulock_wait(i32 16777217, ptr %place, i64 %value, i32 0)
  ret void
}}

define internal void @tw.wake_one(ptr %place) {{
  %r = call i32 @__ulock_wake(i32 16777217, ptr %place, i64 0)
  ret void
}}

define internal void @tw.wake_all(ptr %place) {{
  %r = call i32 @__ulock_wake(i32 16777473, ptr %place, i64 0)
  ret void
}}

define internal i64 @tw.cores() {{
  %cores = call i64 @sysconf(i32 58)
  ret i64 %cores
}}

define internal ptr @tw.make_marker() {{
  ret ptr @tw.never
}}
"""
    + ANYWHERE
)

# Making the marker keeps the DLL in the process for ever: its idle workers live in it. Windows has no fork.
_WINDOWS_THREADS: Final = (
    """
declare i32 @WaitOnAddress(ptr, ptr, i64, i32)
declare void @WakeByAddressSingle(ptr)
declare void @WakeByAddressAll(ptr)
declare ptr @CreateThread(ptr, i64, ptr, ptr, i32, ptr)
declare i32 @CloseHandle(ptr)
declare i32 @GetProcessAffinityMask(ptr, ptr, ptr)
declare i32 @GetModuleHandleExA(i32, ptr, ptr)
declare i64 @llvm.ctpop.i64(i64)
@tw.never = internal global i32 1, align 4

define internal void @tw.sleep(ptr %place, i32 %expected) {{
  %value = alloca i32, align 4
  store i32 %expected, ptr %value, align 4
  %r = call i32 @WaitOnAddress(ptr %place, ptr %value, i64 4, i32 -1)
  ret void
}}

define internal void @tw.wake_one(ptr %place) {{
  call void @WakeByAddressSingle(ptr %place)
  ret void
}}

define internal void @tw.wake_all(ptr %place) {{
  call void @WakeByAddressAll(ptr %place)
  ret void
}}

define internal i1 @tw.start(i64 %number) {{
  %argument = inttoptr i64 %number to ptr
  %handle = call ptr @CreateThread(ptr null, i64 0, ptr @tw.worker, ptr %argument, i32 0, ptr null)
  %refused = icmp eq ptr %handle, null
  br i1 %refused, label %done, label %close
close:
  %r = call i32 @CloseHandle(ptr %handle)
  br label %done
done:
  ret i1 %refused
}}

define internal void @tw.block_signals(ptr %mask) {{
  ret void
}}

define internal void @tw.restore_signals(ptr %mask) {{
  ret void
}}

define internal i64 @tw.cores() {{
  %mine = alloca i64, align 8
  %all = alloca i64, align 8
  store i64 1, ptr %mine, align 8
  %r = call i32 @GetProcessAffinityMask(ptr inttoptr (i64 -1 to ptr), ptr %mine, ptr %all)
  %mask = load i64, ptr %mine, align 8
  %bits = call i64 @llvm.ctpop.i64(i64 %mask)
  ret i64 %bits
}}

define internal ptr @tw.make_marker() {{
  %module = alloca ptr, align 8
  %r = call i32 @GetModuleHandleExA(i32 5, ptr @tw.worker, ptr %module)
  ret ptr @tw.never
}}
"""
    + ANYWHERE
)

# Per architecture: the numbers of futex and gettid on Linux, a turn of a spin loop, and how many make about 50 us.
_ARCHITECTURES: Final = {
    "x86_64": (202, 186, "call void @llvm.x86.sse2.pause()", 1500),
    "aarch64": (98, 178, "call void @llvm.aarch64.isb(i32 15)", 4000),
    "riscv64": (98, 178, "call void @llvm.riscv.pause()", 4000),
    "arm": (240, 224, "call void @llvm.arm.hint(i32 1)", 4000),
}


def pool_system(triple: str) -> PoolSystem:
    """What the pool asks of the system of a triple, and how."""
    name = architecture(triple)
    word = "i32" if name in ("arm", "thumb", "riscv32") else "i64"
    futex, gettid, pause, spin = _ARCHITECTURES.get(name, (0, 0, "", 0))
    if is_windows(triple):
        return PoolSystem(_WINDOWS_ALLOC, _WINDOWS_THREADS, "i64", "i32", pause, spin)
    sizes = ("2147483584", "trunc i64 %rounded to i32") if word == "i32" else ("-1", "add i64 %rounded, 0")
    memory = _ALIGNED_ALLOC.replace("{word}", word).replace("{most_bytes}", sizes[0]).replace("{to_word}", sizes[1])
    if not pause or not ("linux" in triple or is_macos(triple)):
        return PoolSystem(memory, word=word, long=word)
    is_linux = "linux" in triple
    threads = _LINUX_THREADS if is_linux else _MACOS_THREADS
    threads = threads.replace("{word}", word).replace("{futex}", str(futex)).replace("{gettid}", str(gettid))
    threads = threads.replace("{to_thread}", "add i32 %id, 0" if word == "i32" else "trunc i64 %id to i32")
    threads = threads.replace("{set_mask}", "2" if is_linux else "3")
    return PoolSystem(memory, threads, word, word, pause, spin)
