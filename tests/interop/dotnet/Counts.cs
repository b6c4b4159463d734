// Counts, times and places of messages: CONNECTION_STRING ADMINISTRATION_STRING PREFIX.
public static class Counts
{
    public static async Task Run(string[] arguments)
    {
        var administration = new ServiceBusAdministrationClient(arguments[1]);
        await using var client = new ServiceBusClient(arguments[0], Report.Once());
        await DeadLetters(client, administration, arguments[2] + "/dead");
        await Schedules(client, administration, arguments[2] + "/scheduled");
        await Topic(client, administration, arguments[2] + "/topic");
        await Lifetimes(client, administration, arguments[2] + "/life");
    }

    private static async Task DeadLetters(
        ServiceBusClient client, ServiceBusAdministrationClient administration, string queue)
    {
        await administration.CreateQueueAsync(queue + "/failed");
        await administration.CreateQueueAsync(new CreateQueueOptions(queue) { ForwardDeadLetteredMessagesTo = queue + "/failed" });
        var receiver = client.CreateReceiver(queue);
        await client.CreateSender(queue).SendMessageAsync(new ServiceBusMessage("bad"));
        await receiver.DeadLetterMessageAsync(await receiver.ReceiveMessageAsync(), "why", "because");
        var failed = client.CreateReceiver(queue + "/failed");
        var forwarded = await failed.ReceiveMessageAsync(TimeSpan.FromSeconds(20));
        Report.Found(
            "forwarded",
            new[] { forwarded.DeadLetterReason, forwarded.DeadLetterErrorDescription, forwarded.DeadLetterSource == queue ? "source" : "" });
        await failed.DeadLetterMessageAsync(forwarded);
        var dead = client.CreateReceiver(
            queue + "/failed", new ServiceBusReceiverOptions { SubQueue = SubQueue.DeadLetter });
        var again = await dead.ReceiveMessageAsync(TimeSpan.FromSeconds(20));
        Report.Found("refused", await Report.Failure(() => dead.DeadLetterMessageAsync(again, "again")));
        Report.Found("left", (await dead.PeekMessagesAsync(10, 1)).Count);
    }

    private static async Task Schedules(
        ServiceBusClient client, ServiceBusAdministrationClient administration, string queue)
    {
        await administration.CreateQueueAsync(new CreateQueueOptions(queue) { DeadLetteringOnMessageExpiration = true });
        var sender = client.CreateSender(queue);
        await sender.SendMessageAsync(new ServiceBusMessage("first"));
        var due = DateTimeOffset.UtcNow.AddSeconds(3);
        await sender.ScheduleMessageAsync(new ServiceBusMessage("requested") { TimeToLive = TimeSpan.FromSeconds(2) }, due.AddSeconds(1));
        await sender.SendMessageAsync(
            new ServiceBusMessage("sent") { TimeToLive = TimeSpan.FromSeconds(2), ScheduledEnqueueTime = due });
        await sender.SendMessageAsync(new ServiceBusMessage("last"));
        var receiver = client.CreateReceiver(queue);
        var found = new List<string>();
        while (found.Count < 4)
        {
            var message = await receiver.ReceiveMessageAsync(TimeSpan.FromSeconds(20));
            var scheduled = message.ScheduledEnqueueTime > DateTimeOffset.UnixEpoch;
            var shown = $"{message.Body} {message.SequenceNumber}";
            if (scheduled)
            {
                var isLate = message.EnqueuedTime >= message.ScheduledEnqueueTime.AddMilliseconds(-1);
                shown += $" {isLate} {message.ExpiresAt - message.EnqueuedTime}";
            }
            found.Add(shown);
            await receiver.CompleteMessageAsync(message);
        }
        Report.Found("scheduled", found);
        Report.Found("dead", (await administration.GetQueueRuntimePropertiesAsync(queue)).Value.DeadLetterMessageCount);
    }

    private static async Task Topic(
        ServiceBusClient client, ServiceBusAdministrationClient administration, string topic)
    {
        var options = new CreateTopicOptions(topic)
        {
            MaxSizeInMegabytes = 2, RequiresDuplicateDetection = true, EnablePartitioning = true, SupportOrdering = false,
        };
        var made = (await administration.CreateTopicAsync(options)).Value;
        Report.Found("topic", new object[] { made.MaxSizeInMegabytes, made.RequiresDuplicateDetection, made.EnablePartitioning, made.SupportOrdering });
        foreach (var name in new[] { "a", "b" })
            await administration.CreateSubscriptionAsync(topic, name);
        var sender = client.CreateSender(topic);
        await sender.SendMessageAsync(new ServiceBusMessage("first") { MessageId = "1" });
        await sender.SendMessageAsync(new ServiceBusMessage("again") { MessageId = "1" });
        await sender.SendMessageAsync(new ServiceBusMessage(new byte[1_000_000]) { MessageId = "2" });
        await sender.SendMessageAsync(new ServiceBusMessage(new byte[1_000_000]) { MessageId = "3" });
        Report.Found("full", await Report.Failure(() => sender.SendMessageAsync(new ServiceBusMessage(new byte[1_000_000]))));
        await sender.ScheduleMessageAsync(new ServiceBusMessage("later"), DateTimeOffset.UtcNow.AddHours(1));
        Report.Found("scheduled in topic", (await administration.GetTopicRuntimePropertiesAsync(topic)).Value.ScheduledMessageCount);
        var receiver = client.CreateReceiver(topic, "a");
        var first = await receiver.ReceiveMessageAsync();
        Report.Found("numbers", first.EnqueuedSequenceNumber == first.SequenceNumber);
        await receiver.DeferMessageAsync(first);
        Report.Found("active", (await administration.GetSubscriptionRuntimePropertiesAsync(topic, "a")).Value.ActiveMessageCount);
    }

    private static async Task Lifetimes(
        ServiceBusClient client, ServiceBusAdministrationClient administration, string queue)
    {
        await administration.CreateQueueAsync(new CreateQueueOptions(queue) { DefaultMessageTimeToLive = TimeSpan.FromDays(100) });
        var receiver = client.CreateReceiver(queue);
        var found = new List<string>();
        foreach (var life in new[] { TimeSpan.MaxValue, TimeSpan.FromDays(60), TimeSpan.FromDays(200), TimeSpan.FromHours(1) })
        {
            await client.CreateSender(queue).SendMessageAsync(new ServiceBusMessage("a") { TimeToLive = life });
            var peeked = (await receiver.PeekMessagesAsync(10, 1)).Single();
            var received = await receiver.ReceiveMessageAsync();
            var rounded = TimeSpan.FromMinutes(Math.Round(received.TimeToLive.TotalMinutes));
            found.Add(received.TimeToLive == peeked.TimeToLive ? $"{rounded}" : "unlike");
            await receiver.CompleteMessageAsync(received);
        }
        Report.Found("lives", found);
    }
}
