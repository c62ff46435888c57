"use strict";

// The native engine: the runtime for C as an addon. An engine opens libraries and runs them; another one (for example of
// WebAssembly) has the same functions: open, openBytes, close, describe, outputShapes, setNumThreads, runSync, run.

const path = require("node:path");

const place = process.env.TILEWRIGHT_ADDON || path.join(__dirname, "..", "build", "tilewright.node");

module.exports = require(place);
