"""64-bit arithmetic that 32-bit Arm has no instructions for, as LLVM IR that needs none of it.

Compilers of C link libgcc or compiler-rt for these. A library that brings its own depends on neither, and runs wherever
its libc does. Quotients are found bit by bit; conversions go through the two halves of a number, with one rounding.
"""

from __future__ import annotations

from tilewright.backends.llvm.cache import compile_cached
from tilewright.backends.llvm.object_format import architecture
from tilewright.backends.llvm.toolchain import plain_features


def arithmetic_objects(triple: str) -> list[bytes]:
    """What code for a triple needs beside what its system has."""
    if architecture(triple) != "arm":
        return []
    return [compile_cached(arithmetic_ir(), triple=triple, features=plain_features(triple), opt_level=1)]


def arithmetic_ir() -> str:
    """The functions under the names of Arm's run-time interface, seen inside the library alone.

    By that interface quotient and rest come back in four registers, and floats in those of whole numbers.
    """
    return _DIVISION + _CONVERSIONS


# The divisor's highest bit is brought under the dividend's, and both go down bit by bit.
_DIVISION = """
declare i64 @llvm.ctlz.i64(i64, i1)

define hidden void @__aeabi_unwind_cpp_pr0() nounwind {
  ret void
}

define internal { i64, i64 } @tw.divide(i64 %dividend, i64 %divisor) nounwind {
entry:
  %less = icmp ult i64 %dividend, %divisor
  br i1 %less, label %small, label %large
small:
  %none = insertvalue { i64, i64 } zeroinitializer, i64 %dividend, 1
  ret { i64, i64 } %none
large:
  %dividend.zeros = call i64 @llvm.ctlz.i64(i64 %dividend, i1 false)
  %divisor.zeros = call i64 @llvm.ctlz.i64(i64 %divisor, i1 false)
  %distance.wide = sub i64 %divisor.zeros, %dividend.zeros
  %distance = and i64 %distance.wide, 63
  br label %bit
bit:
  %place = phi i64 [ %distance, %large ], [ %place.next, %bit ]
  %rest = phi i64 [ %dividend, %large ], [ %rest.next, %bit ]
  %quotient = phi i64 [ 0, %large ], [ %quotient.next, %bit ]
  %moved = shl i64 %divisor, %place
  %fits = icmp uge i64 %rest, %moved
  %taken = select i1 %fits, i64 %moved, i64 0
  %rest.next = sub i64 %rest, %taken
  %one = zext i1 %fits to i64
  %doubled = shl i64 %quotient, 1
  %quotient.next = or i64 %doubled, %one
  %place.next = sub i64 %place, 1
  %more = icmp sge i64 %place.next, 0
  br i1 %more, label %bit, label %done
done:
  %first = insertvalue { i64, i64 } poison, i64 %quotient.next, 0
  %both = insertvalue { i64, i64 } %first, i64 %rest.next, 1
  ret { i64, i64 } %both
}

define hidden { i64, i64 } @__aeabi_uldivmod(i64 %dividend, i64 %divisor) nounwind {
  %both = call { i64, i64 } @tw.divide(i64 %dividend, i64 %divisor)
  ret { i64, i64 } %both
}

; The quotient has the sign of both operands together, the rest that of the dividend.
define hidden { i64, i64 } @__aeabi_ldivmod(i64 %dividend, i64 %divisor) nounwind {
  %dividend.sign = ashr i64 %dividend, 63
  %divisor.sign = ashr i64 %divisor, 63
  %both.signs = xor i64 %dividend.sign, %divisor.sign
  %dividend.flipped = xor i64 %dividend, %dividend.sign
  %dividend.size = sub i64 %dividend.flipped, %dividend.sign
  %divisor.flipped = xor i64 %divisor, %divisor.sign
  %divisor.size = sub i64 %divisor.flipped, %divisor.sign
  %both = call { i64, i64 } @tw.divide(i64 %dividend.size, i64 %divisor.size)
  %quotient.size = extractvalue { i64, i64 } %both, 0
  %quotient.flipped = xor i64 %quotient.size, %both.signs
  %quotient = sub i64 %quotient.flipped, %both.signs
  %rest.size = extractvalue { i64, i64 } %both, 1
  %rest.flipped = xor i64 %rest.size, %dividend.sign
  %rest = sub i64 %rest.flipped, %dividend.sign
  %first = insertvalue { i64, i64 } poison, i64 %quotient, 0
  %result = insertvalue { i64, i64 } %first, i64 %rest, 1
  ret { i64, i64 } %result
}
"""


# 4294967296 is 2 to the power of 32. A number of more than 53 bits goes to single precision through double precision;
# what that would round away is kept as one odd bit, so that the second rounding is the only one.
_CONVERSIONS = """
define hidden arm_aapcscc double @__aeabi_l2d(i64 %value) nounwind {
  %high.wide = ashr i64 %value, 32
  %high = trunc i64 %high.wide to i32
  %low = trunc i64 %value to i32
  %high.float = sitofp i32 %high to double
  %high.scaled = fmul double %high.float, 4294967296.0
  %low.float = uitofp i32 %low to double
  %sum = fadd double %high.scaled, %low.float
  ret double %sum
}

define hidden arm_aapcscc double @__aeabi_ul2d(i64 %value) nounwind {
  %high.wide = lshr i64 %value, 32
  %high = trunc i64 %high.wide to i32
  %low = trunc i64 %value to i32
  %high.float = uitofp i32 %high to double
  %high.scaled = fmul double %high.float, 4294967296.0
  %low.float = uitofp i32 %low to double
  %sum = fadd double %high.scaled, %low.float
  ret double %sum
}

define internal i64 @tw.odd(i64 %value) nounwind {
  %tail = and i64 %value, 2047
  %has.tail = icmp ne i64 %tail, 0
  %bit = select i1 %has.tail, i64 2048, i64 0
  %head = and i64 %value, -2048
  %odd = or i64 %head, %bit
  ret i64 %odd
}

define hidden arm_aapcscc float @__aeabi_l2f(i64 %value) nounwind {
  %shifted = add i64 %value, 9007199254740992
  %fits = icmp ult i64 %shifted, 18014398509481984
  %odd = call i64 @tw.odd(i64 %value)
  %exact = select i1 %fits, i64 %value, i64 %odd
  %wide = call arm_aapcscc double @__aeabi_l2d(i64 %exact)
  %result = fptrunc double %wide to float
  ret float %result
}

define hidden arm_aapcscc float @__aeabi_ul2f(i64 %value) nounwind {
  %fits = icmp ult i64 %value, 9007199254740992
  %odd = call i64 @tw.odd(i64 %value)
  %exact = select i1 %fits, i64 %value, i64 %odd
  %wide = call arm_aapcscc double @__aeabi_ul2d(i64 %exact)
  %result = fptrunc double %wide to float
  ret float %result
}

define hidden arm_aapcscc i64 @__aeabi_d2ulz(double %value) nounwind {
  %scaled = fmul double %value, 0x3DF0000000000000
  %high = fptoui double %scaled to i32
  %high.float = uitofp i32 %high to double
  %high.back = fmul double %high.float, 4294967296.0
  %rest = fsub double %value, %high.back
  %low = fptoui double %rest to i32
  %high.wide = zext i32 %high to i64
  %high.moved = shl i64 %high.wide, 32
  %low.wide = zext i32 %low to i64
  %result = or i64 %high.moved, %low.wide
  ret i64 %result
}

define hidden arm_aapcscc i64 @__aeabi_d2lz(double %value) nounwind {
  %is.negative = fcmp olt double %value, 0.0
  %negated = fneg double %value
  %size = select i1 %is.negative, double %negated, double %value
  %found = call arm_aapcscc i64 @__aeabi_d2ulz(double %size)
  %opposite = sub i64 0, %found
  %result = select i1 %is.negative, i64 %opposite, i64 %found
  ret i64 %result
}

define hidden arm_aapcscc i64 @__aeabi_f2lz(float %value) nounwind {
  %wide = fpext float %value to double
  %result = call arm_aapcscc i64 @__aeabi_d2lz(double %wide)
  ret i64 %result
}

define hidden arm_aapcscc i64 @__aeabi_f2ulz(float %value) nounwind {
  %wide = fpext float %value to double
  %result = call arm_aapcscc i64 @__aeabi_d2ulz(double %wide)
  ret i64 %result
}
"""
