// SPDX-License-Identifier: MIT OR Apache-2.0
//
// trace-processor.js DIR REQUESTS: gives requests to Perfetto's trace_processor, and writes its answers to standard output.
//
// DIR has trace_processor as Perfetto's user interface has it: WebAssembly, and what runs it in a worker of a browser. Here it
// finds as much of a browser as it looks for.

"use strict";

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [dir, requests] = process.argv.slice(2);
const read = (url) => fs.readFileSync(path.join(dir, path.basename(String(url))));

class XMLHttpRequest {
  open(method, url) {
    this.url = url;
  }

  send() {
    this.status = 200;
    this.response = read(this.url);
  }
}

const worker = { location: { href: "http://localhost/engine_bundle.js" } };
const said = [];
const keep = (line) => said.push(line);
const context = vm.createContext({
  self: worker,
  WorkerGlobalScope: Object,
  XMLHttpRequest,
  console: { log: keep, warn: keep, error: keep },
  TextDecoder,
  URL,
  performance,
  setTimeout,
  clearTimeout,
  crypto,
});
vm.runInContext(read("engine_bundle.js").toString(), context);
const Bytes = vm.runInContext("Uint8Array", context);
const port = { postMessage: (answer) => fs.writeSync(1, answer) };

process.on("uncaughtException", (error) => {
  console.error(said.concat(String(error)).join("\n"));
  process.exit(1);
});

// It is ready when it has called what waits for its start, which nothing else reports.
setTimeout(() => {
  worker.onmessage({ data: port });
  port.onmessage({ data: Bytes.from(fs.readFileSync(requests)) });
  process.exit(0);
}, 1500);
