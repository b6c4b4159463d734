"use strict";
// node scenarios.js NAME HOST:PORT QUEUE [JSON]: one conversation with a broker, its result as a line of JSON.

const { once } = require("node:events");
const fs = require("node:fs");
const { Client, rhea, run, reason } = require("./client.js");
const { messages } = require("./messages.js");

const numbers = (count, more = {}) => Array.from({ length: count }, (_, body) => ({ body, ...more }));

const scenarios = {
  /** Sends and receives numbered messages; options: count, durable, sender and receiver as rhea takes them. */
  async pass(address, queue, options) {
    const client = new Client(address, options.connection);
    const sender = await client.sender(queue, options.sender);
    const receiver = await client.receiver(queue, options.receiver);
    const sent = client.send(sender, numbers(options.count, { durable: Boolean(options.durable) }));
    const bodies = await receiver.take(options.count);
    const outcomes = [...new Set(await sent)];
    await client.close();
    return { bodies, outcomes };
  },

  /** Asks $management: makes a queue, makes it again, reads and deletes it; gives the answers. */
  async manage(address, queue) {
    const client = new Client(address);
    const receiver = await client.receiver("$management", { target: "answers" });
    const sender = await client.sender("$management");
    const answers = [];
    for (const operation of ["CREATE", "CREATE", "READ", "DELETE"]) {
      const request = {
        message_id: answers.length,
        reply_to: "answers",
        application_properties: { operation, type: "lightrail.queue", name: queue },
        body: { max_length: 7 },
      };
      const [outcome] = await client.send(sender, [request]);
      const { message, delivery } = await receiver.next();
      delivery.accept();
      const { statusCode } = message.application_properties;
      answers.push([outcome, message.correlation_id, statusCode, message.body && message.body.max_length]);
    }
    await client.close();
    return answers;
  },

  /** Sends every type; what arrives again is given as bytes, beside the bytes that were sent. */
  async types(address, queue) {
    const client = new Client(address);
    const made = messages();
    const sent = client.send(await client.sender(queue), Object.values(made));
    const receiver = await client.receiver(queue);
    const result = {};
    for (const [name, message] of Object.entries(made)) {
      const arrived = await receiver.next();
      arrived.delivery.accept();
      result[name] = [rhea.message.encode(message).toString("hex"), arrived.message.raw.toString("hex")];
    }
    const outcomes = [...new Set(await sent)];
    await client.close();
    return { messages: result, outcomes };
  },

  /** Sends every type and leaves it in the queue; gives the names in order. */
  async send_types(address, queue) {
    const client = new Client(address);
    await client.send(await client.sender(queue), Object.values(messages()));
    await client.close();
    return Object.keys(messages());
  },

  /** Receives messages of another client and gives their bytes. */
  async receive_raw(address, queue, options) {
    const client = new Client(address);
    const receiver = await client.receiver(queue);
    const result = [];
    while (result.length < options.count) {
      const { message, delivery } = await receiver.next();
      delivery.accept();
      result.push(message.raw.toString("hex"));
    }
    await client.close();
    return result;
  },

  /** One large message there and back. */
  async large(address, queue, options) {
    const client = new Client(address);
    const content = Buffer.alloc(options.size, "0123456789abcdef");
    const body = rhea.message.data_section(content);
    const sent = client.send(await client.sender(queue), [{ body, durable: options.durable }, { body: "after" }]);
    const receiver = await client.receiver(queue);
    const first = await receiver.next();
    first.delivery.accept();
    const [after] = await receiver.take(1);
    const result = {
      outcomes: await sent,
      equal: first.message.body.content.equals(content),
      durable: first.message.durable,
      after,
    };
    await client.close();
    return result;
  },

  /** Every outcome once; what comes next each time, and what the dead-letter queue holds in the end. */
  async outcomes(address, queue) {
    const client = new Client(address);
    await client.send(await client.sender(queue), [{ body: "m", message_annotations: { "x-opt-mine": 1 } }]);
    const receiver = await client.receiver(queue, { credit_window: 0 });
    const seen = [];
    const next = async () => {
      receiver.add_credit(1);
      const { message, delivery } = await receiver.next();
      seen.push([message.body, message.delivery_count || 0, message.message_annotations]);
      return delivery;
    };
    (await next()).release();
    (await next()).modified({ delivery_failed: true });
    (await next()).modified({ message_annotations: { "x-opt-more": "new" } });
    (await next()).modified({ delivery_failed: true, undeliverable_here: true });
    receiver.add_credit(1);
    const barred = await receiver.drained();
    const elsewhere = await client.receiver(queue, { name: "elsewhere" });
    const again = await elsewhere.next();
    again.delivery.reject({ condition: "example:bad", description: "not like this" });
    const dead = await client.receiver(`${queue}/$dlq`);
    const letter = (await dead.next()).message;
    await client.close();
    return { seen, barred, attempts: again.message.delivery_count, dead: letter.message_annotations };
  },

  /** What a client holds when it goes without a word comes back, counted. */
  async loss(address, queue) {
    const first = new Client(address);
    await first.send(await first.sender(queue), [{ body: "held" }]);
    await (await first.receiver(queue)).next();
    first.expectsEnd = true;
    first.connection.socket.destroy();
    const second = new Client(address);
    const { message, delivery } = await (await second.receiver(queue)).next();
    delivery.accept();
    await second.close();
    return { body: message.body, attempts: message.delivery_count };
  },

  /** Links, sessions and connections that fetch ahead, receive one message, and close: what is left, and how often it was counted. */
  async closing(address, queue, { rounds, messages, credit }) {
    const sender = new Client(address);
    await sender.send(await sender.sender(queue), numbers(messages));
    await sender.close();
    let client = new Client(address);
    for (let round = 0; round < rounds; round++) {
      const session = client.connection.create_session();
      session.begin();
      const receiver = await client.receiver(queue, { credit_window: credit }, session);
      (await receiver.next()).delivery.accept();
      if (round % 3 === 2) {
        await client.close();
        client = new Client(address);
      } else {
        const [end, event] = round % 3 ? [session, "session_close"] : [receiver, "receiver_close"];
        const closed = new Promise((resolve) => end.once(event, resolve));
        end.close();
        await closed;
      }
    }
    const rest = await client.receiver(queue, { credit_window: credit });
    const bodies = [];
    let counts = 0;
    while (bodies.length < messages - rounds) {
      const { message, delivery } = await rest.next();
      delivery.accept();
      bodies.push(message.body);
      counts += message.delivery_count || 0;
    }
    await client.close();
    return { bodies, counts };
  },

  /**
   * Sends until the connection was lost so often; rhea connects again by itself, and the program sends again what was not
   * accepted. For each hundred deliveries it prints how often it was lost, and `all` once everything sent has arrived.
   * It receives on until its input ends: what it accepted behind the broker's Close comes again.
   */
  async reconnecting(address, queue, { losses }) {
    const client = new Client(address, { reconnect: true, initial_reconnect_delay: 20, max_reconnect_delay: 200 });
    client.expectsEnd = true; // connections are lost, and refused where nobody listens
    const reasons = new Set();
    client.connection.on("connection_error", ({ connection }) => {
      lost++;
      reasons.add(connection.error.condition);
    });
    const waiting = [];
    const unsettled = new Map();
    const arrived = new Set();
    let sent = 0;
    let lost = 0;
    let deliveries = 0;
    const sender = await client.sender(queue);
    const receiver = client.connection.open_receiver({ source: queue, autoaccept: false, credit_window: 100 });
    const more = () => {
      while (sender.sendable() && unsettled.size < 100 && (waiting.length || lost < losses)) {
        const body = waiting.length ? waiting.shift() : sent++;
        unsettled.set(sender.send({ body, durable: true }), body);
      }
    };
    client.connection.on("disconnected", () => {
      waiting.push(...unsettled.values());
      unsettled.clear();
    });
    let all = false;
    const check = () => {
      more();
      if (all || lost < losses || waiting.length || unsettled.size || arrived.size < sent) return;
      all = true;
      console.log("all");
    };
    sender.on("sendable", more);
    sender.on("accepted", ({ delivery }) => {
      unsettled.delete(delivery);
      check();
    });
    receiver.on("message", ({ message, delivery }) => {
      delivery.accept();
      arrived.add(message.body);
      if (++deliveries % 100 === 0) console.log(`lost ${lost}`);
      check();
    });
    more();
    await once(process.stdin.resume(), "end");
    return [...reasons]; // without a Close of its own, which may cross one more of a broker that ends
  },

  /** Pairs of links on one connection, spread over sessions. */
  async links(address, queue, options) {
    const client = new Client(address);
    await client.opened();
    const sessions = Array.from({ length: options.sessions }, () => client.connection.create_session());
    for (const session of sessions) session.begin();
    const pairs = Array.from({ length: options.pairs }, async (_, number) => {
      const session = sessions[number % sessions.length];
      const name = `${queue}/${number}`;
      const [sender, receiver] = await Promise.all([
        client.sender(name, {}, session),
        client.receiver(name, { credit_window: 10 }, session),
      ]);
      await client.send(sender, numbers(3));
      return receiver.take(3);
    });
    const bodies = await Promise.all(pairs);
    await client.close();
    return bodies;
  },

  /** Two browsers, then a receiver that takes. */
  async browse(address, queue, options) {
    const client = new Client(address);
    await client.send(await client.sender(queue), numbers(options.count));
    const browsed = [];
    for (const name of ["first", "second"]) {
      const source = { address: queue, distribution_mode: "copy" };
      const browser = await client.receiver(queue, { name, source });
      browsed.push(await browser.take(options.count));
      browser.close();
    }
    const taken = await (await client.receiver(queue, { name: "taker" })).take(options.count);
    await client.close();
    return { browsed, taken };
  },

  /** Drains a receiver with more credit than there are messages. */
  async drain(address, queue) {
    const client = new Client(address);
    await client.send(await client.sender(queue), numbers(3));
    const receiver = await client.receiver(queue, { credit_window: 0 });
    receiver.add_credit(100);
    const bodies = await receiver.drained();
    const credit = receiver.credit;
    await client.close();
    return { bodies, credit };
  },

  /** Nothing is said for a while; both sides have short idle time-outs. */
  async idle(address, queue, options) {
    const client = new Client(address, { idle_time_out: options.ours_ms });
    const sender = await client.sender(queue);
    await new Promise((resolve) => setTimeout(resolve, options.quiet_ms));
    const outcomes = await client.send(sender, numbers(1));
    await client.close();
    return outcomes;
  },

  /** Connects with what `options` say (files by name in ca, cert, key); gives null or why it was refused. */
  async enter(address, queue, { files = {}, ...options }) {
    for (const [name, path] of Object.entries(files)) options[name] = fs.readFileSync(path);
    const client = new Client(address, options);
    client.expectsEnd = true;
    const refused = await new Promise((resolve) => {
      client.connection.once("connection_open", () => resolve(null));
      client.connection.once("connection_error", ({ connection, error }) => resolve(reason(connection.error || error)));
      client.connection.once("disconnected", ({ error }) => resolve(`disconnected: ${error}`));
    });
    if (refused === null) {
      await client.send(await client.sender(queue), [{ body: "in" }]);
      await (await client.receiver(queue)).take(1);
      await client.close();
    }
    return refused;
  },
};

run(scenarios);
