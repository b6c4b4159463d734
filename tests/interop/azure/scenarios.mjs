// Calls of @azure/service-bus, Azure's client for JavaScript: scenarios.mjs CONNECTION_STRING OTHER SECURE PREFIX NAME...
// prints a line of JSON for each scenario of that name; OTHER is the connection string of a user who may only receive,
// SECURE is one over TLS.
import { ServiceBusClient } from "@azure/service-bus";
import Long from "long";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";
import WebSocket from "ws";

const [connectionString, other, secure, prefix, ...names] = process.argv.slice(2);
const TIMEOUT_MS = 30_000;
const HOUR_MS = 3600_000;

/** What a scenario works with: nodes whose names start with `name` are its own. */
class Scene {
  constructor(name, client = opened(connectionString)) {
    this.name = name;
    this.client = client;
  }

  sender(name = this.name) {
    return this.client.createSender(name);
  }

  receiver(options = {}) {
    return this.client.createReceiver(this.name, options);
  }

  /** Sends one message of each text. */
  async send(...texts) {
    const sender = this.sender();
    for (const text of texts) await sender.sendMessages({ body: text, messageId: text });
    await sender.close();
  }
}

function opened(text, options = {}) {
  return new ServiceBusClient(text, { retryOptions: { maxRetries: 0, timeoutInMs: TIMEOUT_MS }, ...options });
}

/** So many messages, in as many calls as it takes. */
async function received(receiver, count) {
  const found = [];
  while (found.length < count) {
    const more = await receiver.receiveMessages(count - found.length, { maxWaitTimeInMs: TIMEOUT_MS });
    if (!more.length) throw new Error(`expected ${count} messages, found ${found.length}`);
    found.push(...more);
  }
  return found;
}

async function next(receiver) {
  return (await received(receiver, 1))[0];
}

async function peeked(receiver, count, from) {
  return receiver.peekMessages(count, from === undefined ? {} : { fromSequenceNumber: Long.fromNumber(from) });
}

/** How many messages a queue still has. */
async function left(receiver) {
  return (await peeked(receiver, 100, 0)).length;
}

function texts(messages) {
  return messages.map((each) => each.body);
}

/** The error of a call, or null. */
async function failure(work) {
  try {
    await work;
  } catch (error) {
    return error;
  }
  return null;
}

/** The code of an error as applications test for it, or "" where nothing failed. */
async function why(work) {
  const error = await failure(work);
  return error === null ? "" : String(error.code);
}

/** One message with all that applications set, to and fro. */
async function send(scene) {
  await scene.sender().sendMessages({
    body: "Zug \u{1f682}",
    messageId: "id",
    correlationId: "correlation",
    subject: "subject",
    contentType: "text/plain",
    replyTo: "reply",
    to: "to",
    timeToLive: HOUR_MS,
    applicationProperties: { text: "value", number: 7, flag: true, part: 0.5 },
  });
  const receiver = scene.receiver();
  const before = new Date();
  const message = await next(receiver);
  await receiver.completeMessage(message);
  const { messageId, correlationId, subject, contentType, replyTo, to } = message;
  return {
    body: message.body,
    application: message.applicationProperties,
    properties: [messageId, correlationId, subject, contentType, replyTo, to],
    ttl: message.timeToLive / 1000,
    sequence: Number(message.sequenceNumber),
    count: message.deliveryCount,
    locked: message.lockedUntilUtc > before,
    token: message.lockToken.length === 36,
    left: await left(receiver),
  };
}

/** A batch of messages, taken by a receiver that settles nothing. */
async function batch(scene) {
  const sender = scene.sender();
  const made = await sender.createMessageBatch();
  for (const text of ["one", "two", "three"]) made.tryAddMessage({ body: text });
  await sender.sendMessages(made);
  const receiver = scene.receiver({ receiveMode: "receiveAndDelete" });
  return { bodies: texts(await received(receiver, 3)), left: await left(receiver) };
}

/** Completes, abandons and dead-letters, and reads the dead letter. */
async function settle(scene) {
  await scene.send("first", "second");
  const receiver = scene.receiver();
  await receiver.completeMessage(await next(receiver));
  await receiver.abandonMessage(await next(receiver), { tried: "once" });
  const again = await next(receiver);
  await receiver.deadLetterMessage(again, {
    place: "yard",
    deadLetterReason: "why",
    deadLetterErrorDescription: "weil es größer ist",
  });
  const letters = scene.receiver({ subQueueType: "deadLetter" });
  const dead = await next(letters);
  await letters.completeMessage(dead);
  return {
    again: [again.body, again.deliveryCount],
    dead: [
      dead.body,
      dead.messageId,
      dead.deadLetterReason,
      dead.deadLetterErrorDescription,
      dead.deadLetterSource,
    ],
    changed: [again, dead].map((each) => each.applicationProperties?.tried).concat(dead.applicationProperties.place),
    left: [await left(receiver), await left(letters)],
  };
}

/** Renews a lock, and one that is no longer there. */
async function renew(scene) {
  await scene.send("one");
  const receiver = scene.receiver();
  const message = await next(receiver);
  const before = message.lockedUntilUtc;
  const until = await receiver.renewMessageLock(message);
  await receiver.completeMessage(message);
  return {
    renewed: until >= before && until > new Date(),
    lost: await why(receiver.renewMessageLock(message)),
  };
}

/** Completes a message whose lock has ended: another receiver has it. */
async function lost(scene) {
  await scene.send("one");
  const [receiver, other] = [0, 1].map(() => scene.receiver({ maxAutoLockRenewalDurationInMs: 0 }));
  const message = await next(receiver);
  const again = await next(other);
  const code = await why(receiver.completeMessage(message));
  await other.completeMessage(again);
  return { again: again.body, lost: code, left: await left(receiver) };
}

/** Peeks from the start, further, and from a number. */
async function peek(scene) {
  await scene.send("one", "two", "three");
  const receiver = scene.receiver();
  const first = texts(await peeked(receiver, 2));
  const rest = texts(await peeked(receiver, 2));
  const from = await peeked(receiver, 1, 2);
  return { first, rest, from: [texts(from), Number(from[0].sequenceNumber)], left: await left(receiver) };
}

/** Schedules and cancels; a message that is sent with a time comes at it. */
async function schedule(scene) {
  const sender = scene.sender();
  const receiver = scene.receiver();
  const hour = new Date(Date.now() + HOUR_MS);
  const numbers = await sender.scheduleMessages([{ body: "one" }, { body: "two" }], hour);
  const [later] = await peeked(receiver, 1);
  await sender.cancelScheduledMessages(numbers);
  const twice = await failure(sender.cancelScheduledMessages(numbers));
  const soon = new Date(Date.now() + 500);
  await sender.sendMessages({ body: "soon", scheduledEnqueueTimeUtc: soon });
  const came = await next(receiver);
  return {
    numbers: numbers.map(Number),
    peeked: later.body,
    scheduled: later.state === "scheduled",
    twice: twice.message.includes("not scheduled"),
    came: came.body,
    early: new Date() < soon,
  };
}

/** A message for a topic, and the dead letters of a subscription. */
async function topic(scene) {
  await scene.send("for all");
  const receiver = scene.client.createReceiver(scene.name, "mine");
  const message = await next(receiver);
  await receiver.deadLetterMessage(message);
  const letters = scene.client.createReceiver(scene.name, "mine", { subQueueType: "deadLetter" });
  return { body: message.body, dead: (await next(letters)).body };
}

/** Schedules in a topic, and cancels; a message that is sent with a time comes at it. */
async function topic_schedule(scene) {
  const sender = scene.sender();
  const receiver = scene.client.createReceiver(scene.name, "mine");
  const soon = new Date(Date.now() + 1000);
  const numbers = await sender.scheduleMessages([{ body: "one" }, { body: "two" }], soon);
  await sender.cancelScheduledMessages([numbers[0]]);
  const twice = await failure(sender.cancelScheduledMessages([numbers[0]]));
  await sender.sendMessages({ body: "three", scheduledEnqueueTimeUtc: soon });
  const came = [await next(receiver), await next(receiver)];
  return {
    numbers: numbers.map(Number),
    twice: twice.message.includes("not scheduled"),
    came: came.map((message) => message.body).sort(),
    early: new Date() < soon,
  };
}

/** A user who may only receive sends; a key that is none. */
async function refused(scene) {
  const sending = async (text) => {
    const client = opened(text);
    const found = await why(client.createSender(scene.name).sendMessages({ body: "x" }));
    await client.close();
    return found;
  };
  const wrong = connectionString.replace("SharedAccessKey=", "SharedAccessKey=x");
  return { right: await sending(other), key: await sending(wrong) };
}

/** There and back over a WebSocket, over TLS. */
async function websocket(scene) {
  const client = opened(secure, { webSocketOptions: { webSocket: WebSocket } });
  const over = new Scene(scene.name, client);
  await over.send("x");
  const receiver = over.receiver();
  const message = await next(receiver);
  await receiver.completeMessage(message);
  await client.close();
  return { body: message.body };
}

/** A message that is deferred is received by its number alone, and once. */
async function deferred(scene) {
  await scene.send("one", "two");
  const receiver = scene.receiver();
  const [first, second] = await received(receiver, 2);
  await receiver.deferMessage(first);
  await receiver.completeMessage(second);
  const before = await left(receiver);
  const [back] = await receiver.receiveDeferredMessages([first.sequenceNumber]);
  await receiver.completeMessage(back);
  const twice = await failure(receiver.receiveDeferredMessages([first.sequenceNumber]));
  return {
    back: back.body,
    deferred: back.state === "deferred",
    twice: twice.message.includes("that are deferred"),
    left: [before, await left(receiver)],
  };
}

/** Of messages with one id the first is stored. */
async function duplicates(scene) {
  const sender = scene.sender();
  for (const [id, text] of [["a", "one"], ["a", "two"], ["b", "three"]])
    await sender.sendMessages({ body: text, messageId: id });
  const receiver = scene.receiver({ receiveMode: "receiveAndDelete" });
  return { bodies: texts(await received(receiver, 2)), left: await left(receiver) };
}

/** Accepts a session by its id, and the next one that is available; sets its state. */
async function session(scene) {
  await scene.sender().sendMessages(["a1", "b1", "a2"].map((body) => ({ body, sessionId: body[0] })));
  const first = await scene.client.acceptNextSession(scene.name);
  const busy = await why(scene.client.acceptSession(scene.name, "a"));
  const messages = await received(first, 2);
  for (const each of messages) await first.completeMessage(each);
  const none = await first.getSessionState();
  await first.setSessionState("state");
  const renewed = (await first.renewSessionLock()) > new Date();
  const second = await scene.client.acceptSession(scene.name, "b");
  return {
    sessions: [first.sessionId, second.sessionId],
    bodies: texts(messages),
    busy,
    state: [none?.length ?? 0, await first.getSessionState()],
    renewed,
  };
}

/** A handler's message is completed when it returns, and abandoned when it fails. */
async function processor(scene) {
  await scene.send("one", "two", "three");
  const seen = [];
  const receiver = scene.receiver();
  await new Promise((done, fail) => {
    setTimeout(fail, TIMEOUT_MS, new Error("the handler was not called so often")).unref();
    const saw = (what) => {
      seen.push(what);
      if (seen.length === 5) done();
    };
    receiver.subscribe({
      processMessage: async (message) => {
        saw(`${message.body} ${message.deliveryCount}`);
        if (message.body === "two" && message.deliveryCount === 0) throw new Error("not yet");
      },
      processError: async ({ errorSource }) => saw(errorSource),
    });
  });
  // The last one is completed after its handler.
  await receiver.close();
  return { seen: seen.sort(), left: await left(scene.receiver()) };
}

/** Sends, again where the client gives up because nobody listens at the broker's port. */
async function sendInTheEnd(sender, message) {
  for (;;) {
    const error = await failure(sender.sendMessages(message));
    if (error === null) return;
    // After several attempts of its own the client gives the errors of all of them; the last one ended them.
    const last = error instanceof AggregateError ? error.errors.at(-1) : error;
    if (!last.message.includes("ECONNREFUSED")) throw error;
    await pause(100);
  }
}

/** Sends and receives on the same objects while the broker is killed and started again. */
async function restart(scene) {
  const client = opened(connectionString, {
    retryOptions: { maxRetries: 20, retryDelayInMs: 500, timeoutInMs: 5000 },
  });
  const over = new Scene(scene.name, client);
  const sender = over.sender();
  const receiver = over.receiver();
  const found = new Set();
  const receive = async () => {
    for (const message of await receiver.receiveMessages(10, { maxWaitTimeInMs: 5000 })) {
      await receiver.completeMessage(message);
      found.add(message.body);
    }
  };
  for (let number = 0; number < 10; number++) await sender.sendMessages({ body: number });
  while (found.size < 5) await receive();
  print("restart", "half");
  const lines = createInterface({ input: process.stdin });
  await new Promise((done) => lines.once("line", done));
  lines.close();
  for (let number = 10; number < 20; number++) await sendInTheEnd(sender, { body: number });
  // A message whose completion was lost with the broker comes again.
  while (found.size < 20) await failure(receive());
  await client.close();
  return { bodies: [...found].sort((one, two) => one - two) };
}

function print(scenario, found) {
  console.log(JSON.stringify({ scenario, found }));
}

const scenarios = {
  send, batch, settle, renew, lost, peek, schedule, topic, topic_schedule, refused, websocket, deferred, duplicates, session,
  processor, restart,
};
for (const name of names) {
  const scene = new Scene(prefix + name);
  let found = { failed: "there is no scenario of this name" };
  try {
    if (scenarios[name]) found = await scenarios[name](scene);
  } catch (error) {
    found = { failed: String(error.stack) };
  }
  print(name, found);
  await scene.client.close();
}
