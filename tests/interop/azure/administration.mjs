// Every call of @azure/service-bus's administration client that azure.md promises: prints what each found as JSON.
import { ServiceBusAdministrationClient } from "@azure/service-bus";

const [connectionString, prefix] = process.argv.slice(2);
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
const partitioned = await refused(client.createQueue(`${queue}/other`, { enablePartitioning: true }));
found.refused = [partitioned.code, partitioned.statusCode, partitioned.message.includes("EnablePartitioning")];
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
await client.createRule(topic, "first", "equal", { applicationProperties: { colour: "red", number: 1.5 } });
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
console.log(JSON.stringify(found));
