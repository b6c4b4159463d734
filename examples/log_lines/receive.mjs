// Receive what send.py or send.mjs sends, and write it to the standard output: node receive.mjs > copy

import { parseArgs } from "node:util";
import { connect } from "./connect.mjs";

const { values: options } = parseArgs({
  options: {
    queue: { type: "string", default: "examples/log-lines" },
    url: { type: "string", default: "amqp://127.0.0.1:5672" },
  },
});

const connection = connect(options.url);
// A message is accepted when this handler has returned.
connection.open_receiver({ source: options.queue }).on("message", ({ message }) => {
  if (message.subject === "end") connection.close();
  else process.stdout.write(message.body.content);
});
