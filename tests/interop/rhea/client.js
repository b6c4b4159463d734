"use strict";
// One rhea connection of a scenario: every error that is not expected ends the process, links as promises.

const rhea = require("rhea");
const WebSocket = require("ws");

const TIME_OUT_MS = 60_000;

function fail(what) {
  console.error(`failed: ${what instanceof Error ? what.stack : what}`);
  process.exit(1);
}

const reason = (error) => (error ? `${error.condition}: ${error.description}` : "without a condition");

/** The bytes of each message, as `message.raw`: what they decode to does not tell all types apart. */
const decode = rhea.message.decode;
rhea.message.decode = (buffer) => Object.assign(decode(buffer), { raw: Buffer.from(buffer) });

class Client {
  /** @param address HOST:PORT, or the URL of a WebSocket; options as rhea's connect takes them */
  constructor(address, options = {}) {
    const at = address.lastIndexOf(":");
    this.container = rhea.create_container();
    this.expectsEnd = false;
    const { origin, ...others } = options;
    const where = /^wss?:/.test(address)
      ? { connection_details: this.container.websocket_connect(WebSocket)(address, ["amqp"], { origin, ...others }) }
      : { host: address.slice(0, at), port: Number(address.slice(at + 1)) };
    this.connection = this.container.connect({ ...where, reconnect: false, ...others });
    this.container.on("error", fail);
    for (const kind of ["connection", "session", "sender", "receiver"]) {
      this.connection.on(`${kind}_error`, (context) => {
        if (!this.expectsEnd) fail(`${kind}: ${reason((context[kind] || context.connection).error)}`);
      });
    }
    this.connection.on("disconnected", (context) => {
      if (!this.expectsEnd) fail(`disconnected: ${context.error}`);
    });
  }

  opened() {
    return new Promise((resolve) => this.connection.once("connection_open", resolve));
  }

  close() {
    this.expectsEnd = true;
    return new Promise((resolve) => {
      this.connection.once("connection_close", resolve);
      this.connection.close();
    });
  }

  /** A sender, when it is attached. */
  sender(queue, options = {}, session = this.connection) {
    return new Promise((resolve) => {
      session.open_sender({ target: queue, ...options }).once("sender_open", ({ sender }) => resolve(sender));
    });
  }

  /** A receiver whose messages are awaited with next(); nothing is accepted unless that is asked for. */
  receiver(queue, options = {}, session = this.connection) {
    return new Promise((resolve) => {
      const receiver = session.open_receiver({ source: queue, autoaccept: false, ...options });
      const waiting = [];
      const arrived = [];
      receiver.on("message", ({ message, delivery }) => {
        if (waiting.length) waiting.shift()({ message, delivery });
        else arrived.push({ message, delivery });
      });
      receiver.next = () =>
        arrived.length ? Promise.resolve(arrived.shift()) : new Promise((next) => waiting.push(next));
      receiver.take = async (count) => {
        const bodies = [];
        while (bodies.length < count) {
          const { message, delivery } = await receiver.next();
          delivery.accept();
          bodies.push(message.body);
        }
        return bodies;
      };
      receiver.drained = () =>
        new Promise((done) => {
          receiver.once("receiver_drained", () => {
            receiver.drain = false;
            done(arrived.splice(0).map(({ message }) => message.body));
          });
          receiver.drain_credit();
        });
      receiver.once("receiver_open", () => resolve(receiver));
    });
  }

  /** Sends messages as credit allows; resolves with the outcome of each, in order, when all are settled. */
  send(sender, messages) {
    return new Promise((resolve) => {
      const outcomes = new Map();
      let next = 0;
      let settled = 0;
      const more = () => {
        while (next < messages.length && sender.sendable()) {
          const delivery = sender.send(messages[next++]);
          outcomes.set(delivery, delivery.settled ? "presettled" : "");
          if (delivery.settled) settled++;
        }
        if (settled === messages.length) resolve([...outcomes.values()]);
      };
      for (const outcome of ["accepted", "rejected", "released", "modified"]) {
        sender.on(outcome, ({ delivery }) => outcomes.set(delivery, outcome));
      }
      sender.on("settled", () => {
        settled++;
        more();
      });
      sender.on("sendable", more);
      more();
    });
  }
}

/** Runs what `scenarios` holds under the name argv gives, with its other arguments; prints the result as JSON. */
function run(scenarios) {
  const [name, ...rest] = process.argv.slice(2);
  const watchdog = setTimeout(() => fail(`${name} took more than ${TIME_OUT_MS} ms`), TIME_OUT_MS);
  scenarios[name](...rest.map((argument) => (argument.startsWith("{") ? JSON.parse(argument) : argument)))
    .then((result) => {
      clearTimeout(watchdog);
      process.stdout.write(JSON.stringify(result) + "\n", () => process.exit(0));
    })
    .catch(fail);
}

module.exports = { Client, rhea, run, reason };
