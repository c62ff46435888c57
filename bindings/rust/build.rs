//! Compiles the runtime for C into the crate. No other crate is needed: a C compiler (`CC`, or `cc`) and `ar` are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    assert!(status.success(), "{command:?} failed");
}

/// Where the runtime's sources are: beside the crate in a package, beside its folder in the repository.
fn runtime() -> PathBuf {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap());
    let packaged = here.join("c");
    if packaged.is_dir() { packaged } else { here.parent().unwrap().join("c") }
}

fn main() {
    let runtime = runtime();
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    let (object, archive) = (out.join("tilewright.o"), out.join("libtilewright.a"));
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_string());
    run(Command::new(compiler)
        .args(["-std=c11", "-O2", "-fPIC", "-c"])
        .arg(runtime.join("src/tilewright.c"))
        .arg("-o")
        .arg(&object));
    run(Command::new("ar").arg("rcs").arg(Path::new(&archive)).arg(&object));
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=tilewright");
    println!("cargo:rerun-if-changed={}", runtime.display());
}
