// What the samples of the emulator of Azure Service Bus do, with its connection string: the entities are those of
// its Config.json. Arguments: the connection string, and that for administration.
using Azure.Messaging.ServiceBus;
using Azure.Messaging.ServiceBus.Administration;

public static class Emulator
{
    public static async Task Run(string[] arguments)
    {
        await using var client = new ServiceBusClient(arguments[0]);
        await using var sender = client.CreateSender("queue.1");
        using var batch = await sender.CreateMessageBatchAsync();
        for (var number = 1; number <= 3; number++)
        {
            batch.TryAddMessage(new ServiceBusMessage($"Message {number}"));
        }
        await sender.SendMessagesAsync(batch);
        Report.Found("queue", await Bodies(client.CreateReceiver("queue.1"), 3));

        await using var topic = client.CreateSender("topic.1");
        await topic.SendMessageAsync(new ServiceBusMessage("all")
        {
            ContentType = "application/text", CorrelationId = "id1", Subject = "subject1", MessageId = "msgid1",
            ReplyTo = "someQueue", ReplyToSessionId = "sessionId", SessionId = "session1", To = "xyz",
        });
        await topic.SendMessageAsync(new ServiceBusMessage("one") { ApplicationProperties = { ["prop1"] = "value1" } });
        await topic.SendMessageAsync(new ServiceBusMessage("sql")
        {
            MessageId = "123456", ApplicationProperties = { ["userProp1"] = "value1" },
        });
        Report.Found("subscription.1", await Bodies(client.CreateReceiver("topic.1", "subscription.1"), 1));
        Report.Found("subscription.2", await Bodies(client.CreateReceiver("topic.1", "subscription.2"), 1));
        Report.Found("subscription.3", await Bodies(client.CreateReceiver("topic.1", "subscription.3"), 3));
        var changed = await client.CreateReceiver("topic.1", "subscription.4").ReceiveMessageAsync();
        Report.Found("subscription.4", $"{changed.Body} to {changed.To}");

        await using var missing = new ServiceBusClient(arguments[0], Report.Once());
        var unknown = missing.CreateSender("no such queue");
        Report.Found("missing", await Report.Failure(() => unknown.SendMessageAsync(new ServiceBusMessage("lost"))));

        var administration = new ServiceBusAdministrationClient(arguments[1]);
        var queue = (await administration.GetQueueAsync("queue.1")).Value;
        Report.Found("lock", queue.LockDuration.TotalSeconds);
        Report.Found("deliveries", queue.MaxDeliveryCount);
        queue.MaxDeliveryCount = 7;
        await administration.UpdateQueueAsync(queue);
        await sender.SendMessageAsync(new ServiceBusMessage("kept"));
    }

    private static async Task<List<string>> Bodies(ServiceBusReceiver receiver, int count)
    {
        var found = new List<string>();
        while (found.Count < count && await receiver.ReceiveMessageAsync(TimeSpan.FromSeconds(10)) is { } message)
        {
            found.Add(message.Body.ToString());
            await receiver.CompleteMessageAsync(message);
        }
        return found;
    }
}
