// Receivers of sessions: peeking, locks, deferral, dead letters, states, the session after its lock has ended.
public static class SessionReceivers
{
    public static async Task Run(Scene scene)
    {
        await using var client = new ServiceBusClient(scene.ConnectionString, Report.Once());
        await Task.WhenAll(Peeking(scene, client), Settling(scene, client), Locks(scene, client), Kinds(scene, client));
    }

    private static Task Send(ServiceBusClient client, string queue, int count, string session) =>
        client.CreateSender(queue).SendMessagesAsync(
            Enumerable.Range(0, count).Select(number => new ServiceBusMessage($"{number}") { SessionId = session }));

    private static Task<string> Queue(Scene scene, string name, TimeSpan? duration = null) => scene.Queue(name, options =>
    {
        (options.RequiresSession, options.LockDuration) = (true, duration ?? options.LockDuration);
    });

    private static string Joined(IEnumerable<ServiceBusReceivedMessage> messages) => string.Join("", messages.Select(message => message.Body));

    private static async Task Peeking(Scene scene, ServiceBusClient client)
    {
        var queue = await Queue(scene, "peek");
        foreach (var name in new[] { "1", "2", "3" })
            await Send(client, queue, 10, name);
        var own = new List<bool>();
        // More often than there are sessions: one that is closed is available again.
        for (var round = 0; round < 6; round++)
        {
            await using var receiver = await client.AcceptNextSessionAsync(queue);
            var all = await receiver.PeekMessagesAsync(10, 1);
            own.Add(all.Count == 10 && all.All(message => message.SessionId == receiver.SessionId));
        }
        scene.Found("own", own.Distinct());
        await using var second = await client.AcceptSessionAsync(queue, "2");
        var singles = new[] { await second.PeekMessageAsync(), await second.PeekMessageAsync() };
        var ranges = (await second.PeekMessagesAsync(3)).Concat(await second.PeekMessagesAsync(10));
        scene.Found("increments", Joined(singles.Concat(ranges)));
        scene.Found("beyond the end", (await second.PeekMessagesAsync(10, 10_000)).Count);
    }

    private static async Task Settling(Scene scene, ServiceBusClient client)
    {
        var queue = await Queue(scene, "settle");
        await Send(client, queue, 6, "s");
        var receiver = await client.AcceptNextSessionAsync(queue, new ServiceBusSessionReceiverOptions { PrefetchCount = 100 });
        var messages = new List<ServiceBusReceivedMessage>();
        while (messages.Count < 6)
            messages.AddRange(await receiver.ReceiveMessagesAsync(6, Scene.Patience));
        scene.Found("received", $"{Joined(messages)} {messages.Max(message => message.DeliveryCount)}");
        scene.Found("are peeked", Joined(await receiver.PeekMessagesAsync(10, 1)));
        await receiver.CompleteMessageAsync(messages[0]);
        await receiver.DeferMessageAsync(messages[1]);
        await receiver.DeadLetterMessageAsync(messages[2], "reason", "description");
        foreach (var message in messages.Skip(3))
            await receiver.AbandonMessageAsync(message);
        scene.Found("after their ends", Joined(await receiver.PeekMessagesAsync(10, 1)));
        var deferred = await receiver.ReceiveDeferredMessageAsync(messages[1].SequenceNumber);
        scene.Found("deferred", $"{deferred.Body} {deferred.State}");
        var until = receiver.SessionLockedUntil;
        await Task.Delay(20);
        await receiver.RenewSessionLockAsync();
        scene.Found("renewed", receiver.SessionLockedUntil > until);
        scene.Found("completed", await Report.Failure(() => receiver.CompleteMessageAsync(deferred)));
        scene.Found("again", string.Join(" ", await Scene.Texts(receiver, 3)));
        var dead = (await Scene.Take(client.CreateReceiver(queue, Scene.DeadLetters()), 1)).Single();
        scene.Found("dead", $"{dead.Body} {dead.SessionId} {dead.DeadLetterReason} {dead.DeadLetterErrorDescription}");
        scene.Found("no state", await receiver.GetSessionStateAsync() is null);
        foreach (var state in new[] { "first", "second" })
        {
            await receiver.SetSessionStateAsync(BinaryData.FromString(state));
            scene.Found($"state {state}", $"{await receiver.GetSessionStateAsync()}");
        }
        await receiver.SetSessionStateAsync(null);
        scene.Found("state ended", await receiver.GetSessionStateAsync() is null);
    }

    private static async Task Locks(Scene scene, ServiceBusClient client)
    {
        var queue = await Queue(scene, "locks", Scene.ShortLock);
        await Send(client, queue, 3, "s");
        var receiver = await client.AcceptSessionAsync(queue, "s");
        scene.Found("another receiver", await Report.Failure(() => client.AcceptSessionAsync(queue, "s")));
        scene.Found("another session", await Report.Failure(() => client.AcceptSessionAsync(queue, "t")));
        var first = await receiver.ReceiveMessageAsync();
        // This version of the client closes a receiver by itself when the lock of its session has ended, and says no more than that.
        await Scene.Until(() => receiver.IsClosed, "the lock has ended");
        scene.Found("lost", await Report.Failure(() => receiver.CompleteMessageAsync(first)));
        await using var second = await client.AcceptSessionAsync(queue, "s");
        var again = await second.ReceiveMessageAsync(Scene.Patience);
        scene.Found("again after the lock", $"{again.Body} {again.DeliveryCount}");
        scene.Found("completed in time", await Report.Failure(() => second.CompleteMessageAsync(again)));
        await second.CloseAsync();
        scene.Found("closed", await Report.Failure(() => client.AcceptSessionAsync(queue, "s")));
    }

    private static async Task Kinds(Scene scene, ServiceBusClient client)
    {
        var plain = await scene.Queue("plain");
        scene.Found("of a queue without sessions", await Report.Failure(() => client.AcceptSessionAsync(plain, "s")));
        scene.Found("next of a queue without sessions", await Report.Failure(() => client.AcceptNextSessionAsync(plain)));
        var other = await Queue(scene, "other");
        await using var without = client.CreateReceiver(other);
        scene.Found("without a session", await Report.Failure(() => without.ReceiveMessageAsync(Scene.Patience)));
        var topic = await scene.Topic("topic");
        await scene.Administration.CreateSubscriptionAsync(new CreateSubscriptionOptions(topic, "sub") { RequiresSession = true });
        await Send(client, topic, 4, "s");
        var options = new ServiceBusSessionReceiverOptions { ReceiveMode = ServiceBusReceiveMode.ReceiveAndDelete };
        await using var receiver = await client.AcceptSessionAsync(topic, "sub", "s", options);
        var texts = "";
        while (texts.Length < 4)
            texts += Joined(await receiver.ReceiveMessagesAsync(4, Scene.Patience));
        scene.Found("received and deleted", $"{texts} {await receiver.PeekMessageAsync(1) is null}");
    }
}
