// Every call of @azure/service-bus that azure.md promises, in one story: prints what each step found as JSON.
import { ServiceBusClient } from "@azure/service-bus";

const [connectionString, queue, topic, subscription, sessions] = process.argv.slice(2);
const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0, timeoutInMs: 20000 } });
const sender = client.createSender(queue);
const receiver = client.createReceiver(queue);
const found = {};

async function next(from = receiver) {
  const [message] = await from.receiveMessages(1, { maxWaitTimeInMs: 20000 });
  return message;
}

async function refused(work) {
  try {
    await work;
  } catch (error) {
    return error.message;
  }
  return "";
}

await sender.sendMessages({ body: "first", applicationProperties: { key: "value" } });
await sender.sendMessages([{ body: "second", messageId: "2" }, { body: { third: 3 } }]);
const batch = await sender.createMessageBatch();
batch.tryAddMessage({ body: "fourth" });
await sender.sendMessages(batch);
found.peeked = (await receiver.peekMessages(10)).map((each) => [Number(each.sequenceNumber), each.body]);

const first = await next();
found.first = [first.body, first.applicationProperties, first.lockToken.length, first.deliveryCount];
found.renewed = (await receiver.renewMessageLock(first)) > new Date();
await receiver.completeMessage(first);
await receiver.abandonMessage(await next());
const second = await next();
found.again = [second.body, second.messageId, second.deliveryCount];
await receiver.deadLetterMessage(second, { deadLetterReason: "why", deadLetterErrorDescription: "because" });
const deadLetters = client.createReceiver(queue, { subQueueType: "deadLetter" });
const dead = await next(deadLetters);
found.dead = [dead.body, dead.deadLetterReason, dead.deadLetterErrorDescription, dead.deadLetterSource];
await deadLetters.completeMessage(dead);

const numbers = await sender.scheduleMessages([{ body: "later" }], new Date(Date.now() + 3600e3));
found.scheduled = numbers.map(Number);
await sender.cancelScheduledMessages(numbers);
found.cancelledTwice = await refused(sender.cancelScheduledMessages(numbers));

found.subscribed = await new Promise((done, fail) => {
  const bodies = [];
  receiver.subscribe({
    processMessage: async ({ body }) => {
      bodies.push(body);
      if (bodies.length === 2) done(bodies);
    },
    processError: async ({ error }) => fail(error),
  });
});

await client.createSender(topic).sendMessages({ body: "for all" });
const subscribed = client.createReceiver(topic, subscription);
const copy = await next(subscribed);
found.topic = copy.body;
await subscribed.deferMessage(copy);
const [back] = await subscribed.receiveDeferredMessages([copy.sequenceNumber]);
found.deferred = [back.body, back.state, back.sequenceNumber.toString() === copy.sequenceNumber.toString()];
await subscribed.completeMessage(back);
found.deferredTwice = await refused(subscribed.receiveDeferredMessages([copy.sequenceNumber]));

await client.createSender(sessions).sendMessages(
  ["a1", "b1", "a2"].map((body) => ({ body, sessionId: body[0] })),
);
const session = await client.acceptNextSession(sessions);
found.sessionBusy = await refused(client.acceptSession(sessions, "a"));
const bodies = [];
while (bodies.length < 2) {
  const message = await next(session);
  bodies.push(message.body);
  await session.completeMessage(message);
}
const none = await session.getSessionState();
await session.setSessionState("state");
const renewed = (await session.renewSessionLock()) > new Date();
const other = await client.acceptSession(sessions, "b");
found.session = [session.sessionId, bodies, none ?? null, await session.getSessionState(), renewed, other.sessionId];
await client.close();
console.log(JSON.stringify(found));
