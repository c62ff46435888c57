"""Functions that WGSL programs call where the language has no operation of the right meaning."""

from __future__ import annotations

import re
from typing import Final

_TEXT: Final = """
fn tw_float(bits: u32) -> f32 { return bitcast<f32>(bits); }
fn tw_infinity() -> f32 { return bitcast<f32>(tw_infinity_bits); }
fn tw_nan() -> f32 { return bitcast<f32>(tw_infinity_bits | 0x400000u); }
fn tw_is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn tw_is_inf(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
fn tw_is_finite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u; }
fn tw_is_true(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) != 0u; }
fn tw_copysign(x: f32, y: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(y) & 0x80000000u));
}
fn tw_min_float(a: f32, b: f32) -> f32 { return select(b, a, a < b || tw_is_nan(a)); }
fn tw_max_float(a: f32, b: f32) -> f32 { return select(b, a, a > b || tw_is_nan(a)); }
fn tw_fmod(x: f32, y: f32) -> f32 {
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(y) & 0x7fffffffu;
  let sign = bitcast<u32>(x) & 0x80000000u;
  if (a >= 0x7f800000u || b > 0x7f800000u || b == 0u) { return tw_nan(); }
  if (a < b) { return x; }
  var m = (a & 0x7fffffu) | select(0u, 0x800000u, a >= 0x800000u);
  var d = (b & 0x7fffffu) | select(0u, 0x800000u, b >= 0x800000u);
  let first = countLeadingZeros(m) - 8u;
  let second = countLeadingZeros(d) - 8u;
  m = m << first;
  d = d << second;
  var e = i32(max(a >> 23u, 1u)) - i32(first);
  let last = i32(max(b >> 23u, 1u)) - i32(second);
  loop {
    if (m >= d) { m = m - d; }
    if (e == last || m == 0u) { break; }
    m = m << 1u;
    e = e - 1;
  }
  if (m == 0u) { return bitcast<f32>(sign); }
  let shift = countLeadingZeros(m) - 8u;
  let power = last - i32(shift);
  if (power >= 1) { return bitcast<f32>(sign | (((u32(power) - 1u) << 23u) + (m << shift))); }
  if (last >= 1) { return bitcast<f32>(sign | (m << u32(last - 1))); }
  return bitcast<f32>(sign | (m >> u32(1 - last)));
}
fn tw_half_value(h: u32) -> f32 {
  let sign = (h & 0x8000u) << 16u;
  let e = (h >> 10u) & 31u;
  let m = h & 0x3ffu;
  if (e == 0u) { return bitcast<f32>(sign | bitcast<u32>(f32(m) * 5.9604645e-8f)); }
  return bitcast<f32>(sign | (select(e + 112u, 255u, e == 31u) << 23u) | (m << 13u));
}
fn tw_half_bits(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 16u) & 0x8000u;
  let a = bits & 0x7fffffffu;
  if (a > 0x7f800000u) { return sign | 0x7e00u; }
  if (a >= 0x477ff000u) { return sign | 0x7c00u; }
  if (a < 0x33000000u) { return sign; }
  if (a < 0x38800000u) {
    let m = (a & 0x7fffffu) | 0x800000u;
    let shift = 126u - (a >> 23u);
    let q = m >> shift;
    let rest = m & ((1u << shift) - 1u);
    let tie = 1u << (shift - 1u);
    return sign | (q + select(0u, 1u, rest > tie || (rest == tie && (q & 1u) == 1u)));
  }
  return sign | ((a + 0xfffu + ((a >> 13u) & 1u) - 0x38000000u) >> 13u);
}
fn tw_brain_value(b: u32) -> f32 { return bitcast<f32>(b << 16u); }
fn tw_brain_bits(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  return select((b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u, 0x7fc0u, tw_is_nan(x));
}
fn tw_int8(bits: u32) -> i32 { return bitcast<i32>(bits << 24u) >> 24u; }
fn tw_int16(bits: u32) -> i32 { return bitcast<i32>(bits << 16u) >> 16u; }
fn tw_byte(word: u32, index: i32) -> u32 { return (word >> ((u32(index) & 3u) * 8u)) & 0xffu; }
fn tw_short(word: u32, index: i32) -> u32 { return (word >> ((u32(index) & 1u) * 16u)) & 0xffffu; }
fn tw_div_i32(a: i32, b: i32) -> i32 {
  if (b == 0) { return 0; }
  if (b == -1) { return bitcast<i32>(0u - bitcast<u32>(a)); }
  return a / b;
}
fn tw_mod_i32(a: i32, b: i32) -> i32 {
  if (b == 0 || b == -1) { return 0; }
  return a % b;
}
fn tw_floordiv_i32(a: i32, b: i32) -> i32 {
  let q = tw_div_i32(a, b);
  return select(q, q - 1, b != 0 && b != -1 && a % b != 0 && (a < 0) != (b < 0));
}
fn tw_floormod_i32(a: i32, b: i32) -> i32 {
  let r = tw_mod_i32(a, b);
  return select(r, r + b, r != 0 && (r < 0) != (b < 0));
}
fn tw_div_u32(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a / b;
}
fn tw_mod_u32(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a % b;
}
fn tw_to_int(x: f32, low: i32, high: i32) -> i32 {
  if (tw_is_nan(x)) { return 0; }
  if (x <= f32(low)) { return low; }
  if (x >= f32(high)) { return high; }
  return i32(x);
}
fn tw_to_uint(x: f32, high: u32) -> u32 {
  if (!(x > 0.0f)) { return 0u; }
  if (x >= f32(high)) { return high; }
  return u32(x);
}
fn tw_long(x: i32) -> vec2<u32> { return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u)); }
fn tw_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}
fn tw_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}
fn tw_neg(a: vec2<u32>) -> vec2<u32> { return tw_sub(vec2<u32>(0u, 0u), a); }
fn tw_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let a0 = a.x & 0xffffu;
  let a1 = a.x >> 16u;
  let b0 = b.x & 0xffffu;
  let b1 = b.x >> 16u;
  let cross = a0 * b1;
  let other = a1 * b0;
  let middle = ((a0 * b0) >> 16u) + (cross & 0xffffu) + (other & 0xffffu);
  let high = a1 * b1 + (cross >> 16u) + (other >> 16u) + (middle >> 16u);
  return vec2<u32>(a.x * b.x, high + a.x * b.y + a.y * b.x);
}
fn tw_less_uint64(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }
fn tw_less_int64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}
fn tw_min_int64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, tw_less_int64(a, b)); }
fn tw_max_int64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, tw_less_int64(a, b)); }
fn tw_min_uint64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, tw_less_uint64(a, b)); }
fn tw_max_uint64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, tw_less_uint64(a, b)); }
fn tw_abs_int64(a: vec2<u32>) -> vec2<u32> { return select(a, tw_neg(a), (a.y >> 31u) == 1u); }
fn tw_shl(a: vec2<u32>, count: u32) -> vec2<u32> {
  let n = count & 63u;
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}
fn tw_shr_uint64(a: vec2<u32>, count: u32) -> vec2<u32> {
  let n = count & 63u;
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(a.y >> (n - 32u), 0u); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}
fn tw_shr_int64(a: vec2<u32>, count: u32) -> vec2<u32> {
  let n = count & 63u;
  let high = bitcast<i32>(a.y);
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(bitcast<u32>(high >> (n - 32u)), bitcast<u32>(high >> 31u)); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(high >> n));
}
fn tw_divide(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  if (b.x == 0u && b.y == 0u) { return vec4<u32>(0u, 0u, 0u, 0u); }
  if (a.y == 0u && b.y == 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
  var q = vec2<u32>(0u, 0u);
  var r = vec2<u32>(0u, 0u);
  for (var i = 0u; i < 64u; i = i + 1u) {
    let n = 63u - i;
    let bit = (select(a.x, a.y, n >= 32u) >> (n & 31u)) & 1u;
    let over = r.y >> 31u;
    r = vec2<u32>((r.x << 1u) | bit, (r.y << 1u) | (r.x >> 31u));
    if (over == 1u || !tw_less_uint64(r, b)) {
      r = tw_sub(r, b);
      q = q | tw_shl(vec2<u32>(1u, 0u), n);
    }
  }
  return vec4<u32>(q, r);
}
fn tw_div_uint64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return tw_divide(a, b).xy; }
fn tw_mod_uint64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return tw_divide(a, b).zw; }
fn tw_div_int64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let q = tw_divide(tw_abs_int64(a), tw_abs_int64(b)).xy;
  return select(q, tw_neg(q), ((a.y ^ b.y) >> 31u) == 1u);
}
fn tw_mod_int64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let r = tw_divide(tw_abs_int64(a), tw_abs_int64(b)).zw;
  return select(r, tw_neg(r), (a.y >> 31u) == 1u);
}
fn tw_floordiv_int64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let d = tw_divide(tw_abs_int64(a), tw_abs_int64(b));
  if (((a.y ^ b.y) >> 31u) == 0u) { return d.xy; }
  return tw_neg(tw_add(d.xy, vec2<u32>(select(0u, 1u, any(d.zw != vec2<u32>(0u, 0u))), 0u)));
}
fn tw_floormod_int64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let r = tw_mod_int64(a, b);
  return select(r, tw_add(r, b), any(r != vec2<u32>(0u, 0u)) && ((r.y ^ b.y) >> 31u) == 1u);
}
fn tw_uint64_to_float(a: vec2<u32>) -> f32 {
  if (a.y == 0u) { return f32(a.x); }
  let zeros = countLeadingZeros(a.y);
  let m = tw_shl(a, zeros);
  let sticky = (m.y & 0x7fu) != 0u || m.x != 0u;
  let q = m.y >> 8u;
  let up = (m.y & 0x80u) != 0u && (sticky || (q & 1u) == 1u);
  return f32(q + select(0u, 1u, up)) * bitcast<f32>((167u - zeros) << 23u);
}
fn tw_int64_to_float(a: vec2<u32>) -> f32 {
  let x = tw_uint64_to_float(tw_abs_int64(a));
  return select(x, -x, (a.y >> 31u) == 1u);
}
fn tw_magnitude(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  let e = (bits >> 23u) & 0xffu;
  let m = (bits & 0x7fffffu) | 0x800000u;
  if (e < 127u) { return vec2<u32>(0u, 0u); }
  if (e <= 150u) { return vec2<u32>(m >> (150u - e), 0u); }
  return tw_shl(vec2<u32>(m, 0u), e - 150u);
}
fn tw_to_int64(x: f32) -> vec2<u32> {
  if (tw_is_nan(x)) { return vec2<u32>(0u, 0u); }
  if (x >= 9223372036854775808.0f) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }
  if (x <= -9223372036854775808.0f) { return vec2<u32>(0u, 0x80000000u); }
  let m = tw_magnitude(x);
  return select(m, tw_neg(m), x < 0.0f);
}
fn tw_to_uint64(x: f32) -> vec2<u32> {
  if (!(x > 0.0f)) { return vec2<u32>(0u, 0u); }
  if (x >= 18446744073709551616.0f) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
  return tw_magnitude(x);
}
"""

_HELPERS: Final = {text.split("(")[0]: f"fn {text}" for text in _TEXT.strip().removeprefix("fn ").split("\nfn ")}
_NAME: Final = re.compile(r"\btw_\w+")
_INFINITY: Final = "var<private> tw_infinity_bits: u32 = 0x7f800000u;"


def helper_text(program: str) -> str:
    """The helper functions that a program calls, directly or not, each once."""
    wanted: dict[str, None] = {}
    stack = [program]
    while stack:
        for name in _NAME.findall(stack.pop()):
            if name not in wanted:
                wanted[name] = None
                stack.append(_HELPERS.get(name, ""))
    parts = [_INFINITY] if "tw_infinity_bits" in wanted else []
    parts += [text for name, text in _HELPERS.items() if name in wanted]
    return "".join(f"{part}\n" for part in parts)
