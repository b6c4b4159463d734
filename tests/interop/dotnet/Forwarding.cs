// ForwardTo of queues and subscriptions: CONNECTION_STRING ADMINISTRATION_STRING PREFIX.
using Azure.Messaging.ServiceBus.Administration;

public static class Forwarding
{
    public static async Task Run(string[] arguments)
    {
        var prefix = arguments[2];
        var administration = new ServiceBusAdministrationClient(arguments[1]);
        await using var client = new ServiceBusClient(arguments[0], Report.Once());

        async Task Send(string name, params string[] texts)
        {
            await using var sender = client.CreateSender(name);
            await sender.SendMessagesAsync(texts.Select(text => new ServiceBusMessage(text)));
        }

        async Task<List<ServiceBusReceivedMessage>> Take(ServiceBusReceiver receiver, int count)
        {
            var found = new List<ServiceBusReceivedMessage>();
            while (found.Count < count)
            {
                var more = await receiver.ReceiveMessagesAsync(count - found.Count, TimeSpan.FromSeconds(20));
                if (more.Count == 0)
                    break;
                found.AddRange(more);
            }
            foreach (var message in found)
                await receiver.CompleteMessageAsync(message);
            return found;
        }

        async Task<string> Texts(string name, int count, SubQueue sub = SubQueue.None)
        {
            await using var receiver = client.CreateReceiver(name, new ServiceBusReceiverOptions { SubQueue = sub });
            return string.Join(" ", (await Take(receiver, count)).Select(message => message.Body.ToString()));
        }

        // A subscription, and a chain of queues behind it.
        await administration.CreateQueueAsync($"{prefix}/last");
        await administration.CreateQueueAsync(new CreateQueueOptions($"{prefix}/middle") { ForwardTo = $"{prefix}/last" });
        await administration.CreateTopicAsync($"{prefix}/topic");
        var subscription = await administration.CreateSubscriptionAsync(
            new CreateSubscriptionOptions($"{prefix}/topic", "forwards") { ForwardTo = $"{prefix}/middle" });
        Report.Found("shown", new Uri(subscription.Value.ForwardTo).AbsolutePath);
        await Send($"{prefix}/topic", "one", "two");
        Report.Found("subscription", await Texts($"{prefix}/last", 2));

        // Messages that were there before, and those to a queue that forwards to a topic.
        await administration.CreateQueueAsync($"{prefix}/source");
        await Send($"{prefix}/source", "three", "four");
        QueueProperties source = await administration.GetQueueAsync($"{prefix}/source");
        source.ForwardTo = $"{prefix}/topic";
        await administration.UpdateQueueAsync(source);
        Report.Found("before", await Texts($"{prefix}/last", 2));
        await Send($"{prefix}/source", "five");
        Report.Found("queue", await Texts($"{prefix}/last", 1));
        await using (var receiver = client.CreateReceiver($"{prefix}/source"))
            Report.Found("receiver", await Report.Failure(() => receiver.ReceiveMessageAsync(TimeSpan.FromSeconds(5))));
        await using (var sender = client.CreateSender($"{prefix}/source"))
            await sender.ScheduleMessageAsync(new ServiceBusMessage("six"), DateTimeOffset.UtcNow.AddSeconds(1));
        Report.Found("scheduled", await Texts($"{prefix}/last", 1));

        // What can't be set.
        Report.Found("missing", await Report.Failure(() => administration.CreateQueueAsync(
            new CreateQueueOptions($"{prefix}/lost") { ForwardTo = $"{prefix}/nowhere" })));
        QueueProperties last = await administration.GetQueueAsync($"{prefix}/last");
        last.ForwardTo = $"{prefix}/source";
        Report.Found("cycle", await Report.Failure(() => administration.UpdateQueueAsync(last)));

        // A target that is disabled: the sender is not held up, and the message is a dead letter of the transfer.
        last = await administration.GetQueueAsync($"{prefix}/last");
        last.Status = EntityStatus.SendDisabled;
        await administration.UpdateQueueAsync(last);
        await Send($"{prefix}/middle", "seven");
        await using (var receiver = client.CreateReceiver($"{prefix}/middle", new ServiceBusReceiverOptions { SubQueue = SubQueue.TransferDeadLetter }))
        {
            var message = await receiver.PeekMessageAsync();
            for (var attempt = 0; message is null && attempt < 100; attempt++)
            {
                await Task.Delay(100);
                message = await receiver.PeekMessageAsync();
            }
            QueueRuntimeProperties counts = await administration.GetQueueRuntimePropertiesAsync($"{prefix}/middle");
            Report.Found("counts", $"{counts.ActiveMessageCount} {counts.TransferMessageCount} {counts.TransferDeadLetterMessageCount}");
            var letter = (await Take(receiver, 1)).Single();
            Report.Found("letter", $"{letter.Body} {letter.DeadLetterReason} {letter.DeadLetterSource}");
        }

        // More than four hops.
        await administration.CreateQueueAsync($"{prefix}/hop6");
        for (var number = 5; number > 0; number--)
            await administration.CreateQueueAsync(
                new CreateQueueOptions($"{prefix}/hop{number}") { ForwardTo = $"{prefix}/hop{number + 1}" });
        await Send($"{prefix}/hop2", "eight");
        Report.Found("four hops", await Texts($"{prefix}/hop6", 1));
        await Send($"{prefix}/hop1", "nine");
        await using (var receiver = client.CreateReceiver($"{prefix}/hop5", new ServiceBusReceiverOptions { SubQueue = SubQueue.DeadLetter }))
        {
            var letter = (await Take(receiver, 1)).Single();
            Report.Found("five hops", $"{letter.Body} {letter.DeadLetterReason}");
        }
    }
}
