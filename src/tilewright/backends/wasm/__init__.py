"""WebAssembly: models as packages for browsers and Node."""
