"""Where the pool's workers wake up, as LLVM IR text.

i32  @tw.cpu()                       the CPU that this thread runs on, plus one; 0 where that is not known
i32  @tw.thread()                    the system's number of this thread
void @tw.wake_workers(ptr place, ptr cpus, ptr ids, i64 count)
                                     wake the workers that sleep on `place`

`cpus` has the CPU, plus one, on which each of the workers 1 to `count` fell asleep, 0 for those that are awake; `ids`
are the system's numbers of them.

A system wakes a thread where it slept, or beside the one that wakes it, if it sees no idle CPU. In a virtual machine it
sees none: a virtual CPU that idles has been given back, and counts as busy. A worker on the caller's CPU would wait
there until the caller is done: after a pause two threads took the time of one. So workers that sleep are kept from the
caller's CPU while they are woken; right after they may run on all of their own again. Of many workers that is done for
the first few: a region waits for none of the others, and they are a small part of all.
"""

from __future__ import annotations

from typing import Final

_PLACED = 4
"""Workers that are kept from the caller's CPU. Each takes three calls of the system, some two microseconds."""

ANYWHERE: Final = """
define internal i32 @tw.cpu() {{
  ret i32 0
}}

define internal i32 @tw.thread() {{
  ret i32 0
}}

define internal void @tw.wake_workers(ptr %place, ptr %cpus, ptr %ids, i64 %count) {{
  call void @tw.wake_all(ptr %place)
  ret void
}}
"""

# A set of CPUs is 128 bytes, a bit for each.
LINUX: Final = """
declare i32 @sched_getcpu()
declare i32 @sched_setaffinity(i32, {word}, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal i32 @tw.cpu() {{
  %cpu = call i32 @sched_getcpu()
  %found = add i32 %cpu, 1
  ret i32 %found
}}

define internal i32 @tw.thread() {{
  %id = call {word} ({word}, ...) @syscall({word} {gettid})
  %number = {to_thread}
  ret i32 %number
}}

define internal i1 @tw.is_empty(ptr %set) {{
  %bits = load i1024, ptr %set, align 8
  %empty = icmp eq i1024 %bits, 0
  ret i1 %empty
}}

; Take a CPU, which is given plus one, out of a set.
define internal void @tw.take_out(ptr %set, i32 %cpu) {{
entry:
  %number = sub i32 %cpu, 1
  %fits = icmp ult i32 %number, 1024
  br i1 %fits, label %clear, label %done
clear:
  %byte.number = lshr i32 %number, 3
  %bit.number = and i32 %number, 7
  %bit.small = trunc i32 %bit.number to i8
  %bit = shl i8 1, %bit.small
  %others = xor i8 %bit, -1
  %at = getelementptr i8, ptr %set, i32 %byte.number
  %byte = load i8, ptr %at, align 1
  %cleared = and i8 %byte, %others
  store i8 %cleared, ptr %at, align 1
  br label %done
done:
  ret void
}}

; Keep a worker that sleeps from the caller's CPU; `allowed` gets the set of its CPUs, to be given back. True if done.
define internal i1 @tw.keep_away(i32 %here, i64 %worker, ptr %cpus, ptr %ids, i64 %count, ptr %allowed) {{
entry:
  %apart = alloca [128 x i8], align 8
  %cpu.at = getelementptr i32, ptr %cpus, i64 %worker
  %cpu = load atomic i32, ptr %cpu.at monotonic, align 4
  %awake = icmp eq i32 %cpu, 0
  br i1 %awake, label %no, label %ask
ask:
  %id.at = getelementptr i32, ptr %ids, i64 %worker
  %id = load atomic i32, ptr %id.at monotonic, align 4
  %got = call i32 @sched_getaffinity(i32 %id, {word} 128, ptr %allowed)
  %has = icmp eq i32 %got, 0
  br i1 %has, label %choose, label %no
choose:
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %apart, ptr align 8 %allowed, i64 128, i1 false)
  call void @tw.take_out(ptr %apart, i32 %here)
  %same = icmp eq i32 %cpu, %here
  br i1 %same, label %other, label %chosen
other:
  ; It cannot wake where it slept: where no other worker sleeps, if there is such a CPU.
  %number = phi i64 [ 1, %choose ], [ %number.next, %other.out ]
  %all = icmp sgt i64 %number, %count
  br i1 %all, label %others.out, label %other.out
other.out:
  %other.at = getelementptr i32, ptr %cpus, i64 %number
  %other.cpu = load atomic i32, ptr %other.at monotonic, align 4
  call void @tw.take_out(ptr %apart, i32 %other.cpu)
  %number.next = add i64 %number, 1
  br label %other
others.out:
  %none = call i1 @tw.is_empty(ptr %apart)
  br i1 %none, label %any, label %set
any:
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %apart, ptr align 8 %allowed, i64 128, i1 false)
  call void @tw.take_out(ptr %apart, i32 %here)
  br label %chosen
chosen:
  %nowhere = call i1 @tw.is_empty(ptr %apart)
  br i1 %nowhere, label %no, label %set
set:
  %refused = call i32 @sched_setaffinity(i32 %id, {word} 128, ptr %apart)
  %done = icmp eq i32 %refused, 0
  ret i1 %done
no:
  ret i1 false
}}

define internal void @tw.wake_workers(ptr %place, ptr %cpus, ptr %ids, i64 %count) {{
entry:
  %sets = alloca [{placed} x [128 x i8]], align 8
  %kept = alloca [{placed} x i1], align 1
  %here = call i32 @tw.cpu()
  %known = icmp sgt i32 %here, 0
  %few = call i64 @llvm.smin.i64(i64 %count, i64 {placed})
  %placed = select i1 %known, i64 %few, i64 0
  br label %away
away:
  %number = phi i64 [ 0, %entry ], [ %worker, %away.one ]
  %worker = add i64 %number, 1
  %more = icmp slt i64 %number, %placed
  br i1 %more, label %away.one, label %wake
away.one:
  %set = getelementptr [128 x i8], ptr %sets, i64 %number
  %done = call i1 @tw.keep_away(i32 %here, i64 %worker, ptr %cpus, ptr %ids, i64 %count, ptr %set)
  %kept.at = getelementptr i1, ptr %kept, i64 %number
  store i1 %done, ptr %kept.at, align 1
  br label %away
wake:
  call void @tw.wake_all(ptr %place)
  br label %back
back:
  %number.back = phi i64 [ 0, %wake ], [ %worker.back, %back.next ]
  %worker.back = add i64 %number.back, 1
  %more.back = icmp slt i64 %number.back, %placed
  br i1 %more.back, label %back.one, label %end
back.one:
  %kept.back = getelementptr i1, ptr %kept, i64 %number.back
  %was = load i1, ptr %kept.back, align 1
  br i1 %was, label %give, label %back.next
give:
  %set.back = getelementptr [128 x i8], ptr %sets, i64 %number.back
  %id.back = getelementptr i32, ptr %ids, i64 %worker.back
  %id = load atomic i32, ptr %id.back monotonic, align 4
  %r = call i32 @sched_setaffinity(i32 %id, {word} 128, ptr %set.back)
  br label %back.next
back.next:
  br label %back
end:
  ret void
}}
""".replace("{placed}", str(_PLACED))
