"""`Target`: the machine a program is compiled for, as text that parses back and as numbers for schedules."""

from __future__ import annotations

import functools
import shlex
from dataclasses import dataclass, fields

from tilewright.support.errors import UserError
from tilewright.target.capabilities import MOST_STEPS, Capabilities
from tilewright.target.host import detect_host
from tilewright.target.kinds import EXAMPLES, TargetKind, closest, find_kind, kind_named, without_alias
from tilewright.target.resolve import effective_features, resolve_cpu, resolve_gpu

LINE_BYTES = 64
"""A line of a CPU's caches."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Target:
    """What a program is compiled for; immutable, hashable, and printed as text that parses back to itself.

    >>> Target("native")                                    # this machine
    >>> Target("llvm -mcpu=skylake-avx512")                 # this machine with another instruction set
    >>> Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
    >>> Target("windows-x86-64")                            # machines by short names (target/platforms.py)
    >>> Target("cuda -arch=sm_90")

    Schedules are derived from the numbers: `vector_bits` and `vector_registers` shape register tiles,
    `l1_bytes` to `l3_bytes` shape cache blocks (0 where a cache is absent), `cores` divides parallel loops. On a
    GPU `cores` counts multiprocessors, and `max_threads`, `warp_size`, `shared_bytes` hold a block's limits.
    """

    kind: str
    triple: str
    cpu: str
    features: str
    arch: str
    vector_bits: int
    vector_registers: int
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    max_threads: int
    warp_size: int
    shared_bytes: int

    def __init__(self, spec: str | Target = "native") -> None:
        values = _parse(spec) if isinstance(spec, str) else _values_of(spec)
        for name, value in values:
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str) -> Target:
        """The target that `text` describes; the same as `Target(text)`."""
        return cls(text)

    @classmethod
    def from_json(cls, data: dict[str, str | int]) -> Target:
        """The target that `to_json` described."""
        if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
            raise UserError("a target's JSON must be an object with a text called 'kind'")
        kind = find_kind(str(data["kind"]), "the target's JSON")
        known = {option.field: option for option in kind.options}
        words = [kind.name]
        for name, value in data.items():
            if name in known:
                words += [f"-{known[name].flag}={value}"] if value != "" else []
            elif name not in {field.name for field in fields(cls)}:
                raise UserError(f"unknown field '{name}' in a target's JSON{closest(name, known)}")
        target = cls(shlex.join(words))
        for name, value in data.items():
            if getattr(target, name) != value:
                raise UserError(
                    f"the field '{name}' of a target's JSON is {value!r}, but its other fields make it "
                    f"{getattr(target, name)!r}",
                    hint="leave out the fields that follow from others",
                )
        return target

    def to_json(self) -> dict[str, str | int]:
        """Every field by name, ready for `json.dumps`; `from_json` takes it back."""
        return dict(_values_of(self))

    def replace(self, **changes: str | int) -> Target:
        """This target with some fields changed: `target.replace(cores=1)`."""
        settable = {option.field for option in kind_named(self.kind).options} | {"kind"}
        kept = {name: value for name, value in self.to_json().items() if name in settable}
        return Target.from_json({**kept, **changes})

    def without(self, *features: str) -> Target:
        """This CPU without some features, and those that need them: `target.without("amx-tile")`."""
        changed = ",".join([*filter(None, [self.features]), *(f"-{name}" for name in features)])
        options = kind_named(self.kind).options
        values = {
            option.flag: changed if option.field == "features" else getattr(self, option.field) for option in options
        }
        return Target(shlex.join([self.kind, *(f"-{flag}={value}" for flag, value in values.items() if value != "")]))

    def __str__(self) -> str:
        kind = kind_named(self.kind)
        words = [f"-{option.flag}={getattr(self, option.field)}" for option in kind.options]
        return " ".join([self.kind, *(word for word in words if not word.endswith("="))])

    def __repr__(self) -> str:
        return f"Target({str(self)!r})"

    def describe(self) -> str:
        """One short line for people: `emeraldrapids (x86_64, 512-bit vectors, 2 cores)`."""
        cores = f"{self.cores} core{'s' if self.cores != 1 else ''}"
        if self.is_cpu:
            return f"{self.cpu} ({self.arch}, {self.vector_bits}-bit vectors, {cores})"
        return f"{self.kind} {self.arch} ({self.cores} multiprocessors, {self.shared_bytes // 1024} KiB shared)"

    @property
    def is_cpu(self) -> bool:
        """Whether programs for this target run on a CPU."""
        return kind_named(self.kind).is_cpu

    @property
    def capabilities(self) -> Capabilities:
        """What processors of this kind can do; the properties below answer for this one."""
        return kind_named(self.kind).capabilities

    @property
    def shuffle_width(self) -> int:
        """Threads that read each other's registers: a warp, or 1 where kernels have no instruction for it."""
        return self.warp_size if self.capabilities.warp_shuffles else 1

    def shared_item(self, itemsize: int) -> int:
        """Bytes that an element of some bytes takes in shared memory: whole words where languages know no less."""
        return max(self.capabilities.least_shared_bytes, itemsize)

    @property
    def has_clusters(self) -> bool:
        """Whether blocks can read each other's shared memory."""
        return self._allows(self.capabilities.clusters)

    @property
    def has_dependent_launch(self) -> bool:
        """Whether kernels wait for those before them themselves, and so may be started before these are done."""
        return self._allows(self.capabilities.dependent_launch)

    @property
    def has_dot4(self) -> bool:
        """Whether a thread adds the products of four pairs of signed bytes to a sum at once."""
        return self._allows(self.capabilities.dot4)

    @property
    def has_run_dots(self) -> bool:
        """Whether there are functions for dot products of whole runs of signed bytes."""
        return self._allows(self.capabilities.run_dots)

    @property
    def multiplies_by_lanes(self) -> bool:
        """Whether a multiply-add of vectors takes one lane of a register as it is, and no number from memory."""
        return self.arch == "aarch64" and self.has_feature("neon")

    @property
    def multiplies_from_memory(self) -> bool:
        """Whether a multiply-add of vectors takes one number from memory for all lanes, at no further cost."""
        return self.arch == "x86_64" and self.has_feature("avx512f")

    @property
    def is_software(self) -> bool:
        """Whether a processor plays the device: barriers are slow, and shared memory is no nearer than other memory."""
        return self._allows(self.capabilities.software)

    @property
    def most_steps(self) -> int | None:
        """Steps that all loops of a thread take together, where drivers end them then; None where they do not."""
        return MOST_STEPS if self._allows(self.capabilities.few_steps) else None

    @property
    def has_tensor_cores(self) -> bool:
        """Whether warps multiply matrices of half precision."""
        return self._allows(self.capabilities.tensor_cores)

    @property
    def has_byte_tensor_cores(self) -> bool:
        """Whether warps multiply matrices of 8-bit integers."""
        return self._allows(self.capabilities.byte_tensor_cores)

    @property
    def has_float8_products(self) -> bool:
        """Whether warps multiply matrices of 8-bit floats."""
        return self._allows(self.capabilities.float8_products)

    @property
    def has_warp_group_products(self) -> bool:
        """Whether four warps multiply matrices in shared memory."""
        return self._allows(self.capabilities.warp_group_products)

    def _allows(self, feature: str | None) -> bool:
        return feature is not None and self.has_feature(feature)

    @property
    def is_host(self) -> bool:
        """Whether code for this target can run in this process: same system, and no feature this machine lacks."""
        if not self.is_cpu:
            return False
        host = detect_host()
        if (self.triple, self.cpu, self.features) == (host.triple, host.cpu, host.features):
            return True
        if self.arch != host.arch or _system_of(self.triple) != _system_of(host.triple):
            return False
        return self.feature_set <= effective_features(self.arch, host.cpu, host.features)

    def lanes(self, dtype_bits: int) -> int:
        """How many elements of `dtype_bits` bits fill one vector register (at least 1)."""
        return max(self.vector_bits // dtype_bits, 1)

    @property
    def feature_set(self) -> frozenset[str]:
        """The features Tilewright decides on that this processor has, under LLVM's names; CUDA: `sm_80` and so on."""
        return kind_named(self.kind).features_of(self.arch, self.cpu, self.features)

    def has_feature(self, *names: str) -> bool:
        """Whether the processor has any of the named features."""
        return not self.feature_set.isdisjoint(names)

    @property
    def has_fma(self) -> bool:
        """Whether a fused multiply-add is one instruction."""
        if not self.is_cpu:
            return True
        return self.arch == "aarch64" or self.has_feature("fma", "avx512f", "f", "vfp4", "mve.fp", "relaxed-simd")

    @property
    def has_dotprod(self) -> bool:
        """Whether the ARM 8-bit dot product (sdot/udot) is there."""
        return self.has_feature("dotprod")

    @property
    def has_rounded_products(self) -> bool:
        """Whether instructions of vectors round products of fixed point and shifts (sqrdmulh, srshl)."""
        return self.arch == "aarch64" and self.has_feature("neon")

    @property
    def has_slow_conversions(self) -> bool:
        """Whether vectors of integers become floats, and floats integers, more slowly than they are added."""
        return self.arch == "aarch64" and self.has_feature("neon")

    @property
    def has_byte_tables(self) -> bool:
        """Whether instructions look bytes up in tables that registers hold (tbl)."""
        return self.arch == "aarch64" and self.has_feature("neon")

    @property
    def has_i8mm(self) -> bool:
        """Whether the ARM 8-bit matrix multiply (smmla) is there."""
        return self.has_feature("i8mm")

    @property
    def has_vnni(self) -> bool:
        """Whether the x86 8-bit dot product (vpdpbusd) is there."""
        return self.has_feature("avx512vnni", "avxvnni")

    @property
    def has_pair_products(self) -> bool:
        """Whether x86 adds the products of pairs of 16-bit integers (pmaddwd), in vectors of the target's width."""
        needed = {128: "sse2", 256: "avx2", 512: "avx512bw"}.get(self.vector_bits)
        return needed is not None and self.has_feature(needed)

    @property
    def has_amx(self) -> bool:
        """Whether the x86 matrix tiles are there, with 8-bit or bfloat16 products."""
        return self.has_feature("amx-int8", "amx-bf16")

    @property
    def has_fp16(self) -> bool:
        """Whether half-precision arithmetic (not only conversion) is there."""
        return not self.is_cpu or self.has_feature("fullfp16", "avx512fp16", "mve.fp", "zvfh")

    @property
    def has_half_conversion(self) -> bool:
        """Whether a CPU converts half precision by instructions."""
        if self.arch == "x86_64":
            return self.has_feature("f16c", "avx512f", "avx512fp16")
        return self.arch == "aarch64" or self.has_fp16

    @property
    def has_bf16(self) -> bool:
        """Whether bfloat16 products are there."""
        return self.has_feature("bf16", "avx512bf16", "amx-bf16")


def _values_of(target: Target) -> tuple[tuple[str, str | int], ...]:
    return tuple((field.name, getattr(target, field.name)) for field in fields(Target))


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> tuple[tuple[str, str | int], ...]:
    where = f"target '{text}'" if len(text) <= 200 else f"target '{text[:200]}...'"
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"the target's quotes do not match: {error}", where=where) from error
    if not words:
        raise UserError("the target is empty", hint=f"examples: {EXAMPLES}")
    if words[0] == "native":
        words = ["llvm", *words[1:], "-mcpu=native"]
    words = without_alias(words)
    kind = find_kind(words[0], where)
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for flag, value in _options(words[1:], where):
        _store_option(kind, flag, value, texts, numbers, where)
    values = resolve_cpu(kind, texts, numbers, where) if kind.is_cpu else resolve_gpu(kind, texts, numbers)
    values["kind"] = kind.name
    return tuple((field.name, values[field.name]) for field in fields(Target))


def target_fields(text: str) -> frozenset[str]:
    """The fields that a target's text sets itself: `cuda -arch=sm_90` sets `arch`."""
    words = shlex.split(text)
    if words and words[0] == "native":
        return frozenset()
    words = without_alias(words)
    kind = find_kind(words[0] if words else "", text)
    options = [kind.option(flag) for flag, _ in _options(words[1:], text)]
    return frozenset(option.field for option in options if option is not None)


def _options(words: list[str], where: str) -> list[tuple[str, str]]:
    """Pairs of (flag, value) from words such as `-mcpu=x` or `--mcpu x`."""
    pairs: list[tuple[str, str]] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word.lstrip("-") == "":
            raise UserError(
                f"'{word}' is not an option of a target", where=where, hint="options are written -name=value"
            )
        flag, equals, value = word.lstrip("-").partition("=")
        pairs.append((flag, value if equals else next(rest, "")))
    return pairs


def _store_option(
    kind: TargetKind, flag: str, value: str, texts: dict[str, str], numbers: dict[str, int], where: str
) -> None:
    option = kind.option(flag)
    if option is None:
        flags = [known.flag for known in kind.options]
        raise UserError(
            f"the target kind '{kind.name}' has no option '-{flag}'{closest(flag, flags)}",
            where=where,
            hint="its options are " + ", ".join(f"-{known}" for known in flags),
        )
    if option.field in texts or option.field in numbers:
        if flag == "mcpu" and value == "native":
            raise UserError("'native' already names the processor: leave -mcpu out", where=where)
        raise UserError(f"the option '-{flag}' is given twice", where=where)
    if not option.is_number:
        if not value:
            raise UserError(f"the option '-{flag}' needs a value: {option.meaning}", where=where)
        texts[option.field] = value
        return
    if not (value.isascii() and value.isdigit()):
        raise UserError(f"the option '-{flag}' needs a whole number, not '{value}'", where=where)
    numbers[option.field] = _checked_number(option.field, flag, int(value), where)


def _checked_number(field: str, flag: str, number: int, where: str) -> int:
    if field in ("cores", "vector_registers", "max_threads", "warp_size") and number < 1:
        raise UserError(f"the option '-{flag}' must be at least 1", where=where)
    if field == "vector_bits" and (number < 8 or number & (number - 1)):
        raise UserError(f"the option '-{flag}' must be a power of two from 8 on, not {number}", where=where)
    return number


def _system_of(triple: str) -> str:
    """The operating system named in a triple, whether or not a vendor is."""
    for system in ("linux", "darwin", "macosx", "windows", "freebsd"):
        if system in triple:
            return "darwin" if system == "macosx" else system
    return triple.partition("-")[2]


__all__ = ["Target", "target_fields"]
