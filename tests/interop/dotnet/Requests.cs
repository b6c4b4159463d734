// Requests of any number of messages, and what refused ones are answered with: CONNECTION_STRING QUEUE DUPLICATES SMALL.
public static class Requests
{
    public static async Task Run(string[] arguments)
    {
        await using var client = new ServiceBusClient(arguments[0], Report.Once());
        var later = DateTimeOffset.UtcNow.AddHours(1);
        var sender = client.CreateSender(arguments[1]);
        var numbers = await sender.ScheduleMessagesAsync(Messages(1200), later);
        Report.Found("numbers", numbers.Zip(numbers.Skip(1)).All(pair => pair.First + 1 == pair.Second) ? numbers.Count : 0);
        Report.Found("cancel", await Report.Failure(() => sender.CancelScheduledMessagesAsync(numbers)));
        Report.Found("again", await Report.Failure(() => sender.CancelScheduledMessagesAsync(numbers)));
        var large = new ServiceBusMessage(new byte[1_100_000]);
        Report.Found("large", await Report.Failure(() => sender.ScheduleMessageAsync(large, later)));
        // The links of requests are still there.
        Report.Found("after", await Report.Failure(() => sender.ScheduleMessageAsync(new ServiceBusMessage("a"), later)));

        await sender.SendMessagesAsync(Messages(600));
        var receiver = client.CreateReceiver(arguments[1]);
        var received = new List<ServiceBusReceivedMessage>();
        while (received.Count < 600)
            received.AddRange(await receiver.ReceiveMessagesAsync(600 - received.Count, TimeSpan.FromSeconds(30)));
        await Task.WhenAll(received.Select(message => receiver.DeferMessageAsync(message)));
        var deferred = await receiver.ReceiveDeferredMessagesAsync(received.Select(message => message.SequenceNumber));
        Report.Found("deferred", deferred.Count);

        var twice = client.CreateSender(arguments[2]);
        var one = await twice.ScheduleMessageAsync(new ServiceBusMessage("a") { MessageId = "1" }, later);
        var two = await twice.ScheduleMessagesAsync([new("b") { MessageId = "2" }, new("a") { MessageId = "1" }], later);
        Report.Found("equal", two[1] == one && two[0] != one);

        var small = client.CreateSender(arguments[3]);
        var both = new List<ServiceBusMessage> { new("a"), new(new byte[100_000]) };
        Report.Found("whole", await Report.Failure(() => small.ScheduleMessagesAsync(both, later)));
        Report.Found("left", (await client.CreateReceiver(arguments[3]).PeekMessagesAsync(10)).Count);
    }

    private static List<ServiceBusMessage> Messages(int count) =>
        Enumerable.Range(0, count).Select(number => new ServiceBusMessage($"{number}")).ToList();
}
