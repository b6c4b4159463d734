// Every call of @azure/service-bus's administration client that azure.md promises, and rules over AMQP: prints JSON.
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";

const [connectionString, amqp, prefix] = process.argv.slice(2);
const client = new ServiceBusAdministrationClient(connectionString, { retryOptions: { maxRetries: 0 } });
const [queue, topic] = [`${prefix}/js`, `${prefix}/topic`];
const found = {};

async function refused(work) {
  try {
    await work;
  } catch (error) {
    return error;
  }
  throw new Error("expected an error");
}

async function all(list) {
  const items = [];
  for await (const each of list) items.push(each);
  return items;
}

const made = await client.createQueue(queue, { lockDuration: "PT30S" });
found.made = [made.name, made.lockDuration, made.maxDeliveryCount, made.status, made.requiresSession];
const again = await refused(client.createQueue(queue));
found.again = [again.code, again.statusCode];
const missing = await refused(client.getQueue(`${queue}/missing`));
found.missing = [await client.queueExists(`${queue}/missing`), missing.code, missing.statusCode];
const unlocked = await refused(client.createQueue(`${queue}/other`, { lockDuration: "PT0S" }));
found.refused = [unlocked.code, unlocked.statusCode, unlocked.message.includes("LockDuration")];
const updated = await client.updateQueue({ ...(await client.getQueue(queue)), maxDeliveryCount: 4 });
found.updated = [updated.maxDeliveryCount, updated.lockDuration];
const counts = await client.getQueueRuntimeProperties(queue);
found.counts = [counts.activeMessageCount, counts.totalMessageCount, counts.transferMessageCount];
found.queues = (await all(client.listQueues())).map((each) => each.name).filter((name) => name.startsWith(prefix));

await client.createTopic(topic);
await client.createSubscription(topic, "first", {
  defaultRuleOptions: { name: "only", filter: { sqlExpression: "a = 1" }, action: { sqlExpression: "SET sys.Label = 'x'" } },
});
await client.createSubscription(topic, "second");
const subscription = await client.getSubscription(topic, "first");
const [only] = await all(client.listRules(topic, "first"));
found.subscription = [subscription.subscriptionName, subscription.topicName, only.name];
found.subscriptions = (await all(client.listSubscriptions(topic))).map((each) => each.subscriptionName);
await client.createRule(topic, "first", "equal", { applicationProperties: { colour: "red", number: 1.5, at: new Date(946684800000) } });
found.rules = (await all(client.listRules(topic, "first"))).map((each) => [
  each.name,
  each.filter.sqlExpression ?? each.filter.applicationProperties,
  each.action.sqlExpression ?? null,
]);
const rule = await client.getRule(topic, "first", "equal");
const changed = await client.updateRule(topic, "first", { ...rule, filter: { subject: "order" } });
found.updatedRule = [changed.filter.subject, changed.filter.applicationProperties ?? null];
await client.deleteRule(topic, "first", "equal");
const runtime = await client.getTopicRuntimeProperties(topic);
found.topic = [runtime.name, runtime.subscriptionCount];
found.namespace = (await client.getNamespaceProperties()).name;

await client.deleteSubscription(topic, "second");
await client.deleteTopic(topic);
await client.deleteQueue(queue);
found.left = [await client.topicExists(topic), await client.queueExists(queue)];

await client.createTopic(topic);
await client.createSubscription(topic, "ruled");
const messages = new ServiceBusClient(`${amqp};UseDevelopmentEmulator=true`, { retryOptions: { maxRetries: 0 } });
const rules = messages.createRuleManager(topic, "ruled");
await rules.createRule("red", { applicationProperties: { colour: "red" } }, { sqlExpression: "SET sys.Label = 'r'" });
await rules.createRule("dear", { sqlExpression: "price > 100" });
found.already = (await refused(rules.createRule("dear", { sqlExpression: "price > 100" }))).code;
await rules.deleteRule("$Default");
const given = (object) => Object.fromEntries(Object.entries(object).filter(([, value]) => value != null));
found.managed = (await all(rules.listRules())).map((each) => [each.name, given(each.filter), each.action]);
found.unreadable = (await refused(rules.createRule("bad", { sqlExpression: "price >" }))).message.includes("can't be used");
const sender = messages.createSender(topic);
const red = { applicationProperties: { colour: "red", price: 200 }, body: "red" };
await sender.sendMessages([red, { body: "neither" }]);
const receiver = messages.createReceiver(topic, "ruled", { receiveMode: "receiveAndDelete" });
const copies = [];
while (copies.length < 2) copies.push(...(await receiver.receiveMessages(2, { maxWaitTimeInMs: 20000 })));
found.copies = copies.map((each) => [each.body, each.subject ?? null]).sort();
await messages.close();
await client.deleteTopic(topic);

// A key of a topic: this client signs for the path of each request, in small letters.
const keys = { keyName: "own", primaryKey: "p".repeat(44), secondaryKey: "s".repeat(44) };
const ruled = `${prefix}/Ruled`;
const authorizationRules = [{ claimType: "SharedAccessKey", claimValue: "None", accessRights: ["Manage"], ...keys }];
const authorized = await client.createTopic(ruled, { authorizationRules });
found.authorized = authorized.authorizationRules.map((each) => [each.keyName, each.primaryKey, each.secondaryKey, each.accessRights]);
const own = new ServiceBusAdministrationClient(
  `${connectionString.split(";")[0]};SharedAccessKeyName=own;SharedAccessKey=${keys.secondaryKey}`, { retryOptions: { maxRetries: 0 } });
await own.createSubscription(ruled, "First");
found.owned = [(await own.getSubscription(ruled, "first")).subscriptionName, (await refused(own.createQueue(`${ruled}/below`))).statusCode];
await own.updateTopic({ ...(await own.getTopic(ruled)), authorizationRules: [] });
found.disowned = [(await refused(own.getTopic(ruled))).statusCode, (await client.getTopic(ruled)).authorizationRules ?? null];
await client.deleteTopic(ruled);
console.log(JSON.stringify(found));
