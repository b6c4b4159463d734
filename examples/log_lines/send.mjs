// Send a file line by line: node send.mjs [FILE]. Ends when the broker has all of it on disk.

import fs from "node:fs";
import { parseArgs } from "node:util";
import rhea from "rhea";
import { connect } from "./connect.mjs";

const FILES = ["/var/log/dpkg.log", "/var/log/syslog", "/usr/share/common-licenses/GPL-3"];

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    queue: { type: "string", default: "examples/log-lines" },
    url: { type: "string", default: "amqp://127.0.0.1:5672" },
  },
});
const file = positionals[0] ?? FILES.find((path) => fs.existsSync(path));
if (!file) throw new Error("usage: node send.mjs [--queue QUEUE] [--url URL] FILE");

/** The lines of a file with their line ends, so that joining them gives the same bytes. */
function* lines(content) {
  for (let start = 0, end; start < content.length; start = end) {
    end = content.indexOf(0x0a, start) + 1 || content.length;
    yield content.subarray(start, end);
  }
}

const messages = Array.from(lines(fs.readFileSync(file)), (line) => ({
  durable: true,
  body: rhea.message.data_section(line),
}));
messages.push({ durable: true, subject: "end", body: "" }); // says only that it is the last

const connection = connect(options.url);
const sender = connection.open_sender({ target: options.queue });
let sent = 0;
let accepted = 0;

// As many lines at a time as the broker gives credit for.
sender.on("sendable", () => {
  while (sender.sendable() && sent < messages.length) sender.send(messages[sent++]);
});
sender.on("accepted", () => {
  if (++accepted === messages.length) connection.close();
});
sender.on("rejected", ({ delivery }) => {
  throw new Error(`the broker rejected a line: ${delivery.remote_state.error?.description}`);
});
