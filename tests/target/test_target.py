"""Targets: parsing, printing, JSON, hardware numbers and every message a user can get."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.support.errors import UserError
from tilewright.target import Target, detect_host
from tilewright.target.llvm_cpus import CPU_MODELS, DEFAULT_TRIPLES, GENERIC_MODELS

SPECS = [
    "native",
    "llvm",
    "c",
    "llvm -mcpu=native -num-cores=1",
    "llvm -mcpu=skylake-avx512",
    "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
    "llvm -mtriple=aarch64-linux-gnu",
    "llvm -mcpu=cortex-m4",
    "llvm -mtriple=wasm32-unknown-unknown",
    "llvm -mtriple=riscv64-unknown-linux-gnu -mattr=+v,+zvl256b",
    "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=generic -mattr=+avx2,+fma",
    "cuda -arch=sm_90 -shared-bytes=232448",
    "rocm",
    "opencl",
    "metal",
    "webgpu -max-threads=128",
]


@pytest.mark.parametrize("spec", SPECS)
def test_text_json_pickle_and_copy_round_trip(spec: str) -> None:
    target = Target(spec)
    assert Target(str(target)) == target
    assert str(Target(str(target))) == str(target)
    assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target
    assert pickle.loads(pickle.dumps(target)) == target
    assert copy.deepcopy(target) == target
    assert Target(target) == target
    assert hash(Target.parse(str(target))) == hash(target)
    assert eval(repr(target), {"Target": Target}) == target
    assert target.describe()


def test_native_is_this_machine() -> None:
    target, host = Target("native"), detect_host()
    assert target == Target() == Target("llvm") == Target("llvm -mcpu=native")
    assert (target.triple, target.cpu, target.cores) == (host.triple, host.cpu, host.cores)
    assert target.is_host
    assert target.is_cpu
    assert target.vector_bits >= 64
    assert target.l1_bytes > 0


def test_known_processors_have_the_right_shapes() -> None:
    skylake = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512")
    assert (skylake.vector_bits, skylake.vector_registers, skylake.lanes(32)) == (512, 32, 16)
    assert (skylake.has_fma, skylake.has_vnni, skylake.has_amx, skylake.has_fp16) == (True, False, False, False)
    haswell = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell")
    assert (haswell.vector_bits, haswell.vector_registers, haswell.lanes(64)) == (256, 16, 4)
    emerald = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=emeraldrapids")
    assert (emerald.has_vnni, emerald.has_amx, emerald.has_fp16, emerald.has_bf16) == (True, True, True, True)
    neoverse = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
    assert (neoverse.vector_bits, neoverse.vector_registers, neoverse.lanes(8)) == (128, 32, 16)
    assert (neoverse.has_dotprod, neoverse.has_fp16, neoverse.has_i8mm, neoverse.has_fma) == (True, True, False, True)
    assert neoverse.l1_bytes == 64 * 1024
    assert neoverse.l2_bytes == 1024 * 1024
    assert Target("llvm -mtriple=riscv64-unknown-linux-gnu -mattr=+v,+zvl256b").vector_bits == 256
    assert Target("cuda -arch=sm_90").has_fma
    assert Target("cuda -arch=sm_90a").shared_bytes == 227 << 10
    assert Target("cuda -arch=sm_90a -shared-bytes=1024").shared_bytes == 1024
    assert Target("llvm -mcpu=cortex-m55").vector_bits == 128


def test_lanes_is_at_least_one() -> None:
    assert Target("llvm -mcpu=cortex-m4").lanes(64) == 1


def test_added_and_removed_features_change_the_vector_width() -> None:
    base = "llvm -mtriple=x86_64-unknown-linux-gnu"
    assert Target(f"{base} -mcpu=generic -mattr=+avx2,+fma").vector_bits == 256
    narrowed = Target(f"{base} -mcpu=emeraldrapids -mattr=-avx512f")
    assert (narrowed.vector_bits, narrowed.vector_registers) == (256, 16)
    assert not narrowed.has_feature("avx512vnni")
    assert Target(f"{base} -mcpu=emeraldrapids -mattr=-avx").vector_bits == 128
    assert Target(f"{base} -mattr=+avx2,-avx2").features == "-avx2"


def test_removed_features_stay_removed_in_llvm() -> None:
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=emeraldrapids -mattr=-avx512f,+avx512vl,+avx2")
    assert target.features == "+avx2,+avx512vl,-avx512f"
    assert target.vector_bits == 256


def test_llvm_accepts_the_host_features(capfd: pytest.CaptureFixture[str]) -> None:
    from llvmlite import binding

    target = Target("native")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(target.triple)
    machine.create_target_machine(cpu=target.cpu, features=target.features)
    assert "not a recognized" not in capfd.readouterr().err


def test_options_may_use_two_dashes_and_spaces() -> None:
    spelled = Target("llvm --mtriple aarch64-linux-gnu --mcpu=neoverse-n1")
    assert spelled == Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")


def test_is_host_needs_the_same_system_and_no_missing_feature() -> None:
    host = detect_host()
    foreign = "llvm -mcpu=neoverse-n1" if host.arch == "x86_64" else "llvm -mcpu=haswell"
    assert not Target(foreign).is_host
    assert not Target("cuda").is_host
    assert Target("llvm -mcpu=generic").is_host
    assert not Target(f"llvm -mtriple={host.arch}-unknown-none").is_host
    if host.arch == "x86_64":
        assert not Target("native -mattr=+avx10.2").is_host


def test_processor_of_this_architecture_keeps_this_machines_cores_and_caches() -> None:
    host = detect_host()
    target = Target("llvm -mcpu=haswell" if host.arch == "x86_64" else "llvm -mcpu=cortex-a72")
    assert (target.triple, target.cores, target.l1_bytes) == (host.triple, host.cores, host.l1_bytes)


def test_replace_changes_fields_and_keeps_the_rest() -> None:
    target = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
    assert target.replace(cores=3).cores == 3
    assert target.replace(cores=3).cpu == target.cpu
    with pytest.raises(UserError, match=r"unknown field 'corse'.*did you mean 'cores'"):
        target.replace(corse=3)


def test_targets_are_immutable() -> None:
    with pytest.raises(AttributeError):
        Target("native").cores = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "the target is empty"),
        ("lvm", r"unknown kind of target 'lvm' \(did you mean 'llvm'\?\): the kinds are llvm, c, wasm, micro, cuda"),
        ("llvm -mcpuu=3", r"kind 'llvm' has no option '-mcpuu' \(did you mean 'mcpu'\?\)"),
        ("cuda -mcpu=3", "kind 'cuda' has no option '-mcpu'"),
        ("llvm -mcpu=skylak", r"unknown processor 'skylak' \(did you mean 'skylake'\?\)"),
        ("llvm x", "'x' is not an option of a target"),
        ("llvm --", "'--' is not an option of a target"),
        ("llvm -mtriple=foo-bar", "unknown architecture in the triple 'foo-bar'"),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=haswell", "processor 'haswell' is x86_64, but the triple"),
        ("native -mtriple=wasm32-unknown-unknown", "'-mcpu=native' is this machine's processor"),
        ("llvm -mattr=avx", "'avx' is not a processor feature"),
        ("llvm -num-cores=0", "'-num-cores' must be at least 1"),
        ("llvm -vector-bits=100", "'-vector-bits' must be a power of two from 8 on, not 100"),
        ("llvm -num-cores=two", "'-num-cores' needs a whole number, not 'two'"),
        ("llvm -mcpu=", "'-mcpu' needs a value: processor name"),
        ("llvm -mcpu", "'-mcpu' needs a value: processor name"),
        ("llvm -num-cores=1 -num-cores=2", "'-num-cores' is given twice"),
        ("llvm 'a", "quotes do not match"),
        ("native -mcpu=haswell", "'native' already names the processor"),
    ],
)
def test_messages(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Target(spec)


def test_json_messages() -> None:
    with pytest.raises(UserError, match="must be an object with a text called 'kind'"):
        Target.from_json({"cpu": "haswell"})
    with pytest.raises(UserError, match="unknown kind of target 'gpu'"):
        Target.from_json({"kind": "gpu"})
    data = Target("llvm -mtriple=aarch64-linux-gnu").to_json()
    with pytest.raises(UserError, match=r"field 'arch' of a target's JSON is 'x86_64', but its other fields make it"):
        Target.from_json({**data, "arch": "x86_64"})


def test_a_processor_newer_than_the_table_is_accepted_with_its_vector_width() -> None:
    text = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=futurelake -vector-bits=512"
    target = Target(text)
    assert (target.cpu, target.vector_bits) == ("futurelake", 512)
    assert Target(str(target)) == target


def test_every_processor_of_the_table_makes_a_target() -> None:
    for name, model in CPU_MODELS.items():
        target = Target(f"llvm -mtriple={DEFAULT_TRIPLES[model.arch]} -mcpu={name}")
        assert (target.vector_bits, target.vector_registers) == (model.vector_bits, model.vector_registers)
    for arch in GENERIC_MODELS:
        assert Target(f"llvm -mtriple={DEFAULT_TRIPLES[arch]}").arch == arch


def test_llvm_knows_every_processor_of_the_table(capfd: pytest.CaptureFixture[str]) -> None:
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    for name, model in CPU_MODELS.items():
        triple = DEFAULT_TRIPLES[model.arch]
        binding.Target.from_triple(triple).create_target_machine(cpu=name)
    assert "not a recognized processor" not in capfd.readouterr().err


@settings(max_examples=60, deadline=None)
@given(
    cpu=st.sampled_from(sorted(CPU_MODELS)),
    features=st.lists(st.sampled_from(["+avx2", "-avx512f", "+fma", "+dotprod", "-neon", "+v"]), max_size=3),
    cores=st.integers(1, 256),
    bits=st.sampled_from([64, 128, 256, 512]),
    l1=st.integers(0, 1 << 20),
)
def test_any_target_prints_text_that_parses_back(cpu: str, features: list[str], cores: int, bits: int, l1: int) -> None:
    words = ["llvm", f"-mcpu={cpu}", f"-num-cores={cores}", f"-vector-bits={bits}", f"-l1-bytes={l1}"]
    if features:
        words.append(f"-mattr={','.join(features)}")
    target = Target(" ".join(words))
    assert (target.cores, target.vector_bits, target.l1_bytes) == (cores, bits, l1)
    assert Target(str(target)) == target
    assert Target.from_json(target.to_json()) == target


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30))
def test_any_text_gives_a_target_or_a_user_error(text: str) -> None:
    with contextlib.suppress(UserError):
        assert Target(text).kind


def test_riscv_has_what_its_calling_convention_needs() -> None:
    """LLVM's generic processor has no floats at all, and some named ones of its table neither."""
    for text in (
        "llvm -mtriple=riscv64-linux-gnu",
        "llvm -mtriple=riscv64-linux-gnu -mattr=+v",
        "llvm -mcpu=rocket-rv64",
    ):
        features = Target(text).features.split(",")
        assert {"+m", "+a", "+f", "+d", "+c"} <= set(features), text
    assert Target(str(Target("llvm -mtriple=riscv64-linux-gnu"))) == Target("llvm -mtriple=riscv64-linux-gnu")
    assert "-c" in Target("llvm -mtriple=riscv64-linux-gnu -mattr=-c").features
    for name in ("f", "d"):
        with pytest.raises(UserError, match=f"code for riscv64 needs the feature '{name}'"):
            Target(f"llvm -mtriple=riscv64-linux-gnu -mattr=-{name}")
