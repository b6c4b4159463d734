// Messages that a TransactionScope schedules and cancels: CONNECTION_STRING ADMINISTRATION_STRING NAMES.
using System.Transactions;
using Azure.Messaging.ServiceBus.Administration;

public static class Schedules
{
    static TransactionScope Scope() => new(TransactionScopeAsyncFlowOption.Enabled);

    public static async Task Run(string[] arguments)
    {
        var (queue, name) = ($"{arguments[2]}/queue", $"{arguments[2]}/topic");
        var administration = new ServiceBusAdministrationClient(arguments[1]);
        await administration.CreateQueueAsync(queue);
        await administration.CreateTopicAsync(name);
        await administration.CreateSubscriptionAsync(name, "all");
        await using var client = new ServiceBusClient(arguments[0], Report.Once());
        await using var sender = client.CreateSender(queue);
        await using var receiver = client.CreateReceiver(queue);
        await using var topic = client.CreateSender(name);
        await using var subscriber = client.CreateReceiver(name, "all");
        var later = DateTimeOffset.UtcNow.AddHours(1);

        long committed;
        using (var scope = Scope())
        {
            committed = await sender.ScheduleMessageAsync(new ServiceBusMessage("committed"), later);
            Report.Found("before the commit", (await receiver.PeekMessagesAsync(10)).Count);
            scope.Complete();
        }
        Report.Found("after the commit", await Peeked(receiver));
        Report.Found("its number is that of the answer", (await receiver.PeekMessageAsync(committed))?.SequenceNumber == committed);

        using (Scope())
        {
            await sender.ScheduleMessagesAsync(new[] { new ServiceBusMessage("lost"), new ServiceBusMessage("too") }, later);
            await sender.CancelScheduledMessageAsync(committed);
        }
        await Task.Delay(500);
        Report.Found("after a rollback", await Peeked(receiver));

        long[] numbers;
        using (var scope = Scope())
        {
            await sender.CancelScheduledMessageAsync(committed);
            numbers = (await sender.ScheduleMessagesAsync(new[] { new ServiceBusMessage("one"), new ServiceBusMessage("two") }, later)).ToArray();
            await sender.SendMessageAsync(new ServiceBusMessage("at once"));
            scope.Complete();
        }
        Report.Found("replaced", await Peeked(receiver));
        await sender.CancelScheduledMessagesAsync(numbers);
        Report.Found("cancelled by the numbers", await Peeked(receiver));

        Report.Found("cancelled twice", await Report.Failure(async () =>
        {
            using var scope = Scope();
            await sender.CancelScheduledMessageAsync(numbers[0]);
            scope.Complete();
        }));

        using (var scope = Scope())
        {
            await sender.ScheduleMessageAsync(new ServiceBusMessage("soon"), DateTimeOffset.UtcNow.AddMilliseconds(10));
            await Task.Delay(50);
            scope.Complete();
        }
        Report.Found("due at the commit", (await receiver.ReceiveMessagesAsync(10, TimeSpan.FromSeconds(5))).Select(each => each.Body.ToString()).First());

        using (var scope = Scope())
        {
            await topic.ScheduleMessageAsync(new ServiceBusMessage("by the topic"), DateTimeOffset.UtcNow.AddSeconds(1));
            scope.Complete();
        }
        Report.Found("topic", (await subscriber.ReceiveMessageAsync(TimeSpan.FromSeconds(20)))?.Body.ToString());
    }

    static async Task<string> Peeked(ServiceBusReceiver receiver)
    {
        var found = await receiver.PeekMessagesAsync(10, 0);
        return string.Join(" ", found.Select(each => $"{each.Body}:{each.State}").OrderBy(each => each));
    }
}
