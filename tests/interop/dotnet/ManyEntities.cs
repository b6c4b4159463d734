// One client with a receiver, a sender and a renewed lock at each of many entities: CONNECTION_STRING PREFIX COUNT.
public static class ManyEntities
{
    public static async Task Run(string[] arguments)
    {
        await using var client = new ServiceBusClient(arguments[0], Report.Once());
        var names = Enumerable.Range(0, int.Parse(arguments[2])).Select(number => $"{arguments[1]}/{number}").ToList();
        var senders = names.Select(client.CreateSender).ToList();
        await Task.WhenAll(senders.Select(sender => sender.SendMessageAsync(new ServiceBusMessage(sender.EntityPath))));
        var receivers = names.Select(client.CreateReceiver).ToList();
        var messages = await Task.WhenAll(receivers.Select(receiver => receiver.ReceiveMessageAsync(TimeSpan.FromSeconds(60))));
        Report.Found("own", receivers.Zip(messages).Count(pair => pair.Second?.Body.ToString() == pair.First.EntityPath));
        // Renewals are requests, for which the client has two more links at each entity.
        var ends = messages.Select(message => message.LockedUntil).ToList();
        await Task.WhenAll(receivers.Zip(messages, (receiver, message) => receiver.RenewMessageLockAsync(message)));
        Report.Found("renewed", messages.Zip(ends).Count(pair => pair.First.LockedUntil > pair.Second));
        await Task.WhenAll(receivers.Zip(messages, (receiver, message) => receiver.CompleteMessageAsync(message)));
        var left = await Task.WhenAll(receivers.Select(receiver => receiver.PeekMessageAsync()));
        Report.Found("left", left.Count(message => message is not null));
    }
}
