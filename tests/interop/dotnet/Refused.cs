// Links that Service Bus refuses: CONNECTION_STRING ADMINISTRATION_STRING PREFIX.
using Azure.Messaging.ServiceBus.Administration;

public static class Refused
{
    public static async Task Run(string[] arguments)
    {
        string plain = $"{arguments[2]}/plain", sessions = $"{arguments[2]}/sessions", topic = $"{arguments[2]}/topic";
        var administration = new ServiceBusAdministrationClient(arguments[1]);
        await using var client = new ServiceBusClient(arguments[0], Report.Once());
        await administration.CreateQueueAsync(plain);
        await administration.CreateQueueAsync(new CreateQueueOptions(sessions) { RequiresSession = true });
        await administration.CreateTopicAsync(topic);
        await administration.CreateSubscriptionAsync(topic, "all");
        await administration.CreateSubscriptionAsync(new CreateSubscriptionOptions(topic, "sessions") { RequiresSession = true });
        var wait = TimeSpan.FromSeconds(2);

        async Task Receive(ServiceBusReceiver receiver)
        {
            await using (receiver)
                await receiver.ReceiveMessageAsync(wait);
        }

        async Task Send(string name)
        {
            await using var sender = client.CreateSender(name);
            await sender.SendMessageAsync(new ServiceBusMessage("one"));
        }

        async Task Schedule(string name)
        {
            await using var sender = client.CreateSender(name);
            await sender.ScheduleMessageAsync(new ServiceBusMessage("one"), DateTimeOffset.UtcNow.AddDays(1));
        }

        Report.Found("receiver of a queue with sessions", await Report.Failure(() => Receive(client.CreateReceiver(sessions))));
        Report.Found("receiver of a subscription with sessions", await Report.Failure(() => Receive(client.CreateReceiver(topic, "sessions"))));
        Report.Found("receiver of its dead letters", await Report.Failure(() => Receive(client.CreateReceiver(
            sessions, new ServiceBusReceiverOptions { SubQueue = SubQueue.DeadLetter }))));
        Report.Found("peek at a queue with sessions", await Report.Failure(() => client.CreateReceiver(sessions).PeekMessageAsync()));
        Report.Found("session of a plain queue", await Report.Failure(() => client.AcceptSessionAsync(plain, "one")));
        Report.Found("next session of a plain subscription", await Report.Failure(() => client.AcceptNextSessionAsync(topic, "all")));
        Report.Found("receiver of a topic", await Report.Failure(() => Receive(client.CreateReceiver(topic))));
        Report.Found("session of a topic", await Report.Failure(() => client.AcceptSessionAsync(topic, "one")));
        Report.Found("peek at a topic", await Report.Failure(() => client.CreateReceiver(topic).PeekMessageAsync()));
        foreach (var name in new[] { $"{topic}/Subscriptions/all", $"{topic}/subscriptions/all/$DeadLetterQueue", $"{plain}/$DeadLetterQueue", $"{plain}/$deadletterqueue" })
        {
            var shown = name[(arguments[2].Length + 1)..];
            Report.Found($"send to {shown}", await Report.Failure(() => Send(name)));
            Report.Found($"schedule at {shown}", await Report.Failure(() => Schedule(name)));
        }
        Report.Found("send to a queue", await Report.Failure(() => Send(plain)));
        Report.Found("send to a topic", await Report.Failure(() => Send(topic)));
        Report.Found("receive from a queue", await Report.Failure(() => Receive(client.CreateReceiver(plain))));
    }
}
