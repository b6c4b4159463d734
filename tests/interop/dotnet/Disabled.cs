// The status of a queue and of a subscription: CONNECTION_STRING ADMINISTRATION_STRING QUEUE.
using Azure.Messaging.ServiceBus.Administration;

public static class Disabled
{
    public static async Task Run(string[] arguments)
    {
        var queue = arguments[2];
        var administration = new ServiceBusAdministrationClient(arguments[1]);
        // A call whose link ends meanwhile is a ServiceCommunicationProblem to the SDK, which tries it again.
        var again = new ServiceBusRetryOptions { Mode = ServiceBusRetryMode.Fixed, Delay = TimeSpan.FromMilliseconds(50), MaxRetries = 3, TryTimeout = TimeSpan.FromSeconds(20) };
        await using var client = new ServiceBusClient(arguments[0], new ServiceBusClientOptions { RetryOptions = again });
        await administration.CreateQueueAsync(queue);
        await using var sender = client.CreateSender(queue);
        await using var receiver = client.CreateReceiver(queue);
        await sender.SendMessageAsync(new ServiceBusMessage("one"));
        await receiver.PeekMessageAsync();
        foreach (var status in new[] { EntityStatus.Disabled, EntityStatus.SendDisabled, EntityStatus.ReceiveDisabled, EntityStatus.Active })
        {
            QueueProperties properties = await administration.GetQueueAsync(queue);
            properties.Status = status;
            properties = await administration.UpdateQueueAsync(properties);
            Report.Found($"{status} is shown", properties.Status == status);
            Report.Found($"{status} send", await Report.Failure(() => sender.SendMessageAsync(new ServiceBusMessage("more"))));
            Report.Found($"{status} schedule", await Report.Failure(() => sender.ScheduleMessageAsync(new ServiceBusMessage("later"), DateTimeOffset.UtcNow.AddDays(1))));
            Report.Found($"{status} receive", await Report.Failure(() => receiver.ReceiveMessageAsync(TimeSpan.FromSeconds(5))));
            Report.Found($"{status} deferred", await Report.Failure(() => receiver.ReceiveDeferredMessageAsync(1)));
        }
        // A receiver that waits gets nothing, and the next call gets the reason.
        await using var waiting = client.CreateReceiver(queue, new ServiceBusReceiverOptions { SubQueue = SubQueue.DeadLetter });
        await receiver.ReceiveMessagesAsync(10, TimeSpan.FromSeconds(1));
        var received = Report.Failure(() => receiver.ReceiveMessageAsync(TimeSpan.FromSeconds(60)));
        var dead = Report.Failure(() => waiting.ReceiveMessageAsync(TimeSpan.FromSeconds(2)));
        QueueProperties last = await administration.GetQueueAsync(queue);
        last.Status = EntityStatus.Disabled;
        await administration.UpdateQueueAsync(last);
        Report.Found("a waiting receiver", await received);
        Report.Found("its next call", await Report.Failure(() => receiver.ReceiveMessageAsync(TimeSpan.FromSeconds(5))));
        Report.Found("a waiting receiver of dead letters", await dead);
    }
}
