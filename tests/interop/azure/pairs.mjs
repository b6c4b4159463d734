// What @azure/service-bus sends to the clients of other languages, and receives from them: pairs.mjs CONNECTION_STRING.
// tests/interop/azure_pairs.py describes it.
import { ServiceBusClient } from "@azure/service-bus";

const LANGUAGES = ["python", "javascript", "go", "java", "dotnet"];
const PATIENCE_MS = 100_000;
const client = new ServiceBusClient(process.argv[2]);

async function give(queue) {
  const sender = client.createSender(queue);
  await sender.sendMessages({
    body: Buffer.from("Zug \u{1f682}"), messageId: "data", correlationId: "correlation", subject: "subject", contentType: "text/plain",
    replyTo: "reply", to: "to", sessionId: "s", replyToSessionId: "r", timeToLive: 3600_000,
    applicationProperties: { text: "value", number: 7, flag: true, part: 0.5 },
  });
  await sender.sendMessages({ body: "größer", bodyType: "value", properties: { messageId: "value" } });
  await sender.sendMessages({ body: [1, "a"], bodyType: "sequence", properties: { messageId: "sequence" } });
  await sender.scheduleMessages({ body: Buffer.from("later"), messageId: "scheduled" }, new Date(Date.now() + 1000));
  const sessions = client.createSender(`${queue}/session`);
  await sessions.sendMessages(["1", "2"].map((text) => ({ body: Buffer.from(text), sessionId: "s" })));
}

async function received(receiver, count) {
  const found = [];
  while (found.length < count) {
    const more = await receiver.receiveMessages(count - found.length, { maxWaitTimeInMs: PATIENCE_MS });
    if (!more.length) throw new Error(`expected ${count} messages, found ${found.length}`);
    found.push(...more);
  }
  return found;
}

/** The client parses what it can as JSON: "1" arrives as a number. */
function text(body) {
  return Buffer.isBuffer(body) ? body.toString() : String(body);
}

async function take(queue) {
  const receiver = client.createReceiver(queue);
  const messages = Object.fromEntries((await received(receiver, 4)).map((each) => [each.messageId, each]));
  const { data, value, sequence, scheduled } = messages;
  await receiver.completeMessage(data);
  await receiver.abandonMessage(value);
  const [again] = await received(receiver, 1);
  await receiver.completeMessage(again);
  await receiver.deadLetterMessage(sequence, { deadLetterReason: "why", deadLetterErrorDescription: "because" });
  await receiver.deferMessage(scheduled);
  const [deferred] = await receiver.receiveDeferredMessages(scheduled.sequenceNumber);
  await receiver.completeMessage(deferred);
  const session = await client.acceptSession(`${queue}/session`, "s");
  let texts = "";
  for (const each of await received(session, 2)) {
    texts += text(each.body);
    await session.completeMessage(each);
  }
  await session.setSessionState("javascript");
  return {
    data: text(data.body),
    fields: [
      data.correlationId, data.subject, data.contentType, data.replyTo, data.to, data.sessionId, data.replyToSessionId,
      Math.round(data.timeToLive / 1000),
    ],
    application: data.applicationProperties,
    value: value.body,
    again: [again.body, again.deliveryCount - value.deliveryCount],
    sequence: sequence.body.flat(),
    scheduled: text(deferred.body),
    session: texts,
  };
}

await Promise.all(LANGUAGES.map((receiver) => give(`pairs/javascript/${receiver}`)));
const found = await Promise.all(LANGUAGES.map((sender) => take(`pairs/${sender}/javascript`)));
console.log(JSON.stringify({ scenario: "pairs", found: Object.fromEntries(LANGUAGES.map((each, index) => [each, found[index]])) }));
await client.close();
